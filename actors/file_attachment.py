"""From the files that an input refers to, to the items that the model reads.

`FileRefResolver` calls `read_reference` in a worker thread for each reference, gives what
it returned, or why not, to a `Gathering` of its own, and announces the alerts of what
failed. The texts are exact (spec/file_ref.md 5, 6): what is attached is stored as it stands
here and never read again. A failure is never silent and never fails the submit.
"""

import codecs
import os
import unicodedata
from collections.abc import Iterable, Sequence

import msgspec

from midstream.actors.ref_failure import RefError, RefReason
from midstream.actors.scoped_fs import EntryKind, Listing, OpenDirectory, OpenFile, ScopedFs
from midstream.messages.alert import Alert, AlertLevel
from midstream.messages.conversation import SystemItem
from midstream.messages.segments import AnySegment, FileRefSegment, UnknownSegment

KIND = "file_attachment"
SOURCE = "file_ref"
CAP_BYTES = 16_384
"""Of each body; header and hint come on top (decision 2)."""
_MARKS = {EntryKind.DIRECTORY: "/", EntryKind.SYMLINK: "@", EntryKind.OTHER: ""}
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SHOWN_PATH_CHARS = 300


class AttachmentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one submit may attach (decisions 2, 9, 12, 13).

    `cap_bytes` cuts each body, `max_total_bytes` bounds all bodies together. A file that is
    referred to twice is attached once unless `attach_duplicates`.
    """

    cap_bytes: int = CAP_BYTES
    max_entries: int = 100
    max_files: int = 20
    max_total_bytes: int = 16 * CAP_BYTES
    list_directories: bool = True
    attach_duplicates: bool = False


class RefProblem(msgspec.Struct, frozen=True):
    """A reference that was not attached: the index of its segment, and why."""

    index: int
    path: str
    reason: RefReason
    detail: str


class Attachments(msgspec.Struct, frozen=True):
    """What a submit attaches, in the order of its references, and what it could not.

    `problems` has one entry for each failing reference, in the same order.
    """

    items: tuple[SystemItem, ...]
    problems: tuple[RefProblem, ...]

    @property
    def failed(self) -> frozenset[int]:
        """The indexes of the segments that failed, for `flatten`."""
        return frozenset(problem.index for problem in self.problems)


class ReadReference(msgspec.Struct, frozen=True):
    """What a reference means: a canonical path, the text to attach, and how many bytes of
    it count against the limit of the submit."""

    canonical_path: str
    text: str
    size_bytes: int


def read_reference(fs: ScopedFs | None, reference: str, limits: AttachmentLimits) -> ReadReference:
    """Read one reference; `fs` is None where nothing may be read at all.

    Blocks, and shares nothing with anybody: a call that hangs may be given up. Raises
    `RefError`, and nothing else for what a file system can do.
    """
    if fs is None:
        raise RefError(RefReason.NO_AUTHORITY, reference, "this session may not read files")
    try:
        with fs.open(reference) as opened:
            text, size_bytes = _text_of(reference, opened, limits)
            return ReadReference(opened.path, text, size_bytes)
    except OSError as error:
        detail = error.strerror or "the system refused"
        raise RefError(RefReason.IO, reference, detail) from error


class Gathering:
    """What one submit attaches, reference by reference, within its limits.

    Made anew for each submit, so that nothing of one can turn up in the next (B2).
    """

    def __init__(self, limits: AttachmentLimits) -> None:
        self._limits = limits
        self._items: list[SystemItem] = []
        self._problems: list[RefProblem] = []
        self._paths: set[str] = set()
        self._spent_bytes = 0

    def add(self, index: int, reference: str, read: ReadReference) -> None:
        """Attach what the reference of segment `index` means, once, if there is room."""
        limits = self._limits
        if read.canonical_path in self._paths and not limits.attach_duplicates:
            return None
        if len(self._items) >= limits.max_files:
            return self._over_budget(index, reference, f"{limits.max_files} files")
        if self._spent_bytes + read.size_bytes > limits.max_total_bytes:
            return self._over_budget(index, reference, f"{limits.max_total_bytes} bytes of files")
        self._spent_bytes += read.size_bytes
        self._paths.add(read.canonical_path)
        self._items.append(SystemItem(read.text, KIND, reference))
        return None

    def fail(self, index: int, error: RefError) -> None:
        """Note that the reference of segment `index` failed."""
        self._problems.append(RefProblem(index, error.path, error.reason, error.detail))

    def result(self) -> Attachments:
        """What was gathered so far."""
        return Attachments(tuple(self._items), tuple(self._problems))

    def _over_budget(self, index: int, reference: str, most: str) -> None:
        detail = f"no more than {most} in one input"
        self.fail(index, RefError(RefReason.BUDGET, reference, detail))


def attach(
    fs: ScopedFs | None, segments: Sequence[AnySegment], limits: AttachmentLimits
) -> Attachments:
    """Read everything that the segments refer to, one after the other. Blocks."""
    gathering = Gathering(limits)
    for index, segment in enumerate(segments):
        if isinstance(segment, FileRefSegment):
            try:
                gathering.add(index, segment.path, read_reference(fs, segment.path, limits))
            except RefError as error:
                gathering.fail(index, error)
    return gathering.result()


def alerts(
    problems: Iterable[RefProblem], segments: Iterable[AnySegment], timestamp_ms: int
) -> tuple[Alert, ...]:
    """One warning for each failing reference, then one for each segment not understood."""
    messages = [
        f"@{visible(problem.path)[:_SHOWN_PATH_CHARS]} was not attached: "
        f"{problem.reason.coarse}: {visible(problem.detail)}"
        for problem in problems
    ]
    messages += [
        f"an input segment of kind {visible(segment.kind)[:_SHOWN_PATH_CHARS]} is not "
        "understood; a placeholder was sent"
        for segment in segments
        if isinstance(segment, UnknownSegment)
    ]
    return tuple(Alert(AlertLevel.WARN, SOURCE, text, timestamp_ms) for text in messages)


def file_text(reference: str, data: bytes, total_bytes: int, cap_bytes: int) -> str:
    """The text of an attached file.

    `data` are its first bytes, more than `cap_bytes` of them if there are more, and
    `total_bytes` is its size. Raises `RefError` when what is kept is not text: no valid
    UTF-8, or with NUL in it, as in UTF-16 and in programs (decision 5, which is ours).
    """
    is_cut = total_bytes > cap_bytes
    try:
        body = _decode(data[:cap_bytes], is_cut=is_cut)
    except UnicodeDecodeError:
        raise RefError(RefReason.BINARY, reference, "not UTF-8 text") from None
    if "\0" in body:
        raise RefError(RefReason.BINARY, reference, "not text: it holds NUL bytes")
    text = f"[File: {_header_name(reference)}]\n{body}"
    if is_cut:
        text += f"\n[...truncated, {total_bytes} bytes total — use read_file for the rest]"
    return text


def directory_text(reference: str, listing: Listing, cap_bytes: int) -> str:
    """The text of an attached directory: its names, one a line, directories first."""
    names = [visible(name) + _MARKS[kind] for kind, name in listing.entries]
    whole = "\n".join(names).encode()
    body = _decode(whole[:cap_bytes], is_cut=len(whole) > cap_bytes)
    text = f"[Dir: {_header_name(reference)}]\n{body if listing.total else '(empty directory)'}"
    if len(whole) > cap_bytes or listing.total > len(names):
        text += (
            f"\n[...truncated, {listing.total} entries total — use glob or read_file for the rest]"
        )
    return text


def visible(text: str) -> str:
    """A name or a message on one line: what could break the line or its order is escaped.

    Bytes that are no UTF-8 show as `\\xNN` (B8), control characters as `\\xNN` or `\\uNNNN`.
    """
    return "".join(
        _escaped(character) if _is_unruly(character) else character for character in text
    )


def _text_of(
    reference: str, opened: OpenFile | OpenDirectory, limits: AttachmentLimits
) -> tuple[str, int]:
    """The text to attach and how many bytes of body it is counted as."""
    cap_bytes = limits.cap_bytes
    if isinstance(opened, OpenFile):
        data, total_bytes = opened.read(cap_bytes)
        return file_text(reference, data, total_bytes, cap_bytes), min(len(data), cap_bytes)
    if not limits.list_directories:
        raise RefError(RefReason.IS_DIRECTORY, reference, "is a directory")
    text = directory_text(reference, opened.list(limits.max_entries), cap_bytes)
    return text, len(text.encode())


def _decode(data: bytes, *, is_cut: bool) -> str:
    """UTF-8, strictly; only a cut may leave an incomplete character, which is dropped.

    What follows the cut plays no part in it (B1, B6). A BOM stays.
    """
    return codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)


def _header_name(reference: str) -> str:
    """The reference as it was typed, but so that it cannot end the header (decision 8)."""
    return visible(reference).replace("]", "\\]")


def _is_unruly(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or (
        character in _BIDI_CONTROLS
    )


def _escaped(character: str) -> str:
    try:
        raw = os.fsencode(character)
    except UnicodeEncodeError:
        raw = b""
    if len(raw) == 1:
        return f"\\x{raw[0]:02x}"
    return f"\\u{ord(character):04x}"
