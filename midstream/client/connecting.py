"""One connection to a server: opened, closed, and its failures explained."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import cast

import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    wrap_client_stream,
)
from wsproto.utilities import ProtocolError

from midstream.client.endpoint import Endpoint
from midstream.client.errors import CannotConnect
from midstream.messages.wire import CloseCode
from midstream.messages.wire_codec import WireError

CONNECT_DEADLINE_S = 10.0
CLOSE_DEADLINE_S = 2.0
PING_EVERY_S = 20.0
PONG_DEADLINE_S = 20.0

LARGEST_MESSAGE_BYTES = 67_108_864
"""An event can hold the whole output of a session."""

NETWORK_ERRORS = (
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    HandshakeError,
    ConnectionClosed,
    ProtocolError,
    ssl.SSLError,
    WireError,
)
"""What a network can do to a client, and a server that is no midstream."""


@asynccontextmanager
async def websocket_to(endpoint: Endpoint, protocol: str) -> AsyncGenerator[WebSocketConnection]:
    """Connect, for as long as the block lasts. Errors come in an exception group."""
    async with trio.open_nursery() as nursery:
        with trio.fail_after(CONNECT_DEADLINE_S):
            stream = await endpoint.open_stream()
        reader = await nursery.start(_read_until_told)
        try:
            with trio.fail_after(CONNECT_DEADLINE_S):
                websocket = await wrap_client_stream(
                    reader,
                    stream,  # pyright: ignore[reportArgumentType] - typed for sockets, works for all
                    endpoint.host,
                    endpoint.path,
                    subprotocols=[protocol],
                    max_message_size=LARGEST_MESSAGE_BYTES,
                )
            try:
                yield websocket
            finally:
                await _close(websocket)
        finally:
            reader.cancel_scope.cancel()
            await trio.aclose_forcefully(stream)


async def ping_for_ever(websocket: WebSocketConnection) -> None:
    """Raises `trio.TooSlowError` when the server is silent."""
    number = 0
    while True:
        await trio.sleep(PING_EVERY_S)
        number += 1
        with trio.fail_after(PONG_DEADLINE_S):
            await websocket.ping(number.to_bytes(8, "big"))


def explained(problem: Exception) -> Exception:
    """Why the server does not let us in, as `CannotConnect`; any other problem as it is."""
    while isinstance(problem, ExceptionGroup):
        problem = cast("ExceptionGroup[Exception]", problem).exceptions[0]
    match problem:
        case ConnectionRejected(status_code=status) if 400 <= status < 500:
            reason = (problem.body or b"").decode("utf-8", "replace").strip()
            # Whoever gives no reason is another kind of server.
            reason = reason or "this is no midstream websocket"
            return CannotConnect(f"the server answers {status}: {reason}")
        case ConnectionClosed(reason=closed) if (
            closed is not None and closed.code == CloseCode.UNAUTHORIZED
        ):
            return CannotConnect("the token is not right")
        case _:
            return problem


def reason_of(problem: BaseException) -> str:
    """A problem in words; those of its cause, where it has none of its own."""
    deepest = problem
    while not str(deepest) and deepest.__cause__ is not None:
        deepest = deepest.__cause__
    return str(deepest) or type(deepest).__name__


async def _read_until_told(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Give what reads a connection a nursery that only its owner cancels: a client that is
    cancelled still has to hear the goodbye of the server."""
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        nursery.start_soon(trio.sleep_forever)
        task_status.started(nursery)


async def _close(websocket: WebSocketConnection) -> None:
    with trio.move_on_after(CLOSE_DEADLINE_S) as patience:
        patience.shield = True
        # A ping that comes while we close is one that cannot be answered any more.
        with suppress(ProtocolError):
            await websocket.aclose()
