"""One passage while it is written: what its rules know, and what they find.

Owned by a `Watch`. The automata carry the passage's state; its text is kept only for
excerpts and for the conditions that have to be searched, up to a cap.
"""

from collections.abc import Iterable

import msgspec

from midstream.rules.backtracking import EVALUATION_BUDGET_S, BudgetExceeded, Search
from midstream.rules.code_units import code_point_offset
from midstream.rules.condition import Condition
from midstream.rules.finding import Finding, Match, Overflowed, Suspended
from midstream.rules.joint import Cursor
from midstream.rules.passage import PassageKey
from midstream.rules.rule_set import CompiledRule, Lineup, RuleSet

PASSAGE_CAP_CHARS = 1_048_576
"""Text kept of one passage. What automata decide is watched beyond it."""

EXCERPT_CHARS = 160
_LOCATE_WINDOW_CHARS = 2_048
_LOCATE_BUDGET_S = 0.0005
"""The place of a match is looked for before the abort, so it may not take long."""


_TOO_LONG = "it took longer than its time budget"
_TOO_LARGE = "its automaton has grown beyond its bounds on this text, and `regex` cannot run it"


class Limits(msgspec.Struct):
    """What one watch may use, and which conditions have already used too much."""

    passage_cap_chars: int = PASSAGE_CAP_CHARS
    evaluation_budget_s: float = EVALUATION_BUDGET_S
    suspended: set[int] = msgspec.field(default_factory=set[int])


class PassageWatch:
    """Feed it the passage's text, tell it paths, end it; each returns what was found.

    `holding` are the conditions for which text may have to be held back (`held_from`);
    None where nobody asks.
    """

    def __init__(
        self,
        rule_set: RuleSet,
        lineup: Lineup,
        key: PassageKey,
        limits: Limits,
        tool: str | None = None,
        *,
        holding: frozenset[int] | None = None,
    ) -> None:
        self._holding = holding
        self._rule_set = rule_set
        self._lineup = lineup
        self._key = key
        self._limits = limits
        self._tool = tool
        self._cursor = Cursor(lineup.groups)
        self._open_rules = list(lineup.rules)
        self._matched: frozenset[int] = frozenset()
        self._blind: frozenset[int] = frozenset()
        """Those of `holding` without an automaton of their own."""
        self._searches: dict[int, Search] = {}
        self._parts: list[str] = []
        self._length = 0
        self._overflowed = False
        self._ended = False
        self._paths: list[str] = []
        self._paths_known = tool is None

    def feed(self, text: str) -> list[Finding]:
        """Watch more text."""
        findings: list[Finding] = []
        if not self._open_rules:
            self._length += len(text)
            return findings
        first = not self._length
        self._keep(text, findings)
        if self._holding is None:
            changed = self._cursor.feed(text)
        else:
            changed = self._cursor.feed_and_track(text, self._length - len(text))
        if changed or first:
            certain = self._cursor.certain()
            self._matched |= certain - self._lineup.searched
            given_up = self._cursor.given_up()
            possible = certain & self._lineup.searched | given_up
            before = self._parts[:-1]
            self._start_searches(possible | self._lineup.always_searched, before, findings)
            if self._holding:
                self._blind = self._holding & (self._lineup.always_searched | given_up)
        found = self._search(text, findings) if self._searches else False
        if changed or first or found:
            self._collect(findings)
        return findings

    def held_from(self) -> int:
        """The offset from which a match of a held condition may have begun and is still
        undecided; the length of the passage where there is none.

        A condition without an automaton of its own may have begun anywhere.
        """
        if not self._holding or self._ended or not self._open_rules:
            return self._length
        if self._blind - self._limits.suspended - self._matched:
            return 0
        held = self._cursor.held_from(self._holding - self._limits.suspended)
        return self._length if held is None else held

    def end(self) -> list[Finding]:
        """The passage has all its text: what waited for the end is decided now."""
        findings: list[Finding] = []
        if self._ended or not self._open_rules:
            return findings
        self._ended = True
        at_end = self._cursor.at_end()
        self._matched |= at_end - self._lineup.searched
        possible = at_end & self._lineup.searched | self._cursor.given_up()
        self._start_searches(possible | self._lineup.always_searched, self._parts, findings)
        for number, search in list(self._searches.items()):
            try:
                if search.finish():
                    self._matched |= {number}
            except BudgetExceeded:
                self._suspend(number, findings)
        self._collect(findings)
        return findings

    def add_paths(self, paths: Iterable[str]) -> list[Finding]:
        """Further candidate paths are known; rules that waited for one may match now."""
        findings: list[Finding] = []
        self._paths.extend(paths)
        self._collect(findings)
        return findings

    def know_paths(self, paths: Iterable[str]) -> list[Finding]:
        """No further path will come."""
        findings: list[Finding] = []
        self._paths = list(paths)
        self._paths_known = True
        self._collect(findings)
        return findings

    # --- text

    def _keep(self, text: str, findings: list[Finding]) -> None:
        self._length += len(text)
        self._parts.append(text)
        if self._length <= self._limits.passage_cap_chars:
            return
        if not self._overflowed:
            self._overflowed = True
            self._searches.clear()
            findings.append(Overflowed(self._key.source, self._limits.passage_cap_chars))
        if len(self._parts) > _LOCATE_WINDOW_CHARS:
            self._parts = [self._tail()]

    def _tail(self) -> str:
        """The last characters of the passage, enough for an excerpt."""
        gathered: list[str] = []
        missing = _LOCATE_WINDOW_CHARS
        for part in reversed(self._parts):
            gathered.append(part)
            missing -= len(part)
            if missing <= 0:
                break
        return "".join(reversed(gathered))[-_LOCATE_WINDOW_CHARS:]

    # --- conditions that have to be searched

    def _start_searches(
        self, numbers: frozenset[int], before: list[str], findings: list[Finding]
    ) -> None:
        """Search these conditions from now on; `before` is the text that has passed."""
        if self._overflowed:
            return
        for number in numbers - self._matched - self._limits.suspended - self._searches.keys():
            condition = self._rule_set.conditions[number]
            if condition.pattern is None:
                self._suspend(number, findings, _TOO_LARGE)
                continue
            search = Search(condition, self._limits.evaluation_budget_s)
            self._searches[number] = search
            if before and self._feed_search(number, "".join(before), findings):
                self._matched |= {number}

    def _search(self, text: str, findings: list[Finding]) -> bool:
        found = False
        for number in list(self._searches):
            if self._feed_search(number, text, findings):
                self._matched |= {number}
                found = True
        return found

    def _feed_search(self, number: int, text: str, findings: list[Finding]) -> bool:
        try:
            matched = self._searches[number].feed(text)
        except BudgetExceeded:
            self._suspend(number, findings)
            return False
        if matched:
            del self._searches[number]
        return matched

    def _suspend(self, number: int, findings: list[Finding], reason: str = _TOO_LONG) -> None:
        self._searches.pop(number, None)
        self._limits.suspended.add(number)
        rules = tuple(r.rule.name for r in self._lineup.rules if number in r.conditions)
        condition = self._rule_set.conditions[number].source
        findings.append(Suspended(rules, condition, reason))

    # --- verdicts

    def _collect(self, findings: list[Finding]) -> None:
        """Report the rules that are hit and in scope; keep those that still may be."""
        waiting: list[CompiledRule] = []
        for compiled in self._open_rules:
            if not compiled.is_hit(self._matched) or self._awaits_path(compiled):
                waiting.append(compiled)
            elif self._in_scope(compiled):
                findings.append(self._match(compiled))
        self._open_rules = waiting

    def _awaits_path(self, compiled: CompiledRule) -> bool:
        return not self._paths_known and not self._in_scope(compiled)

    def _in_scope(self, compiled: CompiledRule) -> bool:
        return compiled.admits(self._key.source, self._tool, self._paths)

    def _match(self, compiled: CompiledRule) -> Match:
        number = min(compiled.conditions & self._matched)
        condition = self._rule_set.conditions[number]
        tail = self._tail()
        span = _locate(condition, tail)
        start, end = (len(tail), len(tail)) if span is None else span
        return Match(
            rule=compiled.rule,
            condition=condition.source,
            source=self._key.source,
            tool=self._tool,
            call_id=self._key.call_id or None,
            path=self._key.file or (self._paths[0] if self._paths else None),
            offset_chars=None if span is None else self._length - len(tail) + start,
            excerpt=_excerpt(tail, start, end),
        )


def _locate(condition: Condition, text: str) -> tuple[int, int] | None:
    """Where the condition matches in `text`, if that is quickly found."""
    if condition.pattern is None or condition.source == "":
        return None
    units = condition.units(text)
    try:
        match = condition.pattern.search(units, timeout=_LOCATE_BUDGET_S)
    except TimeoutError:
        return None
    if match is None:
        return None
    if units is text:
        return match.span()
    return code_point_offset(units, match.start()), code_point_offset(units, match.end())


def _excerpt(text: str, start: int, end: int) -> str:
    """The match with some text around it, cut to `EXCERPT_CHARS`."""
    spare = max(0, EXCERPT_CHARS - (end - start))
    first = max(0, start - spare // 2)
    return text[first : first + EXCERPT_CHARS]
