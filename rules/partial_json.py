"""An incremental decoder of JSON that is still being written.

`PartialJson` takes the text in fragments, cut anywhere, and says at once what it has
learnt: the decoded text of each string value while it streams, keys, scalars,
containers. `ToolArguments` is its user. Nothing is rescanned: the work of a `feed` is
proportional to its fragment, and the memory is one frame for each open container, at
most `DEPTH_LIMIT`, and the key or word that is being read, at most `KEY_LIMIT_CHARS`.

It never raises. What is not JSON is reported as `Malformed`, and reading goes on where
that makes sense: a missing comma, colon or value, a trailing comma, a wrong bracket,
single quotes, an unquoted key, text after the end (read as a further document).

The text that is handed out is valid Unicode: the halves of a surrogate pair are joined
wherever they were cut, a half without its other half becomes U+FFFD.
"""

import re
from enum import Enum, auto

from midstream.rules.json_events import (
    ContainerEnded,
    ContainerStarted,
    JsonEvent,
    KeySeen,
    Malformed,
    Scalar,
    StringEnded,
    StringStarted,
    StringText,
)
from midstream.rules.json_strings import StringReader, SurrogateJoiner
from midstream.rules.passage import JsonPath

DEPTH_LIMIT = 64
"""Containers deeper than this are reported once and read without a structure of their
own: every string in them, keys included, is a string value at the path of the container
that was too deep. No tool's arguments come near it."""

KEY_LIMIT_CHARS = 1024
"""Longer keys and unquoted words are cut to this, and reported."""

REPORT_LIMIT = 16
"""How many `Malformed` one document gets; a text that is no JSON at all needs no more."""


class _State(Enum):
    VALUE = auto()
    """A value is due."""
    KEY = auto()
    """A key is due."""
    COLON = auto()
    NEXT = auto()
    """A value is complete: a comma or a closing bracket is due, or the end."""
    STRING = auto()
    WORD = auto()
    """Inside an unquoted run of characters."""
    TOO_DEEP = auto()


class _Level:
    """An open container and the key or index that is current in it."""

    __slots__ = ("is_object", "step")

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        self.step: str | int = "" if is_object else 0


_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"""[^ \t\r\n"'{}\[\],:]*""")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_STRUCTURE = re.compile(r'["{}\[\]]')


class PartialJson:
    """One JSON document, read as it arrives."""

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._levels: list[_Level] = []
        self._after_comma = False
        self._started = False
        self._surplus_depth = 0
        self._base_chars = 0
        self._reports_left = REPORT_LIMIT
        self._joiner = SurrogateJoiner()
        self._strings = StringReader()
        self._string_path: JsonPath = ()
        self._reading_key = False
        self._token: list[str] = []
        self._token_chars = 0
        self._events: list[JsonEvent] = []

    def feed(self, fragment: str) -> list[JsonEvent]:
        """Read the next piece of the text and say what it tells."""
        return self._read(self._joiner.feed(fragment))

    def finish(self) -> list[JsonEvent]:
        """The text is over. Strings and containers that are open end here, with a report."""
        events = self._read(self._joiner.finish())
        self._events = events
        if self._state is _State.WORD:
            self._end_word(0)
        if self._state is _State.STRING:
            self._report(0, "ends inside a string")
            self._string_piece(self._strings.finish())
            self._end_string(0)
        elif self._levels or (self._started and self._state is not _State.NEXT):
            self._report(0, "ends too early")
        while self._levels:
            self._close_level()
        self._state = _State.NEXT
        self._started = False
        return events

    def _read(self, text: str) -> list[JsonEvent]:
        events = self._events = []
        at = 0
        while at < len(text):
            if self._state is _State.STRING:
                at = self._in_string(text, at)
            elif self._state is _State.WORD:
                at = self._in_word(text, at)
            elif self._state is _State.TOO_DEEP:
                at = self._in_the_deep(text, at)
            else:
                at = self._between(text, at)
        self._base_chars += len(text)
        return events

    # Between tokens

    def _between(self, text: str, at: int) -> int:
        at = _skip_space(text, at)
        if at == len(text):
            return at
        self._started = True
        match self._state:
            case _State.KEY:
                return self._at_key(text[at], at)
            case _State.COLON:
                return self._at_colon(text[at], at)
            case _State.NEXT:
                return self._at_next(text[at], at)
            case _:
                return self._at_value(text[at], at)

    def _at_value(self, char: str, at: int) -> int:
        if char in "\"'":
            return self._start_string(char, at, is_key=False)
        if char in "{[":
            return self._open(char == "{", at)
        if char in "}]" and self._levels:
            is_empty_array = self._state is _State.VALUE and self._levels[-1].step == 0
            if not is_empty_array or self._after_comma:
                self._report(at, "a value is missing")
            return self._close(char == "}", at)
        if char in "}],:":
            self._report(at, f"{char!r} where a value is due")
            if char == "," and self._levels:
                self._advance()
            return at + 1
        return self._start_word(is_key=False, at=at)

    def _at_key(self, char: str, at: int) -> int:
        if char in "\"'":
            return self._start_string(char, at, is_key=True)
        if char in "}]":
            if self._after_comma:
                self._report(at, "a comma before the closing bracket")
            return self._close(char == "}", at)
        if char == ",":
            self._report(at, "',' where a key is due")
            return at + 1
        if char in ":{[":
            self._report(at, "a key is missing")
            self._levels[-1].step = ""
            self._state = _State.COLON
            return at
        self._report(at, "a key without quotes")
        return self._start_word(is_key=True, at=at)

    def _at_colon(self, char: str, at: int) -> int:
        if char == ":":
            self._state = _State.VALUE
            self._after_comma = False
            return at + 1
        self._report(at, "':' is missing")
        self._state = _State.NEXT if char in ",}]" else _State.VALUE
        return at

    def _at_next(self, char: str, at: int) -> int:
        if not self._levels:
            self._report(at, "text after the end")
            self._state = _State.VALUE
            return at
        if char == ",":
            self._advance()
            return at + 1
        if char in "}]":
            return self._close(char == "}", at)
        if char == ":":
            self._report(at, "':' where ',' is due")
            return at + 1
        self._report(at, "',' is missing")
        self._advance()
        self._after_comma = False
        return at

    # Containers

    def _path(self) -> JsonPath:
        return tuple([level.step for level in self._levels])

    def _open(self, is_object: bool, at: int) -> int:
        if len(self._levels) >= DEPTH_LIMIT:
            self._report(at, f"nested deeper than {DEPTH_LIMIT}")
            self._surplus_depth = 1
            self._state = _State.TOO_DEEP
            return at + 1
        self._events.append(ContainerStarted(self._path(), is_object))
        self._levels.append(_Level(is_object))
        self._state = _State.KEY if is_object else _State.VALUE
        self._after_comma = False
        return at + 1

    def _advance(self) -> None:
        """Go to the next item of the innermost container."""
        level = self._levels[-1]
        self._after_comma = True
        if isinstance(level.step, int):
            level.step += 1
            self._state = _State.VALUE
        else:
            self._state = _State.KEY

    def _close(self, is_object: bool, at: int) -> int:
        if self._levels[-1].is_object != is_object:
            self._report(at, "a closing bracket of the wrong kind")
            if all(level.is_object != is_object for level in self._levels):
                return at + 1
            while self._levels[-1].is_object != is_object:
                self._close_level()
        self._close_level()
        return at + 1

    def _close_level(self) -> None:
        level = self._levels.pop()
        self._events.append(ContainerEnded(self._path(), level.is_object))
        self._state = _State.NEXT
        self._after_comma = False

    def _in_the_deep(self, text: str, at: int) -> int:
        found = _STRUCTURE.search(text, at)
        if not found:
            return len(text)
        at = found.start()
        if text[at] == '"':
            return self._start_string('"', at, is_key=False)
        self._surplus_depth += 1 if text[at] in "{[" else -1
        if not self._surplus_depth:
            self._state = _State.NEXT
        return at + 1

    # Strings

    def _start_string(self, quote: str, at: int, *, is_key: bool) -> int:
        if quote == "'":
            self._report(at, "a string in single quotes")
        self._strings.start(quote)
        self._reading_key = is_key
        self._state = _State.STRING
        if not is_key:
            self._string_path = self._path()
            self._events.append(StringStarted(self._string_path))
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        at, piece, ended, problems = self._strings.read(text, at)
        self._string_piece(piece)
        for where, problem in problems:
            self._report(where, problem)
        if ended:
            self._end_string(at)
        return at

    def _string_piece(self, piece: str) -> None:
        if not piece:
            return
        if self._reading_key:
            self._keep_token(piece)
        else:
            self._events.append(StringText(self._string_path, piece))

    def _end_string(self, at: int) -> None:
        if self._reading_key:
            self._end_key(at)
            return
        self._events.append(StringEnded(self._string_path))
        self._state = _State.TOO_DEEP if self._surplus_depth else _State.NEXT

    def _end_key(self, at: int) -> None:
        key = self._take_token(at)
        self._levels[-1].step = key
        self._events.append(KeySeen(self._path()[:-1], key))
        self._state = _State.COLON

    # Words

    def _start_word(self, *, is_key: bool, at: int) -> int:
        self._reading_key = is_key
        self._state = _State.WORD
        return at

    def _in_word(self, text: str, at: int) -> int:
        found = _WORD.match(text, at)
        end = found.end() if found else at
        self._keep_token(text[at:end])
        if end < len(text):
            self._end_word(end)
        return end

    def _end_word(self, at: int) -> None:
        if self._reading_key:
            self._end_key(at)
            return
        word = self._take_token(at)
        if _SCALAR.fullmatch(word):
            self._events.append(Scalar(self._path(), word))
        else:
            self._report(at, "a value that is no string, number, true, false or null")
        self._state = _State.NEXT

    def _keep_token(self, piece: str) -> None:
        if self._token_chars < KEY_LIMIT_CHARS:
            self._token.append(piece[: KEY_LIMIT_CHARS - self._token_chars])
        self._token_chars += len(piece)

    def _take_token(self, at: int) -> str:
        if self._token_chars > KEY_LIMIT_CHARS:
            self._report(at, f"a key or word longer than {KEY_LIMIT_CHARS} characters")
        token = "".join(self._token)
        self._token = []
        self._token_chars = 0
        return token

    def _report(self, at: int, problem: str) -> None:
        if self._reports_left:
            self._reports_left -= 1
            self._events.append(Malformed(self._base_chars + at, problem))


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
