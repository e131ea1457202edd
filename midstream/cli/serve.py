"""`midstream serve`: a host with its doors: HTTP, for sessions outside and for operators, and the
websocket, for whoever hands in prompts and watches.

What serves HTTP is loaded when it is wanted, as in `gateway.py`.
"""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from midstream.cli.command import run_command
from midstream.cli.operator import obey_signals
from midstream.config import WebsocketConfig
from midstream.config_file import config_for
from midstream.messages.errors import ConfigError
from midstream.runtime import open_runtime
from midstream.websocket import open_websocket


def serve_command(
    host: Annotated[
        str | None, typer.Option(help="Where to listen; by default 127.0.0.1, or as configured.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port; 0 for any that is free.", min=0, max=65535)
    ] = None,
    websocket_port: Annotated[
        int | None,
        typer.Option(help="The port of the websocket; 0 as for --port.", min=0, max=65535),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; by default ./midstream.toml.")
    ] = None,
) -> None:
    """Run a host: it keeps the records, hears sessions outside, and finds those that died.

    On this machine alone no token is asked for; anywhere else one is needed, from the
    environment variable that the configuration names (MIDSTREAM_TOKEN). SIGHUP reads the
    rules again, for prompts that come from then on.
    """
    run_command(_serve, host, port, websocket_port, config)


async def _serve(
    host: str | None, port: int | None, websocket_port: int | None, config_path: Path | None
) -> int:
    from midstream.cli.serve_routes import routes_of
    from midstream.doors.access import require_token_unless_loopback
    from midstream.doors.http import host_app, serve_http

    cwd = Path.cwd()
    config = config_for(config_path, cwd)
    token = os.environ.get(config.http.token_env) or None
    place = (config.http.host if host is None else host, config.http.port if port is None else port)
    require_token_unless_loopback(place[0], token, config.http.token_env)
    websocket = _websocket(config.websocket, host, port, websocket_port)
    async with open_runtime(config, cwd=cwd) as runtime:
        try:
            async with (
                serve_http(host_app(routes_of(runtime), token), *place) as url,
                open_websocket(runtime, websocket) as door,
            ):
                websockets = " ".join(door.urls)
                ready = f"websocket at {websockets}\nmidstream listens at {url}"
                await obey_signals(runtime, ready)
        except* OSError as errors:
            problem = f"cannot listen on {place[0]} port {place[1]}: {errors.exceptions[0]}"
            raise ConfigError("midstream serve", "http.port", problem) from None
    return 0


def _websocket(
    config: WebsocketConfig, host: str | None, http_port: int | None, port: int | None
) -> WebsocketConfig:
    """The configuration with what the options say; who wants any free port wants two."""
    if port is None:
        port = 0 if http_port == 0 else config.port
    host = config.host if host is None else host
    return msgspec.structs.replace(config, host=host, port=port)
