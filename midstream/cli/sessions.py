"""The commands of `midstream sessions`, and `midstream status`.

They look at the store of a configuration, whether or not a runtime lives there, and change
nothing but what they are told to. Results go to standard output; `--json` prints one JSON
object a line, records as they are kept. Exit codes: 0, 2 for wrong input, 130 for Ctrl-C.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from midstream.actors.clock import SystemClock
from midstream.books import open_session_book
from midstream.cli.command import run_command
from midstream.cli.sessions_view import SessionsView, SessionView, StatusView, costs_table
from midstream.cli.watch import show, watch
from midstream.config import Config
from midstream.config_file import config_for
from midstream.messages.record import SessionStatus
from midstream.session_book import DEFAULT_LIMIT, LARGEST_LIMIT, SessionBook
from midstream.stores.session_list import SessionFilter

sessions_app = typer.Typer(
    name="sessions",
    no_args_is_help=True,
    help="Look at sessions, whichever process they live in, and cancel them.",
)

SessionId = Annotated[str, typer.Argument(help="The session's id, ses-…")]
Statuses = Annotated[
    list[SessionStatus] | None,
    typer.Option("--status", "-s", help="Only with this status; may be given several times."),
]
Provider = Annotated[str | None, typer.Option(help="Only of this provider.")]
ConversationId = Annotated[str | None, typer.Option("--conversation", help="Only of this one.")]
Since = Annotated[str | None, typer.Option(help="Only from this day or instant on (UTC).")]
Until = Annotated[
    str | None, typer.Option(help="Only until this day, to its end, or this instant (UTC).")
]
Limit = Annotated[
    int, typer.Option(help="The newest so many.", min=1, max=LARGEST_LIMIT, clamp=True)
]
ConfigPath = Annotated[
    Path | None, typer.Option("--config", help="Configuration file; by default ./midstream.toml.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again every second.")]


@sessions_app.command("list")
def list_command(
    status: Statuses = None,
    provider: Provider = None,
    conversation: ConversationId = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = DEFAULT_LIMIT,
    config: ConfigPath = None,
    json: Json = False,
    live: Watch = False,
) -> None:
    """List sessions, the newest first."""
    which = _filter(status, provider, conversation, since, until)
    run_command(_list, which, limit, config, json, live)


@sessions_app.command("show")
def show_command(
    session: SessionId, config: ConfigPath = None, json: Json = False, live: Watch = False
) -> None:
    """Show what is on record of a session. With --watch, until it has ended."""
    run_command(_show, session, config, json, live)


@sessions_app.command("cancel")
def cancel_command(
    session: SessionId,
    reason: Annotated[str | None, typer.Option(help="Kept with the session.")] = None,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Cancel a session. A running one, in whatever process, stops within two seconds.

    A session that has ended stays as it is, which is no failure.
    """
    run_command(_cancel, session, reason, config, json)


@sessions_app.command("costs")
def costs_command(
    sessions: Annotated[
        list[str] | None, typer.Argument(help="Ids; by default the newest that the filters let.")
    ] = None,
    status: Statuses = None,
    provider: Provider = None,
    conversation: ConversationId = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = DEFAULT_LIMIT,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Say what sessions have cost, as far as their providers have told."""
    which = _filter(status, provider, conversation, since, until)
    run_command(_costs, tuple(sessions or ()), which, limit, config, json)


def status_command(config: ConfigPath = None, json: Json = False, live: Watch = False) -> None:
    """Say whether sessions may begin: the shared pause, who lives, what waits."""
    run_command(_status, config, json, live)


# --- the work


async def _list(
    which: SessionFilter, limit: int, config: Path | None, json: bool, live: bool
) -> int:
    async def look() -> SessionsView:
        page = await book.list_sessions(which, limit=limit)
        return SessionsView(page.records, _now_ms(), has_more=page.next is not None)

    async with _book(config) as book:
        await (watch(_out(), look, json=json) if live else show(_out(), await look(), json=json))
    return 0


async def _show(session_id: str, config: Path | None, json: bool, live: bool) -> int:
    async def look() -> SessionView:
        record = await book.session(session_id)
        return SessionView(record, await book.reminded_of(record), _now_ms())

    async with _book(config) as book:
        await (watch(_out(), look, json=json) if live else show(_out(), await look(), json=json))
    return 0


async def _cancel(session_id: str, reason: str | None, config: Path | None, json: bool) -> int:
    async with _book(config) as book:
        before = await book.session(session_id)
        record = await book.cancel(session_id, reason)
    console = _out()
    if json:
        console.file.write(msgspec.json.encode(record).decode() + "\n")
    elif before.is_terminal:
        console.print(f"{record.id} had ended before: {record.status}", soft_wrap=True)
    else:
        console.print(f"{record.id} is {record.status}", soft_wrap=True)
    return 0


async def _costs(
    ids: tuple[str, ...], which: SessionFilter, limit: int, config: Path | None, json: bool
) -> int:
    async with _book(config) as book:
        if not ids:
            page = await book.list_sessions(which, limit=limit)
            ids = tuple(record.id for record in page.records)
        found = await book.session_costs(ids)
    costs = {session_id: found[session_id] for session_id in ids if session_id in found}
    console = _out()
    if json:
        console.file.write(msgspec.json.encode(costs).decode() + "\n")
    else:
        console.print(costs_table(costs))
    return 0


async def _status(config: Path | None, json: bool, live: bool) -> int:
    async def look() -> StatusView:
        return StatusView(await book.overview(), _now_ms())

    async with _book(config) as book:
        await (watch(_out(), look, json=json) if live else show(_out(), await look(), json=json))
    return 0


@asynccontextmanager
async def _book(path: Path | None) -> AsyncGenerator[SessionBook]:
    cwd = Path.cwd()
    config: Config = config_for(path, cwd)
    async with open_session_book(config, cwd) as book:
        yield book


def _filter(
    statuses: list[SessionStatus] | None,
    provider: str | None,
    conversation: str | None,
    since: str | None,
    until: str | None,
) -> SessionFilter:
    which = SessionFilter(
        statuses=tuple(statuses or ()),
        provider=provider,
        conversation_id=conversation,
        since=since,
        until=until,
    )
    try:
        which.conditions()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return which


def _out() -> Console:
    return Console(highlight=False)


def _now_ms() -> int:
    return SystemClock().now_ms()
