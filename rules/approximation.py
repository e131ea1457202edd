"""Turns a tree that no automaton can run into one that matches at least as much.

Back references and very large repeats are what an automaton cannot do within bounds. The
approximation puts "anything" in their place, or, under a negation, "nothing". Where it
does not match, the condition does not either; where it does, `backtracking.py` decides.
"""

from midstream.rules.syntax import (
    BackReference,
    Chars,
    Choice,
    Group,
    Look,
    Never,
    Node,
    Repeat,
    Sequence,
)

_ANYTHING = Repeat(Chars(((0, 0x10FFFF),)), 0, None)

_MAX_COPIES = 16
"""Bounded repeats above this become unbounded ones."""


def approximate(tree: Node) -> Node:
    """A tree without back references and large repeats that matches wherever `tree` does."""
    return _approximate(tree, over=True)


def _approximate(node: Node, *, over: bool) -> Node:
    match node:
        case BackReference():
            return _ANYTHING if over else Never()
        case Sequence(items):
            return Sequence(tuple(_approximate(item, over=over) for item in items))
        case Choice(options):
            return Choice(tuple(_approximate(option, over=over) for option in options))
        case Group(item):
            return _approximate(item, over=over)
        case Look(item, ahead, negative):
            return Look(_approximate(item, over=over != negative), ahead, negative)
        case Repeat():
            return _repeat(node, over=over)
        case _:
            return node


def _repeat(node: Repeat, *, over: bool) -> Node:
    item = _approximate(node.item, over=over)
    if max(node.least, node.most or 0) <= _MAX_COPIES:
        return Repeat(item, node.least, node.most)
    if not over:
        return Never()
    return Repeat(item, min(node.least, _MAX_COPIES), None)
