"""Runs one condition over a text that is still being written, unit by unit.

The automaton is built while it runs: a state is a formula over "what has to come now"
(`formula.py`), a transition is computed when it is first needed and then is one look-up
in a dict. So a step costs the same however long the text has become and whatever the
pattern is, and nothing of the text has to be kept. Lookaheads are part of the formula,
lookbehinds are automata of their own that run beside (oracles), and `\\b`, `^` and `$`
become conditions on the unit before and the unit to come. The verdict is therefore exact:

- `State.certain`: the text so far has a match that no continuation can undo;
- `State.at_end`: there is a match if the text ends here;
- `State.idle`: whatever matches from here on could as well begin here: nothing before is
  needed any more, and may be let go (architecture.md, the way of a token);
- `State.given_up`: this condition has grown beyond its bounds on this text, and nothing
  is known; the caller leaves it to `backtracking.py`.

States are shared by everybody who watches the same condition.
"""

from bisect import bisect_right

import msgspec

from midstream.rules.formula import (
    FALSE,
    TRUE,
    Clause,
    Formula,
    TooComplex,
    Work,
    any_of,
    atom,
    both,
    negate,
)
from midstream.rules.program import (
    Accept,
    After,
    Ahead,
    Arrive,
    Behind,
    Fail,
    Peek,
    Program,
    Split,
    Take,
    compile_program,
)
from midstream.rules.syntax import Node, Ranges

MAX_STATES = 20_000
"""Per condition; above it the automaton forgets its states and begins to collect anew."""

MAX_WORK = 50_000
"""Instructions and operations on formulas that one step may need, what is asked about its
state among them, before the condition is `TooComplex`; tens of milliseconds."""

_UNIVERSAL_SEARCH_STATES = 64
"""How many states are tried to prove that a match at the end holds for ever."""

_START = -1
"""The class of "no unit before"."""


class State(dict[str, "State"]):
    """One state; `state[character]` is the next. Made by `Automaton` only."""

    __slots__ = (
        "_automaton",
        "at_end",
        "behind",
        "certain",
        "formula",
        "given_up",
        "idle",
        "number",
        "was_searched",
    )

    def __init__(
        self,
        automaton: "Automaton",
        number: int,
        formula: Formula,
        behind: tuple[Formula, ...],
        idle: bool,
    ) -> None:
        super().__init__()
        self._automaton = automaton
        self.number = number
        self.formula = formula
        self.behind = behind
        self.given_up = False
        self.idle = idle
        self.was_searched = False
        self.certain = formula == TRUE
        self.at_end = self.certain or automaton.holds_at_end(formula)

    def __missing__(self, character: str) -> "State":
        state = self._automaton.next_state(self, character)
        self[character] = state
        return state


class _Pending(msgspec.Struct, frozen=True):
    """An atom: a unit of `classes` has to come (or the end, if `at_end`).

    A `Take` moves on to the instruction `next`; a `Peek` leaves the unit where it is and
    goes on with `rest`, which was resolved for the unit before.
    """

    classes: frozenset[int]
    next: int = 0
    at_end: bool = False
    rest: Formula | None = None


_ARRIVED = 0
"""The atom of a lookbehind that ends at this position."""


class Automaton:
    """The automaton of one condition.

    `utf16` says that a character above U+FFFF counts as its two surrogates, as in the
    ECMAScript dialect without the `u` flag. Raises `TooComplex`.
    """

    def __init__(self, tree: Node, *, utf16: bool) -> None:
        self._program = compile_program(tree)
        self._utf16 = utf16
        self._alphabet = _Alphabet(self._program, highest=0xFFFF if utf16 else 0x10FFFF)
        self._pending = [_Pending(frozenset())]
        self._atoms = {self._pending[_ARRIVED]: _ARRIVED}
        self._made = 0
        self._work = Work(MAX_WORK)
        self._forget()
        self.initial = self._reach((), FALSE, _START)
        self._given_up = State(self, 0, FALSE, (), idle=False)
        self._given_up.given_up = True

    def _forget(self) -> None:
        self._states: dict[tuple[Formula, tuple[Formula, ...], bool], State] = {}
        self._steps: dict[tuple[int, int], State] = {}
        self._resolved: dict[tuple[int, int, tuple[Formula, ...]], Formula] = {}

    @property
    def state_count(self) -> int:
        """How many states are remembered."""
        return len(self._states)

    # --- transitions

    def next_state(self, state: State, character: str) -> State:
        """The state after one more character."""
        unit = ord(character)
        if unit > 0xFFFF and self._utf16:
            high, low = 0xD800 + ((unit - 0x10000) >> 10), 0xDC00 + ((unit - 0x10000) & 0x3FF)
            return self._after(self._after(state, high), low)
        return self._after(state, unit)

    def _after(self, state: State, unit: int) -> State:
        if state.certain or state.given_up:
            return state
        unit_class = self._alphabet.class_of(unit)
        following = self._steps.get((state.number, unit_class))
        if following is None:
            if len(self._states) >= MAX_STATES:
                self._forget()
            try:
                following = self._reach(state.behind, state.formula, unit_class)
            except TooComplex:
                following = self._given_up
            self._steps[(state.number, unit_class)] = following
        return following

    def _reach(self, behind: tuple[Formula, ...], formula: Formula, unit_class: int) -> State:
        """The state in which the text is now; what follows from it is asked once."""
        self._work = Work(MAX_WORK)
        state = self._enter(behind, formula, unit_class)
        if state.at_end and not state.certain and not state.was_searched:
            state.was_searched = True
            state.certain = self._is_universal(state)
        return state

    def _enter(self, behind: tuple[Formula, ...], formula: Formula, unit_class: int) -> State:
        """The state behind a unit of `unit_class` (or at the start of the text).

        Lookbehinds first, inner before outer: what follows may ask where they end.
        """
        running: list[Formula] = []
        arrived: tuple[Formula, ...] = ()
        for number, entry in enumerate(self._program.oracles):
            carried = self._step(behind[number], unit_class, arrived) if behind else FALSE
            now = any_of([carried, self._resolve(entry, unit_class, arrived)], self._work)
            running.append(now)
            arrived = (*arrived, self._arrivals(now))
        carried = self._step(formula, unit_class, arrived)
        started = self._resolve(self._program.entry, unit_class, arrived)
        formula = any_of([carried, started], self._work)
        return self._state(formula, tuple(running), idle=formula == started)

    def _state(self, formula: Formula, behind: tuple[Formula, ...], *, idle: bool) -> State:
        formula = self._longest_runs(formula)
        if formula == TRUE:
            behind = ()
        state = self._states.get((formula, behind, idle))
        if state is None:
            self._made += 1
            state = State(self, self._made, formula, behind, idle)
            self._states[(formula, behind, idle)] = state
        return state

    def _is_universal(self, state: State) -> bool:
        """Whether every continuation of `state` matches, as far as a short search can tell.

        A lookahead and its complement can cover everything between them without any
        clause being empty; then the match is certain and need not wait.
        """
        seen = {state.number}
        waiting = [state]
        while waiting:
            current = waiting.pop()
            for unit_class in range(self._alphabet.class_count):
                try:
                    following = self._enter(current.behind, current.formula, unit_class)
                except TooComplex:
                    return False
                if not following.at_end or len(seen) > _UNIVERSAL_SEARCH_STATES:
                    return False
                if following.number not in seen and not following.certain:
                    seen.add(following.number)
                    waiting.append(following)
        return True

    # --- formulas

    def _step(self, formula: Formula, unit_class: int, arrived: tuple[Formula, ...]) -> Formula:
        """What `formula` has become once a unit of `unit_class` has come."""
        clauses: list[Formula] = []
        for clause in formula:
            result = TRUE
            for literal in clause:
                result = both(result, self._step_literal(literal, unit_class, arrived), self._work)
                if result == FALSE:
                    break
            clauses.append(result)
        return any_of(clauses, self._work)

    def _step_literal(self, literal: int, unit_class: int, arrived: tuple[Formula, ...]) -> Formula:
        if literal < 0:
            return negate(self._step_literal(~literal, unit_class, arrived), self._work)
        pending = self._pending[literal]
        if unit_class not in pending.classes:
            return FALSE
        if pending.rest is not None:
            return self._step(pending.rest, unit_class, arrived)
        return self._resolve(pending.next, unit_class, arrived)

    def _resolve(self, number: int, before: int, arrived: tuple[Formula, ...]) -> Formula:
        """What instruction `number` asks of the text to come, `before` being the class of
        the unit before it and `arrived` the lookbehinds that end here."""
        key = (number, before, arrived)
        known = self._resolved.get(key)
        if known is None:
            known = self._expand(number, before, arrived, set())
            self._resolved[key] = known
        return known

    def _expand(
        self, number: int, before: int, arrived: tuple[Formula, ...], seen: set[int]
    ) -> Formula:
        """Follow the zero-width instructions from `number`.

        `seen` are the splits that the surrounding disjunction has taken already: another
        way to one of them adds nothing, since whatever it asks in addition only narrows.
        """
        found: list[Formula] = []
        waiting = [number]
        while waiting:
            self._work.spend(2)
            match self._program.instructions[waiting.pop()]:
                case Accept():
                    return TRUE
                case Fail():
                    pass
                case Arrive():
                    found.append(atom(_ARRIVED))
                case Take(ranges, then):
                    found.append(self._atom(_Pending(self._classes(ranges), then)))
                case Split(targets) as split:
                    if id(split) not in seen:
                        seen.add(id(split))
                        waiting.extend(targets)
                case After(ranges, at_start, then, otherwise):
                    held = at_start if before == _START else before in self._classes(ranges)
                    waiting.append(then if held else otherwise)
                case Peek(ranges, at_end, then):
                    rest = self._expand(then, before, arrived, set(seen))
                    if rest != FALSE:
                        pending = _Pending(self._classes(ranges), at_end=at_end, rest=rest)
                        found.append(self._atom(pending))
                case Ahead(entry, negative, then):
                    promise = self._expand(entry, before, arrived, set())
                    rest = self._expand(then, before, arrived, set(seen))
                    found.append(self._also(promise, rest, negative=negative))
                case Behind(oracle, negative, then):
                    ended = arrived[oracle]
                    rest = self._expand(then, before, arrived, set(seen))
                    found.append(self._also(ended, rest, negative=negative))
        return any_of(found, self._work)

    def _also(self, asked: Formula, rest: Formula, *, negative: bool) -> Formula:
        return both(negate(asked, self._work) if negative else asked, rest, self._work)

    def _classes(self, ranges: Ranges) -> frozenset[int]:
        return self._alphabet.classes_in(ranges)

    def _longest_runs(self, formula: Formula) -> Formula:
        """Of several threads in one bounded repeat, keep the one that may go on longest.

        What the others can still match, it can match too. Without this the threads in
        `x[^]{0,300}y` would make a new state for every set of places of `x`.
        """
        runs = self._program.runs
        if not runs or len(formula) < 2:
            return formula
        longest: dict[int, tuple[int, Clause]] = {}
        kept: set[Clause] = set()
        for clause in formula:
            place = runs.get(self._pending[next(iter(clause))].next) if _is_thread(clause) else None
            if place is None:
                kept.add(clause)
                continue
            run, left = place
            if run not in longest or longest[run][0] < left:
                longest[run] = (left, clause)
        return frozenset(kept | {clause for _, clause in longest.values()})

    def _arrivals(self, running: Formula) -> Formula:
        """Under which condition a lookbehind that has come as far as `running` ends here."""
        ways: list[Formula] = []
        for clause in running:
            for literal in clause:
                if literal >= 0 and (arrival := self._arrival(literal)) != FALSE:
                    ways.append(both(arrival, frozenset({clause - {literal}}), self._work))
        return any_of(ways, self._work)

    def _arrival(self, literal: int) -> Formula:
        if literal == _ARRIVED:
            return TRUE
        pending = self._pending[literal]
        rest = self._arrivals(pending.rest) if pending.rest is not None else FALSE
        if rest == FALSE:
            return FALSE
        return self._atom(_Pending(pending.classes, at_end=pending.at_end, rest=rest))

    def _atom(self, pending: _Pending) -> Formula:
        number = self._atoms.get(pending)
        if number is None:
            number = len(self._pending)
            self._pending.append(pending)
            self._atoms[pending] = number
        return atom(number)

    # --- the end of the text

    def holds_at_end(self, formula: Formula) -> bool:
        """Whether the formula holds if no unit comes any more."""
        return any(all(self._literal_at_end(part) for part in clause) for clause in formula)

    def _literal_at_end(self, literal: int) -> bool:
        if literal < 0:
            return not self._literal_at_end(~literal)
        pending = self._pending[literal]
        return pending.at_end and pending.rest is not None and self.holds_at_end(pending.rest)


def _is_thread(clause: Clause) -> bool:
    return len(clause) == 1 and next(iter(clause)) >= 0


class _Alphabet:
    """Sorts units into classes that no part of the program tells apart."""

    def __init__(self, program: Program, *, highest: int) -> None:
        sets = {
            instruction.ranges
            for instruction in program.instructions
            if isinstance(instruction, Take | Peek | After)
        }
        edges = {edge for ranges in sets for a, b in ranges for edge in (a, b + 1)}
        cuts = sorted({0} | {edge for edge in edges if edge <= highest})
        ordered = sorted(sets)
        signatures: dict[tuple[bool, ...], int] = {}
        self._cuts = cuts
        self._class_of_cut = [
            signatures.setdefault(tuple(_holds(ranges, cut) for ranges in ordered), len(signatures))
            for cut in cuts
        ]
        self.class_count = len(signatures)
        self._classes_in = {
            ranges: frozenset(
                number for signature, number in signatures.items() if signature[place]
            )
            for place, ranges in enumerate(ordered)
        }

    def class_of(self, unit: int) -> int:
        return self._class_of_cut[bisect_right(self._cuts, unit) - 1]

    def classes_in(self, ranges: Ranges) -> frozenset[int]:
        return self._classes_in[ranges]


def _holds(ranges: Ranges, unit: int) -> bool:
    place = bisect_right(ranges, (unit, 0x110000)) - 1
    return place >= 0 and unit <= ranges[place][1]
