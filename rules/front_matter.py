"""Splits a rule file into its front matter and its body.

Pure: bytes or text in, values and problems out; the rule reader (`rule_file.py`) is the
only caller. Every line that is reported is a line of the file as it stands on disk, also
after comments were removed (spec/ttsr.md 1.1).
"""

import codecs
import re
from bisect import bisect_right

import msgspec

from midstream.rules.lenient_yaml import Entry, parse_mapping
from midstream.rules.problem import Problem, Severity

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_KEBAB_HUMP = re.compile(r"-([A-Za-z0-9])")
_KEY_LIKE = re.compile(r"^[\w-]+:(?:\s|$)")
_FENCE = "---"
_LATE_FRONT_MATTER = re.compile(
    r"^---[ \t]*\n(?:(?!---).*\n)*?"
    r"(?:condition|ttsr_?trigger|description|globs|applyTo|paths|scope|always-?apply):"
    r".*\n(?:(?!---).*\n)*?---[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_LATE_WITHIN_CHARS = 4_000
"""How far from the beginning that is looked for: examples of front matter come later."""


class Document(msgspec.Struct, frozen=True):
    """A rule file, split. `fields` are keyed in camelCase; lines count from 1."""

    fields: dict[str, Entry]
    body: str
    problems: tuple[Problem, ...] = ()


class Undecodable(ValueError):
    """The bytes of a file are no text; the message says why."""


def decode(data: bytes) -> str:
    """The text of a rule file: UTF-8, or UTF-16 where its byte order mark says so.

    Raises `Undecodable`.
    """
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise Undecodable(f"it is not valid {name} at byte {error.start}") from error


def camel_case(key: str) -> str:
    """`interrupt-mode` to `interruptMode`; snake_case stays (spec/ttsr.md 1.1.4)."""
    return _KEBAB_HUMP.sub(lambda match: match[1].upper(), key)


def read_document(text: str, path: str = "") -> Document:
    """Front matter and body of a rule file's text. Never raises.

    The body is trimmed at both ends and free of HTML comments. Without a closing fence
    there is no front matter and the whole text is the body.
    """
    unix = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    plain = _without_comments(unix)
    start = len(plain.text) - len(plain.text.lstrip())
    trimmed = plain.text[start:]
    if not trimmed.startswith(_FENCE):
        return Document({}, trimmed.rstrip(), _misplaced(trimmed, path, plain, start))
    end = trimmed.find("\n" + _FENCE, len(_FENCE))
    if end < 0:
        problems = _unclosed(trimmed, path, plain.line_at(start))
        return Document({}, trimmed.rstrip(), problems)
    yaml_start = start + len(_FENCE)
    yaml_text = trimmed[len(_FENCE) : end]
    mapping = parse_mapping(yaml_text.replace("\t", "  "))
    lines = _line_starts(yaml_text)

    def file_line(yaml_line: int) -> int:
        return plain.line_at(yaml_start + lines[min(yaml_line, len(lines)) - 1])

    found = [
        msgspec.structs.replace(problem, path=path, line=file_line(problem.line))
        for problem in mapping.problems
    ]
    fields: dict[str, Entry] = {}
    for entry in mapping.entries:
        key, line = camel_case(entry.key), file_line(entry.line)
        earlier = fields.get(key)
        if earlier is not None and earlier.key != entry.key:
            what = f"`{earlier.key}` and `{entry.key}` are the same key; this line counts"
            found.append(Problem(path, line, Severity.WARNING, what, "keep one"))
        item_lines = tuple(file_line(item_line) for item_line in entry.item_lines)
        fields[key] = Entry(entry.key, entry.value, line, item_lines)
    found += _comments_in_values(plain, yaml_start, start + end, path)
    body = trimmed[end + 1 :].lstrip("-").strip()
    return Document(fields, body, tuple(found))


class _Uncommented(msgspec.Struct, frozen=True):
    """`text` without its comments; `cuts` are the offsets in it where comments were, with
    the count of line breaks that were cut away up to and including each."""

    text: str
    cuts: tuple[tuple[int, int], ...]

    def line_at(self, offset: int) -> int:
        """Line in the file, from 1, of the character at `offset` of `text`."""
        index = bisect_right(self.cuts, offset, key=lambda cut: cut[0])
        breaks_cut = self.cuts[index - 1][1] if index else 0
        return self.text.count("\n", 0, offset) + breaks_cut + 1


def _without_comments(text: str) -> _Uncommented:
    pieces: list[str] = []
    cuts: list[tuple[int, int]] = []
    position = length = breaks = 0
    for match in _COMMENT.finditer(text):
        pieces.append(text[position : match.start()])
        length += match.start() - position
        breaks += match[0].count("\n")
        cuts.append((length, breaks))
        position = match.end()
    pieces.append(text[position:])
    return _Uncommented("".join(pieces), tuple(cuts))


def _comments_in_values(plain: _Uncommented, start: int, end: int, path: str) -> list[Problem]:
    """A comment that shares its line with a value took a part of that value with it."""
    found: list[Problem] = []
    for offset, _ in plain.cuts:
        line_start = plain.text.rfind("\n", 0, offset) + 1
        if start <= offset <= end and plain.text[line_start:offset].strip():
            found.append(
                Problem(
                    path,
                    plain.line_at(offset),
                    Severity.WARNING,
                    "an HTML comment was removed from this value",
                    "in a condition write `<!-{2}` for the start of a comment",
                )
            )
    return found


def _unclosed(text: str, path: str, line: int) -> tuple[Problem, ...]:
    """A fence that opens and never closes, unless it is a mere horizontal rule."""
    after = text.split("\n", 2)[1:2]
    if not after or not _KEY_LIKE.match(after[0]):
        return ()
    what = "the front matter is not closed, so all of it was read as the body"
    return (Problem(path, line, Severity.WARNING, what, "add a line `---` after the last key"),)


def _misplaced(text: str, path: str, plain: _Uncommented, start: int) -> tuple[Problem, ...]:
    """Front matter behind something else, such as a heading, is a part of the body."""
    found = _LATE_FRONT_MATTER.search(text, 0, _LATE_WITHIN_CHARS)
    if found is None:
        return ()
    what = "this is not the beginning of the file, so it is no front matter but body"
    line = plain.line_at(start + found.start())
    mend = "move what stands before it behind the second `---`"
    return (Problem(path, line, Severity.WARNING, what, mend),)


def _line_starts(text: str) -> list[int]:
    return [0, *(index + 1 for index, char in enumerate(text) if char == "\n")]
