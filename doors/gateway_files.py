"""Files that the messages of clients refer to with `@path`, for a gateway that is told to.

Many clients put files into their messages themselves; this is for those that do not. What a
message of the user refers to is read when the message is first seen, and stands behind its
text in every request that holds the message, since the client's own conversation never has
it. What goes out of the user's text is unchanged. Which files may be read, and how much of
them, the resolver knows (spec/file_ref.md).
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from midstream.actors.address import Address
from midstream.actors.clock import Clock
from midstream.actors.errors import AskFailed
from midstream.actors.file_attachment import alerts
from midstream.actors.file_ref_resolver import Resolved, ResolveRefs, ResolverMessage
from midstream.doors.gateway_wire import Json
from midstream.messages.alert import Alert, AlertLevel
from midstream.messages.directive_items import Speaker
from midstream.messages.wire_body import messages_key, speaker_of, texts_of
from midstream.providers.json_fields import list_of, object_of

RESOLVE_DEADLINE_S = 60.0
"""Seconds for all files of a message; each has its own deadline within them."""
KNOWN_LIMIT_BYTES = 64 * 1024 * 1024
"""Of attached texts that are remembered; the oldest are read again."""
ALERT_SOURCE = "file_ref"


class GatewayFiles:
    """See the module."""

    def __init__(self, resolver: Address[ResolverMessage], clock: Clock) -> None:
        self._resolver = resolver
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._known_bytes = 0

    async def attach(self, session: str, body: Json) -> tuple[Json, tuple[Alert, ...]]:
        """The request with the files that its user's messages refer to, and what could not
        be read of those that are new. The very same body where there are none."""
        key = messages_key(body)
        if key is None:
            return body, ()
        conversation: Any = body[key]
        entries = [conversation] if isinstance(conversation, str) else list_of(conversation)
        told: list[Alert] = []
        attached = [await self._attached(session, entry, key, told) for entry in entries]
        if all(new is old for new, old in zip(attached, entries, strict=True)):
            return body, tuple(told)
        return {**body, key: attached}, tuple(told)

    async def _attached(self, session: str, entry: Any, key: str, told: list[Alert]) -> Any:
        if speaker_of(entry, key) is not Speaker.USER:
            return entry
        is_text = isinstance(entry, str)
        message: Json = {"role": "user", "content": entry} if is_text else object_of(entry)
        content: Any = message.get("content")
        files: list[str] = []
        for text in texts_of(content):
            if "@" in text:
                files += await self._files(session, text, told)
        if not files:
            return entry
        kind = "input_text" if key == "input" else "text"
        parts = [{"type": kind, "text": content}] if isinstance(content, str) else list_of(content)
        return {**message, "content": [*parts, *({"type": kind, "text": one} for one in files)]}

    async def _files(self, session: str, text: str, told: list[Alert]) -> Sequence[str]:
        digest = blake2b(f"{session}\0{text}".encode("utf-8", "replace"), digest_size=16).digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known
        now_ms = self._clock.now_ms()
        try:
            resolved: Resolved = await self._resolver.ask(
                lambda reply: ResolveRefs(text, None, reply), RESOLVE_DEADLINE_S
            )
        except AskFailed as error:
            told.append(Alert(AlertLevel.WARN, ALERT_SOURCE, f"nobody could look: {error}", now_ms))
            return ()
        told += alerts(resolved.attachments.problems, resolved.segments, now_ms)
        files = tuple(item.text for item in resolved.attachments.items)
        self._remember(digest, files)
        return files

    def _remember(self, digest: bytes, files: tuple[str, ...]) -> None:
        self._known[digest] = files
        self._known_bytes += _size(files)
        while self._known_bytes > KNOWN_LIMIT_BYTES:
            _, dropped = self._known.popitem(last=False)
            self._known_bytes -= _size(dropped)


def _size(files: tuple[str, ...]) -> int:
    return 100 + sum(map(len, files))
