"""Boolean formulas over atoms, in disjunctive normal form.

A state of a condition's automaton is such a formula: the atoms say "from here on the text
has to begin like this", a clause joins what has to hold together (a thread and the
lookaheads that it has promised), and the formula holds when one clause does. Formulas
are values and are compared structurally, which is what makes the automaton finite.

An atom is an int >= 0; the literal `~atom` is its negation.
"""

from collections.abc import Iterable

Clause = frozenset[int]
Formula = frozenset[Clause]

FALSE: Formula = frozenset()
TRUE: Formula = frozenset({frozenset[int]()})

MAX_THREADS = 4_096
"""Clauses of one literal; above this a condition is no longer worth an automaton."""

MAX_CLAUSES = 256
"""Clauses of several literals, which have to be compared with each other."""


class TooComplex(Exception):
    """A condition's automaton would grow beyond its bounds; the caller falls back."""


class Work:
    """What may still be done for one step of an automaton, in units of about a microsecond.

    Each operation on formulas is small, but their number and sizes multiply."""

    __slots__ = ("left",)

    def __init__(self, units: int) -> None:
        self.left = units

    def spend(self, units: int) -> None:
        """Raises `TooComplex` if that is more than is left."""
        self.left -= units
        if self.left < 0:
            raise TooComplex


def atom(number: int) -> Formula:
    """The formula that is this one atom."""
    return frozenset({frozenset({number})})


def any_of(formulas: Iterable[Formula], work: Work) -> Formula:
    """The disjunction."""
    clauses: set[Clause] = set()
    for formula in formulas:
        clauses |= formula
    return _simplify(clauses, work)


def both(left: Formula, right: Formula, work: Work) -> Formula:
    """The conjunction."""
    if left is TRUE or right == FALSE:
        return right
    if right is TRUE or left == FALSE:
        return left
    if len(left) * len(right) > MAX_CLAUSES * 4:
        raise TooComplex
    work.spend(len(left) * len(right))
    clauses = {a | b for a in left for b in right}
    return _simplify({clause for clause in clauses if _consistent(clause)}, work)


def negate(formula: Formula, work: Work) -> Formula:
    """The negation, by De Morgan's laws."""
    result = TRUE
    for clause in formula:
        opposite = _simplify({frozenset({~literal}) for literal in clause}, work)
        result = both(result, opposite, work)
    return result


def _consistent(clause: Clause) -> bool:
    return not any(~literal in clause for literal in clause)


def _simplify(clauses: set[Clause], work: Work) -> Formula:
    """Drop what another clause implies; notice the tautology of an atom and its negation."""
    work.spend(2 + len(clauses))
    if frozenset() in clauses:
        return TRUE
    if len(clauses) > MAX_THREADS:
        raise TooComplex
    singles = {next(iter(clause)) for clause in clauses if len(clause) == 1}
    if any(~literal in singles for literal in singles):
        return TRUE
    if len(singles) == len(clauses):
        return frozenset(clauses)
    longer = [clause for clause in clauses if len(clause) > 1 and singles.isdisjoint(clause)]
    if len(longer) > MAX_CLAUSES:
        raise TooComplex
    work.spend(len(longer) ** 2 // 8)
    kept = {clause for clause in longer if not any(other < clause for other in longer)}
    return frozenset(kept | {frozenset({literal}) for literal in singles})
