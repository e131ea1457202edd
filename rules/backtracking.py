"""Matches the few conditions that no automaton can run, with the `regex` package.

Back references, atomic groups and the like need backtracking, whose time has no bound of
its own. So every evaluation has a budget, and a condition that exceeds it is given up for
its passage (`BudgetExceeded`). The verdict at the end of a passage is that of one search
over the whole; before the end it comes as early as these two ways allow:

- a condition without assertions cannot be undone by what follows: it is searched at every
  delta, from the earliest place where a partial match is alive;
- any other is searched each time the passage has grown by an eighth, and its match counts
  once everything that its assertions can look at is there.
"""

import regex

from midstream.rules.condition import Condition

EVALUATION_BUDGET_S = 0.02
"""Wall time of one search. Two in a row stay below the 50 ms that nothing may exceed."""

_LEAST_GROWTH_UNITS = 32


class BudgetExceeded(Exception):
    """A search took longer than its budget; nothing is known about the passage."""


class Search:
    """The search of one condition in one passage."""

    def __init__(self, condition: Condition, budget_s: float) -> None:
        self._pattern = condition.require_pattern()
        self._condition = condition
        self._budget_s = budget_s
        self._parts: list[str] = []
        self._length = 0
        self._next_at = 0
        self._alive = ""

    def feed(self, text: str) -> bool:
        """Take the next piece. Whether there is a match that nothing can undo."""
        units = self._condition.units(text)
        self._parts.append(units)
        self._length += len(units)
        if self._condition.resumable:
            return self._resume(units)
        if self._condition.reach is None or self._length < self._next_at:
            return False
        self._next_at = self._length + self._length // 8 + _LEAST_GROWTH_UNITS
        match = self._search("".join(self._parts))
        return match is not None and match.end() + self._condition.reach <= self._length

    def finish(self) -> bool:
        """Whether the finished passage matches."""
        return self._search("".join(self._parts)) is not None

    def _resume(self, units: str) -> bool:
        alive = self._alive + units
        match = self._search(alive, partial=True)
        if match is not None and not match.partial:
            return True
        self._alive = "" if match is None else alive[match.start() :]
        return False

    def _search(self, text: str, *, partial: bool = False) -> "regex.Match[str] | None":
        try:
            return self._pattern.search(text, partial=partial, timeout=self._budget_s)
        except TimeoutError:
            raise BudgetExceeded from None
