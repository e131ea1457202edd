"""A command that runs until somebody ends it, and reads its rules again at SIGHUP."""

import signal

import trio
import typer

from midstream.assembly import RuleBook
from midstream.cli.garbage import collect_when_idle
from midstream.messages.errors import RuleError
from midstream.runtime import Runtime

_RELOAD = getattr(signal, "SIGHUP", None)
_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([_RELOAD] if _RELOAD is not None else [])]


async def obey_signals(runtime: Runtime, ready: str) -> None:
    """Say that we are ready, and return at SIGINT or SIGTERM."""
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        typer.echo(ready)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect_when_idle, lambda: not runtime.live_sessions)
            async for number in signals:
                if number != _RELOAD:
                    break
                await _reload(runtime)
            nursery.cancel_scope.cancel()


def show_problems(rulebook: RuleBook) -> None:
    """What is wrong with the rule files."""
    for problem in rulebook.problems:
        typer.secho(str(problem), fg="yellow", err=True)


async def _reload(runtime: Runtime) -> None:
    try:
        rulebook = await runtime.reload_rules()
    except RuleError as error:
        typer.echo(f"midstream: the rules stay as they are: {error}", err=True)
        return
    show_problems(rulebook)
    typer.echo(f"rules that are watched for: {len(rulebook.rule_set.rules)}")
