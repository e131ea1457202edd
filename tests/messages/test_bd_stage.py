"""Stages that follow the project's task list: what is asked, chosen and said."""

import json
from typing import Any

import msgspec
import pytest

from midstream.messages.bd_stage import (
    QUERIES,
    SUMMARY_TEXT,
    Answer,
    BdMode,
    BdTask,
    StageTemplatesMissing,
    choose_stage,
    choose_task,
    fill_template,
    next_query,
    observation_hash,
    parse_tasks,
    require_templates,
    work_state,
)
from midstream.messages.blocked_report import BlockedReport, extract_blocked_report
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    TextPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.directive import StageMode
from midstream.messages.stop_message import (
    BdWorkState,
    Stage,
    StopMessageState,
    set_mode,
    set_text,
)

TEMPLATES = {
    Stage.STATUS_PROBE: "probe {{BASE_STOP_MESSAGE}}",
    Stage.ACTIVE_CONTINUE: "go on {{BASE_STOP_MESSAGE}}",
    Stage.LOOP_SELF_CHECK: "check yourself",
}
ARMED = set_text(StopMessageState(), "T", 9, now_ms=1)
ON = set_mode(ARMED, StageMode.ON, now_ms=2)
TASK = BdTask("bd-1")


# Asking bd


def test_the_queries_are_read_only_json_and_asked_in_order_of_rank():
    assert all(query[:3] == ("bd", "--no-db", "--json") for query in QUERIES)
    asked = [next_query([()] * count) for count in range(5)]
    assert asked == [*QUERIES, None]


def test_the_first_answer_with_tasks_or_a_failure_settles_the_matter():
    assert next_query([(), (TASK,)]) is None
    assert next_query([(), None]) is None


@pytest.mark.parametrize(
    ("answers", "mode", "expected"),
    [
        ([(TASK,)], BdMode.AUTO, BdWorkState.ACTIVE),
        ([(), (TASK,)], BdMode.RUNTIME, BdWorkState.ACTIVE),
        ([(), (), (), (TASK,)], BdMode.RUNTIME, BdWorkState.ACTIVE),
        ([(), (), (), ()], BdMode.AUTO, BdWorkState.IDLE),
        ([(), (), (), ()], BdMode.HEURISTIC, BdWorkState.UNKNOWN),
        ([(), None], BdMode.RUNTIME, BdWorkState.UNKNOWN),
        ([(), None], BdMode.AUTO, BdWorkState.UNKNOWN),
        ([(), (), (), None], BdMode.AUTO, BdWorkState.UNKNOWN),
        ([], BdMode.AUTO, BdWorkState.UNKNOWN),
    ],
)
def test_what_the_answers_say(answers: list[Answer], mode: BdMode, expected: BdWorkState):
    assert work_state(answers, mode, []) is expected


def test_without_a_project_the_state_is_unknown_and_never_idle():
    answers: list[Answer] = [(), (), (), ()]
    for mode in BdMode:
        state = work_state(answers, mode, [SHOWN], has_project=False)
        assert state is BdWorkState.UNKNOWN


SHOWN = ToolResultItem("c", "shell", '$ bd list\n[{"id": "bd-1", "status": "in_progress"}]')


def test_a_failed_bd_is_replaced_by_what_tools_have_shown_lately():
    assert work_state([None], BdMode.AUTO, [SHOWN]) is BdWorkState.ACTIVE
    assert work_state([None], BdMode.RUNTIME, [SHOWN]) is BdWorkState.UNKNOWN
    called = AssistantItem((ToolCallPart("c", "sh", '{"cmd":"bd update x --status in_progress"}'),))
    assert work_state([None], BdMode.AUTO, [called]) is BdWorkState.ACTIVE
    talked: list[AnyItem] = [
        UserItem("bd is in_progress"),
        AssistantItem((TextPart("bd in_progress"),)),
        ToolResultItem("c", "cat", "abducted in_progress"),
    ]
    assert work_state([None], BdMode.AUTO, talked) is BdWorkState.UNKNOWN
    long_ago: list[AnyItem] = [SHOWN, *[UserItem("x")] * 40]
    assert work_state([None], BdMode.AUTO, long_ago) is BdWorkState.UNKNOWN


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("[]", ()),
        ('[{"id":"bd-1","title":"t","priority":2,"x":1}]', (BdTask("bd-1", "t", 2),)),
        ('[{"title":"no id"},5,{"id":"b","priority":"high"}]', (BdTask("b"),)),
        ("", None),
        ("error: no database", None),
        ('{"error":"x"}', None),
        ("null", None),
        ("[" * 50_000, None),
    ],
)
def test_what_bd_prints_is_read_or_counts_as_failed(output: str, expected: Answer):
    assert parse_tasks(output) == expected


def test_the_task_is_chosen_by_rank_then_priority_then_id():
    urgent, later, unranked = BdTask("b", "", 0), BdTask("a", "", 2), BdTask("0")
    assert choose_task([(), (unranked, later, urgent)]) == urgent
    assert choose_task([(), (unranked, later, BdTask("c", "", 2))]) == later
    assert choose_task([(later,), (urgent,)]) == later
    assert choose_task([(), ()]) is None
    assert choose_task([None]) is None


# Stages


def run(state: StopMessageState, *rounds: tuple[BdWorkState, str]) -> list[str | None]:
    """The texts of consecutive stops; each round is the work state and what was observed."""
    texts: list[str | None] = []
    for work, observation in rounds:
        choice = choose_stage(state, TEMPLATES, work, observation)
        state = choice.state
        texts.append(choice.text)
    return texts


ACTIVE, IDLE, UNKNOWN = BdWorkState.ACTIVE, BdWorkState.IDLE, BdWorkState.UNKNOWN


def test_first_a_probe_then_on_with_the_work():
    assert run(ON, (ACTIVE, "1"), (ACTIVE, "2"), (UNKNOWN, "3")) == [
        "probe T",
        "go on T",
        "go on T",
    ]


def test_an_unchanged_observation_is_checked_once_and_then_ends_it():
    rounds = [(ACTIVE, "1"), (ACTIVE, "1"), (ACTIVE, "1")]
    assert run(ON, *rounds) == ["probe T", "check yourself", None]
    moved_on = run(ON, (ACTIVE, "1"), (ACTIVE, "1"), (ACTIVE, "2"))
    assert moved_on == ["probe T", "check yourself", "go on T"]


def test_idle_is_summed_up_once_and_then_ends_it():
    assert run(ON, (ACTIVE, "1"), (IDLE, "2"), (IDLE, "3")) == ["probe T", SUMMARY_TEXT, None]
    assert run(ON, (IDLE, "1"), (IDLE, "2")) == [SUMMARY_TEXT, None]


def test_mode_only_works_from_the_stages_alone():
    mode_only = set_mode(StopMessageState(), StageMode.ON, now_ms=1)
    assert run(mode_only, (ACTIVE, "1"), (ACTIVE, "2")) == ["probe", "go on"]


def test_mode_on_without_templates_fails_early_and_says_what_to_write():
    with pytest.raises(StageTemplatesMissing, match=r"stage-loop-self-check\.md"):
        require_templates(StageMode.ON, {**TEMPLATES, Stage.LOOP_SELF_CHECK: ""})
    with pytest.raises(StageTemplatesMissing):
        choose_stage(ON, {}, ACTIVE, "1")
    require_templates(StageMode.ON, TEMPLATES)


def test_mode_auto_without_templates_says_the_plain_text():
    auto = set_mode(ARMED, StageMode.AUTO, now_ms=2)
    choice = choose_stage(auto, {}, IDLE, "1")
    assert (choice.text, choice.state) == ("T", auto)
    assert choose_stage(auto, TEMPLATES, ACTIVE, "1").text == "probe T"


def test_without_a_mode_there_are_no_stages():
    assert choose_stage(ARMED, TEMPLATES, IDLE, "1").text == "T"


def test_the_state_remembers_stage_and_observation():
    state = choose_stage(ON, TEMPLATES, ACTIVE, "1").state
    assert (state.stage, state.observation_hash, state.bd_work_state) == (
        Stage.STATUS_PROBE,
        "1",
        ACTIVE,
    )
    assert set_text(state, "new", 1, now_ms=9).stage is None


def test_a_template_takes_the_text_in_and_no_marker_out():
    assert fill_template("a {{BASE_STOP_MESSAGE}} b <**clear**> c\n", "T") == "a T b c"


def test_the_observation_covers_tools_arguments_and_results_since_the_user_spoke():
    def seen(text: str = "done", arguments: str = "{}", result: str = "ok", call_id: str = "1"):
        items: list[AnyItem] = [
            UserItem("go"),
            AssistantItem((ToolCallPart(call_id, "ls", arguments),)),
            ToolResultItem(call_id, "ls", result),
            AssistantItem((TextPart(text),)),
        ]
        return items

    same = observation_hash(seen())
    assert observation_hash(seen(call_id="2")) == same
    assert observation_hash(seen(text=" done\n")) == same
    assert observation_hash([*seen(text="earlier"), *seen()]) == same
    others = [seen(text="no"), seen(arguments='{"a":1}'), seen(result="no")]
    assert len({same, *map(observation_hash, others)}) == 4


# The blocked report

REPORT: dict[str, Any] = {
    "type": "blocked",
    "summary": "s",
    "blocker": "b {",
    "impact": "i",
    "next_action": "n",
    "evidence": ["e1", " ", 5, "e2"],
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(REPORT),
        f"I am stuck.\n```json\n{json.dumps(REPORT, indent=2)}\n```\nSorry {{",
        json.dumps({"other": 1, **REPORT, "more": {"a": {}}}),
        json.dumps({"details": {"x": 1}, **REPORT}),
        'earlier {"type":"blocked","summary":"old"} ' + json.dumps(REPORT),
    ],
)
def test_a_blocked_report_is_taken_out_of_the_reply(text: str):
    assert extract_blocked_report(text) == BlockedReport("s", "b {", "i", "n", ("e1", "e2"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "blocked",
        '{"type":"done"}',
        '"type":"blocked"',
        '{"type":"blocked", "summary"',
        "{" * 70_000 + '"type":"blocked"' * 1000,
    ],
)
def test_without_a_readable_report_there_is_none(text: str):
    assert extract_blocked_report(text) is None


def test_a_report_may_be_partial():
    partial = extract_blocked_report('{"type": "blocked", "blocker": "b", "evidence": "e"}')
    assert partial == BlockedReport(blocker="b", evidence=("e",))
    assert msgspec.json.encode(partial)
