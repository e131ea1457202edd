"""What is wrong with a rule file, as data.

The loader never raises for a bad rule file: it reports and loads the rest. Whoever shows
problems (`midstream rules check`, a log line at start) decides how.
"""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How much of the file is lost."""

    ERROR = "error"
    """The file gives no rule at all."""
    WARNING = "warning"
    """A part of the file is ignored, or does not do what its author meant."""
    NOTE = "note"
    """Everything loads; the author may want to know how it was read."""


class Problem(msgspec.Struct, frozen=True):
    """One thing to tell the author of a rule file.

    `line` counts from 1 and is 0 where no line applies. `mend` says what to write instead
    and may be empty.
    """

    path: str
    line: int
    severity: Severity
    what: str
    mend: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        mend = f"; {self.mend}" if self.mend else ""
        return f"{place}: {self.severity.value}: {self.what}{mend}"


class Complaint(msgspec.Struct, frozen=True):
    """A problem whose place in the file the finder does not know, but perhaps the `key` of
    the front matter that it is about."""

    severity: Severity
    what: str
    mend: str = ""
    key: str = ""

    def at(self, path: str, line: int) -> Problem:
        """The same complaint with its place."""
        return Problem(path, line, self.severity, self.what, self.mend)
