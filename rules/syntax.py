"""The syntax tree of a condition, common to both dialects.

`ecmascript.py` parses the ECMAScript dialect into it, `automaton.py` runs it, and
`emit.py` writes it in the syntax of the `regex` package. A tree is a value: no node knows
its parent or its source.

Texts are sequences of *units*: UTF-16 code units for the ECMAScript dialect (as without
the `u` flag there), code points for the Python dialect.
"""

import msgspec

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint, inclusive ranges of units."""


class Empty(msgspec.Struct, frozen=True):
    """Matches the empty text."""


class Never(msgspec.Struct, frozen=True):
    """Matches nothing (`[]`, `(?!)`)."""


class Chars(msgspec.Struct, frozen=True):
    """One unit out of `ranges` (case already folded in, complement already taken)."""

    ranges: Ranges


class Sequence(msgspec.Struct, frozen=True):
    items: "tuple[Node, ...]"


class Choice(msgspec.Struct, frozen=True):
    options: "tuple[Node, ...]"


class Repeat(msgspec.Struct, frozen=True):
    """`item` from `least` to `most` times; `most` is None for unbounded."""

    item: "Node"
    least: int
    most: int | None
    greedy: bool = True


class Group(msgspec.Struct, frozen=True):
    """A capturing group; `number` counts from 1 by opening parenthesis."""

    item: "Node"
    number: int
    name: str | None = None


class BackReference(msgspec.Struct, frozen=True):
    """The text of an earlier group. `ignore_case` is the flag in force at this place."""

    number: int
    ignore_case: bool = False


class Look(msgspec.Struct, frozen=True):
    """A lookaround: zero-width, `ahead` or behind, positive or `negative`."""

    item: "Node"
    ahead: bool
    negative: bool


class TextStart(msgspec.Struct, frozen=True):
    """`^` without the `m` flag, `\\A`."""


class TextEnd(msgspec.Struct, frozen=True):
    """`$` without the `m` flag, `\\Z`."""


class LineStart(msgspec.Struct, frozen=True):
    """`^` with the `m` flag: at the start, or after one of `terminators`."""

    terminators: Ranges


class LineEnd(msgspec.Struct, frozen=True):
    """`$` with the `m` flag: at the end, or before one of `terminators`."""

    terminators: Ranges


class Boundary(msgspec.Struct, frozen=True):
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
