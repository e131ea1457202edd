"""Whose request is this? The session and the conversation that a client's request names.

The gateway asks for each request, and keeps what it remembers under `state_key`
(spec/stop_message.md 3.2). Only places that clients fill on purpose are looked at: never
the text of the conversation, in which an id may merely be quoted (G11). Pure.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from midstream.messages.wire_body import as_object

_SESSION_HEADERS = (
    "sessionid",
    "xsessionid",
    "anthropicsessionid",
    "xclaudecodesessionid",
)
"""Folded names: `session_id` and `session-id` (Codex, pi) are one. The last is Claude
Code's own and not in the reference's list."""
_CONVERSATION_HEADERS = (
    "conversationid",
    "xconversationid",
    "anthropicconversationid",
    "openaiconversationid",
    "threadid",
)
"""`thread-id` is Codex's and not in the reference's list."""
_USER_ID = re.compile(r"session[_: -]?([0-9a-f]{8,}(?:-[0-9a-f]{4,}){0,5})", re.IGNORECASE)
_GENERATED_KEY = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[a-z]{2,12}_[0-9a-z]{20,}", re.IGNORECASE
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_KEPT_CHARS = 64
_HASH_CHARS = 12


class SessionIdentity(msgspec.Struct, frozen=True):
    """The ids that a request names. If it names one of the two, both have that value."""

    session_id: str
    conversation_id: str

    @property
    def state_key(self) -> str:
        """The key of this session's state in the store.

        Readable, safe as a file name, and different for different ids: what is replaced
        or cut is told apart by a hash (decision 12).
        """
        digest = hashlib.sha256(self.session_id.encode("utf-8", "surrogatepass")).hexdigest()
        readable = _UNSAFE.sub("_", self.session_id)[:_KEPT_CHARS]
        return f"session-{readable}-{digest[:_HASH_CHARS]}"


def identify_session(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
) -> SessionIdentity | None:
    """The session of a request, or None if nothing names one.

    Looked at in this order: what the host says (`metadata`: `sessionId`,
    `conversationId`), the body's `metadata` under the same names, the headers, the
    session within `metadata.user_id`, and `prompt_cache_key` where it is one that a
    client generates for each session (pi, omp, Codex) and not a word shared by many.
    """
    own = as_object(body.get("metadata")) or {}
    folded = {_fold(name): value for name, value in headers.items()}
    session_id = (
        _named(metadata or {}, "sessionId", "session_id")
        or _named(own, "sessionId", "session_id")
        or _named(folded, *_SESSION_HEADERS)
        or _in_user_id(own.get("user_id"))
        or _generated(body.get("prompt_cache_key"))
    )
    conversation_id = (
        _named(metadata or {}, "conversationId", "conversation_id")
        or _named(own, "conversationId", "conversation_id")
        or _named(folded, *_CONVERSATION_HEADERS)
    )
    either = session_id or conversation_id
    if either is None:
        return None
    return SessionIdentity(session_id or either, conversation_id or either)


def _fold(header_name: str) -> str:
    """Header names are compared without case, white space, `_` and `-`."""
    return re.sub(r"[\s_-]", "", header_name).lower()


def _named(fields: Mapping[str, Any], *names: str) -> str | None:
    return next((value for name in names if (value := _identifier(fields.get(name)))), None)


def _identifier(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _in_user_id(user_id: object) -> str | None:
    """The session in Anthropic's `metadata.user_id`: `user_..._session_<uuid>` in older
    clients, a JSON object with `session_id` in newer ones."""
    if not isinstance(user_id, str):
        return None
    if user_id.lstrip().startswith("{"):
        try:
            return _named(as_object(json.loads(user_id)) or {}, "session_id", "sessionId")
        except (ValueError, RecursionError):
            return None
    found = _USER_ID.search(user_id)
    return found[1] if found else None


def _generated(cache_key: object) -> str | None:
    key = _identifier(cache_key)
    return key if key and _GENERATED_KEY.fullmatch(key) else None
