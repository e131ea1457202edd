"""One reading of a call's argument text, from its first character on.

Owned by `ToolArguments`, which starts another one where the final arguments turn out to be
others. It finds out whether the text is JSON or free text (a codex `custom` tool), decodes
it, asks the tool's shapes which strings are introduced, and sends those through
`IntroducedText` into the `PassageBook`.
"""

import re

from midstream.rules.argument_paths import PATH_LIMIT_CHARS, names_a_path, path_scope
from midstream.rules.introduced_text import IntroducedText, PlainText, introduced_text
from midstream.rules.json_events import (
    ContainerEnded,
    JsonEvent,
    Malformed,
    StringEnded,
    StringStarted,
    StringText,
)
from midstream.rules.json_strings import SurrogateJoiner
from midstream.rules.partial_json import PartialJson
from midstream.rules.passage import ArgumentEvent, JsonPath
from midstream.rules.passage_book import PATHS_LIMIT, PassageBook
from midstream.rules.tool_shapes import TextFormat, ToolShape, matches_place

_JSON_START = re.compile(r"""\s*(?:\{\s*["'}]|\[\s*["\[{\]])""")
_UNDECIDED = re.compile(r"\s*(?:[{\[]\s*)?")
_HEAD_LIMIT_CHARS = 1024
_CREATING = frozenset({"create", "create_file", "add", "add_file", "write"})


class ArgumentReading:
    """Feed it the argument text, cut anywhere; it never raises."""

    def __init__(self, call_id: str, shapes: tuple[ToolShape, ...], cwd: str, *, raw: bool) -> None:
        with_paths = not shapes or any(shape.paths != () for shape in shapes)
        self._book = PassageBook(call_id, cwd, with_paths=with_paths, raw=raw)
        self._shapes = shapes
        self._joiner = SurrogateJoiner()
        self._head: str | None = ""
        """The text so far, until it is known what it is."""
        self._json: _JsonArguments | None = None
        self._free: IntroducedText | None = None

    def feed(self, fragment: str) -> list[ArgumentEvent]:
        self._read(self._joiner.feed(fragment))
        return self._book.take()

    def finish(self) -> list[ArgumentEvent]:
        """The text is over, and with it the call."""
        self._read(self._joiner.finish())
        if self._head and self._head.strip():
            self._decide(self._head, is_json=True)
        if self._json is not None:
            self._json.finish()
        if self._free is not None:
            self._free.end()
        self._book.finish()
        return self._book.take()

    def _read(self, text: str) -> None:
        if not text:
            return
        self._book.raw_text(text)
        if self._json is not None:
            self._json.feed(text)
        elif self._free is not None:
            self._free.feed(text)
        else:
            self._sniff((self._head or "") + text)

    def _sniff(self, head: str) -> None:
        """Arguments are JSON if they start like an object, or like an array of JSON.

        `[` alone does not tell: a hashline payload starts with `[path#TAG]`.
        """
        start = head[:_HEAD_LIMIT_CHARS]
        if _JSON_START.match(start):
            self._decide(head, is_json=True)
        elif _UNDECIDED.fullmatch(start) and len(head) < _HEAD_LIMIT_CHARS:
            self._head = head
        else:
            self._decide(head, is_json=False)

    def _decide(self, head: str, *, is_json: bool) -> None:
        self._head = None
        if is_json:
            self._json = _JsonArguments(self._book, self._shapes)
            self._json.feed(head)
            return
        if head.lstrip().startswith("{"):
            self._book.report(0, "no JSON after '{'; watched as plain text")
        formats = [shape.format for shape in self._shapes if shape.format is not TextFormat.PLAIN]
        text_format = formats[0] if formats else TextFormat.PLAIN
        self._free = introduced_text(text_format, self._book, (), False)
        self._free.feed(head)


class _JsonArguments:
    """Arguments that are JSON."""

    def __init__(self, book: PassageBook, shapes: tuple[ToolShape, ...]) -> None:
        self._book = book
        self._shapes = shapes
        self._decoder = PartialJson()
        self._fed_chars = 0
        self._told_paths = False
        self._text: IntroducedText | None = None
        """Where the text of the open string goes, if it is introduced."""
        self._noted: list[str] | None = None
        """The text of the open string, if it says something about others."""
        self._noted_chars = 0
        self._creates: dict[JsonPath, bool] = {}
        """By object, whether its operation creates a file."""
        self._undecided: dict[JsonPath, list[IntroducedText]] = {}
        """By object, texts that depend on an operation that has not come yet."""

    def feed(self, text: str) -> None:
        self._fed_chars += len(text)
        self._take(self._decoder.feed(text))

    def finish(self) -> None:
        self._take(self._decoder.finish())

    def _take(self, events: list[JsonEvent]) -> None:
        for event in events:
            match event:
                case StringText(_, text):
                    self._string_text(text)
                case StringStarted(path):
                    self._start_string(path)
                case StringEnded(path):
                    self._end_string(path)
                case ContainerEnded(path):
                    self._undecided.pop(path, None)
                    self._creates.pop(path, None)
                case Malformed(offset_chars, problem):
                    self._book.report(offset_chars, problem)
                case _:
                    pass

    def _start_string(self, path: JsonPath) -> None:
        shape = self._shape_at(path)
        if not self._shapes:
            self._text = PlainText(self._book, path)
        elif shape is not None:
            creates = self._creates.get(path[:-1]) if shape.operation else False
            self._text = introduced_text(shape.format, self._book, path, creates)
        if self._is_path(path) or self._is_operation(path):
            self._noted = []
            self._noted_chars = 0

    def _string_text(self, text: str) -> None:
        if self._text is not None:
            self._text.feed(text)
        if self._noted is not None and self._noted_chars <= PATH_LIMIT_CHARS:
            self._noted.append(text)
            self._noted_chars += len(text)

    def _end_string(self, path: JsonPath) -> None:
        if self._noted is not None and self._noted_chars <= PATH_LIMIT_CHARS:
            self._note(path, "".join(self._noted))
        self._noted = None
        if self._text is not None and not self._text.end():
            self._undecided.setdefault(path[:-1], []).append(self._text)
        self._text = None

    def _note(self, path: JsonPath, text: str) -> None:
        if self._is_operation(path):
            self._note_operation(path[:-1], text)
        if not self._is_path(path) or self._book.add_path(path_scope(path), text):
            return
        if not self._told_paths:
            self._told_paths = True
            self._book.report(self._fed_chars, f"more than {PATHS_LIMIT} paths; not all count")

    def _note_operation(self, object_path: JsonPath, operation: str) -> None:
        creates = self._creates[object_path] = operation.lower() in _CREATING
        for text in self._undecided.pop(object_path, ()):
            if creates:
                text.is_new_file()

    def _shape_at(self, path: JsonPath) -> ToolShape | None:
        """The shape by which the string is introduced.

        A string that stands for all arguments, or behind them where they are malformed,
        always is.
        """
        for shape in self._shapes:
            places = shape.introduced
            if not path or places is None or any(matches_place(place, path) for place in places):
                return shape
        return None

    def _is_path(self, path: JsonPath) -> bool:
        if not self._shapes:
            return names_a_path(path)
        return any(
            names_a_path(path)
            if shape.paths is None
            else any(matches_place(place, path) for place in shape.paths)
            for shape in self._shapes
        )

    def _is_operation(self, path: JsonPath) -> bool:
        return bool(path) and any(path[-1] in shape.operation for shape in self._shapes)
