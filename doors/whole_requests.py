"""No connection is closed unsaid: a request is read to its end before an error is answered.

A server that has answered closes a connection on which a part of the request still waits, as
its next request would begin in the middle of this one (RFC 9112 9.3). A client that does not
know loses the request that it sends there next; one that still writes may lose the answer,
since its side is reset (RFC 9112 9.6). So what is left is read first, within bounds, and beyond
them the answer says that the connection closes.
"""

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REST_LIMIT_BYTES = 64 * 1024 * 1024
REST_S = 5.0
"""How much is read for nothing, and for how long; nginx waits as long (lingering_timeout)."""

_FIRST_ERROR = 400


class WholeRequests:
    """An ASGI application around another; see the module. Only answers that are errors wait:
    others are given by those who have read the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive)

        async def send_when_read(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= _FIRST_ERROR:
                await body.read_rest()
                if not body.is_read:
                    headers = [*message.get("headers", ()), (b"connection", b"close")]
                    message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, body.receive, send_when_read)


class _Body:
    """What comes from one client, and whether its request has come to its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_read = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.is_read = True
        return message

    async def read_rest(self) -> None:
        """Read to the end, or as far as the bounds allow."""
        size = 0
        with trio.move_on_after(REST_S):
            while not self.is_read and size < REST_LIMIT_BYTES:
                size += len((await self.receive()).get("body", b""))
