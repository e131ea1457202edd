"""An exception as data: what a crash report says.

The kernel and the supervisors both need it: the first for dead letters and watchers, the
second for its events.
"""

import traceback
from typing import TypeVar, cast

from midstream.messages.lifecycle import AnyExit, Crashed, ShutDown

TRACEBACK_LIMIT_CHARS = 20_000
"""Only the end of a longer traceback is kept: that is where the error is."""


E = TypeVar("E", bound=BaseException)


def sole_error(error: E) -> E:
    """The one exception that a group holds; nurseries wrap even a single one."""
    while (group := _as_group(error)) is not None and len(group.exceptions) == 1:
        # A group is an Exception only if all that it holds are.
        error = cast("E", group.exceptions[0])
    return error


def crash_of(error: BaseException) -> Crashed:
    """The report on `error`. A group that holds one exception counts as that exception."""
    error = sole_error(error)
    text = "".join(traceback.format_exception(error))
    return Crashed(
        error="".join(traceback.format_exception_only(error)).strip().partition("\n")[0],
        traceback=text[-TRACEBACK_LIMIT_CHARS:],
    )


def exit_of(error: BaseException) -> AnyExit:
    """What it means that `error` came out of an actor.

    A crash, if there is an `Exception` in it. Otherwise it was cancelled, or the program
    is being left (KeyboardInterrupt, SystemExit): no fault of the actor.
    """
    if isinstance(error, Exception):
        return crash_of(error)
    group = _as_group(error)
    crashes = group.subgroup(Exception) if group else None
    return crash_of(crashes) if crashes else ShutDown(cut=True)


def _as_group(error: BaseException) -> BaseExceptionGroup[BaseException] | None:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error)
    return None
