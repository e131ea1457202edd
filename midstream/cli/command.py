"""How a command runs: its return value is the exit code, our errors are one line.

Exit codes: what the command returns; 2 for wrong input and other errors of ours, 130 for
Ctrl-C, 141 when nobody reads on (`| head`). What we do not understand is raised, with its
traceback.
"""

import os
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn, cast

import trio
import typer

from midstream.cli.garbage import spare_collections
from midstream.cli.tables import harmless
from midstream.messages.errors import MidstreamError

INTERRUPTED = 130
UNREAD = 141
"""What a shell says of a program that SIGPIPE ended."""


def run_command(command: Callable[..., Awaitable[int]], *arguments: object) -> None:
    """Run an async command, and exit."""
    exit_with(lambda: trio.run(command, *arguments))


def exit_with(work: Callable[[], int]) -> NoReturn:
    """Exit with what `work` returns, or with the code of the error that it raises."""
    spare_collections()
    try:
        code = work()
        sys.stdout.flush()
    except (MidstreamError, KeyboardInterrupt, OSError, SystemExit, BaseExceptionGroup) as error:
        code = _explained(error)
    sys.exit(code)


def _explained(error: BaseException) -> int:
    """The exit code of an error that we understand, after saying it; others are raised."""
    cause = error
    while isinstance(cause, BaseExceptionGroup):
        causes = cast("BaseExceptionGroup[BaseException]", cause).exceptions
        if len(causes) != 1:
            raise error
        cause = causes[0]
    if isinstance(cause, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(cause, BrokenPipeError | SystemExit):  # the latter is rich's of the former
        # Python flushes at its end once more, and would complain of the same again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    if isinstance(cause, MidstreamError):
        typer.secho(harmless(f"midstream: {cause}{_because(cause)}"), fg="red", err=True)
        return 2
    raise error


def _because(error: MidstreamError) -> str:
    """What caused it, unless it says so itself."""
    cause = error.__cause__
    if cause is None:
        return ""
    reason = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
    return "" if reason in str(error) else f": {reason}"
