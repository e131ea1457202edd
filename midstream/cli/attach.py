"""`midstream attach`: follow a session of a running host live, from another terminal."""

import os
import signal
from pathlib import Path
from typing import Annotated

import trio
import typer
from rich.console import Console

from midstream.cli.command import INTERRUPTED, run_command
from midstream.cli.display import NdjsonDisplay, TerminalDisplay, display_for
from midstream.cli.run import EXIT_CODES
from midstream.client import EventsLost, RemoteEvents, connect
from midstream.config import WebsocketConfig
from midstream.config_file import config_for
from midstream.messages.events import SessionEnded
from midstream.messages.record import SessionStatus

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this machine reaches what is bound to all of its addresses."""


def attach_command(
    session: Annotated[str, typer.Argument(help="The session's id, ses-…")],
    url: Annotated[
        str | None,
        typer.Option(help="The host's websocket; by default where the configuration puts it."),
    ] = None,
    after: Annotated[int, typer.Option(help="Begin behind the event with this number.", min=0)] = 0,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; by default ./midstream.toml.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print events as NDJSON, one a line.")
    ] = False,
) -> None:
    """Follow a session from its beginning to its end, whoever has started it.

    Ctrl-C leaves it, and it runs on. A connection that breaks is opened again. The token comes
    from the environment variable that the configuration names (MIDSTREAM_TOKEN). The exit code
    is that of `midstream run`.
    """
    run_command(_attach, session, url, after, config, json)


async def _attach(
    session_id: str, url: str | None, after: int, config_path: Path | None, json: bool
) -> int:
    config = config_for(config_path, Path.cwd())
    token = os.environ.get(config.websocket.token_env) or None
    display = display_for(Console(highlight=False), json=json)
    async with connect(url or url_of(config.websocket), token=token) as client:
        events = client.session(session_id).events(after)
        status = await _follow(events, display)
    if status is None:
        typer.echo(f"left {session_id}; it runs on", err=True)
        return INTERRUPTED
    return EXIT_CODES.get(status, 1)


def url_of(config: WebsocketConfig) -> str:
    """Where a client on this machine reaches the door of this configuration."""
    host = _ANY_ADDRESS.get(config.host, config.host)
    scheme = "ws" if config.tls_certificate is None else "wss"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.port}"


async def _follow(
    events: RemoteEvents, display: NdjsonDisplay | TerminalDisplay
) -> SessionStatus | None:
    """Show the session to its end; how it ended, or None if somebody has pressed Ctrl-C."""
    status: SessionStatus | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(_leave_on_signal, nursery.cancel_scope)
        status = await _show_all(events, display)
        nursery.cancel_scope.cancel()
    return status


async def _show_all(
    events: RemoteEvents, display: NdjsonDisplay | TerminalDisplay
) -> SessionStatus:
    while True:
        try:
            event = await anext(events)
        except EventsLost as lost:
            display.begin_again(lost.position)
            continue
        display.show(event)
        if isinstance(event.event, SessionEnded):
            return event.event.status


async def _leave_on_signal(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        await anext(signals)
        scope.cancel()
