"""The HTTP door of a host: one Starlette application behind the gate, served by Hypercorn.

`host_app` puts routes together; `serve_http` serves them on trio for as long as a block
lasts. Errors of ours become JSON with one line that says what is wrong.
"""

import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType]  # its WSGI side is untyped
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from midstream.actors.announcer import UnknownSession
from midstream.actors.errors import AskFailed
from midstream.doors.access import Gate
from midstream.doors.requests import BadRequest
from midstream.doors.whole_requests import WholeRequests
from midstream.messages.errors import StoreError

KEEP_ALIVE_S = 75.0
"""How long a connection is kept on which nobody asks; as nginx (keepalive_timeout). Clients that
wait no longer than that themselves (httpx 5 s, aiohttp 15 s) never send on one that is closing."""

GRACE_S = 3.0
"""How long requests that are being answered may take when the host ends."""


def host_app(routes: Iterable[BaseRoute], token: str | None) -> ASGIApp:
    """The application: `routes`, behind the gate for `token`."""
    app = Starlette(
        routes=list(routes),
        exception_handlers={
            BadRequest: _explain(400),
            UnknownSession: _explain(404),
            StoreError: _explain(503),
            AskFailed: _explain(503),
            HTTPException: _explain_http,
        },
    )
    return Gate(app, token)


@asynccontextmanager
async def serve_http(app: ASGIApp, host: str, port: int) -> AsyncGenerator[str]:
    """Serve `app` while the block lasts; yields its URL. Port 0 is any that is free.

    Raises OSError when the place is taken.
    """
    listener = await _bound(host, port)
    name, number = listener.getsockname()[:2]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.loglevel = "ERROR"
    config.graceful_timeout = GRACE_S
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    async with trio.open_nursery() as nursery:
        over = trio.Event()
        served: Any = partial(serve, WholeRequests(app), config, shutdown_trigger=over.wait)  # pyright: ignore[reportArgumentType]  # an ASGI app by another name
        await nursery.start(served)
        try:
            yield f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
        finally:
            over.set()
            nursery.cancel_scope.deadline = trio.current_time() + GRACE_S + 1.0


async def _bound(host: str, port: int) -> socket.socket:
    """A socket at this place. Hypercorn would leave its own open if that is taken."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def _explain(status: int) -> Any:
    async def handle(request: Request, error: Exception) -> JSONResponse:
        code = getattr(error, "status", status)
        return JSONResponse({"error": str(error)}, code)

    return handle


async def _explain_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
