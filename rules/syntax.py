"""The syntax tree of a condition, common to both dialects.

`ecmascript.py` parses the ECMAScript dialect into it, `automaton.py` runs it, and
`emit.py` writes it in the syntax of the `regex` package. A tree is a value: no node knows
its parent or its source.

Texts are sequences of *units*: UTF-16 code units for the ECMAScript dialect (as without
the `u` flag there), code points for the Python dialect.
"""

from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint, inclusive ranges of units."""


@dataclass(frozen=True, slots=True)
class Empty:
    """Matches the empty text."""


@dataclass(frozen=True, slots=True)
class Never:
    """Matches nothing (`[]`, `(?!)`)."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One unit out of `ranges` (case already folded in, complement already taken)."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` from `least` to `most` times; `most` is None for unbounded."""

    item: "Node"
    least: int
    most: int | None
    greedy: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """A capturing group; `number` counts from 1 by opening parenthesis."""

    item: "Node"
    number: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class BackReference:
    """The text of an earlier group. `ignore_case` is the flag in force at this place."""

    number: int
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """A lookaround: zero-width, `ahead` or behind, positive or `negative`."""

    item: "Node"
    ahead: bool
    negative: bool


@dataclass(frozen=True, slots=True)
class TextStart:
    """`^` without the `m` flag, `\\A`."""


@dataclass(frozen=True, slots=True)
class TextEnd:
    """`$` without the `m` flag, `\\Z`."""


@dataclass(frozen=True, slots=True)
class LineStart:
    """`^` with the `m` flag: at the start, or after one of `terminators`."""

    terminators: Ranges


@dataclass(frozen=True, slots=True)
class LineEnd:
    """`$` with the `m` flag: at the end, or before one of `terminators`."""

    terminators: Ranges


@dataclass(frozen=True, slots=True)
class Boundary:
    """`\\b`, or `\\B` when `negative`; `word` are the word units."""

    word: Ranges
    negative: bool = False


Node = (
    Empty
    | Never
    | Chars
    | Sequence
    | Choice
    | Repeat
    | Group
    | BackReference
    | Look
    | TextStart
    | TextEnd
    | LineStart
    | LineEnd
    | Boundary
)
