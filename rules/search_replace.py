"""The new halves of SEARCH/REPLACE blocks, while they are being written.

The format of the diff tools of Cline and Roo Code: a line `<<<<<<< SEARCH` (or
`------- SEARCH`), old lines, a line `=======`, new lines, a line `>>>>>>> REPLACE` (or
`+++++++ REPLACE`). New lines of all blocks are joined by newlines. A new line flows as it
comes, except for as long as it could still become the end marker.
"""

import re
from enum import Enum, auto

from midstream.rules.patch_reader import Added, PatchEvent

MARKER_LIMIT_CHARS = 64

_SEARCH = re.compile(r"(?:<{3,}|-{3,}) ?SEARCH>?\s*")
_MIDDLE = re.compile(r"={3,}\s*")
_REPLACE = re.compile(r"(?:>{3,}|\+{3,}) ?REPLACE>?\s*")
_MAYBE_REPLACE = re.compile(r"(?:>+|\++)(?: ?R?E?P?L?A?C?E?>?\s*)?")


class _Part(Enum):
    BETWEEN = auto()
    OLD = auto()
    NEW = auto()


class SearchReplaceReader:
    """One diff of such blocks; `recognised` once the first of them has begun."""

    def __init__(self) -> None:
        self.recognised = False
        self._part = _Part.BETWEEN
        self._kept = ""
        """The current line as far as it may be a marker."""
        self._flowing = False
        """The current line is a new one for sure."""
        self._begun = False
        self._pieces: list[str] = []

    def feed(self, text: str) -> list[PatchEvent]:
        for number, part in enumerate(text.split("\n")):
            if number:
                self._end_line()
            if part:
                self._in_line(part)
        return self._flush()

    def finish(self) -> list[PatchEvent]:
        """The text is over."""
        if self._kept:
            self._end_line()
        return self._flush()

    def _in_line(self, part: str) -> None:
        if self._flowing:
            self._pieces.append(part)
        elif self._part is not _Part.NEW:
            self._kept = (self._kept + part)[:MARKER_LIMIT_CHARS]
        else:
            line = self._kept + part
            if len(line) < MARKER_LIMIT_CHARS and _MAYBE_REPLACE.fullmatch(line):
                self._kept = line
            else:
                self._add_line(line)
                self._flowing = True

    def _end_line(self) -> None:
        line, self._kept = self._kept, ""
        if self._flowing:
            self._flowing = False
        elif self._part is _Part.BETWEEN and _SEARCH.fullmatch(line):
            self._part = _Part.OLD
            self.recognised = True
        elif self._part is _Part.OLD and _MIDDLE.fullmatch(line):
            self._part = _Part.NEW
        elif self._part is _Part.NEW and _REPLACE.fullmatch(line):
            self._part = _Part.BETWEEN
        elif self._part is _Part.NEW:
            self._add_line(line)

    def _add_line(self, line: str) -> None:
        self._pieces.append("\n" + line if self._begun else line)
        self._begun = True
        self._kept = ""

    def _flush(self) -> list[PatchEvent]:
        pieces, self._pieces = self._pieces, []
        return [Added(None, "".join(pieces))] if pieces else []
