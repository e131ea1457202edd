"""Questions about a tree that need no text: widths, and what the linter warns about.

The engine asks for widths to know how far a match reaches, `emit.py` to know which items
can match nothing, the linter for the rest. Widths count units, and are bounds: `min_width`
never exceeds and `max_width` never falls short of what a match can have.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import TypeGuard

from midstream.rules.back_references import uncertain_groups
from midstream.rules.character_classes import LAST_UNIT
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

Widths = Mapping[int, tuple[int, int | None]]
"""The least and the greatest width of what a back-reference to each group matches."""


class _Place(Enum):
    """Where in a text an empty match is asked for."""

    START = auto()
    END = auto()
    ANYWHERE = auto()


def walk(tree: Node) -> Iterator[Node]:
    """`tree` and every node below it, parents first, from left to right."""
    yield tree
    match tree:
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from walk(part)
        case Repeat(item) | Group(item) | Look(item):
            yield from walk(item)
        case _:
            return


def written_out(tree: Node) -> int:
    """How many parts `regex` makes of `tree`: of a repeated part that is more than one
    character it writes out the required iterations and one more, one quantifier in another."""
    match tree:
        case Sequence(parts) | Choice(parts):
            return sum(map(written_out, parts))
        case Repeat(Chars(), least):
            return max(1, least)
        case Repeat(item, least, most):
            return written_out(item) * (least + 1 if least and most != 1 else 1)
        case Group(item) | Look(item):
            return written_out(item)
        case _:
            return 1


def min_width(tree: Node, references: Widths | None = None) -> int:
    """The least number of units that a match of `tree` can have.

    `references` (of `reference_widths`) is for a part of a tree. A back-reference to a
    group that is neither there nor in `tree` counts as 0.
    """
    return _min_width(tree, reference_widths(tree) if references is None else references)


def max_width(tree: Node, references: Widths | None = None) -> int | None:
    """The greatest number of units that a match of `tree` can have; None is without bound.

    A back-reference to a group that is neither in `references` nor in `tree` is unbounded.
    """
    return _max_width(tree, reference_widths(tree) if references is None else references)


def reference_widths(tree: Node) -> Widths:
    """What back-references to the groups of `tree` can match.

    A reference that may find its group without a capture may match the empty text.
    """
    if not has_back_references(tree):
        return {}
    uncertain = uncertain_groups(tree)
    groups = [node for node in walk(tree) if isinstance(node, Group)]
    widths: dict[int, tuple[int, int | None]] = {}
    before = None
    while widths != before:  # a group may refer to one that comes later in the walk
        before = dict(widths)
        for group in groups:
            least = 0 if group.number in uncertain else _min_width(group.item, widths)
            widths[group.number] = (least, _max_width(group.item, widths))
    return widths


def matches_everything(tree: Node) -> bool:
    """Whether `tree` has a match in every text that is not empty (`.*`, `a|`, `[^]`, `^`).

    A rule with such a condition fires on the first unit in its scope. May be False for a
    condition that matches everything in a roundabout way, never True for another.
    """
    return (
        _matches_nothing(tree, _Place.START)
        or _matches_nothing(tree, _Place.END)
        or _matches_any_unit(tree)
    )


def nested_unbounded_quantifiers(tree: Node) -> tuple[Repeat, ...]:
    """The unbounded quantifiers that hold another one (`(a+)+`), outermost first.

    On a text that almost matches, a backtracking search may need exponential time for them.
    """
    return tuple(
        node
        for node in walk(tree)
        if _is_unbounded(node) and any(map(_is_unbounded, walk(node.item)))
    )


def has_back_references(tree: Node) -> bool:
    """Whether something in `tree` depends on what a group captured."""
    return any(isinstance(node, BackReference) for node in walk(tree))


def has_lookaround(tree: Node) -> bool:
    """Whether `tree` has a lookahead or a lookbehind."""
    return any(isinstance(node, Look) for node in walk(tree))


def _is_unbounded(node: Node) -> TypeGuard[Repeat]:
    return isinstance(node, Repeat) and node.most is None


def _min_width(tree: Node, references: Widths) -> int:
    match tree:
        case Chars():
            return 1
        case Sequence(items):
            return sum(_min_width(item, references) for item in items)
        case Choice(options):
            return min(_min_width(option, references) for option in options)
        case Repeat(item, least):
            return least * _min_width(item, references)
        case Group(item):
            return _min_width(item, references)
        case BackReference(number):
            return references[number][0] if number in references else 0
        case (
            Empty()
            | Never()
            | Look()
            | Boundary()
            | TextStart()
            | TextEnd()
            | LineStart()
            | LineEnd()
        ):
            return 0


def _max_width(tree: Node, references: Widths) -> int | None:
    match tree:
        case Chars():
            return 1
        case Sequence(items):
            widths = [_max_width(item, references) for item in items]
            return None if None in widths else sum(filter(None, widths))
        case Choice(options):
            widths = [_max_width(option, references) for option in options]
            return None if None in widths else max(filter(None, widths), default=0)
        case Repeat(item, _, most):
            width = _max_width(item, references)
            if width == 0 or most == 0:
                return 0
            return None if width is None or most is None else width * most
        case Group(item):
            return _max_width(item, references)
        case BackReference(number):
            return references[number][1] if number in references else None
        case (
            Empty()
            | Never()
            | Look()
            | Boundary()
            | TextStart()
            | TextEnd()
            | LineStart()
            | LineEnd()
        ):
            return 0


def _matches_nothing(tree: Node, place: _Place) -> bool:
    """Whether `tree` matches the empty text at `place`, whatever the text is."""
    match tree:
        case Empty():
            return True
        case TextStart() | LineStart():
            return place is _Place.START
        case TextEnd() | LineEnd():
            return place is _Place.END
        case Sequence(items):
            return all(_matches_nothing(item, place) for item in items)
        case Choice(options):
            return any(_matches_nothing(option, place) for option in options)
        case Repeat(item, least):
            return least == 0 or _matches_nothing(item, place)
        case Group(item):
            return _matches_nothing(item, place)
        case Look(item, ahead, negative) if negative:
            # There is nothing behind the start and nothing ahead of the end.
            return place is (_Place.END if ahead else _Place.START) and min_width(item) > 0
        case Look(item):
            return _matches_nothing(item, place)
        case Never() | Chars() | Boundary() | BackReference():
            return False


def _matches_any_unit(tree: Node) -> bool:
    """Whether `tree` matches the first unit of a text, whichever it is."""
    match tree:
        case Chars(ranges):
            return len(ranges) == 1 and ranges[0][0] == 0 and ranges[0][1] >= LAST_UNIT
        case Choice(options):
            return any(map(_matches_any_unit, options))
        case Repeat(item, least):
            return least <= 1 and _matches_any_unit(item)
        case Group(item):
            return _matches_any_unit(item)
        case Sequence(items):
            return any(
                _matches_any_unit(item)
                and all(_matches_nothing(each, _Place.START) for each in items[:index])
                and all(_matches_nothing(each, _Place.ANYWHERE) for each in items[index + 1 :])
                for index, item in enumerate(items)
            )
        case _:
            return False
