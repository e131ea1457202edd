"""Every verdict is that of one search over the finished passage, however the stream was cut,
and never premature (architecture.md invariant 9, spec/ttsr.md 0.3)."""

import json
import os
from random import Random

import pytest

from midstream.messages.stream import ToolArgumentsDelta, ToolCallFinished, ToolCallStarted
from midstream.rules.condition import Condition
from midstream.rules.finding import Match
from midstream.rules.passage import PassageKey
from midstream.rules.passage_watch import Limits, PassageWatch
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.watch import Watch

from .random_patterns import random_condition, random_cuts, random_text

CONDITIONS = int(os.environ.get("MIDSTREAM_CUT_CONDITIONS", "1200"))
"""Conditions tried, each with ten texts and their cuts. Set the variable for more."""
SEEDS = 8
TEXTS = 10
CONTINUATIONS = 6


class Matching:
    """One condition, ready to be tried on texts in pieces."""

    def __init__(self, source: str) -> None:
        scope = (ScopeToken(Source.TEXT),)
        self.source = source
        self.rule_set = RuleSet([Rule(name="r", body="b", conditions=(source,), scope=scope)])
        self.refused = bool(self.rule_set.problems)

    @property
    def condition(self) -> Condition:
        return self.rule_set.conditions[0]

    def searched(self, text: str) -> bool:
        """What one search over the whole text says."""
        return self.condition.require_pattern().search(self.condition.units(text)) is not None

    def watched(self, pieces: list[str]) -> tuple[bool, str | None]:
        """Whether the engine matches, and the text it had seen if that was before the end."""
        lineup = self.rule_set.lineup(Source.TEXT)
        watch = PassageWatch(self.rule_set, lineup, PassageKey(Source.TEXT), Limits())
        seen = ""
        for piece in pieces:
            seen += piece
            if watch.feed(piece):
                return True, seen
        return bool(watch.end()), None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_verdict_equals_one_search_over_the_finished_passage(seed: int) -> None:
    random = Random(seed)
    for _ in range(CONDITIONS // SEEDS):
        matching = Matching(random_condition(random))
        if matching.refused or matching.condition.pattern is None:
            continue
        for _ in range(TEXTS):
            check(random, matching, random_text(random))


def check(random: Random, matching: Matching, text: str) -> None:
    pieces = random_cuts(random, text)
    matched, seen = matching.watched(pieces)
    expected = matching.searched(text)
    assert matched == expected, f"{matching.source!r} on {pieces!r}: {matched}, at {seen!r}"
    for _ in range(CONTINUATIONS if seen is not None else 0):
        longer = f"{seen}{random_text(random, 6)}"
        assert matching.searched(longer), f"{matching.source!r} fired at {seen!r}, not {longer!r}"


FIRINGS = pytest.mark.parametrize(
    ("condition", "text", "fires_after"),
    [
        (r"\bany\b", "as any thing", "as any "),
        (r"as any\b", "as anything", None),
        (r"as any\b", "as any", "<end>"),
        (r"foo$", "foo", "<end>"),
        (r"foo$", "foo bar", None),
        (r"(?m)foo$", "a foo\nbar", "a foo\n"),
        (r"foo(?!bar)", "foobaz", "foobaz"),
        (r"foo(?!bar)", "foobar", None),
        (r"foo(?!bar)", "foo", "<end>"),
        (r"foo(?=bar)", "foobarbaz", "foobar"),
        (r"TODO", "a TODO b", "a TODO"),
        (r"a+", "baaa", "ba"),
        (r"a+?b", "caab", "caab"),
        (r"(?<!\.)unwrap\(\)", "x unwrap()", "x unwrap()"),
        (r"(?<!\.)unwrap\(\)", "x.unwrap()", None),
        (r"(a|b)\1", "abba", "abb"),
        (r"x(?:[^]|$)", "xy", "x"),
        (r"x(?:[^]|$)|x", "xy", "x"),
        (r"\u{1F600}|(?:\ud83d\ude00)", "a😀", "a😀"),
        (r"^$", "", "<end>"),
    ],
)


@FIRINGS
def test_a_rule_fires_as_soon_as_nothing_can_undo_it_and_no_earlier(
    condition: str, text: str, fires_after: str | None
) -> None:
    matched, seen = Matching(condition).watched(list(text))
    if fires_after is None:
        assert not matched
    elif fires_after == "<end>":
        assert (matched, seen) == (True, None)
    else:
        assert seen == fires_after


@FIRINGS
def test_a_condition_whose_automaton_gives_up_has_the_same_verdict_as_soon_as_can_be(
    condition: str, text: str, fires_after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    matching = Matching(condition)
    monkeypatch.setattr("midstream.rules.automaton.MAX_WORK", 0)
    matched, seen = matching.watched(list(text))
    assert matched == (fires_after is not None)
    if matched and matching.condition.resumable:  # others wait until more has come
        assert seen == fires_after


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_not_held_back_is_never_needed_by_a_later_match(seed: int) -> None:
    """Text that went out before the match was known does not break the rule by itself, and
    what breaks it lies wholly in what was held (architecture.md, the way of a token)."""
    random = Random(seed)
    for _ in range(CONDITIONS // SEEDS):
        matching = Matching(random_condition(random))
        if matching.refused or not matching.condition.exact or not matching.condition.pattern:
            continue
        for _ in range(TEXTS):
            text = random_text(random).replace("😀", "")
            check_holding(matching, text, random_cuts(random, text))


def check_holding(matching: Matching, text: str, pieces: list[str]) -> None:
    lineup = matching.rule_set.lineup(Source.TEXT)
    key = PassageKey(Source.TEXT)
    watch = PassageWatch(matching.rule_set, lineup, key, Limits(), holding=frozenset({0}))
    released = 0
    seen = ""
    for piece in pieces:
        seen += piece
        if watch.feed(piece):
            break
        released = max(released, watch.held_from())
    else:
        if not watch.end():
            return
    pattern = matching.condition.require_pattern()
    label = f"{matching.source!r} on {pieces!r}, released {text[:released]!r}"
    assert pattern.search(seen, pos=released) is not None, label


def test_with_nothing_close_to_matching_nothing_is_held() -> None:
    matching = Matching("FORBIDDEN")
    lineup = matching.rule_set.lineup(Source.TEXT)
    key = PassageKey(Source.TEXT)
    watch = PassageWatch(matching.rule_set, lineup, key, Limits(), holding=frozenset({0}))
    held: list[int] = []
    for length, character in enumerate("a FOR b", 1):
        watch.feed(character)
        held.append(length - watch.held_from())
    assert held == [0, 0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize("path", ["src/a.ts", "README.md", None])
def test_a_rule_for_some_paths_has_the_same_verdict_wherever_the_path_stands(
    path: str | None,
) -> None:
    scope = (ScopeToken(Source.TOOL, "write", "*.ts"),)
    rule_set = RuleSet([Rule(name="r", body="b", conditions=("foo",), scope=scope)])
    content, named = {"content": "a foo b"}, {} if path is None else {"path": path}
    random = Random(1)
    for arguments in ({**named, **content}, {**content, **named}):
        for _ in range(20):
            pieces = random_cuts(random, json.dumps(arguments))
            assert matches_in_call(rule_set, pieces) == (path == "src/a.ts"), pieces


def matches_in_call(rule_set: RuleSet, pieces: list[str]) -> bool:
    watch = Watch(rule_set, ToolArguments, 1_000)
    watch.begin()
    messages = [
        ToolCallStarted(0, "c1", "write"),
        *(ToolArgumentsDelta(0, piece) for piece in pieces),
        ToolCallFinished(0, "c1", "write", "".join(pieces)),
    ]
    findings = [finding for message in messages for finding in watch.feed([message])]
    return any(isinstance(finding, Match) for finding in findings)
