"""Rules compiled together, shared by every session that is watched by them.

Equal conditions are compiled once; for each kind of passage (prose, thinking, the calls
of one tool) a `Lineup` holds the rules that can match there and the automata that decide
them. A rule that cannot be compiled is left out with a problem that says why.
"""

from collections.abc import Iterable, Sequence

import msgspec

from midstream.rules.condition import Condition, anything, compile_condition
from midstream.rules.dialect_error import DialectError, UntranslatableError
from midstream.rules.globs import Glob, GlobError, compile_glob
from midstream.rules.joint import GROUP_SIZE, Group
from midstream.rules.problem import Problem, Severity
from midstream.rules.rule import Dialect, MatchOn, Rule, ScopeToken, Source
from midstream.rules.tool_names import same_tool


class CompiledRule(msgspec.Struct, frozen=True):
    """A rule with its conditions (numbers in the rule set) and its globs compiled."""

    rule: Rule
    conditions: frozenset[int]
    scope: tuple[tuple[ScopeToken, Glob | None], ...]
    globs: tuple[Glob, ...]

    def watches(self, source: Source, tool: str | None, *, raw: bool) -> bool:
        """Whether any passage of this kind is in scope, whatever its path."""
        if source is Source.TOOL and raw != (self.rule.match_on is MatchOn.JSON):
            return False
        return any(True for _ in self._tokens(source, tool))

    def admits(self, source: Source, tool: str | None, paths: Sequence[str]) -> bool:
        """Whether a passage with these candidate paths is in scope."""
        if self.globs and not any(glob.matches(paths) for glob in self.globs):
            return False
        return any(glob is None or glob.matches(paths) for glob in self._tokens(source, tool))

    def _tokens(self, source: Source, tool: str | None) -> Iterable[Glob | None]:
        for token, glob in self.scope:
            if token.source is source and (
                token.tool is None or (tool is not None and same_tool(token.tool, tool))
            ):
                yield glob

    def is_hit(self, matched: frozenset[int]) -> bool:
        """Whether these matched conditions are enough."""
        if self.rule.all_conditions:
            return self.conditions <= matched
        return not self.conditions.isdisjoint(matched)


class Lineup(msgspec.Struct, frozen=True):
    """What watches one kind of passage.

    `searched` are the conditions whose automaton, if any, only says where to search.
    """

    rules: tuple[CompiledRule, ...]
    groups: tuple[Group, ...]
    searched: frozenset[int]
    always_searched: frozenset[int]


class RuleSet:
    """The compiled form of `rules`, in their order.

    `problems` names the rules and conditions that had to be left out.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.problems: list[Problem] = []
        self.conditions: list[Condition] = []
        self._numbers: dict[tuple[str, Dialect] | None, int] = {}
        self._lineups: dict[tuple[Source, str | None, bool], Lineup] = {}
        self._groups: dict[frozenset[int], tuple[Group, ...]] = {}
        self.rules = tuple(
            compiled for rule in rules if (compiled := self._compile(rule)) is not None
        )
        self.wants_raw_arguments = any(
            compiled.rule.match_on is MatchOn.JSON for compiled in self.rules
        )

    def lineup(self, source: Source, tool: str | None = None, *, raw: bool = False) -> Lineup:
        """Who watches the passages of this kind."""
        key = (source, tool, raw)
        lineup = self._lineups.get(key)
        if lineup is None:
            lineup = self._lineups[key] = self._line_up(source, tool, raw=raw)
        return lineup

    def _line_up(self, source: Source, tool: str | None, *, raw: bool) -> Lineup:
        rules = tuple(rule for rule in self.rules if rule.watches(source, tool, raw=raw))
        numbers = frozenset[int]().union(*(rule.conditions for rule in rules))
        return Lineup(
            rules=rules,
            groups=self._grouped(numbers),
            searched=frozenset(n for n in numbers if not self.conditions[n].exact),
            always_searched=frozenset(n for n in numbers if self.conditions[n].automaton is None),
        )

    def _grouped(self, numbers: frozenset[int]) -> tuple[Group, ...]:
        groups = self._groups.get(numbers)
        if groups is None:
            runnable = [
                (automaton, number)
                for number in sorted(numbers)
                if (automaton := self.conditions[number].automaton) is not None
            ]
            groups = self._groups[numbers] = tuple(
                Group(*zip(*runnable[start : start + GROUP_SIZE], strict=True))
                for start in range(0, len(runnable), GROUP_SIZE)
            )
        return groups

    def _compile(self, rule: Rule) -> CompiledRule | None:
        conditions = frozenset(
            number
            for place, source in enumerate(rule.conditions)
            if (number := self._condition(rule, place, source)) is not None
        )
        if rule.match_anything and not rule.conditions:
            conditions = frozenset({self._anything()})
        unusable = rule.all_conditions and len(conditions) < len(set(rule.conditions))
        if not conditions or unusable:
            return None
        try:
            return CompiledRule(
                rule,
                conditions,
                tuple((t, None if t.glob is None else compile_glob(t.glob)) for t in rule.scope),
                tuple(compile_glob(glob) for glob in rule.globs),
            )
        except GlobError as error:
            self._refuse(rule, rule.line_of("globs", "scope"), str(error), "")
            return None

    def _condition(self, rule: Rule, place: int, source: str) -> int | None:
        key = (source, rule.dialect)
        if key in self._numbers:
            return self._numbers[key]
        try:
            condition = compile_condition(source, rule.dialect)
        except (DialectError, UntranslatableError) as error:
            lines = rule.condition_lines
            self._refuse(rule, lines[place] if place < len(lines) else 0, str(error), error.mend)
            return None
        return self._number(key, condition)

    def _anything(self) -> int:
        known = self._numbers.get(None)
        return self._number(None, anything()) if known is None else known

    def _number(self, key: tuple[str, Dialect] | None, condition: Condition) -> int:
        self.conditions.append(condition)
        self._numbers[key] = len(self.conditions) - 1
        return self._numbers[key]

    def _refuse(self, rule: Rule, line: int, what: str, mend: str) -> None:
        self.problems.append(Problem(rule.path or rule.name, line, Severity.WARNING, what, mend))
