"""One condition of a rule, compiled: its automaton, or what stands in for one.

Most conditions are regular, with lookarounds at most; their automaton is exact and all
that is needed. The others have an automaton of an approximation, which says where the
costly search of `backtracking.py` is worth its time, or none at all.
"""

import regex

from midstream.rules import ecmascript, emit, python_dialect
from midstream.rules.approximation import approximate
from midstream.rules.automaton import Automaton
from midstream.rules.code_units import units
from midstream.rules.dialect_error import UntranslatableError, within_the_stack
from midstream.rules.formula import TooComplex
from midstream.rules.parsed_pattern import Opaque
from midstream.rules.pattern_traits import max_width
from midstream.rules.rule import Dialect
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
    Never,
    Node,
    Repeat,
    Sequence,
    TextEnd,
    TextStart,
)


class Condition:
    """A compiled condition.

    `automaton` decides alone if `exact`; otherwise it only says where a match is possible,
    and where it is None a match is possible everywhere. `reach` is how many units beyond
    its end a match depends on, or None if on all that follows. `resumable` says that a
    match depends on nothing but its own text. `pattern` is the condition for the `regex`
    package, which finds the place of a match; None if that cannot express it.
    """

    def __init__(self, source: str, dialect: Dialect, tree: Node | None) -> None:
        self.source = source
        self.dialect = dialect
        self.tree = tree
        self.utf16 = dialect is Dialect.ECMASCRIPT
        self.automaton, self.exact = _automaton(tree, utf16=self.utf16)
        self.pattern = self._compile_pattern()
        self.reach = None if tree is None else _reach(tree)
        self.resumable = tree is not None and not _has_assertions(tree)

    def _compile_pattern(self) -> "regex.Pattern[str] | None":
        """Compiled at once: the first match should not have to wait for it."""
        if self.dialect is Dialect.PYTHON:
            return regex.compile(self.source)
        if self.tree is None:
            return None
        try:
            return regex.compile(emit.to_regex(self.tree))
        except UntranslatableError:
            return None

    def require_pattern(self) -> "regex.Pattern[str]":
        """`pattern`; a condition without an exact automaton always has one."""
        if self.pattern is None:
            raise TooComplex
        return self.pattern

    def units(self, text: str) -> str:
        """`text` as `pattern` has to see it."""
        return units(text) if self.utf16 else text


@within_the_stack()
def compile_condition(source: str, dialect: Dialect) -> Condition:
    """Compile one condition.

    Raises `DialectError` for what the dialect does not allow, and `UntranslatableError`
    for what neither an automaton nor `regex` can match exactly.
    """
    if dialect is Dialect.PYTHON:
        parsed = python_dialect.parse(source)
        tree = None if isinstance(parsed, Opaque) else parsed.tree
        return Condition(source, dialect, tree)
    condition = Condition(source, dialect, ecmascript.parse(source).tree)
    if not condition.exact and condition.tree is not None:
        emit.to_regex(condition.tree)
    return condition


def anything() -> Condition:
    """The condition of a rule that is only a file glob: any text at all."""
    return Condition("", Dialect.ECMASCRIPT, Chars(((0, 0x10FFFF),)))


def _automaton(tree: Node | None, *, utf16: bool) -> tuple[Automaton | None, bool]:
    if tree is None:
        return None, False
    try:
        return Automaton(tree, utf16=utf16), True
    except TooComplex:
        pass
    try:
        return Automaton(approximate(tree), utf16=utf16), False
    except TooComplex:
        return None, False


def _reach(node: Node) -> int | None:
    """How far beyond the end of a match its assertions may look; None is without bound."""
    match node:
        case TextEnd():
            return None
        case LineEnd() | Boundary():
            return 1
        case Look(item, ahead):
            return _sum(max_width(item), _reach(item)) if ahead else _reach(item)
        case Group(item) | Repeat(item):
            return _reach(item)
        case Sequence(parts) | Choice(parts):
            reaches = [_reach(part) for part in parts]
            return None if None in reaches else max((r for r in reaches if r), default=0)
        case Empty() | Never() | Chars() | BackReference() | TextStart() | LineStart():
            return 0


def _has_assertions(node: Node) -> bool:
    match node:
        case Look() | TextStart() | TextEnd() | LineStart() | LineEnd() | Boundary():
            return True
        case Group(item) | Repeat(item):
            return _has_assertions(item)
        case Sequence(parts) | Choice(parts):
            return any(_has_assertions(part) for part in parts)
        case Empty() | Never() | Chars() | BackReference():
            return False


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
