"""The ECMAScript dialect: the text of a condition in, a syntax tree out.

A condition is the pattern of a JavaScript `RegExp` without flags, in the grammar with Annex
B (web reality), plus leading `(?ims)` groups that become flags (spec/ttsr.md 0.2, 1.3) and
the modifiers and duplicate group names of ECMAScript 2025. The loader and the engine call
`parse`. It guarantees that the tree means what JavaScript would match on the UTF-16 units
of a text, and that what JavaScript refuses is refused with a position and, where another
dialect was evidently meant, with a mend.

This file has the structure of the grammar, `ecmascript_scanner.py` the place in the text,
`ecmascript_atoms.py` escapes, classes and counts, `ecmascript_hints.py` what is said to
authors.
"""

import re

from msgspec.structs import replace

from midstream.rules.back_references import without_dead_references
from midstream.rules.character_classes import LINE_TERMINATORS, WORD
from midstream.rules.dialect_error import DialectError, within_the_stack
from midstream.rules.ecmascript_atoms import (
    read_class,
    read_counts,
    read_dot,
    read_escape,
    read_literal,
    starts_quantifier,
)
from midstream.rules.ecmascript_hints import (
    ESCAPE_IT_MEND,
    POSSESSIVE_MEND,
    REPEATED_ASSERTION_MEND,
    astral_quantifier_warning,
    group_mend,
    literal_brace_warning,
)
from midstream.rules.ecmascript_scanner import Flags, Scanner
from midstream.rules.parsed_pattern import ParsedPattern
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
    Repeat,
    Sequence,
    TextEnd,
    TextStart,
)

MAX_NESTING = 50
"""Groups within groups. Keeps every walk over a tree far from Python's recursion limit."""

_FLAG_NAMES = {"i": "ignore_case", "m": "multiline", "s": "dot_all"}
_LEADING_FLAGS = re.compile(r"(?:\(\?[ims]+\))+")
_MODIFIERS = re.compile(r"\(\?([ims]*)(?:(-)([ims]*))?:")
_DECIMAL = re.compile(r"[1-9][0-9]*")


@within_the_stack()
def parse(pattern: str) -> ParsedPattern:
    """The meaning of `pattern`, a condition in the ECMAScript dialect.

    Raises DialectError for what JavaScript refuses, and for groups nested deeper than
    MAX_NESTING.
    """
    leading = _LEADING_FLAGS.match(pattern)
    skipped = leading.end() if leading else 0
    flags = Flags(**{_FLAG_NAMES[each]: True for each in pattern[:skipped] if each in "ims"})
    scanner = Scanner(pattern, skipped)
    tree = without_dead_references(_Parser(scanner, flags).pattern())
    return ParsedPattern(
        tree=tree,
        ignore_case=flags.ignore_case,
        multiline=flags.multiline,
        dot_all=flags.dot_all,
        group_count=scanner.group_count,
        group_names=scanner.group_names,
        warnings=tuple(scanner.warnings),
    )


class _Parser:
    """Recursive descent over the units of one pattern; used once."""

    def __init__(self, scanner: Scanner, flags: Flags) -> None:
        self._scanner = scanner
        self._flags = flags
        self._groups_opened = 0
        self._depth = 0
        self._disjunctions = 0
        self._place: list[tuple[int, int]] = []
        """(disjunction, index of the alternative) from the outside to here."""
        self._named: dict[str, list[dict[int, int]]] = {}
        """The places of the groups of each name."""

    def pattern(self) -> Node:
        tree = self._disjunction()
        if self._scanner.more():
            raise self._scanner.error("unmatched `)`", ESCAPE_IT_MEND)
        return tree

    def _disjunction(self) -> Node:
        self._disjunctions += 1
        identity = self._disjunctions
        options: list[Node] = []
        while True:
            self._place.append((identity, len(options)))
            options.append(self._alternative())
            self._place.pop()
            if not self._scanner.take("|"):
                break
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _alternative(self) -> Node:
        items: list[Node] = []
        while self._scanner.more() and self._scanner.peek() not in "|)":
            items.append(self._term())
        if not items:
            return Empty()
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _term(self) -> Node:
        scanner = self._scanner
        match scanner.peek():
            case "^":
                scanner.at += 1
                return LineStart(LINE_TERMINATORS) if self._flags.multiline else TextStart()
            case "$":
                scanner.at += 1
                return LineEnd(LINE_TERMINATORS) if self._flags.multiline else TextEnd()
            case "\\" if scanner.peek(1) in ("b", "B"):
                scanner.at += 2
                return Boundary(WORD, negative=scanner.text[scanner.at - 1] == "B")
            case _ if starts_quantifier(scanner):
                raise self._nothing_to_repeat()
            case "(":
                return self._group()
            case _:
                return self._quantified(self._atom())

    def _atom(self) -> Node:
        scanner = self._scanner
        match scanner.peek():
            case ".":
                return read_dot(scanner, self._flags)
            case "[":
                return read_class(scanner, self._flags)
            case "\\":
                return self._escape()
            case "{":
                scanner.warn(literal_brace_warning(scanner.text[scanner.at :]))
                return read_literal(scanner, self._flags)
            case _:
                return read_literal(scanner, self._flags)

    def _escape(self) -> Node:
        scanner = self._scanner
        if scanner.peek(1) == "k" and scanner.group_names:
            return self._named_reference()
        decimal = _DECIMAL.match(scanner.text, scanner.at + 1)
        if decimal and _number(decimal) <= scanner.group_count:
            scanner.at = decimal.end()
            return BackReference(_number(decimal), self._flags.ignore_case)
        return read_escape(scanner, self._flags)

    def _named_reference(self) -> Node:
        scanner = self._scanner
        start = scanner.at
        scanner.at += 2
        if not scanner.take("<"):
            raise scanner.error("`\\k` without a group name", "write `\\k<name>`", start)
        name = scanner.read_group_name()
        numbers = [number for known, number in scanner.group_names if known == name]
        if not numbers:
            raise scanner.error(f"no group is named `{name}`", "", start)
        # Groups that share a name are in different alternatives: all but one are empty.
        references = tuple(BackReference(each, self._flags.ignore_case) for each in numbers)
        return references[0] if len(references) == 1 else Sequence(references)

    def _group(self) -> Node:
        scanner = self._scanner
        start = scanner.at
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise scanner.error(f"groups are nested deeper than {MAX_NESTING}", "flatten them")
        node, may_repeat = self._opened_group(start)
        self._depth -= 1
        if may_repeat:
            return self._quantified(node)
        if starts_quantifier(scanner):
            raise self._nothing_to_repeat()
        return node

    def _opened_group(self, start: int) -> tuple[Node, bool]:
        """The group that starts here, and whether a quantifier may follow it."""
        scanner = self._scanner
        if scanner.take("(?="):
            return Look(self._closed(start), ahead=True, negative=False), True
        if scanner.take("(?!"):
            return Look(self._closed(start), ahead=True, negative=True), True
        if scanner.take("(?<="):
            return Look(self._closed(start), ahead=False, negative=False), False
        if scanner.take("(?<!"):
            return Look(self._closed(start), ahead=False, negative=True), False
        if scanner.take("(?<"):
            return self._capture(start, self._new_name(start)), True
        if modifiers := _MODIFIERS.match(scanner.text, scanner.at):
            return self._modified(modifiers), True
        if scanner.starts("(?"):
            raise scanner.error("invalid group", group_mend(scanner.text[start:]))
        scanner.at += 1
        return self._capture(start, None), True

    def _closed(self, start: int) -> Node:
        inside = self._disjunction()
        if not self._scanner.take(")"):
            raise self._scanner.error("a group is not closed", "add `)`", start)
        return inside

    def _capture(self, start: int, name: str | None) -> Node:
        self._groups_opened += 1
        number = self._groups_opened
        return Group(self._closed(start), number, name)

    def _new_name(self, start: int) -> str:
        name = self._scanner.read_group_name()
        here = dict(self._place)
        for other in self._named.setdefault(name, []):
            if all(here[key] == other[key] for key in here.keys() & other.keys()):
                raise self._scanner.error(
                    f"two groups that can both capture are named `{name}`",
                    "rename one of them",
                    start,
                )
        self._named[name].append(here)
        return name

    def _modified(self, modifiers: re.Match[str]) -> Node:
        """`(?:...)`, `(?i:...)`, `(?-i:...)`: flags for a part (ECMAScript 2025)."""
        scanner = self._scanner
        added, dash, removed = (part or "" for part in modifiers.groups())
        both = added + removed
        if len(set(both)) != len(both) or (dash and not both):
            raise scanner.error("invalid flags of a group", "name each of i, m, s at most once")
        outer = self._flags
        changes = {_FLAG_NAMES[flag]: flag in added for flag in both}
        self._flags = replace(outer, **changes)
        start = scanner.at
        scanner.at = modifiers.end()
        inside = self._closed(start)
        self._flags = outer
        return inside

    def _quantified(self, item: Node) -> Node:
        scanner = self._scanner
        if not starts_quantifier(scanner):
            return item
        if isinstance(item, Chars):
            scanner.warn(astral_quantifier_warning(scanner.text[scanner.at - 2 : scanner.at]))
        least, most = read_counts(scanner)
        greedy = not scanner.take("?")
        if most == 0:
            return Empty()
        return Repeat(item, least, most, greedy)

    def _nothing_to_repeat(self) -> DialectError:
        scanner = self._scanner
        before = scanner.text[: scanner.at]
        mend = ESCAPE_IT_MEND
        if scanner.peek() == "+" and before.endswith(("*", "+", "?", "}")):
            mend = POSSESSIVE_MEND
        elif before.endswith(("^", "$", "\\b", "\\B", ")")):
            mend = REPEATED_ASSERTION_MEND
        return scanner.error("nothing to repeat", mend)


def _number(decimal: re.Match[str]) -> int:
    # No pattern has a thousand million groups, and Python refuses to read longer numbers.
    return int(decimal[0][:10])
