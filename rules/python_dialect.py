"""The Python dialect: the syntax of the `regex` package, as far as it has a tree.

The engine runs such a condition with `regex` where it needs to, so the source is always
right; a tree only lets it decide sooner and cheaper. Therefore this parser gives up
(`Opaque`) on everything of which the tree could mean something else: atomic groups,
possessive quantifiers, recursion, conditionals, fuzzy matching, set operations, `\\G`,
`\\K`, `\\X`, references that ignore case or may find no capture, loops that `regex` leaves
in another way than JavaScript. What `regex` refuses is refused with its own message.
Texts are code points here, and classes are those of the installed `regex`.
"""

import re
from typing import Any

import regex
from msgspec.structs import replace

from midstream.rules.back_references import uncertain_groups
from midstream.rules.character_classes import LAST_CODE_POINT, complement
from midstream.rules.dialect_error import DialectError, within_the_stack
from midstream.rules.emit import MAX_WIDTH
from midstream.rules.empty_iterations import iterates_plainly
from midstream.rules.parsed_pattern import Opaque, ParsedPattern
from midstream.rules.python_atoms import (
    FLAG_NAMES,
    Cursor,
    Flags,
    NoTree,
    read_character_escape,
    read_class,
    read_literal,
    required_repetitions,
    word,
)
from midstream.rules.syntax import (
    BackReference,
    Boundary,
    Chars,
    Choice,
    Empty,
    Group,
    LineEnd,
    LineStart,
    Look,
    Node,
    Ranges,
    Repeat,
    Sequence,
    TextEnd,
    TextStart,
)

_MAX_NESTING = 50
_NEWLINE: Ranges = ((0x0A, 0x0A),)
_ANYTHING: Ranges = ((0, LAST_CODE_POINT),)

_NOT_NEWLINE = complement(_NEWLINE, LAST_CODE_POINT)
_BEFORE_LAST_NEWLINE = Look(
    Sequence((Repeat(Chars(_NEWLINE), 0, 1), TextEnd())), ahead=True, negative=False
)
"""`$` without `m`: at the end, or before a newline that is the last character."""

_LEADING_FLAGS = re.compile(r"(?:\(\?[imsa]+\))*")
_SCOPED_FLAGS = re.compile(r"\(\?([ims]*)(?:-([ims]+))?:")
_NAMED_GROUP = re.compile(r"\(\?P?<([^\W\d]\w*)>")
_NAMED_REFERENCE = re.compile(r"\(\?P=(\w+)\)|\\g<(\w+)>")
_NUMBERED_REFERENCE = re.compile(r"\\([1-9][0-9]?)(?![0-9])")
_COMMENTS = re.compile(r"(?:\(\?#[^)]*\))+")
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)\}|\{([0-9]*),([0-9]+)\}|\{([0-9]+),\}")


@within_the_stack()
def parse(pattern: str) -> ParsedPattern | Opaque:
    """The meaning of `pattern`, or the reason why only `regex` can run it.

    Raises DialectError for what `regex` refuses, and for counts that would cost it more
    memory than a condition is worth.
    """
    compiled = _compile(pattern)
    leading = _LEADING_FLAGS.match(pattern)
    assert leading is not None  # it may match nothing
    flags = Flags(**{FLAG_NAMES[each]: True for each in leading[0] if each in FLAG_NAMES})
    parser = _Parser(Cursor(pattern, leading.end()), flags, dict(compiled.groupindex))
    try:
        tree = parser.pattern()
        if parser.groups != compiled.groups:
            raise NoTree("groups that share a number")
        _require_same_meaning(tree)
    except NoTree as no_tree:
        return Opaque(pattern, no_tree.reason, (no_tree.warning,) if no_tree.warning else ())
    return ParsedPattern(
        tree=tree,
        ignore_case=flags.ignore_case,
        multiline=flags.multiline,
        dot_all=flags.dot_all,
        group_count=compiled.groups,
        group_names=tuple(sorted(compiled.groupindex.items(), key=lambda entry: entry[1])),
    )


def _compile(pattern: str) -> "regex.Pattern[str]":
    if required_repetitions(pattern) > MAX_WIDTH:
        raise DialectError(0, f"more than {MAX_WIDTH} repetitions", "repeat less often")
    try:
        return regex.compile(pattern, cache_pattern=False)
    except regex.error as error:
        details: Any = error  # the package's stubs do not know its attributes
        raise DialectError(details.pos or 0, details.msg) from error
    except (ValueError, OverflowError) as error:
        raise DialectError(0, str(error)) from error


def _require_same_meaning(tree: Node) -> None:
    if uncertain_groups(tree):
        raise NoTree("a back-reference that may find no capture")
    if not iterates_plainly(tree):
        raise NoTree("a quantifier over something that can be empty")


class _Parser:
    """Recursive descent over a pattern that `regex` has accepted; used once."""

    def __init__(self, cursor: Cursor, flags: Flags, names: dict[str, int]) -> None:
        self.groups = 0
        self._cursor = cursor
        self._flags = flags
        self._names = names
        self._depth = 0

    def pattern(self) -> Node:
        tree = self._disjunction()
        if self._cursor.more():
            raise NoTree("an unmatched parenthesis")
        return tree

    def _disjunction(self) -> Node:
        options = [self._alternative()]
        while self._cursor.take("|"):
            options.append(self._alternative())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _alternative(self) -> Node:
        cursor = self._cursor
        items: list[Node] = []
        while cursor.more() and cursor.text[cursor.at] not in "|)":
            if not cursor.match(_COMMENTS):
                items.append(self._quantified(self._atom()))
        if not items:
            return Empty()
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _atom(self) -> Node:
        cursor = self._cursor
        match cursor.text[cursor.at]:
            case "(":
                return self._group()
            case "[":
                return read_class(cursor, self._flags)
            case "\\":
                return self._escape()
            case ".":
                cursor.at += 1
                return Chars(_ANYTHING if self._flags.dot_all else _NOT_NEWLINE)
            case "^":
                cursor.at += 1
                return LineStart(_NEWLINE) if self._flags.multiline else TextStart()
            case "$":
                cursor.at += 1
                return LineEnd(_NEWLINE) if self._flags.multiline else _BEFORE_LAST_NEWLINE
            case "{" | "*" | "+" | "?" as sign:
                raise NoTree(f"a `{sign}` that is no quantifier")
            case _:
                return read_literal(cursor, self._flags)

    def _escape(self) -> Node:
        cursor = self._cursor
        if cursor.take("\\A"):
            return TextStart()
        if cursor.take("\\Z"):
            return TextEnd()
        if cursor.take("\\b"):
            return Boundary(word(self._flags))
        if cursor.take("\\B"):
            return Boundary(word(self._flags), negative=True)
        if found := cursor.match(_NUMBERED_REFERENCE):
            return self._reference(found[1])
        if found := cursor.match(_NAMED_REFERENCE):
            return self._reference(found[1] or found[2])
        return read_character_escape(cursor, self._flags)

    def _reference(self, name: str) -> Node:
        if self._flags.ignore_case:
            raise NoTree("a back-reference that ignores case")
        return BackReference(int(name) if name.isdigit() else self._names[name])

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise NoTree("deep nesting")
        node = self._opened_group()
        self._depth -= 1
        return node

    def _opened_group(self) -> Node:
        cursor = self._cursor
        if cursor.take("(?="):
            return Look(self._closed(), ahead=True, negative=False)
        if cursor.take("(?!"):
            return Look(self._closed(), ahead=True, negative=True)
        if cursor.take("(?<="):
            return Look(self._closed(), ahead=False, negative=False)
        if cursor.take("(?<!"):
            return Look(self._closed(), ahead=False, negative=True)
        if found := cursor.match(_NAMED_REFERENCE):
            return self._reference(found[1])
        if found := cursor.match(_NAMED_GROUP):
            return self._capture(found[1])
        if found := cursor.match(_SCOPED_FLAGS):
            return self._scoped(found)
        if cursor.text.startswith(("(?", "(*"), cursor.at):
            raise NoTree(f"the group {cursor.text[cursor.at : cursor.at + 4]}")
        cursor.at += 1
        return self._capture(None)

    def _closed(self) -> Node:
        inside = self._disjunction()
        if not self._cursor.take(")"):
            raise NoTree("an unmatched parenthesis")
        return inside

    def _capture(self, name: str | None) -> Node:
        self.groups += 1
        number = self.groups
        return Group(self._closed(), number, name)

    def _scoped(self, found: re.Match[str]) -> Node:
        outer = self._flags
        on, off = found[1] or "", found[2] or ""
        if set(on) & set(off):
            raise NoTree("a flag that is turned on and off")
        changes = {FLAG_NAMES[each]: each in on for each in on + off}
        self._flags = replace(outer, **changes)
        inside = self._closed()
        self._flags = outer
        return inside

    def _quantified(self, item: Node) -> Node:
        cursor = self._cursor
        cursor.match(_COMMENTS)
        found = cursor.match(_QUANTIFIER)
        if found is None:
            return item
        least, most = _counts(found)
        greedy = not cursor.take("?")
        if _QUANTIFIER.match(cursor.text, cursor.at):
            raise NoTree("a possessive quantifier")
        if most == 0:
            return Empty()
        return Repeat(item, least, most, greedy)


def _counts(quantifier: re.Match[str]) -> tuple[int, int | None]:
    exactly, least, most, at_least = quantifier.groups()
    match quantifier[0]:
        case "*":
            return 0, None
        case "+":
            return 1, None
        case "?":
            return 0, 1
        case _ if exactly:
            return int(exactly), int(exactly)
        case _ if at_least:
            return int(at_least), None
        case _:
            return int(least or 0), int(most)
