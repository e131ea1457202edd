"""The added lines of a patch, file by file, while the patch is being written.

`PatchReader` takes the decoded text of a patch in pieces, cut anywhere, and hands out
what follows the `+` of each added line as soon as the `+` is known, with the file that it
goes to. Added lines are joined by newlines, per file, also across sections of one file
(spec/ttsr.md 3.3); context, removed lines and markers are never part of it.

Three formats (spec/ttsr.md 3.3): apply_patch envelopes (`*** Update File: path`), hashline
sections (`[path#TAG]`), unified diffs (`+++ b/path`). The work is proportional to the
text; a marker line is kept up to `MARKER_LIMIT_CHARS`, all other lines not at all.
"""

import re
from enum import Enum, auto

import msgspec

from midstream.rules.tool_shapes import TextFormat

MARKER_LIMIT_CHARS = 4096
"""A longer line is no marker: no file system has such paths."""

_FILE_MARKER = re.compile(r"\s*\*{3}\s*(?:add|update|delete)\s+file\s*:\s*(.+?)\s*", re.I)
_MOVE_MARKER = re.compile(r"\s*\*{3}\s*move\s+to\s*:\s*(.+?)\s*", re.I)
_SECTION = re.compile(r"\s*\[(.+?)\]\s*")
_TAG = re.compile(r"#[0-9A-Za-z]{1,8}$")
_BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_NEW_FILE = "+++ "
_OLD_FILE = "--- "


class Added(msgspec.Struct, frozen=True):
    """More introduced text of `file`; None where the patch has not named one.

    Empty where an added line is empty and the first of its file.
    """

    file: str | None
    text: str


class FileNamed(msgspec.Struct, frozen=True):
    """A path that `file` goes by: its own, and where it is moved to."""

    file: str
    path: str


PatchEvent = Added | FileNamed


class _Line(Enum):
    """What is known of the current line."""

    START = auto()
    INDENTED = auto()
    """Only white space so far, where a marker may be indented."""
    ADDED = auto()
    MARKER = auto()
    """It may be a marker; its text is kept."""
    MAYBE_NEW_FILE = auto()
    """`+` after a `--- ` line: an added line or `+++ path`."""
    OUTSIDE = auto()
    """Before `*** Begin Patch`, where the patch stands inside something else."""
    SKIPPED = auto()


_SIGNS = {
    TextFormat.APPLY_PATCH: ("***",),
    TextFormat.HASHLINE: ("***", "["),
    TextFormat.UNIFIED_DIFF: (_OLD_FILE, "@@"),
}
"""What marker lines start with; a line that starts otherwise is not kept."""


class PatchReader:
    """One patch, read as it arrives.

    `embedded` is for text that may contain an apply_patch envelope, such as a shell
    command with a here-document: nothing counts outside of its begin and end markers.

    `recognised` becomes true with the first sign that the text is a patch at all.
    """

    def __init__(self, text_format: TextFormat, *, embedded: bool = False) -> None:
        self.recognised = False
        self._format = text_format
        self._signs = _SIGNS[text_format]
        self._embedded = embedded
        self._outside = embedded
        self._line = _Line.OUTSIDE if embedded else _Line.START
        self._kept = ""
        self._file: str | None = None
        self._old_path: str | None = None
        self._begun: set[str | None] = set()
        self._pieces: list[str] = []
        self._events: list[PatchEvent] = []

    def feed(self, text: str) -> list[PatchEvent]:
        events = self._events = []
        at = 0
        while at < len(text):
            newline = text.find("\n", at)
            end = newline if newline >= 0 else len(text)
            self._in_line(text[at:end])
            at = end
            if newline >= 0:
                self._end_line()
                at += 1
        self._flush()
        return events

    def finish(self) -> list[PatchEvent]:
        """The text is over."""
        events = self._events = []
        if self._line is _Line.MAYBE_NEW_FILE:
            self._end_line()
        self._flush()
        return events

    # Lines

    def _in_line(self, part: str) -> None:
        """Take the next part of the current line; it may be empty."""
        if not part:
            return
        match self._line:
            case _Line.START:
                self._at_start(part)
            case _Line.INDENTED:
                self._indented(part)
            case _Line.ADDED:
                self._pieces.append(part)
            case _Line.MAYBE_NEW_FILE:
                self._maybe_new_file(part)
            case _Line.MARKER:
                self._maybe_marker(part)
            case _Line.OUTSIDE:
                self._kept = (self._kept + part)[-2 * len(_BEGIN) :]
            case _Line.SKIPPED:
                pass

    def _at_start(self, part: str) -> None:
        first = part[0]
        if first == "+" and self._old_path is not None:
            self._line = _Line.MAYBE_NEW_FILE
            self._maybe_new_file(part)
        elif first == "+":
            self._add_line(part[1:])
        elif first.isspace() and self._format is TextFormat.HASHLINE:
            self._line = _Line.INDENTED
            self._indented(part)
        else:
            self._line = _Line.MARKER
            self._maybe_marker(part)

    def _indented(self, part: str) -> None:
        bare = part.lstrip()
        if bare:
            self._line = _Line.MARKER
            self._maybe_marker(bare)

    def _maybe_marker(self, part: str) -> None:
        if len(self._kept) >= MARKER_LIMIT_CHARS:
            return
        line = self._kept + part
        if any(line.startswith(sign) or sign.startswith(line) for sign in self._signs):
            self._kept = line[:MARKER_LIMIT_CHARS]
            return
        self._line = _Line.SKIPPED
        self.recognised |= line.startswith("-") and self._format is TextFormat.UNIFIED_DIFF

    def _maybe_new_file(self, part: str) -> None:
        line = self._kept + part
        if line.startswith(_NEW_FILE) or _NEW_FILE.startswith(line):
            self._kept = line[:MARKER_LIMIT_CHARS]
        else:
            self._add_line(line[1:])

    def _add_line(self, text: str) -> None:
        """The current line is an added one and starts with `text`."""
        self.recognised = True
        self._old_path = None
        self._line = _Line.ADDED
        if self._file in self._begun:
            self._pieces.append("\n")
        self._begun.add(self._file)
        self._pieces.append(text)

    def _end_line(self) -> None:
        line, kept = self._line, self._kept
        if line is _Line.MAYBE_NEW_FILE and not kept.startswith(_NEW_FILE):
            self._add_line(kept[1:])
        self._line = _Line.OUTSIDE if self._outside else _Line.START
        self._kept = ""
        if line is _Line.OUTSIDE:
            self._maybe_begin(kept)
        elif line is _Line.MARKER or kept.startswith(_NEW_FILE):
            self._marker(kept)
        else:
            self._old_path = None

    # Markers

    def _maybe_begin(self, line: str) -> None:
        if line.rstrip().endswith(_BEGIN):
            self._outside = False
            self._line = _Line.START

    def _marker(self, line: str) -> None:
        if len(line) >= MARKER_LIMIT_CHARS:
            return
        if self._format is TextFormat.UNIFIED_DIFF:
            self._diff_marker(line)
        elif found := _FILE_MARKER.fullmatch(line):
            self._name_file(found[1])
        elif (found := _MOVE_MARKER.fullmatch(line)) and self._file is not None:
            self._events.append(FileNamed(self._file, self._path(found[1])))
        elif self._format is TextFormat.HASHLINE and (found := _SECTION.fullmatch(line)):
            self._name_file(_without_noise(found[1]))
        elif line.startswith("***"):
            self.recognised = True
            if line.rstrip() == _END:
                self._end_patch()

    def _end_patch(self) -> None:
        self._enter(None)
        self._outside = self._embedded
        if self._outside:
            self._line = _Line.OUTSIDE

    def _diff_marker(self, line: str) -> None:
        old, self._old_path = self._old_path, None
        if line.startswith(_NEW_FILE):
            self._name_file(_diff_path(line, old))
        elif line.startswith(_OLD_FILE):
            self._old_path = line[len(_OLD_FILE) :]
        if line.startswith(("-", "@@")):
            self.recognised = True

    def _name_file(self, path: str) -> None:
        self.recognised = True
        path = self._path(path)
        file = file_name(path)
        self._enter(file)
        self._events.append(FileNamed(file, path))

    def _path(self, written: str) -> str:
        return _without_tag(written) if self._format is TextFormat.HASHLINE else written

    def _enter(self, file: str | None) -> None:
        self._flush()
        self._file = file

    def _flush(self) -> None:
        if self._pieces:
            self._events.append(Added(self._file, "".join(self._pieces)))
            self._pieces = []


def file_name(path: str) -> str:
    """The name by which sections of one file are known to belong together."""
    name = path.strip().replace("\\", "/")
    while name.startswith("./"):
        name = name[2:]
    return name


def _without_noise(path: str) -> str:
    """A section's path without the markers that models paste into it."""
    if found := _FILE_MARKER.fullmatch(path) or _MOVE_MARKER.fullmatch(path):
        return found[1]
    return path.strip()


def _without_tag(path: str) -> str:
    if found := _SECTION.fullmatch(path):
        path = found[1]
    return _TAG.sub("", path)


def _diff_path(new_line: str, old: str | None) -> str:
    """The path of a `+++` line, or of the `---` line before it for a deleted file."""
    new = _bare(new_line[len(_NEW_FILE) :])
    old = _bare(old or "")
    if new == "/dev/null":
        return old.removeprefix("a/")
    is_git = new.startswith("b/") and (old.startswith("a/") or old == "/dev/null")
    return new[2:] if is_git else new


def _bare(path: str) -> str:
    """Without the time stamp that some writers add after a tab."""
    return path.split("\t", 1)[0].strip().strip('"')
