"""Which back-references of a condition can ever refer to something.

In the ECMAScript dialect a group that has not captured matches the empty text, and every
iteration of a quantifier forgets what the groups inside captured before. So a reference
that is evaluated before its group, inside it, in another alternative, or outside a negative
lookaround that holds it, always matches the empty text (ECMA-262, 22.2.2.3 and 22.2.2.9).
The parser replaces these; what stays is *live*, and `emit.py` has to carry it.
"""

from collections.abc import Iterator

from midstream.rules.syntax import (
    BackReference,
    Choice,
    Empty,
    Group,
    Look,
    Node,
    Repeat,
    Sequence,
)

_NONE: frozenset[int] = frozenset()


def without_dead_references(tree: Node) -> Node:
    """`tree` with every back-reference that always matches the empty text made `Empty`."""
    return _resolve(tree, _NONE, ahead=True)


def live_groups(tree: Node) -> frozenset[int]:
    """The numbers of the groups that some back-reference refers to."""
    return frozenset(_references(tree))


def certain_groups(tree: Node) -> frozenset[int]:
    """The groups that have captured in this very pass whenever `tree` has matched."""
    match tree:
        case Group(item, number):
            return certain_groups(item) | {number}
        case Sequence(items):
            return _NONE.union(*map(certain_groups, items))
        case Choice(options):
            first, *others = map(certain_groups, options)
            return first.intersection(*others)
        case Repeat(item, least) if least > 0:
            return certain_groups(item)
        case Look(item, _, negative) if not negative:
            return certain_groups(item)
        case _:
            return _NONE


def uncertain_groups(tree: Node) -> frozenset[int]:
    """The groups that some back-reference may find without a capture."""
    return frozenset(_uncertain(tree, _NONE, ahead=True))


def captured_groups(tree: Node) -> frozenset[int]:
    """The groups that may have captured, visibly for what follows, when `tree` has matched."""
    match tree:
        case Group(item, number):
            return captured_groups(item) | {number}
        case Sequence(parts) | Choice(parts):
            return _NONE.union(*map(captured_groups, parts))
        case Repeat(item):
            return captured_groups(item)
        case Look(item, _, negative) if not negative:
            return captured_groups(item)
        case _:
            return _NONE


def _references(tree: Node) -> Iterator[int]:
    match tree:
        case BackReference(number):
            yield number
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from _references(part)
        case Repeat(item) | Group(item) | Look(item):
            yield from _references(item)
        case _:
            return


def _uncertain(tree: Node, certain: frozenset[int], *, ahead: bool) -> Iterator[int]:
    """`certain`: what has captured before `tree` is evaluated, in this iteration."""
    match tree:
        case BackReference(number):
            if number not in certain:
                yield number
        case Sequence(items):
            for item in items if ahead else reversed(items):
                yield from _uncertain(item, certain, ahead=ahead)
                certain |= certain_groups(item)
        case Choice(options):
            for option in options:
                yield from _uncertain(option, certain, ahead=ahead)
        case Repeat(item) | Group(item):
            yield from _uncertain(item, certain, ahead=ahead)
        case Look(item, is_ahead):
            yield from _uncertain(item, certain, ahead=is_ahead)
        case _:
            return


def _resolve(tree: Node, captured: frozenset[int], *, ahead: bool) -> Node:
    """`captured`: what may have captured before `tree` is evaluated, in this iteration."""
    match tree:
        case BackReference(number):
            return tree if number in captured else Empty()
        case Sequence(items):
            return Sequence(_resolve_sequence(items, captured, ahead=ahead))
        case Choice(options):
            return Choice(tuple(_resolve(each, captured, ahead=ahead) for each in options))
        case Repeat(item, least, most, greedy):
            return Repeat(_resolve(item, captured, ahead=ahead), least, most, greedy)
        case Group(item, number, name):
            return Group(_resolve(item, captured, ahead=ahead), number, name)
        case Look(item, is_ahead, negative):
            return Look(_resolve(item, captured, ahead=is_ahead), is_ahead, negative)
        case _:
            return tree


def _resolve_sequence(
    items: tuple[Node, ...], captured: frozenset[int], *, ahead: bool
) -> tuple[Node, ...]:
    """A lookbehind evaluates its items from right to left."""
    resolved: list[Node] = []
    for item in items if ahead else reversed(items):
        resolved.append(_resolve(item, captured, ahead=ahead))
        captured |= captured_groups(item)
    return tuple(resolved if ahead else reversed(resolved))
