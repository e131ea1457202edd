"""What can go wrong between the text of a condition and something that runs.

Raised by the parsers and by `emit.py`; the loader turns them into a `RuleError` with the
file and the line.
"""

from collections.abc import Generator
from contextlib import contextmanager

from midstream.messages.errors import MidstreamError


class DialectError(MidstreamError):
    """A condition is not valid in its dialect.

    `position` counts characters of the condition from 0, `reason` says what is wrong and
    `mend` what to write instead (empty where nothing is evident).
    """

    def __init__(self, position: int, reason: str, mend: str = "") -> None:
        self.position = position
        self.reason = reason
        self.mend = mend
        super().__init__(f"at character {position}: {reason}" + (f"; {mend}" if mend else ""))


class UntranslatableError(MidstreamError):
    """A valid condition that the `regex` package cannot run with the same meaning.

    `reason` says why, `mend` how to write the condition so that it can.
    """

    def __init__(self, reason: str, mend: str) -> None:
        self.reason = reason
        self.mend = mend
        super().__init__(f"{reason}; {mend}")


@contextmanager
def within_the_stack() -> Generator[None]:
    """For functions that follow a condition's groups by calling themselves: a stack that does
    not suffice, because the caller has used it up, is a `DialectError` like any other."""
    try:
        yield
    except RecursionError as error:
        raise DialectError(0, "it is nested too deeply", "use fewer groups") from error
