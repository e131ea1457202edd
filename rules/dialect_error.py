"""What can go wrong between the text of a condition and something that runs.

Raised by the parsers and by `emit.py`; the loader turns them into a `RuleError` with the
file and the line.
"""

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
