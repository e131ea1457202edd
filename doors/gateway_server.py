"""Serves the gateway with Hypercorn's trio worker."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import hypercorn.trio
import trio
from hypercorn.config import Config as HypercornConfig
from starlette.applications import Starlette

GRACE_S = 5.0
"""How long open requests may go on after the gateway was told to stop."""


async def serve_gateway(
    app: Starlette,
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. `task_status` gets the address; port 0 takes a free one.

    Raises OSError if the address cannot be had.
    """
    config = HypercornConfig()
    config.bind = [f"{host}:{port}"]
    # What the upstream says of itself goes through; the gateway adds nothing.
    config.include_server_header = False
    config.include_date_header = False
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = GRACE_S
    config.keep_alive_timeout = 60.0
    # Its types of an application are not quite those of Starlette.
    serve = cast(
        Callable[..., Awaitable[Any]],
        hypercorn.trio.serve,  # pyright: ignore[reportUnknownMemberType]
    )
    async with trio.open_nursery() as nursery:
        binds: list[str] = await nursery.start(serve, app, config)
        task_status.started(binds[0])
