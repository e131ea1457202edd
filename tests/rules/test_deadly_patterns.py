"""Patterns that hang a backtracking engine: decided by an automaton, or given up in time.

How long an evaluation takes is measured in `bench/matching.py`, not here; here it is shown
that none of them is left to an engine whose time has no bound (spec/ttsr.md P7, 7.2).
"""

import pytest

from midstream.messages.stream import BlockFinished, TextDelta
from midstream.rules import automaton
from midstream.rules.backtracking import EVALUATION_BUDGET_S
from midstream.rules.finding import Match, Suspended
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.watch import Watch

REGULAR = [
    r"(\w+\s?)*!$",
    r"(a+)+$",
    r"(a|a)*b$",
    r"(a|aa)+$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(.*a){20}",
    r"(x+x+)+y",
    r"(?:[^\n]*\n){601}",
    r"(//|/\*|#).*X",
    r"([\s\S]*a[\s\S]*){12}Z",
    r"(?:a?){60}a{60}Z",
    r"(a*)*b",
]
COSTLY_TO_PREPARE = [
    r"(?ims)(?!(?:[^a]){0,40}(?<=x))(?!(?:c |(?:a|\d)))",
    r"(?:(?:.[^a])+){0,40}$",
    r"(?:(?:[^a] |^)){0,40}$",
    r"(?i)(?:(?:xy ){0,40}$(?:[ab])?)+",
    "(?:" * 40 + "a" + ")*" * 40,
    "(?:" * 24 + "ab" + ")+" * 24,
]
NEED_BACKTRACKING = [r"((a+)+)\2$", r"(.+)\1{3,}$", r"(\w+)*\1!"]
LONG_LINES = {
    "words": "word " * 4_000,
    "a": "a" * 20_000,
    "comments": "/*" * 10_000,
    "lines": "ab c\n" * 4_000,
}


def watch_for(*conditions: str, budget_s: float = EVALUATION_BUDGET_S) -> Watch:
    scope = (ScopeToken(Source.TEXT),)
    rules = [
        Rule(name=condition, body="b", conditions=(condition,), scope=scope)
        for condition in conditions
    ]
    return Watch(RuleSet(rules), ToolArguments, evaluation_budget_s=budget_s)


@pytest.mark.parametrize("condition", REGULAR)
def test_a_regular_pattern_never_meets_a_backtracking_engine(condition: str) -> None:
    assert (
        RuleSet(
            [Rule(name="r", body="b", conditions=(condition,), scope=(ScopeToken(Source.TEXT),))]
        )
        .conditions[0]
        .exact
    )


@pytest.mark.parametrize("text", LONG_LINES.values(), ids=LONG_LINES.keys())
@pytest.mark.parametrize("condition", REGULAR)
def test_a_regular_pattern_is_decided_on_any_text(condition: str, text: str) -> None:
    watch = watch_for(condition)
    findings = watch.feed(TextDelta(0, text[at : at + 40]) for at in range(0, len(text), 40))
    findings += watch.feed([BlockFinished(0)])
    assert not any(isinstance(finding, Suspended) for finding in findings)


@pytest.mark.parametrize("condition", COSTLY_TO_PREPARE, ids=lambda each: each[:24])
def test_a_pattern_that_is_costly_to_prepare_is_bounded_too(condition: str) -> None:
    """What is asked about a state must not ask the same about each that follows, and nested
    quantifiers must not multiply: these took minutes, all memory, or the whole stack."""
    watch = watch_for(condition)
    findings = watch.feed(TextDelta(0, piece) for piece in "a b\nxy b aab " * 20)
    findings += watch.feed([BlockFinished(0)])
    assert not any(isinstance(finding, Suspended) for finding in findings)


NO_TIME_S = 1e-9
"""A budget that any search exceeds, so that no test depends on how fast a machine is."""


@pytest.mark.parametrize("condition", NEED_BACKTRACKING)
def test_p7_what_takes_too_long_is_suspended_and_said_and_the_others_are_still_watched(
    condition: str,
) -> None:
    watch = watch_for(condition, "harmless", budget_s=NO_TIME_S)
    text = "a" * 3_000 + "! harmless"
    findings = watch.feed([TextDelta(0, text), BlockFinished(0)])
    [suspended] = [finding for finding in findings if isinstance(finding, Suspended)]
    assert (suspended.rules, suspended.condition) == ((condition,), condition)
    [match] = [finding for finding in findings if isinstance(finding, Match)]
    assert match.rule.name == "harmless"


def test_what_neither_an_automaton_nor_regex_can_run_is_suspended_and_crashes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    condition = r"x(?:a??){30}y"
    watch = watch_for(condition, "harmless")
    monkeypatch.setattr(automaton, "MAX_WORK", 1)  # as if the text were one that it grows on
    findings = watch.feed([TextDelta(0, "xa harmless"), BlockFinished(0)])
    suspended = [finding for finding in findings if isinstance(finding, Suspended)]
    assert [each.condition for each in suspended if each.condition == condition] == [condition]
    [match] = [finding for finding in findings if isinstance(finding, Match)]
    assert match.rule.name == "harmless"


def test_a_suspended_condition_stays_so_in_the_next_attempt() -> None:
    watch = watch_for(NEED_BACKTRACKING[0], budget_s=NO_TIME_S)
    text = [TextDelta(0, "a" * 3_000), BlockFinished(0)]
    assert len(watch.feed(text)) == 1
    watch.begin()
    assert not watch.feed(text)
