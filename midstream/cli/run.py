"""`midstream run`: one prompt, or one recorded stream, with the rules listening."""

import signal
from pathlib import Path

import msgspec
import trio
from rich.console import Console

from midstream.cli.display import Display, display_for
from midstream.config import Config
from midstream.config_file import config_for
from midstream.handle import SessionHandle
from midstream.messages.errors import ConfigError
from midstream.messages.events import SessionEvent
from midstream.messages.record import SessionStatus
from midstream.runtime import open_runtime

EXIT_CODES = {
    SessionStatus.COMPLETED: 0,
    SessionStatus.CANCELLED: 130,
    SessionStatus.CAPPED: 3,
}
"""By how the session ended; everything else is 1."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command; None is what the configuration says."""

    prompt: str
    provider: str | None
    model: str | None
    base_url: str | None
    rules: tuple[Path, ...]
    replay: Path | None
    pace_s: float | None
    system: str | None
    conversation: str | None
    config: Path | None
    json: bool


async def run_prompt(options: RunOptions) -> int:
    """Run the command. Returns its exit code."""
    if not options.prompt and options.replay is None:
        raise ConfigError("midstream run", "PROMPT", "is missing", "say what to ask, or --replay")
    cwd = Path.cwd()
    config = config_for(options.config, cwd)
    console = Console(highlight=False)
    errors = Console(stderr=True, highlight=False)
    async with open_runtime(configured(config, options), cwd=cwd) as runtime:
        for problem in runtime.rules.problems:
            errors.print(str(problem), style="yellow", markup=False, soft_wrap=True)
        handle = runtime.animate(
            options.prompt or f"(replay of {options.replay})",
            conversation_id=options.conversation,
        )
        return await follow(handle, display_for(console, json=options.json))


def configured(config: Config, options: RunOptions) -> Config:
    """The configuration with what the options say in its place."""
    provider = config.provider
    if options.replay is not None:
        provider = msgspec.structs.replace(
            provider, name="replay", file=str(options.replay), pace_s=options.pace_s
        )
    elif options.provider is not None and options.provider != provider.name:
        provider = msgspec.structs.replace(provider, name=options.provider, model="")
    changes = {"model": options.model, "base_url": options.base_url}
    given = {key: value for key, value in changes.items() if value is not None}
    provider = msgspec.structs.replace(provider, **given)
    paths = (*(str(path.absolute()) for path in options.rules), *config.rules.paths)
    rules = msgspec.structs.replace(config.rules, paths=paths)
    system = options.system if options.system is not None else config.system
    return msgspec.structs.replace(config, provider=provider, rules=rules, system=system)


async def follow(handle: SessionHandle, display: Display) -> int:
    """Show a session to its end. The first Ctrl-C interrupts it, a second leaves at once."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_interrupt_on_signal, handle)
        last = 0
        async for event in handle.events():
            display.show(event)
            last = event.sequence
        ended = await handle.result()
        if not last:  # it was not let in, of which nobody else hears
            display.show(SessionEvent(handle.session_id, 1, ended))
        nursery.cancel_scope.cancel()
    return EXIT_CODES.get(ended.status, 1)


async def _interrupt_on_signal(
    handle: SessionHandle, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        await anext(signals)
        await handle.interrupt()
        await anext(signals)
        raise KeyboardInterrupt
