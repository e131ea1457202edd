"""The websocket of a runtime without a network: pairs of streams in memory.

    async with open_world(answer("hello")) as world, open_wire(world.runtime) as wire:
        async with wire.connect() as client: ...

Everything is real but the socket, so it works under a clock that jumps, and a connection can
be cut at any byte (`Line`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from midstream.config import WebsocketConfig
from midstream.doors.websocket_service import WebsocketService
from midstream.runtime import Runtime
from midstream.session_host import RuntimeHost
from midstream.websocket import websocket_settings

HOST = "midstream.test"
"""The name of the host at the other end of the wire."""


class Wire:
    """See the module. `service` is the door behind it."""

    def __init__(self, service: WebsocketService, nursery: trio.Nursery) -> None:
        self.service = service
        self._nursery = nursery

    def stream(self, *, is_buffered: bool = True) -> trio.abc.Stream:
        """A new connection: the client's end of it.

        With a buffer, what either side sends waits in memory, however much it is. Without
        one, it waits until the other side reads, as when the buffers of sockets are full.
        """
        near, far = memory_stream_pair() if is_buffered else lockstep_stream_pair()
        self._nursery.start_soon(self.service.serve, far)
        return near


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
            yield Wire(service, nursery)
        finally:
            with trio.CancelScope(shield=True):
                await service.see_everybody_out()
            nursery.cancel_scope.cancel()
