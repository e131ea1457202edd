"""From one introduced argument string to its passages, according to its format.

`ArgumentReading` makes one of these for each introduced string and feeds it the decoded
text. They write to the `PassageBook`. Text flows on as it comes; only a value that may
turn out not to be in its format at all is kept until that is known, up to
`HELD_LIMIT_CHARS`, so that text in a format that we do not know is watched as it is.
"""

from collections.abc import Iterable
from typing import Protocol

from midstream.rules.passage import JsonPath, PassageKey
from midstream.rules.passage_book import PassageBook
from midstream.rules.patch_reader import Added, PatchEvent, PatchReader
from midstream.rules.search_replace import SearchReplaceReader
from midstream.rules.tool_shapes import TextFormat

HELD_LIMIT_CHARS = 262_144
"""A patch that has shown no sign of being one for so long is taken as plain text."""

_DIFF_SIGNS = ("+", "-", "@@", "diff --git ", "index ", "Index: ", "\\ No newline")
_LONGEST_SIGN_CHARS = max(map(len, _DIFF_SIGNS))


class IntroducedText(Protocol):
    """One introduced string while it arrives."""

    def feed(self, text: str) -> None: ...

    def end(self) -> bool:
        """The string is over. False if it introduces something only if `is_new_file`."""
        ...

    def is_new_file(self) -> None:
        """The call has turned out to create a file, after the end of the string."""
        ...


def introduced_text(
    text_format: TextFormat, book: PassageBook, part: JsonPath, creates: bool | None
) -> IntroducedText:
    """The reader of a string at `part`; `creates` is None where nothing was said yet."""
    match text_format:
        case TextFormat.PLAIN:
            return PlainText(book, part)
        case TextFormat.SHELL:
            return ShellText(book, part)
        case TextFormat.UNIFIED_DIFF:
            reader = PatchReader(text_format)
            return PatchText(reader, book, part, creates, by_first_line=creates is True)
        case TextFormat.SEARCH_REPLACE:
            return PatchText(SearchReplaceReader(), book, part, True)
        case TextFormat.APPLY_PATCH | TextFormat.HASHLINE:
            return PatchText(PatchReader(text_format), book, part, True)


class PlainText:
    """All of it is one passage."""

    def __init__(self, book: PassageBook, part: JsonPath) -> None:
        self._book = book
        self._key = book.begin(part)

    def feed(self, text: str) -> None:
        self._book.text(self._key, text)

    def end(self) -> bool:
        self._book.end(self._key)
        return True

    def is_new_file(self) -> None:
        """Nothing depends on it."""


class ShellText(PlainText):
    """All of it is one passage; an apply_patch in it is besides a passage for each file."""

    def __init__(self, book: PassageBook, part: JsonPath) -> None:
        super().__init__(book, part)
        self._reader = PatchReader(TextFormat.APPLY_PATCH, embedded=True)
        self._files = _Files(book, part, named_only=True)

    def feed(self, text: str) -> None:
        super().feed(text)
        self._files.take(self._reader.feed(text))

    def end(self) -> bool:
        self._files.take(self._reader.finish())
        self._files.end()
        return super().end()


class PatchText:
    """The added lines are passages, one for each file.

    A text without any sign of the reader's format is a passage as a whole, if `whole`.
    For unified diffs that depends on whether the call creates a file (spec/ttsr.md 3.3),
    and None means that nothing has said so yet. With `by_first_line` it is the first line
    alone that decides, so that the content of a new file can flow.
    """

    def __init__(
        self,
        reader: PatchReader | SearchReplaceReader,
        book: PassageBook,
        part: JsonPath,
        whole: bool | None,
        *,
        by_first_line: bool = False,
    ) -> None:
        self._reader = reader
        self._book = book
        self._part = part
        self._whole = whole
        self._files = _Files(book, part)
        self._first_line = "" if by_first_line else None
        """What the text starts with, while that is to be judged."""
        self._held: list[str] | None = None if whole is False else []
        """The text so far, while it may have to be a passage as a whole."""
        self._held_chars = 0
        self._plain: PlainText | None = None

    def feed(self, text: str) -> None:
        if self._held is not None:
            room = HELD_LIMIT_CHARS - self._held_chars
            self._feed_held(self._held, text[:room])
            text = text[room:]
        if not text:
            return
        if self._plain is not None:
            self._plain.feed(text)
        else:
            self._files.take(self._reader.feed(text))

    def end(self) -> bool:
        self._files.take(self._reader.finish())
        if self._plain is not None:
            return self._plain.end()
        if self._held is None:
            self._files.end()
            return True
        if self._whole is None:
            return False
        self.is_new_file()
        return True

    def is_new_file(self) -> None:
        if self._held:
            self._release(self._held).end()

    def _feed_held(self, held: list[str], text: str) -> None:
        held.append(text)
        self._held_chars += len(text)
        if self._first_line is not None:
            self._first_line = (self._first_line + text).lstrip()[:_LONGEST_SIGN_CHARS]
            is_diff = _is_diff(self._first_line)
            if is_diff:
                self._first_line = None
                text = "".join(held)
            elif is_diff is False:
                self._release(held)
        if self._first_line is None:
            self._files.take(self._reader.feed(text))
            if self._reader.recognised:
                self._held = None
        if self._held_chars == HELD_LIMIT_CHARS and self._held is not None:
            self._release(held)

    def _release(self, held: list[str]) -> PlainText:
        """It is a passage as a whole."""
        self._plain = PlainText(self._book, self._part)
        self._plain.feed("".join(held))
        self._held = None
        return self._plain


def _is_diff(start: str) -> bool | None:
    """Whether a text that starts so is a diff; None if that cannot be said yet."""
    if start.startswith(_DIFF_SIGNS):
        return True
    return None if any(sign.startswith(start) for sign in _DIFF_SIGNS) else False


class _Files:
    """The files of one payload, by the names that its reader gives them."""

    def __init__(self, book: PassageBook, part: JsonPath, *, named_only: bool = False) -> None:
        self._book = book
        self._part = part
        self._named_only = named_only
        self._paths: dict[str, dict[str, None]] = {}
        self._keys: dict[str | None, PassageKey] = {}

    def take(self, events: Iterable[PatchEvent]) -> None:
        for event in events:
            if not isinstance(event, Added):
                self._name(event.file, event.path)
            elif event.file is not None or not self._named_only:
                self._book.text(self._key(event.file), event.text)

    def end(self) -> None:
        for file, key in self._keys.items():
            if file is None:
                self._book.end(key)
            else:
                self._book.end_file(key)

    def _name(self, file: str, path: str) -> None:
        paths = self._paths.setdefault(file, {})
        if path in paths:
            return
        paths[path] = None
        self._book.name_file(path)
        if file in self._keys:
            self._book.add_file_path(self._keys[file], path)

    def _key(self, file: str | None) -> PassageKey:
        if file not in self._keys:
            key = self._keys[file] = self._book.begin(self._part, file)
            for path in self._paths.get(file, ()) if file is not None else ():
                self._book.add_file_path(key, path)
        return self._keys[file]
