"""For tests: a host on this machine that takes reports, or refuses them in every way."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

Answer = tuple[int, bytes] | None
"""Status and body; None to close the connection without a word."""


def taken(status: str = "running", *, ok: bool = True) -> Answer:
    """The answer of a host that has kept the report."""
    body = {"ok": ok, "sessionId": "x", "status": status}
    return 200, json.dumps(body).encode()


class ReportHost:
    """Remembers every report as (path, headers, body); `answer` says what to reply."""

    def __init__(self) -> None:
        self.url = ""
        self.reports: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answer: Callable[[str, dict[str, Any]], Answer] = lambda path, body: taken()
        self._changed = trio.Condition()

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for got, _, body in self.reports if got == f"/api/session/{path}"]

    async def wait_for(self, path: str, count: int = 1) -> dict[str, Any]:
        """Wait until so many reports of a kind have come; the last of them."""
        with trio.fail_after(20):
            async with self._changed:
                while len(self.bodies(path)) < count:
                    await self._changed.wait()
        return self.bodies(path)[count - 1]

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection. A babysitter that stops leaves in the middle of its requests."""
        async with stream:
            with suppress(trio.BrokenResourceError):
                await self._serve(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        received = b""
        while True:
            head, received = await self._head(stream, received)
            if head is None:
                return
            path, headers = head
            length = int(headers.get("content-length", "0"))
            while len(received) < length:
                data = await stream.receive_some()
                if not data:
                    return
                received += data
            body, received = received[:length], received[length:]
            if not await self._reply(stream, path, headers, json.loads(body)):
                return

    async def _head(
        self, stream: trio.SocketStream, received: bytes
    ) -> tuple[tuple[str, dict[str, str]] | None, bytes]:
        while b"\r\n\r\n" not in received:
            data = await stream.receive_some()
            if not data:
                return None, b""
            received += data
        head, _, rest = received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        return (first.split()[1], headers), rest

    async def _reply(
        self, stream: trio.SocketStream, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> bool:
        async with self._changed:
            self.reports.append((path, headers, body))
            self._changed.notify_all()
        answer = self.answer(path, body)
        if answer is None:
            return False
        status, content = answer
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n"
        await stream.send_all(head.encode() + b"content-type: application/json\r\n\r\n" + content)
        return True


@asynccontextmanager
async def report_host(host: ReportHost | None = None) -> AsyncGenerator[ReportHost]:
    """Serve on a free port while the block lasts."""
    host = host or ReportHost()
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, host.serve, [listener])
        yield host
        nursery.cancel_scope.cancel()
