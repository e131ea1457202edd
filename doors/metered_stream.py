"""A stream whose peer is read no faster than it may send.

It lies between the socket and trio-websocket. What comes too fast waits in the kernel, and
then with the peer, so a flood costs neither memory nor much work, and nothing is lost. A
peer that breaks a rule which cannot be waited out is read no more, and `on_violation` is
called with the reason; `on_end` is called when no bytes will come any more.
"""

from collections.abc import Callable
from typing import NoReturn

import trio

from midstream.doors.frame_meter import FrameMeter, TooManyParts
from midstream.doors.token_bucket import TokenBucket
from midstream.messages.wire import Limits

BURST_S = 2.0
"""Seconds' worth of what may come that may come at once."""


STRANGER_LIMIT_BYTES = 65_536
"""What a client may send before it has said who it is: a handshake and a hello, with air."""


class MeteredStream(trio.abc.Stream):
    """See the module. Set `is_welcome` when the client has said who it is."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        limits: Limits,
        on_violation: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        now = trio.current_time()
        self.is_welcome = False
        self._stranger_bytes = 0
        self._stream = stream
        self._meter = FrameMeter()
        self._frames = TokenBucket(limits.frames_per_s, limits.frames_per_s * BURST_S, now)
        burst_bytes = max(limits.bytes_per_s * BURST_S, limits.message_bytes)
        self._bytes = TokenBucket(limits.bytes_per_s, burst_bytes, now)
        self._on_violation = on_violation
        self._on_end = on_end
        self._closed = trio.Event()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError:
            self._on_end()
            raise
        if not data:
            self._on_end()
            return data
        try:
            frames = self._meter.feed(bytes(data))
        except TooManyParts as error:
            return await self._refuse(str(error))
        if not self.is_welcome:
            self._stranger_bytes += len(data)
            if self._stranger_bytes > STRANGER_LIMIT_BYTES:
                return await self._refuse("too much was sent before hello")
        now = trio.current_time()
        wait_s = max(self._frames.take(frames, now), self._bytes.take(len(data), now))
        if wait_s:
            await trio.sleep(wait_s)
        return data

    async def _refuse(self, reason: str) -> NoReturn:
        self._on_violation(reason)
        await self._closed.wait()
        raise trio.ClosedResourceError

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self._closed.set()
        self._on_end()
        await self._stream.aclose()
