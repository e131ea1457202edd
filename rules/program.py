"""Compiles a condition's syntax tree into instructions for its automaton.

An instruction says what the text has to look like from a position on. `Take` consumes one
unit; all others are zero-width and are resolved by `automaton.py`, some at once, some
when the next unit is known. Instructions are numbered.

Bounded repeats are written out, so a program has a size limit; a tree that exceeds it,
and one with a back reference, has no program (`TooComplex`): see `approximation.py`.
"""

from collections.abc import Mapping

import msgspec

from midstream.rules.character_classes import LAST_CODE_POINT, complement
from midstream.rules.formula import TooComplex
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
    Ranges,
    Repeat,
    Sequence,
    TextEnd,
    TextStart,
)

MAX_INSTRUCTIONS = 3000
"""Bounds the memory of one condition and the time of its longest step."""

_ACCEPT, _FAIL, _ARRIVE = 0, 1, 2


class Accept(msgspec.Struct, frozen=True):
    """The pattern, or the lookahead, has matched."""


class Fail(msgspec.Struct, frozen=True):
    """This way there is no match."""


class Arrive(msgspec.Struct, frozen=True):
    """A lookbehind has matched up to here."""


class Take(msgspec.Struct, frozen=True):
    """One unit out of `ranges`, then `next`."""

    ranges: Ranges
    next: int


class Split(msgspec.Struct):
    """Any of `targets`; filled in later where a loop leads back to itself."""

    targets: list[int] = msgspec.field(default_factory=list[int])


class Peek(msgspec.Struct, frozen=True):
    """The next unit is in `ranges`, or the text ends here if `at_end`; then `next`."""

    ranges: Ranges
    at_end: bool
    next: int


class After(msgspec.Struct, frozen=True):
    """The previous unit is in `ranges` (the text begins here: `at_start`); then `then`,
    otherwise `otherwise`."""

    ranges: Ranges
    at_start: bool
    then: int
    otherwise: int


class Ahead(msgspec.Struct, frozen=True):
    """The program at `entry` matches here (or does not, if `negative`); then `next`."""

    entry: int
    negative: bool
    next: int


class Behind(msgspec.Struct, frozen=True):
    """Lookbehind number `oracle` ends here (or does not, if `negative`); then `next`."""

    oracle: int
    negative: bool
    next: int


Instruction = Accept | Fail | Arrive | Take | Split | Peek | After | Ahead | Behind


class Program(msgspec.Struct, frozen=True):
    """`entry` starts the pattern; `oracles` start the lookbehinds, inner before outer.

    `runs` finds the places inside bounded repeats of one unit: the instruction behind the
    unit, to the number of the repeat and how many units it may still take.
    """

    instructions: tuple[Instruction, ...]
    entry: int
    oracles: tuple[int, ...]
    runs: Mapping[int, tuple[int, int]]


def compile_program(tree: Node) -> Program:
    """Compile `tree`. Raises `TooComplex` for what an automaton cannot do within bounds."""
    try:
        return _Compiler().compile(tree)
    except RecursionError as error:
        raise TooComplex from error


class _Compiler:
    def __init__(self) -> None:
        self._instructions: list[Instruction] = [Accept(), Fail(), Arrive()]
        self._oracles: list[int] = []
        self._runs: dict[int, tuple[int, int]] = {}
        self._run_count = 0

    def compile(self, tree: Node) -> Program:
        entry = self._node(tree, _ACCEPT)
        return Program(tuple(self._instructions), entry, tuple(self._oracles), self._runs)

    def _add(self, instruction: Instruction) -> int:
        if len(self._instructions) >= MAX_INSTRUCTIONS:
            raise TooComplex
        self._instructions.append(instruction)
        return len(self._instructions) - 1

    def _node(self, node: Node, then: int) -> int:
        match node:
            case Empty():
                return then
            case Never():
                return _FAIL
            case Chars(ranges):
                return self._add(Take(ranges, then))
            case Sequence(items):
                for item in reversed(items):
                    then = self._node(item, then)
                return then
            case Choice(options):
                return self._add(Split([self._node(option, then) for option in options]))
            case Repeat():
                return self._repeat(node, then)
            case Group(item):
                return self._node(item, then)
            case Look():
                return self._look(node, then)
            case TextStart():
                return self._add(After((), True, then, _FAIL))
            case LineStart(terminators):
                return self._add(After(terminators, True, then, _FAIL))
            case TextEnd():
                return self._add(Peek((), True, then))
            case LineEnd(terminators):
                return self._add(Peek(terminators, True, then))
            case Boundary():
                return self._boundary(node, then)
            case BackReference():
                raise TooComplex

    def _boundary(self, node: Boundary, then: int) -> int:
        next_is_word = self._add(Peek(node.word, False, then))
        next_is_other = self._add(Peek(complement(node.word, LAST_CODE_POINT), True, then))
        after_word, after_other = next_is_other, next_is_word
        if node.negative:
            after_word, after_other = next_is_word, next_is_other
        return self._add(After(node.word, False, after_word, after_other))

    def _look(self, node: Look, then: int) -> int:
        if node.ahead:
            return self._add(Ahead(self._node(node.item, _ACCEPT), node.negative, then))
        entry = self._node(node.item, _ARRIVE)
        self._oracles.append(entry)
        return self._add(Behind(len(self._oracles) - 1, node.negative, then))

    def _repeat(self, node: Repeat, then: int) -> int:
        if node.most is None:
            loop = Split()
            here = self._add(loop)
            loop.targets = [self._node(node.item, here), then]
            then = here
        else:
            exit_at = then
            self._run_count += 1
            for left in range(node.most - node.least):
                if left and isinstance(node.item, Chars):
                    self._runs[then] = (self._run_count, left)
                then = self._add(Split([self._node(node.item, then), exit_at]))
        for _ in range(node.least):
            then = self._node(node.item, then)
        return then
