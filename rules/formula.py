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


def atom(number: int) -> Formula:
    """The formula that is this one atom."""
    return frozenset({frozenset({number})})


def any_of(formulas: Iterable[Formula]) -> Formula:
    """The disjunction."""
    clauses: set[Clause] = set()
    for formula in formulas:
        clauses |= formula
    return _simplify(clauses)


def both(left: Formula, right: Formula) -> Formula:
    """The conjunction."""
    if left is TRUE or right == FALSE:
        return right
    if right is TRUE or left == FALSE:
        return left
    if len(left) * len(right) > MAX_CLAUSES * 4:
        raise TooComplex
    clauses = {a | b for a in left for b in right}
    return _simplify({clause for clause in clauses if _consistent(clause)})


def negate(formula: Formula) -> Formula:
    """The negation, by De Morgan's laws."""
    result = TRUE
    for clause in formula:
        result = both(result, _simplify({frozenset({~literal}) for literal in clause}))
    return result


def _consistent(clause: Clause) -> bool:
    return not any(~literal in clause for literal in clause)


def _simplify(clauses: set[Clause]) -> Formula:
    """Drop what another clause implies; notice the tautology of an atom and its negation."""
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
    kept = {clause for clause in longer if not any(other < clause for other in longer)}
    return frozenset(kept | {frozenset({literal}) for literal in singles})
