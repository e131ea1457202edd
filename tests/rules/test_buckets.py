"""Each rule is for one thing: the stream, the system prompt, the rulebook (spec/ttsr.md 1.7)."""

import pytest

from midstream.rules.buckets import MAIN_AGENT, SUB_AGENT, Buckets, sort_rules
from midstream.rules.rule import Rule
from midstream.rules.rule_file import parse_rule


def rule(name: str, front_matter: str = "", origin: str = "midstream") -> Rule:
    parsed = parse_rule(name, f"---\n{front_matter}\n---\nBody of {name}.", origin=origin).rule
    assert parsed is not None
    return parsed


WATCHED = rule("watched", "condition: a\ndescription: d\nalwaysApply: true")
ALWAYS = rule("always", "alwaysApply: true\ndescription: d")
LISTED = rule("listed", "description: |\n  Two\n  lines")
IDLE = rule("idle")
EVERY = (WATCHED, ALWAYS, LISTED, IDLE)


def names(rules: tuple[Rule, ...]) -> list[str]:
    return [rule.name for rule in rules]


def test_a_rule_goes_to_the_first_bucket_that_takes_it():
    assert sort_rules(EVERY) == Buckets((WATCHED,), (ALWAYS,), (LISTED,), (IDLE,))


def test_the_host_gets_the_texts_for_the_system_prompt():
    buckets = sort_rules([*EVERY, rule("more", "alwaysApply: true")])

    assert buckets.always_apply_text() == "Body of always.\n\nBody of more."
    assert buckets.rulebook_text() == "- listed: Two lines"
    assert Buckets().always_apply_text() == ""


@pytest.mark.parametrize(
    ("name", "found"), [("rule://listed", True), ("watched", True), ("idle", False)]
)
def test_a_rule_is_found_by_its_name(name: str, found: bool):
    assert (sort_rules(EVERY).find(name) is not None) is found


@pytest.mark.parametrize("disabled", [["watched"], [" watched "], ["rule:watched"]])
def test_a_disabled_rule_is_nowhere(disabled: list[str]):
    buckets = sort_rules(EVERY, disabled_rules=disabled)

    assert buckets.stream == ()
    assert buckets.always_apply == (ALWAYS,)
    assert buckets.find("watched") is None


def test_disabling_is_exact():
    assert sort_rules(EVERY, disabled_rules=["Watched", "watch", "watched*"]).stream == (WATCHED,)


def test_the_bundled_rules_can_be_left_out():
    bundled = rule("bundled", "condition: a", origin="builtin")

    assert sort_rules([bundled]).stream == (bundled,)
    assert sort_rules([bundled], builtin_rules=False) == Buckets()


def test_b1_without_watching_the_guidance_stays():
    listed = rule("l", "condition: a\ndescription: d")

    buckets = sort_rules([WATCHED, listed], enabled=False)

    assert buckets.stream == ()
    assert names(buckets.always_apply) == ["watched"]
    assert names(buckets.rulebook) == ["l"]


@pytest.mark.parametrize(
    "front_matter",
    [
        "condition: '('",
        "condition: a\nscope: 'tool:'",
        "condition: a\nscope: text\nglobs: ['*.ts']",
        "astCondition: $A",
        "question: Is it?",
        "condition: a\nquestion: Is it?",
    ],
)
def test_what_cannot_be_watched_for_falls_to_the_rulebook(front_matter: str):
    buckets = sort_rules([rule("r", front_matter + "\ndescription: d")])

    assert buckets.stream == ()
    assert names(buckets.rulebook) == ["r"]


def test_the_second_of_two_stream_rules_with_one_name_falls_through():
    first = rule("r", "condition: a")
    second = rule("r", "condition: b\ndescription: d")

    assert sort_rules([first, second]) == Buckets(stream=(first,), rulebook=(second,))


@pytest.mark.parametrize(
    ("agents", "agent", "expected"),
    [
        ("", MAIN_AGENT, True),
        ("", "reviewer", True),
        ("main", MAIN_AGENT, True),
        ("main", SUB_AGENT, False),
        ("sub", SUB_AGENT, True),
        ("Reviewer", "reviewer", True),
        ("reviewer", "REVIEWER", True),
        ("review*", "reviewer", True),
        ("'{review,test}er'", "tester", True),
        ("a, b", "b", True),
        ("[a, b]", "c", False),
        ("!reviewer", "reviewer", False),
        ("!reviewer", MAIN_AGENT, True),
    ],
)
def test_a_rule_is_for_the_agents_that_it_names(agents: str, agent: str, expected: bool):
    watched = rule("r", f"condition: a\nagents: {agents}")

    assert bool(sort_rules([watched], agent=agent).stream) is expected


def test_b30_every_agent_is_sorted_from_all_rules():
    rules = [rule("m", "condition: a\nagents: main"), rule("s", "condition: a\nagents: sub")]

    assert names(sort_rules(rules, agent=MAIN_AGENT).stream) == ["m"]
    assert names(sort_rules(rules, agent=SUB_AGENT).stream) == ["s"]
