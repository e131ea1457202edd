"""`explain` names the first thing that keeps a rule silent, and what it takes to fire."""

from typing import Any

import pytest

from midstream.messages.injection import InjectionRecord
from midstream.rules.discovery import Discovery, Shadowed
from midstream.rules.explain import (
    AskedOutput,
    Explanation,
    Memory,
    Situation,
    Standing,
    explain,
)
from midstream.rules.policy import PolicySettings
from midstream.rules.problem import Problem, Severity
from midstream.rules.rule import (
    Action,
    InterruptMode,
    RepeatMode,
    Rule,
    ScopeToken,
    Source,
)


def made(name: str = "no-any", /, **fields: Any) -> Rule:
    given: dict[str, Any] = {
        "conditions": ("any",),
        "path": f"/p/{name}.md",
        "origin": "midstream",
        **fields,
    }
    return Rule(name=name, body="b", **given)


def record(turn: int = 3, rule: str = "no-any", position: int = 7) -> InjectionRecord:
    return InjectionRecord(
        conversation_id="con-1",
        session_id="ses-1",
        rule=rule,
        turn=turn,
        attempt=2,
        position=position,
        recorded_at="2026-01-01T00:00:00.000Z",
    )


def ask(rule: Rule | None = None, name: str = "no-any", **fields: Any) -> Explanation:
    found = Discovery(rules=(rule or made(),))
    given: dict[str, Any] = {"found": found, "agent": "main", **fields}
    return explain(name, Situation(**given))


def text(explanation: Explanation) -> str:
    return " ".join(explanation.sentences)


def test_an_unknown_name_gets_the_nearest_ones():
    answer = ask(name="no-ayn")

    assert answer.standing is Standing.UNKNOWN
    assert text(answer) == "There is no rule named `no-ayn`. Rules with a similar name: `no-any`."


def test_an_unknown_name_whose_file_was_rejected_gets_the_reason():
    problem = Problem("/p/broken.md", 0, Severity.ERROR, "the file has no body")
    answer = ask(name="broken", found=Discovery(problems=(problem,)))

    assert answer.standing is Standing.UNKNOWN
    assert answer.problems == (problem,)


@pytest.mark.parametrize("prefix", ["rule://", "rule:"])
def test_a_name_may_be_written_as_an_address(prefix: str):
    assert ask(name=f"{prefix}no-any").standing is Standing.OPEN


def test_a_rule_that_its_file_disables_is_named_with_the_file():
    answer = ask(found=Discovery(disabled=(made(),)))

    assert answer.standing is Standing.DISABLED
    assert "disabled in its file /p/no-any.md" in text(answer)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"enabled": False}, "`rules.enabled` is false"),
        ({"disabled_rules": ("rule:no-any",)}, "`rules.disabled_rules`"),
    ],
)
def test_a_rule_that_the_configuration_disables_is_named_with_the_key(
    fields: dict[str, Any], part: str
):
    answer = ask(**fields)

    assert answer.standing is Standing.DISABLED
    assert part in text(answer)


def test_a_bundled_rule_is_disabled_with_the_bundle():
    answer = ask(made(origin="builtin"), builtin_rules=False)

    assert answer.standing is Standing.DISABLED


def test_a_shadowed_rule_of_the_same_name_is_told():
    used, hidden = made(), made(path="/q/no-any.md")
    answer = ask(found=Discovery(rules=(used,), shadowed=(Shadowed(hidden, used),)))

    assert answer.standing is Standing.OPEN
    assert "not used, because this one comes first: /q/no-any.md" in text(answer)


def test_a_rule_for_other_agents_is_told():
    answer = ask(made(agents=("reviewer",)))

    assert answer.standing is Standing.OTHER_AGENT
    assert "`reviewer`, and this is `main`" in text(answer)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"conditions": (), "always_apply": True}, "system prompt instead"),
        ({"conditions": (), "description": "d"}, "rulebook instead"),
        ({"conditions": ()}, "no use as it stands"),
        ({"scope": ()}, "nothing of its scope can be reached"),
        ({"conditions": ("a(",)}, "its conditions cannot be used"),
        ({"question": "Is it?"}, "`question`, which is not supported yet"),
        ({"conditions": (), "ast_conditions": ("f($A)",)}, "`astCondition` is not supported yet"),
    ],
)
def test_a_rule_that_is_not_watched_for_says_what_it_is_instead(fields: dict[str, Any], part: str):
    answer = ask(made(**fields))

    assert answer.standing is Standing.NOT_WATCHED
    assert part in text(answer)


@pytest.mark.parametrize(
    ("place", "part"),
    [
        (AskedOutput(source=Source.THINKING), "does not cover thinking"),
        (AskedOutput(source=Source.TOOL, tool="read"), "does not cover the tool `read`"),
        (AskedOutput(source=Source.TOOL, tool="edit", path="a.py"), "the path `a.py`"),
        (AskedOutput(source=Source.TOOL, path="test/a.ts"), "do not match `test/a.ts`"),
    ],
)
def test_a_place_that_the_rule_does_not_cover_is_told(place: AskedOutput, part: str):
    scope = (ScopeToken(Source.TOOL, "edit", "*.ts"),)

    answer = ask(made(scope=scope, globs=("src/**",)), place=place)

    assert answer.standing is Standing.OUT_OF_SCOPE
    assert part in text(answer)


@pytest.mark.parametrize(
    "place",
    [
        AskedOutput(source=Source.TOOL),
        AskedOutput(source=Source.TOOL, tool="MultiEdit"),
        AskedOutput(source=Source.TOOL, tool="edit", path="/repo/src/a.ts", cwd="/repo"),
    ],
)
def test_a_place_that_the_rule_may_cover_is_no_reason(place: AskedOutput):
    scope = (ScopeToken(Source.TOOL, "edit", "*.ts"),)

    assert ask(made(scope=scope, globs=("src/**",)), place=place).standing is Standing.OPEN


def test_prose_has_no_path_for_globs():
    answer = ask(made(globs=("*.ts",)), place=AskedOutput(source=Source.TEXT))

    assert answer.standing is Standing.OUT_OF_SCOPE
    assert "its globs need a path" in text(answer)


# --- what the conversation remembers


def remember(turn: int, *records: InjectionRecord) -> Memory:
    return Memory(conversation_id="con-1", turn=turn, records=records)


def test_a_spent_rule_says_since_when_and_where_its_reminder_is():
    answer = ask(memory=remember(9, record(2, position=4), record(3)))

    assert answer.standing is Standing.SPENT
    assert (
        "In conversation con-1 (9 turns so far) it was last reminded of at turn 3, attempt 2 of "
        "session ses-1; the reminder is at position 7." in text(answer)
    )
    assert "It is spent: reminded at turn 3, and repeats once only." in text(answer)


def test_a_rule_with_a_gap_says_when_it_opens_again():
    rule = made(repeat_mode=RepeatMode.AFTER_GAP, repeat_gap=5)

    early, late = (ask(rule, memory=remember(turn, record(3))) for turn in (6, 7))

    assert early.standing is Standing.SPENT
    assert "open again at turn 8" in text(early)
    assert late.standing is Standing.OPEN
    assert "lets it fire again" in text(late)


def test_the_gap_of_the_settings_counts_where_the_rule_has_none():
    policy = PolicySettings(repeat_mode=RepeatMode.AFTER_GAP, repeat_gap=2)

    assert ask(policy=policy, memory=remember(3, record(3))).standing is Standing.SPENT
    assert ask(policy=policy, memory=remember(4, record(3))).standing is Standing.OPEN


def test_a_reminder_of_another_rule_is_no_reason():
    answer = ask(memory=remember(1, record(1, rule="other")))

    assert answer.standing is Standing.OPEN
    assert "No reminder of it is in the context of conversation con-1 (1 turn so far)" in text(
        answer
    )


# --- what it takes to fire


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, "one of its conditions matches in its scope, `text, tool`"),
        ({"all_conditions": True}, "all of its conditions match"),
        ({"match_anything": True, "conditions": ()}, "anything is written"),
        ({"globs": ("*.py",)}, "for paths in `*.py`"),
        ({"action": Action.OBSERVE}, "only reports"),
        ({"interrupt_mode": InterruptMode.NEVER}, "reminds without cutting"),
        ({"interrupt_mode": InterruptMode.PROSE_ONLY}, "in tool calls it only reminds"),
        ({"interrupt_mode": InterruptMode.TOOL_ONLY}, "in prose it only reminds"),
        ({"max_retries": 1}, "cuts the answer, at most 1 time for one prompt"),
    ],
)
def test_an_open_rule_says_when_it_fires_and_what_then(fields: dict[str, Any], part: str):
    answer = ask(made(**fields))

    assert answer.standing is Standing.OPEN
    assert part in text(answer)
    assert "rule_suspended" in text(answer)


def test_the_problems_of_its_file_come_with_the_answer():
    mine = Problem("/p/no-any.md", 3, Severity.WARNING, "condition `a(` is ignored")
    other = Problem("/p/other.md", 3, Severity.WARNING, "x")

    rule = made(conditions=("a^b",), condition_lines=(2,))
    answer = ask(found=Discovery(rules=(rule,), problems=(other, mine)))

    assert answer.problems[0] == mine
    assert [str(problem) for problem in answer.problems[1:]] == [
        "/p/no-any.md:2: warning: condition `a^b` cannot match any text"
    ]
