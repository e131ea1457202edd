"""What is odd about a single condition that compiles: always true, never true, late, costly.

Pure; `lint.py` asks for each condition of a rule and gives the answers their place. What
is said here is proved from the condition's tree or its automaton, never guessed from its
text, except for conditions that look as if they were written against serialised JSON.
"""

import re
from enum import Enum, auto

from midstream.rules.automaton import State
from midstream.rules.condition import Condition
from midstream.rules.pattern_traits import (
    has_back_references,
    matches_everything,
    nested_unbounded_quantifiers,
    walk,
)
from midstream.rules.problem import Complaint, Severity
from midstream.rules.syntax import (
    Boundary,
    Chars,
    Empty,
    LineEnd,
    LineStart,
    Look,
    Never,
    Node,
    Ranges,
)

SHOWN_CHARS = 60
"""How much of a condition is shown."""

_EXPLORED_TRANSITIONS = 2_000
"""Steps of an automaton that are tried; beyond them nothing is claimed."""

_EMPTY_SEARCH_BUDGET_S = 0.05

# A backslash in front of n, r, t or a quote, as JSON text has it, and `"key":`.
_ESCAPED_IN_JSON = re.compile(r'\\\\(?:\\\\)?[nrt"]')
_JSON_KEY = re.compile(r'^\W*"[A-Za-z_][\w-]*"(?:\\s[*+]?| )*:')

_SWITCHED_OFF = (Never(), Look(Empty(), ahead=True, negative=True))
"""`[]` and `(?!)`, as a whole condition: nobody writes them by mistake."""


class Decided(Enum):
    """When a condition can be told to match, at the earliest."""

    EARLY = auto()
    AT_END = auto()
    NEVER = auto()
    UNKNOWN = auto()


def shown(condition: str) -> str:
    """A condition as problems name it: on one line, cut to `SHOWN_CHARS`."""
    line = " ".join(condition.split())
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"


def lint_condition(condition: Condition, *, has_path_gate: bool) -> list[Complaint]:
    """What to tell the author of a condition.

    `has_path_gate` says that the rule's scope and globs admit some files only; then a
    condition that matches everything may be meant.
    """
    name = f"condition `{shown(condition.source)}`"
    found = _matching(condition, name, has_path_gate=has_path_gate)
    tree = condition.tree
    if tree is not None and nested_unbounded_quantifiers(tree):
        found.append(_nested(name, condition))
    if not condition.exact:
        found.append(_searched(name, condition))
    return found


def json_hint(condition: str) -> Complaint | None:
    """The hint for a condition that seems to expect serialised arguments but sees decoded
    ones (spec/ttsr.md 10)."""
    name = f"condition `{shown(condition)}`"
    if _JSON_KEY.search(condition):
        what = f"{name} looks for a JSON key, and this rule sees the decoded values of a call"
        return Complaint(Severity.NOTE, what, "write `match: json`, or match the value alone")
    if _ESCAPED_IN_JSON.search(condition):
        what = f"{name} looks for a backslash, as in JSON text; decoded values have none"
        mend = 'write `match: json`, or match the character itself (`\\n`, `"`)'
        return Complaint(Severity.NOTE, what, mend)
    return None


def when_decided(condition: Condition) -> Decided:
    """The earliest point at which some text can be said to match `condition`."""
    tree, automaton = condition.tree, condition.automaton
    if tree is None or automaton is None or not condition.exact:
        waits = condition.reach is None and not condition.resumable
        return Decided.AT_END if waits else Decided.UNKNOWN
    if condition.resumable and not any(isinstance(node, Never) for node in walk(tree)):
        return Decided.EARLY
    return _explore(automaton.initial, _representatives(tree))


def _matching(condition: Condition, name: str, *, has_path_gate: bool) -> list[Complaint]:
    if condition.tree is not None and matches_everything(condition.tree):
        severity = Severity.NOTE if has_path_gate else Severity.WARNING
        what = f"{name} matches any text, so the rule fires on the first character in scope"
        mend = "" if has_path_gate else "say what to look for, or bound the scope by a path"
        return [Complaint(severity, what, mend)]
    found: list[Complaint] = []
    if _matches_empty(condition):
        what = f"{name} matches the empty text, so the rule fires where nothing is written"
        found.append(Complaint(Severity.WARNING, what, "ask for at least one character"))
    match when_decided(condition):
        case Decided.NEVER:
            meant = condition.tree in _SWITCHED_OFF
            severity = Severity.NOTE if meant else Severity.WARNING
            found.append(Complaint(severity, f"{name} cannot match any text"))
        case Decided.AT_END:
            what = f"{name} can be decided only when the whole passage is written"
            mend = "an early cut needs a condition without `$` and without unbounded lookaheads"
            found.append(Complaint(Severity.NOTE, what, mend))
        case Decided.EARLY | Decided.UNKNOWN:
            pass
    return found


def _nested(name: str, condition: Condition) -> Complaint:
    what = f"{name} has an unbounded quantifier inside another one, as in `(a+)+`"
    if condition.exact:
        what += "; it costs nothing here, but a backtracking engine may need exponential time"
        return Complaint(Severity.NOTE, what, "write one quantifier")
    what += ", and needs backtracking: it may run into its time budget and be suspended"
    return Complaint(Severity.WARNING, what, "write one quantifier")


def _searched(name: str, condition: Condition) -> Complaint:
    if condition.tree is None:
        why = "its syntax has no automaton"
    elif has_back_references(condition.tree):
        why = "it has a back reference"
    else:
        why = "its counts or lookarounds are too large for an automaton"
    what = f"{name} needs the backtracking engine, since {why}; it is searched under a time budget"
    return Complaint(Severity.NOTE, what, "rewrite it without, if that is possible")


def _matches_empty(condition: Condition) -> bool:
    if condition.automaton is not None and condition.exact:
        return condition.automaton.initial.at_end
    if condition.pattern is None:
        return False
    try:
        return condition.pattern.search("", timeout=_EMPTY_SEARCH_BUDGET_S) is not None
    except TimeoutError:
        return False


def _explore(initial: State, characters: str) -> Decided:
    """Walk the automaton, deep before wide since a match is a long way of new states, until
    a state is certain or no new one comes."""
    if initial.certain:
        return Decided.EARLY
    seen = {initial.number}
    waiting = [initial]
    transitions = 0
    ends = initial.at_end
    while waiting:
        state = waiting.pop()
        for character in characters:
            transitions += 1
            following = state[character]
            if following.certain:
                return Decided.EARLY
            if following.given_up or transitions > _EXPLORED_TRANSITIONS:
                return Decided.UNKNOWN
            ends = ends or following.at_end
            if following.number not in seen:
                seen.add(following.number)
                waiting.append(following)
    return Decided.AT_END if ends else Decided.NEVER


def _representatives(tree: Node) -> str:
    """One character for each way in which the sets of the tree can hold a character."""
    sets = {ranges for node in walk(tree) for ranges in _sets(node)}
    edges = sorted({0} | {edge for ranges in sets for a, b in ranges for edge in (a, b + 1)})
    by_membership: dict[tuple[bool, ...], str] = {}
    for edge in edges:
        if edge <= 0x10FFFF:
            held = tuple(any(a <= edge <= b for a, b in ranges) for ranges in sorted(sets))
            by_membership.setdefault(held, chr(edge))
    return "".join(by_membership.values())


def _sets(node: Node) -> tuple[Ranges, ...]:
    match node:
        case Chars(ranges) | Boundary(ranges):
            return (ranges,)
        case LineStart(terminators) | LineEnd(terminators):
            return (terminators,)
        case _:
            return ()
