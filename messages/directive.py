"""What a `<**...**>` marker in a user's text asks for: the grammar of spec/stop_message.md 2.2.

`read_text` takes one text apart into what may be sent on and what was ordered; the walkers
over conversations (`directive_items.py`) and raw request bodies (`directive_wire.py`) call
it for each text of a user, and `stop_message.py` carries the orders out. Reading never
fails: what is not understood is removed, ignored and mentioned in `warnings`.
"""

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from midstream.messages.directive_tail import AiMode, fullwidth_tail, parse_tail, trim
from midstream.messages.marker import BLANK, NAME, QUOTES, SEPARATOR, SEPARATORS, scan

DEFAULT_MAX_REPEATS = 10
"""N where none, or no valid one, is given (spec/stop_message.md 2.2)."""


class StageMode(StrEnum):
    """Whether the stages of `bd_stage.py` choose the text: always, never, or if they can."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


class Directive(msgspec.Struct, frozen=True, tag_field="directive"):
    """Base of what a marker can order."""


class SetText(Directive, frozen=True, tag="set_text"):
    """Continue with `text` after each natural stop, at most `max_repeats` (>= 1) times."""

    text: str
    max_repeats: int = DEFAULT_MAX_REPEATS
    ai_mode: AiMode | None = None


class SetFile(Directive, frozen=True, tag="set_file"):
    """As `SetText`, the text being in a file: `path` is relative to the user directory."""

    path: str
    max_repeats: int = DEFAULT_MAX_REPEATS
    ai_mode: AiMode | None = None


class SetMode(Directive, frozen=True, tag="set_mode"):
    """Change the mode and keep the text. `max_repeats` is None where none was given."""

    mode: StageMode
    max_repeats: int | None = None
    ai_mode: AiMode | None = None


class ClearStopMessage(Directive, frozen=True, tag="clear_stop_message"):
    """`<**stopMessage:clear**>`."""


class ClearAll(Directive, frozen=True, tag="clear_all"):
    """`<**clear**>`: every directive of the session, stopMessage included."""


AnyDirective = SetText | SetFile | SetMode | ClearStopMessage | ClearAll


class TextReading(msgspec.Struct, frozen=True):
    """One text: what may be sent on, and what its markers ordered, in order of appearance.

    Each warning is there once.
    """

    text: str
    directives: tuple[AnyDirective, ...] = ()
    warnings: tuple[str, ...] = ()
    markers: int = 0
    """How many markers were taken out, of whatever kind."""

    @property
    def emptied(self) -> bool:
        """Whether taking the markers out has left nothing that could be sent."""
        return self.markers > 0 and not self.text.strip()


class ParsedBody(msgspec.Struct, frozen=True):
    """What the inside of one marker says. No directive: it is ignored."""

    directive: AnyDirective | None = None
    warnings: tuple[str, ...] = ()


def read_text(text: str, *, keep_in_code: bool = False) -> TextReading:
    """Take the markers out of one text and read them.

    Markers in code are removed but not executed; with `keep_in_code` they are left alone
    (decision 4).
    """
    found = scan(text, keep_in_code=keep_in_code)
    if not found.markers:
        return TextReading(text)
    parsed = [parse_body(marker.body) for marker in found.markers if not marker.inert]
    return TextReading(
        found.text,
        tuple(one.directive for one in parsed if one.directive is not None),
        tuple(dict.fromkeys(warning for one in parsed for warning in one.warnings)),
        len(found.markers),
    )


def effective(directives: Sequence[AnyDirective]) -> tuple[AnyDirective, ...]:
    """Which of the directives of one message count (spec/stop_message.md 2.2).

    A global clear wins over a clear of stopMessage, and that over everything else. Of the
    rest the last text counts, and the last mode if it comes after that text.
    """
    for clear in (ClearAll, ClearStopMessage):
        if any(isinstance(one, clear) for one in directives):
            return (clear(),)
    kept: list[AnyDirective] = []
    for one in directives:
        if isinstance(one, SetMode):
            kept = [*(other for other in kept if not isinstance(other, SetMode)), one]
        else:
            kept = [one]
    return tuple(kept)


_NAME_HEAD = re.compile(f"{NAME}{BLANK}*{SEPARATOR}{BLANK}*", re.IGNORECASE)
_NAME_ALONE = re.compile(NAME, re.IGNORECASE)
_VALUE_END = re.compile(f"{BLANK}*(?:{SEPARATOR}|$)")
_WORD = re.compile(r"(?:mode=)?(?P<word>[a-z]+)", re.IGNORECASE)
_FILE = re.compile(
    f"<file://(?P<bracketed>[^>\n]*)>|file://(?P<plain>[^{SEPARATORS}\n]*)", re.IGNORECASE
)
_SEPARATOR = re.compile(SEPARATOR)


def parse_body(body: str) -> ParsedBody:
    """Read the inside of one marker."""
    text = trim(body)
    if not text:
        return _ignored("empty directive")
    if text.lower() == "clear":
        return ParsedBody(ClearAll())
    if named := _NAME_HEAD.match(text):
        return _parse_arguments(text[named.end() :])
    if text[0] in QUOTES and not _NAME_ALONE.fullmatch(text):
        return _parse_quoted(text)
    return _ignored("unknown directive")


def _ignored(problem: str) -> ParsedBody:
    return ParsedBody(None, (f"{problem} ignored",))


def _parse_arguments(text: str) -> ParsedBody:
    if text[:1] in QUOTES:
        return _parse_quoted(text)
    if file := _FILE.match(text):
        return _parse_file(file, text)
    separator = _SEPARATOR.search(text)
    end = separator.start() if separator else len(text)
    first, tail = trim(text[:end]), text[end:]
    if not first:
        return _ignored("stopMessage directive without a text")
    if first.lower() == "clear":
        return ParsedBody(ClearStopMessage())
    if word := _WORD.fullmatch(first):
        value = word["word"].lower()
        if value in set(StageMode):
            return _parse_mode(StageMode(value), tail)
    return _parse_bare(text)


def _parse_mode(mode: StageMode, tail: str) -> ParsedBody:
    items = parse_tail(tail)
    return ParsedBody(SetMode(mode, items.max_repeats, items.ai_mode), items.warnings)


def _parse_quoted(text: str) -> ParsedBody:
    """A quoted text ends at its first quote that a separator or the end follows.

    So an apostrophe within single quotes, or an unescaped quotation, does not end it.
    """
    closer = QUOTES[text[0]]
    escaped = False
    for offset in range(1, len(text)):
        if escaped:
            escaped = False
        elif text[offset] == "\\":
            escaped = True
        elif text[offset] == closer and _VALUE_END.match(text, offset + 1):
            return _set_text(_unescape(text[1:offset], closer), text[offset + 1 :])
    return _ignored("unterminated quoted text")


def _unescape(text: str, closer: str) -> str:
    """Undo `\\"`, `\\\\` and the escape of the closing quote; other backslashes stay."""
    return re.sub(rf'\\(["\\{closer}])', r"\1", text)


def _parse_bare(text: str) -> ParsedBody:
    """An unquoted text ends at an ASCII comma.

    A full-width comma is punctuation in such a text, unless nothing but items follows it.
    """
    comma = text.find(",")
    end = min(len(text) if comma < 0 else comma, fullwidth_tail(text))
    return _set_text(text[:end], text[end:])


def _set_text(text: str, tail: str) -> ParsedBody:
    stripped = trim(text)
    if not stripped:
        return _ignored("stopMessage directive with an empty text")
    items = parse_tail(tail)
    max_repeats = items.max_repeats or DEFAULT_MAX_REPEATS
    return ParsedBody(SetText(stripped, max_repeats, items.ai_mode), items.warnings)


def _parse_file(file: re.Match[str], text: str) -> ParsedBody:
    path = trim(file["bracketed"] or file["plain"] or "")
    if problem := _path_problem(path):
        return _ignored(f"stopMessage file reference {problem}")
    items = parse_tail(text[file.end() :])
    max_repeats = items.max_repeats or DEFAULT_MAX_REPEATS
    return ParsedBody(SetFile(path, max_repeats, items.ai_mode), items.warnings)


def _path_problem(path: str) -> str:
    if not path:
        return "without a path"
    if path.startswith("/") or "\\" in path or "\0" in path:
        return "that is not a path relative to the user directory"
    return "that leaves the user directory" if ".." in path.split("/") else ""
