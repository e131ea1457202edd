"""Starting a session outside: its record, and a babysitter that outlives whoever asks.

The record is written before anything is started, so that the session is known even where no
host listens, and its role stands in the first that is heard of it (spec/animator.md 8, B15).
The host finds the rest in reports and in its dead-letter queue.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio

from midstream.actors.clock import Clock, Ids
from midstream.assembly import build_store
from midstream.babysitter_config import TIMEOUT_S, BabysitterConfig
from midstream.books import open_session_book
from midstream.config import Config
from midstream.messages.errors import MidstreamError
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import AnyTransition, Outcome, PendingPreWrite, Terminal
from midstream.providers.watchdog import MARK


class NotDetached(MidstreamError):
    """The babysitter did not start; the message is what it said."""


class DetachRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run outside. `url` is where the host listens, by default as configured."""

    argv: tuple[str, ...]
    cwd: Path
    provider: str | None = None
    prompt: str = ""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    conversation_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    url: str | None = None
    timeout_s: float = TIMEOUT_S


class Detached(msgspec.Struct, frozen=True):
    """A session that runs outside. `warning` says what could not be written before."""

    session_id: str
    pid: int
    warning: str | None = None


async def detach(
    request: DetachRequest, config: Config, root: Path, clock: Clock, ids: Ids
) -> Detached:
    """Start a session outside for the host of `config`, whose directory is `root`.

    Raises `NotDetached` if its babysitter does not start.
    """
    session_id = ids.session_id()
    started_at = format_timestamp(clock.now_ms())
    provider = request.provider or _provider_of(request.argv)
    metadata = dict(request.metadata) if request.metadata else None
    pending = PendingPreWrite(
        id=session_id,
        started_at=started_at,
        provider=provider,
        last_activity_at=started_at,
        conversation_id=request.conversation_id,
        metadata=metadata,
    )
    warning = await _write(pending, config, root)
    babysitter = BabysitterConfig(
        session_id=session_id,
        argv=list(request.argv),
        cwd=str(request.cwd.absolute()),
        environment=dict(request.environment),
        prompt=request.prompt,
        provider=provider,
        started_at=started_at,
        conversation_id=request.conversation_id,
        metadata=metadata,
        guild_tool_url=request.url or f"http://{_place(config)}",
        token=os.environ.get(config.http.token_env) or None,
        dead_letters=str((root / config.store.dead_letters).absolute()),
        timeout_s=request.timeout_s,
    )
    try:
        pid = await start_babysitter(babysitter)
    except NotDetached as error:
        await _write(_failed(session_id, str(error), clock), config, root)
        raise
    return Detached(session_id, pid, warning)


async def start_babysitter(config: BabysitterConfig) -> int:
    """Start the babysitter of a session and return its pid. It has left this process then.

    It inherits the environment, but not the mark by which children of midstream end with
    their stream: a session outside goes on. Raises `NotDetached`.
    """
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    # -P: the directory of the caller must not be where its modules come from.
    started = await trio.run_process(
        [sys.executable, "-P", "-m", "midstream.babysitter"],
        stdin=msgspec.json.encode(config),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=environment,
        start_new_session=True,
    )
    if started.returncode != 0:
        said = started.stderr.decode("utf-8", "replace").strip()
        raise NotDetached(said.removeprefix("midstream: ") or "the babysitter did not start")
    return int(started.stdout)


async def _write(transition: AnyTransition, config: Config, root: Path) -> str | None:
    """Change the session's record in the host's store. What hinders it is only a warning."""
    try:
        async with (
            await build_store(config.store, root) as store,
            open_session_book(config, root, store=store) as book,
        ):
            await book.apply(transition)
    except MidstreamError as error:
        return f"the session is not on record yet: {error}"
    return None


def _failed(session_id: str, error: str, clock: Clock) -> Terminal:
    at = format_timestamp(clock.now_ms())
    return Terminal(
        id=session_id,
        status=Outcome.FAILED,
        ended_at=at,
        last_activity_at=at,
        exit_code=1,
        error=error,
    )


def _provider_of(argv: tuple[str, ...]) -> str:
    """The name under which sessions of this program are listed."""
    program = Path(argv[0]).name
    return "claude_code" if program == "claude" else program


def _place(config: Config) -> str:
    host = config.http.host
    return f"[{host}]:{config.http.port}" if ":" in host else f"{host}:{config.http.port}"
