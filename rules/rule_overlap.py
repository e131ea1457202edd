"""Rules that can only fire together with another rule: duplicates, and rules within rules.

Pure; `lint.py` asks for all rules of an agent. Both reminders would be sent for one
violation, which is seldom meant. Only what is certain from conditions, scopes, globs and
agents as they are written is said; two conditions that differ in spelling count as
different.
"""

from collections.abc import Sequence

from midstream.rules.buckets import can_watch
from midstream.rules.problem import Problem, Severity
from midstream.rules.rule import Dialect, Rule
from midstream.rules.scope_lint import covers


def find_overlaps(rules: Sequence[Rule]) -> list[Problem]:
    """A problem for each rule that cannot fire without another one, which it names."""
    by_condition: dict[tuple[str, Dialect], list[int]] = {}
    for index, rule in enumerate(rules):
        for condition in dict.fromkeys(rule.conditions):
            by_condition.setdefault((condition, rule.dialect), []).append(index)
    pairs = {
        (first, second)
        for indexes in by_condition.values()
        for place, first in enumerate(indexes)
        for second in indexes[place + 1 :]
    }
    found: dict[str, Problem] = {}
    for first, second in sorted(pairs):
        earlier, later = rules[first], rules[second]
        if not (can_watch(earlier) and can_watch(later)):
            continue
        if _fires_with(later, earlier):
            found.setdefault(later.name, _overlap(later, earlier))
        elif _fires_with(earlier, later):
            found.setdefault(earlier.name, _overlap(earlier, later))
    return list(found.values())


def _overlap(inner: Rule, outer: Rule) -> Problem:
    other = f"`{outer.name}`" + (f" ({outer.path})" if outer.path else "")
    if _fires_with(outer, inner):
        what = f"the same conditions and scope as {other}, so that both fire at once"
        mend = "keep one of them"
    else:
        what = f"whatever matches this rule also matches {other}, so that both fire at once"
        mend = "narrow the other one, or drop this one"
    line = inner.condition_lines[0] if inner.condition_lines else 0
    return Problem(inner.path or inner.name, line, Severity.WARNING, what, mend)


def _fires_with(inner: Rule, outer: Rule) -> bool:
    """Whether a match of `inner` is always a match of `outer` too."""
    return (
        (inner.dialect, inner.match_on) == (outer.dialect, outer.match_on)
        and _implies(inner, outer)
        and (not outer.agents or set(inner.agents) == set(outer.agents))
        and (not outer.globs or inner.globs == outer.globs)
        and all(any(covers(wide, token) for wide in outer.scope) for token in inner.scope)
    )


def _implies(inner: Rule, outer: Rule) -> bool:
    """Whether the conditions of `inner` cannot hold without those of `outer`."""
    mine, other = set(inner.conditions), set(outer.conditions)
    if outer.all_conditions and len(other) > 1:
        return inner.all_conditions and other <= mine
    if inner.all_conditions:
        return not mine.isdisjoint(other)
    return mine <= other
