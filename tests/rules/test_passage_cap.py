"""What is kept of one passage is bounded; what automata decide is watched beyond the bound."""

import tracemalloc
from random import Random

import pytest

from midstream.rules.finding import Match, Overflowed
from midstream.rules.passage import PassageKey
from midstream.rules.passage_watch import Limits, PassageWatch
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet

from .random_patterns import random_cuts

CAP = 1_000
SEARCHED = r"(a|b)\1"
"""A condition that no automaton can run, so that the text has to be kept for it."""


def watching(*conditions: str) -> PassageWatch:
    scope = (ScopeToken(Source.TEXT),)
    rules = [Rule(name=c, body="b", conditions=(c,), scope=scope) for c in conditions]
    rule_set = RuleSet(rules)
    limits = Limits(passage_cap_chars=CAP, evaluation_budget_s=1.0)
    return PassageWatch(rule_set, rule_set.lineup(Source.TEXT), PassageKey(Source.TEXT), limits)


def found(watch: PassageWatch, text: str, random: Random) -> list[str]:
    """The rules that match, and once `overflow`, in their order."""
    findings = [finding for piece in random_cuts(random, text) for finding in watch.feed(piece)]
    findings += watch.end()
    said: list[str] = []
    for finding in findings:
        match finding:
            case Match(rule=rule):
                said.append(rule.name)
            case Overflowed(Source.TEXT, limit):
                assert limit == CAP
                said.append("overflow")
            case _:
                raise AssertionError(finding)
    return said


@pytest.mark.parametrize("seed", range(20))
def test_a_passage_is_searched_up_to_its_cap_and_watched_beyond_it(seed: int) -> None:
    random = Random(seed)
    filling = "x" * (CAP - 2)
    assert found(watching(SEARCHED, "foo"), f"{filling}aa", random) == [SEARCHED]
    beyond = found(watching(SEARCHED, "foo"), f"{filling}xxaafoo", random)
    assert beyond == ["overflow", "foo"]


def test_a_match_far_beyond_the_cap_is_shown_in_its_place() -> None:
    watch = watching("foo")
    for _ in range(20):
        watch.feed("x" * CAP)
    [match] = [each for each in watch.feed("a foo") if isinstance(each, Match)]
    assert match.offset_chars == 20 * CAP + 2
    assert match.excerpt.endswith("xa foo")


def test_what_is_kept_does_not_grow_with_the_passage() -> None:
    watch = watching("foo", SEARCHED)
    tracemalloc.start()
    try:
        kept: list[int] = []
        for _ in range(2):
            for _ in range(20 * CAP):
                watch.feed("x")
            kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept[-1] - kept[0] < 20 * CAP  # what came since is larger
