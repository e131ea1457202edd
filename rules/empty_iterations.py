"""Rewrites a tree so that no quantifier can iterate over nothing.

JavaScript refuses an optional iteration that matched the empty text and tries the next way
through the item (ECMA-262, 22.2.2.3.1); the `regex` package accepts it and leaves the loop.
So `(?:a*?)*` is all of `aaa` there and nothing here. `without_empty_iterations` gives
`emit.py` a tree for which both agree: each repeated item is replaced by the part of it that
matches something. Order matters, since the first way through decides where a match ends.
"""

import msgspec

from midstream.rules.back_references import captured_groups, live_groups
from midstream.rules.character_classes import LAST_CODE_POINT
from midstream.rules.dialect_error import UntranslatableError
from midstream.rules.pattern_traits import max_width, min_width, reference_widths, walk
from midstream.rules.syntax import (
    BackReference,
    Chars,
    Choice,
    Empty,
    Group,
    Look,
    Node,
    Repeat,
    Sequence,
    TextEnd,
)

MAX_COPIES = 20
"""How often one item may be written out, where its iterations cannot stay a loop."""

MAX_PARTS = 1_000
"""How many parts one tree may be taken apart into; above it the condition is refused."""


class _Part(msgspec.Struct, frozen=True):
    """Some of the ways through a node: those that match something, or those that do not."""

    node: Node
    filled: bool


class _Step(msgspec.Struct, frozen=True):
    """One item of a sequence, whole and taken apart."""

    whole: Node
    parts: list[_Part]


def without_empty_iterations(tree: Node) -> Node:
    """A tree that matches as `tree` does in JavaScript and repeats no empty iteration.

    It may hold copies of a group under the same number. Raises UntranslatableError if it
    would become too large.
    """
    return _Rewriter(tree).rewrite(tree, ahead=True)


def iterates_plainly(tree: Node) -> bool:
    """Whether JavaScript and `regex` leave every loop of `tree` in the same way.

    False where that is not certain.
    """
    rewriter = _Rewriter(tree)
    try:
        return all(rewriter.is_plain(node) for node in walk(tree) if isinstance(node, Repeat))
    except UntranslatableError:
        return False


class _Rewriter:
    """`ahead` tells how a node is evaluated: from left to right, or as in a lookbehind."""

    def __init__(self, tree: Node) -> None:
        self._widths = reference_widths(tree)
        self._referenced = live_groups(tree)
        self._parts = 0

    def rewrite(self, node: Node, *, ahead: bool) -> Node:
        match node:
            case Sequence(items):
                return Sequence(tuple(self.rewrite(item, ahead=ahead) for item in items))
            case Choice(options):
                return Choice(tuple(self.rewrite(option, ahead=ahead) for option in options))
            case Group(item, number, name):
                return Group(self.rewrite(item, ahead=ahead), number, name)
            case Look(item, is_ahead, negative):
                return Look(self.rewrite(item, ahead=is_ahead), is_ahead, negative)
            case Repeat(item, least, most, greedy):
                if self._is_filled(item):
                    return Repeat(self.rewrite(item, ahead=ahead), least, most, greedy)
                return _any_of(self._split(node, ahead=ahead))
            case _:
                return node

    def is_plain(self, node: Repeat) -> bool:
        """Whether an empty iteration of `node` changes nothing for anybody.

        Going on has to be tried before matching nothing, matching nothing has to be
        possible wherever one of several required iterations may need it, and nobody may
        see what the last iteration captured.
        """
        if self._is_filled(node.item):
            return True
        return all(
            self._loops(node, self._split(node.item, ahead=ahead)) for ahead in (True, False)
        )

    def _loops(self, node: Repeat, parts: list[_Part]) -> bool:
        filled = [part.filled for part in parts]
        may_rest = any(_always(part.node) for part in parts if not part.filled)
        return (
            filled == sorted(filled, reverse=True)
            and (node.least <= 1 or (node.greedy and may_rest))
            and not captured_groups(node.item) & self._referenced
        )

    def _is_filled(self, node: Node) -> bool:
        return min_width(node, self._widths) > 0

    def _split(self, node: Node, *, ahead: bool) -> list[_Part]:
        """The ways through `node`, in the order in which JavaScript tries them."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _too_large()
        if self._is_filled(node):
            return [_Part(self.rewrite(node, ahead=ahead), filled=True)]
        match node:
            case Repeat():
                return self._split_repeat(node, ahead=ahead)
            case _ if max_width(node, self._widths) == 0:
                return [_Part(self.rewrite(node, ahead=ahead), filled=False)]
            case Group(item, number, name):
                return [
                    _Part(Group(part.node, number, name), part.filled)
                    for part in self._split(item, ahead=ahead)
                ]
            case Choice(options):
                return [part for option in options for part in self._split(option, ahead=ahead)]
            case Sequence(items):
                steps = [self._step(item, ahead=ahead) for item in items]
                return self._joined(steps if ahead else steps[::-1], ahead=ahead)
            case BackReference():
                return [
                    _Part(Sequence((_captured(node, empty=False), node)), filled=True),
                    _Part(_captured(node, empty=True), filled=False),
                ]
            case _:
                return [_Part(node, filled=False)]

    def _step(self, node: Node, *, ahead: bool) -> _Step:
        return _Step(self.rewrite(node, ahead=ahead), self._split(node, ahead=ahead))

    def _joined(self, steps: list[_Step], *, ahead: bool) -> list[_Part]:
        """The ways through `steps`, which are in the order of their evaluation."""
        ways = [_Part(Empty(), filled=False)]
        after: Node = Empty()
        for step in reversed(steps):
            self._parts += len(step.parts) * len(ways)
            if self._parts > MAX_PARTS:
                raise _too_large()
            ways = [
                way
                for part in step.parts
                for way in (
                    [_Part(_pair(part.node, after, ahead=ahead), filled=True)]
                    if part.filled
                    else [
                        _Part(_pair(part.node, other.node, ahead=ahead), other.filled)
                        for other in ways
                    ]
                )
            ]
            after = _pair(step.whole, after, ahead=ahead)
        return ways

    def _split_repeat(self, node: Repeat, *, ahead: bool) -> list[_Part]:
        """The required iterations may be empty, the optional ones may not."""
        parts = self._split(node.item, ahead=ahead)
        filled = [part for part in parts if part.filled]
        empty = [part for part in parts if not part.filled]
        if not filled:
            return [_Part(_once(_any_of(empty)) if node.least else Empty(), filled=False)]
        if node.greedy and self._loops(node, parts):
            loop = _Part(Repeat(_any_of(filled), 1, node.most, node.greedy), filled=True)
            return [loop, *(empty if node.least else [_Part(Empty(), filled=False)])]
        if node.least > MAX_COPIES:
            raise _too_large()
        whole = _once(self.rewrite(node.item, ahead=ahead))
        required = _Step(whole, [_Part(_once(part.node), part.filled) for part in parts])
        steps = [required] * node.least
        if node.most is None or node.most > node.least:
            steps.append(_optional(_any_of(filled), node))
        return self._joined(steps, ahead=ahead)


def _optional(item: Node, node: Repeat) -> _Step:
    """The iterations of `node` beyond the required ones; none of them is empty."""
    most = None if node.most is None else node.most - node.least
    taken = _Part(Repeat(item, 1, most, node.greedy), filled=True)
    none = _Part(Empty(), filled=False)
    return _Step(
        Repeat(item, 0, most, node.greedy), [taken, none] if node.greedy else [none, taken]
    )


def _once(item: Node) -> Node:
    """One iteration: it forgets what its groups captured before, as each iteration does."""
    return Repeat(item, 1, 1)


def _any_of(parts: list[_Part]) -> Node:
    match [part.node for part in parts]:
        case [node]:
            return node
        case [Repeat(item, 1, most, greedy=True), Empty()]:
            return Repeat(item, 0, most)
        case nodes:
            return Choice(tuple(nodes))


def _pair(first: Node, then: Node, *, ahead: bool) -> Node:
    """`first` and `then` in the order of the text; `first` is evaluated first."""
    if isinstance(then, Empty):
        return first
    if isinstance(first, Empty):
        return then
    return Sequence((first, then) if ahead else (then, first))


def _captured(reference: BackReference, *, empty: bool) -> Node:
    """That the group captured nothing, or something: at the end only nothing matches again."""
    text = BackReference(reference.number)
    at_end = text if empty else Look(text, ahead=True, negative=True)
    anything = Repeat(Chars(((0, LAST_CODE_POINT),)), 0, None)
    return Look(Sequence((anything, TextEnd(), at_end)), ahead=True, negative=False)


def _always(node: Node) -> bool:
    match node:
        case Empty():
            return True
        case Group(item) | Repeat(item, 1):
            return _always(item)
        case Sequence(items):
            return all(map(_always, items))
        case Choice(options):
            return any(map(_always, options))
        case _:
            return False


def _too_large() -> UntranslatableError:
    return UntranslatableError(
        "a quantifier repeats something that can be empty, in too many ways",
        "make the repeated part match at least one character",
    )
