"""Every verdict is that of one search over the finished passage, however the stream was cut,
and never premature (design.md invariant 9, spec/ttsr.md 0.3)."""

import os
from random import Random

import pytest
import regex
from random_patterns import random_condition, random_cuts, random_text

from midstream.rules.condition import compile_condition
from midstream.rules.passage import PassageKey
from midstream.rules.passage_watch import Limits, PassageWatch
from midstream.rules.rule import Dialect, Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet

CONDITIONS = int(os.environ.get("MIDSTREAM_CUT_CASES", "1200"))
"""Conditions tried; each with ten texts and their cuts. Set the variable for more."""
SEEDS = 8
TEXTS = 10
CONTINUATIONS = 6


def watch_for(condition: str) -> PassageWatch:
    rule = Rule(name="r", body="b", conditions=(condition,), scope=(ScopeToken(Source.TEXT),))
    rule_set = RuleSet([rule])
    assert not rule_set.problems
    key = PassageKey(Source.TEXT)
    return PassageWatch(rule_set, rule_set.lineup(Source.TEXT), key, Limits())


def verdict(condition: str, pieces: list[str]) -> tuple[bool, str]:
    """Whether the condition matched, and the text that had been seen by then."""
    watch = watch_for(condition)
    seen = ""
    for piece in pieces:
        seen += piece
        if watch.feed(piece):
            return True, seen
    return bool(watch.end()), seen + "<end>"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_verdict_equals_one_search_over_the_finished_passage(seed: int) -> None:
    random = Random(seed)
    for _ in range(CONDITIONS // SEEDS):
        source = random_condition(random)
        pattern = compile_condition(source, Dialect.ECMASCRIPT).pattern
        if pattern is None:
            continue
        for _ in range(TEXTS):
            text = random_text(random)
            check(random, source, pattern, text)


def check(random: Random, source: str, pattern: "regex.Pattern[str]", text: str) -> None:
    condition = compile_condition(source, Dialect.ECMASCRIPT)
    expected = pattern.search(condition.units(text)) is not None
    pieces = random_cuts(random, text)
    matched, seen = verdict(source, pieces)
    assert matched == expected, f"{source!r} on {pieces!r}: {matched}, at {seen!r}"
    if not matched or seen.endswith("<end>"):
        return
    for _ in range(CONTINUATIONS):
        longer = seen + random_text(random, 6)
        found = pattern.search(condition.units(longer)) is not None
        assert found, f"{source!r} fired at {seen!r}, but {longer!r} does not match"
