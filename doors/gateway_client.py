"""The client's side of one request through the gateway, over ASGI.

Reads the request, writes the answer, and knows when the client is gone. One request has one
`Client`; what it sends goes out in order, and a send waits while the client does not read,
which is all the back-pressure there is.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import trio
from starlette.types import Receive, Scope, Send

from midstream.messages.errors import MidstreamError

BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""Twice what Anthropic takes (platform.claude.com/docs/en/api/errors, request sizes)."""

Headers = Sequence[tuple[bytes, bytes]]

LAST_SEND_S = 1.0
"""How long a client may take for what is being written when its request is stopped."""

_SECRET_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key", b"cookie"))


class BodyTooLarge(MidstreamError):
    """The client's request is larger than the gateway takes."""


class ClientGone(MidstreamError):
    """The client left before its request was complete."""


class Client:
    """See the module."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.path = raw_path.partition(b"?")[0].decode("latin-1")
        self.query: bytes = scope.get("query_string", b"")
        self.headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self._receive = receive
        self._send = send
        self._turn = trio.Lock()
        self._to_cancel: list[trio.CancelScope] = []
        self._broken = False
        """Whether only a part of what was sent last went out, so that nothing can follow."""
        self.started = False
        """Whether the head of the answer was given to the server."""
        self.ended = False
        """Whether the last of the answer was given to the server."""
        self.gone = False
        """Whether the client has closed its connection, as far as was noticed."""
        self.sent_at_s = trio.current_time()

    def header(self, name: bytes) -> str:
        """The value of a header, empty without it."""
        return next((v.decode("latin-1") for n, v in self.headers if n.lower() == name), "")

    @cached_property
    def shown_headers(self) -> dict[str, str]:
        """The headers without those that hold a key, names in lower case."""
        return {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in self.headers
            if name.lower() not in _SECRET_HEADERS
        }

    async def read_body(self) -> bytes:
        """The whole request body. Raises `BodyTooLarge` and `ClientGone`."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("the client left before its request was complete")
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > BODY_LIMIT_BYTES:
                raise BodyTooLarge(f"the request is larger than {BODY_LIMIT_BYTES} bytes")
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def wait_gone(self) -> None:
        """Return when the client has closed its connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True

    async def start(self, status: int, headers: Headers) -> None:
        """The head of the answer."""
        await self._say(_head(status, headers))

    async def send(self, data: bytes) -> None:
        """More of the answer's body."""
        if not data:
            return
        await self._say(_body(data, is_last=False))

    async def end(self) -> None:
        """The answer is complete."""
        await self._say(_body(b"", is_last=True))

    async def answer_json(self, status: int, value: Any, headers: Headers = ()) -> None:
        """A whole answer of JSON."""
        await self.answer(status, msgspec.json.encode(value), b"application/json", headers)

    async def answer(
        self, status: int, body: bytes, content_type: bytes, headers: Headers = ()
    ) -> None:
        """A whole answer."""
        length = str(len(body)).encode()
        head = [(b"content-type", content_type), (b"content-length", length), *headers]
        await self.answer_whole(status, head, body)

    async def answer_whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer with these headers and no others."""
        await self._say(_head(status, headers), _body(body, is_last=True))

    async def _say(self, *messages: dict[str, Any]) -> None:
        """Together, and nothing between them. A turn that is free is taken without giving
        others theirs, which `async with` would do: sending does it anyway, and once for each
        delta is enough. What is cancelled already begins nothing: it would be cut."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            await self._turn.acquire()
        broken, self._broken = self._broken, True
        self.started = True
        self.ended = self.ended or not messages[-1].get("more_body", True)
        try:
            if not broken:
                self.sent_at_s = trio.current_time()
                for message in messages:
                    await self._send(message)
                self._broken = False
        finally:
            self._turn.release()
            self._cancel_now()

    def cancel_between_sends(self, scope: trio.CancelScope) -> None:
        """Cancel `scope`, in which somebody writes to this client: at once, or when what is
        being written is out, since nothing can follow half of a message.

        A client that does not read gets `LAST_SEND_S`; then it is sent nothing any more.
        """
        self._to_cancel.append(scope)
        if self._turn.locked():
            scope.deadline = min(scope.deadline, trio.current_time() + LAST_SEND_S)
        else:
            self._cancel_now()

    def _cancel_now(self) -> None:
        for scope in self._to_cancel:
            scope.cancel()
        self._to_cancel.clear()


def _head(status: int, headers: Headers) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def _body(data: bytes, *, is_last: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": not is_last}


def capped_retry_after(headers: Headers, cap_s: int | None) -> Headers:
    """The headers with no longer `retry-after` than `cap_s` seconds. A date is left alone."""
    if cap_s is None:
        return headers
    units = {b"retry-after": 1, b"retry-after-ms": 1000}
    return [(name, _at_most(value, cap_s * units.get(name, 0))) for name, value in headers]


def _at_most(value: bytes, limit: int) -> bytes:
    try:
        longer = limit and float(value) > limit
    except ValueError:
        return value
    return str(limit).encode() if longer else value
