"""The websocket of a runtime without a network: pairs of streams in memory.

    async with open_world(answer("hello")) as world, open_wire(world.runtime) as wire:
        async with wire.connect() as client: ...

Everything is real but the socket, so it works under a clock that jumps. Connections can be
cut at any moment (`Wire.cut`), and refused (`Wire.is_up`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random  # noqa: TID251 - the one instance of a client
from typing import Any, cast

import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    lockstep_stream_pair,
    memory_stream_pair,
)

from midstream.client import Client, connect
from midstream.config import WebsocketConfig
from midstream.doors.websocket_service import WebsocketService
from midstream.messages.wire_codec import MSGPACK_PROTOCOL
from midstream.runtime import Runtime
from midstream.session_host import RuntimeHost
from midstream.websocket import websocket_settings

HOST = "midstream.test"
"""The name of the host at the other end of the wire."""


_Stapled = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class Wire:
    """See the module. `service` is the door behind it. While `is_up` is false, nobody gets
    a connection."""

    def __init__(
        self, service: WebsocketService, nursery: trio.Nursery, token: str | None = None
    ) -> None:
        self.service = service
        self.is_up = True
        self._nursery = nursery
        self._token = token
        self._ends: list[_Stapled] = []

    def connect(
        self, *, token: str | None = None, protocol: str = MSGPACK_PROTOCOL, seed: int = 0
    ) -> AbstractAsyncContextManager[Client]:
        """A client at the other end. By default it has the right token."""
        return connect(
            f"ws://{HOST}",
            token=token if token is not None else self._token,
            protocol=protocol,
            random=Random(seed),
            open_stream=self.open_stream,
        )

    async def open_stream(self) -> trio.abc.Stream:
        """As a network does it. Raises OSError while the wire is not up."""
        await trio.lowlevel.checkpoint()
        if not self.is_up:
            raise ConnectionRefusedError("the wire is not up")
        return self.stream()

    def cut(self) -> None:
        """Cut all connections. What was on its way is lost, in both directions."""
        for end in self._ends:
            end.send_stream.close()
            end.receive_stream.close()
        self._ends.clear()

    def stream(self, *, is_buffered: bool = True) -> trio.abc.Stream:
        """A new connection: the client's end of it.

        With a buffer, what either side sends waits in memory, however much it is. Without
        one, it waits until the other side reads, as when the buffers of sockets are full.
        """
        # Both kinds can be closed without waiting, which their common type does not show.
        pair: Any = memory_stream_pair() if is_buffered else lockstep_stream_pair()
        near, far = cast("tuple[_Stapled, _Stapled]", pair)
        self._ends += [near, far]
        self._nursery.start_soon(self._serve, near, far)
        return near

    async def _serve(self, near: "_Stapled", far: "_Stapled") -> None:
        await self.service.serve(far)
        self._ends = [end for end in self._ends if end is not near and end is not far]


@asynccontextmanager
async def open_wire(
    runtime: Runtime, config: WebsocketConfig | None = None, *, token: str | None = None
) -> AsyncGenerator[Wire]:
    """Open a door of `runtime` that only the wire leads to."""
    config = config or WebsocketConfig(hosts=(HOST,), token_env="")
    settings = websocket_settings(runtime, config, token)
    async with trio.open_nursery() as nursery:

        def spawn(function: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(function)

        service = WebsocketService(RuntimeHost(runtime), settings, spawn)
        nursery.start_soon(service.run)
        try:
            yield Wire(service, nursery, token)
        finally:
            with trio.CancelScope(shield=True):
                await service.see_everybody_out()
            nursery.cancel_scope.cancel()
