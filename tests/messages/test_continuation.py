"""When a reply is continued by itself, with what, and what a bad follow-up may do."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.arming import apply_directives
from midstream.messages.client_timeout import client_timeout_s
from midstream.messages.compaction import is_compaction, is_compaction_body
from midstream.messages.continuation import (
    Continue,
    Situation,
    Stop,
    WhyNot,
    decide_continuation,
)
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ModelRequest,
    OpaquePart,
    SystemItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolSpec,
    UserItem,
)
from midstream.messages.directive import StageMode
from midstream.messages.directive_wire import read_body
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.follow_up import follow_up_body, follow_up_request, follow_up_request_id
from midstream.messages.follow_up_outcome import Action, Outcome, judge_follow_up
from midstream.messages.loop_guard import Chain, GuardLimits, round_hash
from midstream.messages.reply_shape import (
    is_empty_body,
    is_empty_reply,
    is_natural_stop,
    is_natural_stop_body,
)
from midstream.messages.stop_message import (
    StopMessageState,
    clear,
    refund,
    set_mode,
    set_text,
)
from midstream.messages.stop_message_codec import decode_state, encode_state
from midstream.messages.stream import StopReason
from midstream.messages.wire_body import JsonObject

FIXTURES = Path(
    os.environ.get("MIDSTREAM_FIXTURES", Path(__file__).parents[3] / "shared" / "fixtures")
)
ARMED = set_text(StopMessageState(), "go on", 20, now_ms=1000)
CALL = ToolCallPart("c1", "ls", "{}")


def said(*parts: Any) -> AssistantItem:
    return AssistantItem(tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def situation(**changes: Any) -> Situation:
    base = Situation(state=ARMED, is_natural_stop=True, now_s=10.0, round_hash="r")
    return msgspec.structs.replace(base, **changes)


def reason(decision: Continue | Stop) -> WhyNot | None:
    return decision.reason if isinstance(decision, Stop) else None


# Is it a stop? (spec/stop_message.md 5)


@pytest.mark.parametrize("stop_reason", list(StopReason))
def test_only_the_end_of_a_turn_and_a_stop_sequence_are_natural(stop_reason: StopReason):
    expected = stop_reason in (StopReason.END_TURN, StopReason.STOP_SEQUENCE)
    assert is_natural_stop(stop_reason, said("a")) == expected
    assert not is_natural_stop(stop_reason, said("a", CALL))


def chat(*choices: tuple[Any, JsonObject]) -> JsonObject:
    return {"choices": [{"finish_reason": why, "message": message} for why, message in choices]}


TEXT: JsonObject = {"role": "assistant", "content": "done"}
WITH_TOOL: JsonObject = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (chat(("stop", TEXT)), True),
        (chat((" STOP ", TEXT)), True),
        (chat(("length", TEXT), ("stop", TEXT)), True),
        (chat(("length", TEXT)), False),
        (chat(("content_filter", TEXT)), False),
        (chat((None, TEXT)), False),
        (chat(("stop", WITH_TOOL)), False),
        (chat(("stop", TEXT), ("tool_calls", WITH_TOOL)), False),
        (chat(("stop", {**TEXT, "function_call": {"name": "f"}})), False),
        (chat(), False),
    ],
)
def test_chat_stops_on_any_choice_without_tool_calls(reply: JsonObject, expected: bool):
    assert is_natural_stop_body(reply) == expected


MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"status": "completed", "output": [MESSAGE]}, True),
        ({"status": "completed", "output": []}, True),
        ({"output": [MESSAGE]}, True),
        ({"output": []}, False),
        ({"status": "incomplete", "output": [MESSAGE]}, False),
        ({"status": "failed", "output": [MESSAGE]}, False),
        ({"object": "response", "status": "completed"}, True),
        ({"status": "completed", "output": [{"type": "web_search_call"}, MESSAGE]}, True),
        ({"status": "completed", "output": [MESSAGE], "required_action": {"a": 1}}, False),
        ({"status": "completed", "output": [{"type": "function_call"}]}, False),
        ({"status": "completed", "output": [{"type": "custom_tool_call"}]}, False),
        ({"status": "completed", "output": [{"type": "tool_use"}]}, False),
        ({"status": "completed", "output": [{"type": "apply_patch_call"}]}, False),
    ],
)
def test_responses_stop_when_completed_without_a_call(reply: JsonObject, expected: bool):
    assert is_natural_stop_body(reply) == expected


@pytest.mark.parametrize(
    ("stop_reason", "expected"),
    [
        ("end_turn", True),
        ("stop_sequence", True),
        ("tool_use", False),
        ("max_tokens", False),
        ("refusal", False),
        ("pause_turn", False),
        ("model_context_window_exceeded", False),
        (None, False),
    ],
)
def test_g8_anthropic_stops_naturally_or_not_at_all(stop_reason: str | None, expected: bool):
    reply = {"type": "message", "stop_reason": stop_reason, "content": [{"type": "text"}]}
    assert is_natural_stop_body(reply) == expected
    calling = {**reply, "content": [{"type": "tool_use", "id": "t"}]}
    assert not is_natural_stop_body(calling)
    server_side = {**reply, "content": [{"type": "server_tool_use", "id": "t"}]}
    assert is_natural_stop_body(server_side) == expected


def test_an_error_body_is_no_stop():
    assert not is_natural_stop_body({"type": "error", "error": {"type": "overloaded_error"}})
    assert not is_natural_stop_body({})


def test_a_reply_is_empty_when_it_has_nothing_to_show():
    assert is_empty_reply(None)
    assert is_empty_reply(said(" \n", ThinkingPart("hm")))
    assert not is_empty_reply(said("a"))
    assert not is_empty_reply(said(CALL))
    assert not is_empty_reply(said(OpaquePart("anthropic", "server_tool_use", "{}")))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (chat(), True),
        (chat(("stop", {"content": " "}), ("stop", {"content": None})), True),
        (chat(("stop", {"content": ""}), ("stop", TEXT)), False),
        (chat(("stop", {"content": None, "refusal": "no"})), False),
        (chat(("stop", WITH_TOOL)), False),
        (chat(("stop", {"content": [{"type": "text", "text": "a"}]})), False),
        ({"status": "completed", "output": []}, True),
        ({"output": [{"type": "reasoning"}, {**MESSAGE, "content": []}]}, True),
        ({"output": [MESSAGE]}, False),
        ({"output": [{"type": "function_call"}]}, False),
        ({"type": "message", "content": []}, True),
        ({"type": "message", "content": [{"type": "thinking", "thinking": "x"}]}, True),
        ({"type": "message", "content": [{"type": "text", "text": "a"}]}, False),
        ({"type": "message", "content": [{"type": "tool_use"}]}, False),
    ],
)
def test_empty_bodies_are_told_from_those_that_say_something(reply: JsonObject, expected: bool):
    assert is_empty_body(reply) == expected


# The decision (spec/stop_message.md 6)


def test_an_armed_session_continues_and_the_send_is_counted():
    decision = decide_continuation(situation(), now_ms=5000)
    assert isinstance(decision, Continue)
    assert decision.text == "go on"
    assert (decision.state.used, decision.state.last_used_at_ms) == (1, 5000)
    assert decision.chain.hops == 1
    assert decision.warning is None
    assert refund(decision.state, decision.reservation) == ARMED


OFF = set_mode(ARMED, StageMode.OFF, now_ms=2000)
EXHAUSTED = msgspec.structs.replace(ARMED, used=20)
MODE_ONLY = set_mode(StopMessageState(), StageMode.ON, now_ms=1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"is_internal": True}, WhyNot.INTERNAL_REQUEST),
        ({"can_reenter": False}, WhyNot.NO_REENTRY),
        ({"is_compaction": True}, WhyNot.COMPACTION),
        ({"is_connected": False}, WhyNot.DISCONNECTED),
        ({"is_interrupted": True}, WhyNot.INTERRUPTED),
        ({"state": OFF}, WhyNot.MODE_OFF),
        ({"state": None}, WhyNot.NO_STATE),
        ({"state": clear(ARMED, now_ms=2000)}, WhyNot.NO_STATE),
        ({"chain": Chain(hops=1, armed_at_ms=999)}, WhyNot.SUPERSEDED),
        ({"state": EXHAUSTED}, WhyNot.EXHAUSTED),
        ({"is_natural_stop": False}, WhyNot.NOT_A_NATURAL_STOP),
        ({"has_captured_request": False}, WhyNot.NO_CAPTURED_REQUEST),
        ({"are_stages_over": True}, WhyNot.STAGES_OVER),
        ({"has_model": False}, WhyNot.NOTHING_TO_SEND),
        ({"state": MODE_ONLY}, WhyNot.NOTHING_TO_SEND),
        (
            {"single_hop": True, "chain": Chain(hops=1, armed_at_ms=1000)},
            WhyNot.SINGLE_HOP,
        ),
        ({"chain": Chain(round_hash="r", identical=9)}, WhyNot.REPEATING),
        ({"chain": Chain(started_s=-890.0)}, WhyNot.OVERDUE),
        ({"is_budget_spent": True}, WhyNot.BUDGET_SPENT),
    ],
)
def test_each_obstacle_stops_and_counts_nothing(changes: dict[str, Any], expected: WhyNot):
    decision = decide_continuation(situation(**changes), now_ms=5000)
    assert isinstance(decision, Stop)
    assert decision.reason is expected
    assert (decision.record.decision, decision.record.reason) == ("stop", expected)
    assert (decision.notice is not None) == expected.is_cap


def test_the_first_obstacle_in_the_documented_order_is_the_reason():
    everything = situation(
        is_internal=True,
        can_reenter=False,
        is_compaction=True,
        is_connected=False,
        state=EXHAUSTED,
        is_natural_stop=False,
        has_captured_request=False,
        are_stages_over=True,
        has_model=False,
        is_budget_spent=True,
    )
    repairs = [
        ({"is_internal": False}, WhyNot.INTERNAL_REQUEST),
        ({"can_reenter": True}, WhyNot.NO_REENTRY),
        ({"is_compaction": False}, WhyNot.COMPACTION),
        ({"is_connected": True}, WhyNot.DISCONNECTED),
        ({"state": ARMED}, WhyNot.EXHAUSTED),
        ({"is_natural_stop": True}, WhyNot.NOT_A_NATURAL_STOP),
        ({"has_captured_request": True}, WhyNot.NO_CAPTURED_REQUEST),
        ({"are_stages_over": False}, WhyNot.STAGES_OVER),
        ({"has_model": True}, WhyNot.NOTHING_TO_SEND),
        ({"is_budget_spent": False}, WhyNot.BUDGET_SPENT),
    ]
    for repair, expected in repairs:
        assert reason(decide_continuation(everything, now_ms=1)) is expected
        everything = msgspec.structs.replace(everything, **repair)
    assert reason(decide_continuation(everything, now_ms=1)) is None


def test_the_record_compares_what_was_with_what_was_decided():
    decision = decide_continuation(situation(state=OFF, is_connected=True), now_ms=1)
    assert json.loads(msgspec.json.encode(decision.record)) == {
        "armed": True,
        "mode": "off",
        "used": 0,
        "maxRepeats": 20,
        "remaining": 20,
        "active": False,
        "stopEligible": True,
        "hasCapturedRequest": True,
        "compactionRequest": False,
        "hasSeed": True,
        "decision": "stop",
        "reason": "mode_off",
        "hops": 0,
    }


def test_a_record_is_made_though_the_client_has_gone():
    decision = decide_continuation(situation(is_connected=False), now_ms=1)
    assert (decision.record.armed, decision.record.active) == (True, True)


def test_a_stage_may_choose_the_text_also_of_a_session_without_one():
    decision = decide_continuation(situation(state=MODE_ONLY, text="probe"), now_ms=1)
    assert isinstance(decision, Continue)
    assert decision.text == "probe"


def chained(max_repeats: int, **changes: Any) -> list[Continue | Stop]:
    """Run one prompt to its end; each round says something new unless told otherwise."""
    state = set_text(StopMessageState(), "go on", max_repeats, now_ms=1000)
    now = situation(state=state, **changes)
    decisions: list[Continue | Stop] = []
    for hop in range(200):
        at = msgspec.structs.replace(
            now,
            round_hash=changes.get("round_hash", str(hop)),
            now_s=now.now_s + changes.get("step_s", 0.0) if hop else now.now_s,
        )
        decision = decide_continuation(at, now_ms=2000 + hop)
        decisions.append(decision)
        if isinstance(decision, Stop):
            return decisions
        now = msgspec.structs.replace(at, state=decision.state, chain=decision.chain)
    raise AssertionError("the chain has no end")


def test_hops_chain_within_one_request_until_n():
    decisions = chained(4)
    assert [reason(one) for one in decisions] == [None] * 4 + [WhyNot.EXHAUSTED]


def test_single_hop_continues_once_and_the_count_stays_for_later():
    decisions = chained(4, single_hop=True)
    assert [reason(one) for one in decisions] == [None, WhyNot.SINGLE_HOP]
    assert decisions[-1].record.remaining == 3


def test_identical_rounds_are_warned_about_at_five_and_ended_at_ten():
    decisions = chained(50, round_hash="same")
    warned = [one.warning is not None for one in decisions[:-1] if isinstance(one, Continue)]
    assert warned == [index == 4 for index in range(9)]
    assert reason(decisions[-1]) is WhyNot.REPEATING
    assert WhyNot.REPEATING.is_cap


def test_a_different_round_begins_the_count_anew():
    chain = Chain()
    for name in ["a"] * 4 + ["b"] + ["a"] * 4:
        chain = chain.after_round(name)
    assert chain.identical == 4


def test_a_chain_ends_900_seconds_after_its_first_continuation():
    chain = Chain(hops=1, started_s=100.0, armed_at_ms=1000)
    just_before = decide_continuation(situation(chain=chain, now_s=999.9), now_ms=1)
    assert isinstance(just_before, Continue)
    assert just_before.chain.started_s == 100.0
    assert reason(decide_continuation(situation(chain=chain, now_s=1000.0), now_ms=1)) is (
        WhyNot.OVERDUE
    )


def test_the_guards_can_be_set_apart():
    chain = Chain(started_s=0.0, round_hash="r", identical=99)
    none = GuardLimits(warn_after_identical=None, stop_after_identical=None, stop_after_s=None)
    assert isinstance(
        decide_continuation(situation(chain=chain, now_s=1e6), now_ms=1, limits=none), Continue
    )


def test_a_setting_changed_while_the_chain_runs_begins_with_the_next_request():
    first = decide_continuation(situation(), now_ms=5000)
    assert isinstance(first, Continue)
    renewed = set_text(first.state, "go on", 20, now_ms=6000)
    now = situation(state=renewed, chain=first.chain, round_hash="s")
    assert reason(decide_continuation(now, now_ms=7000)) is WhyNot.SUPERSEDED
    assert isinstance(decide_continuation(situation(state=renewed), now_ms=7000), Continue)


def test_two_requests_of_one_session_cannot_overspend():
    last = msgspec.structs.replace(ARMED, used=19)
    first = decide_continuation(situation(state=last), now_ms=1)
    assert isinstance(first, Continue)
    other = decide_continuation(situation(state=first.state), now_ms=1)
    assert reason(other) is WhyNot.EXHAUSTED


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_nothing_starts_after_a_disconnect_an_interrupt_or_n(data: st.DataObject):
    flags = {
        name: data.draw(st.booleans(), name)
        for name in msgspec.structs.asdict(situation())
        if name.startswith(("is_", "are_", "has_", "can_", "single"))
    }
    used = data.draw(st.integers(0, 21), "used")
    now = situation(state=msgspec.structs.replace(ARMED, used=used), **flags)
    decision = decide_continuation(now, now_ms=1)
    if isinstance(decision, Continue):
        assert now.is_connected
        assert not now.is_interrupted
        assert now.is_natural_stop
        assert decision.state.used == used + 1 <= 20


def test_a_round_is_recognised_by_what_was_said_and_not_by_its_ids():
    one = {"id": "1", "usage": {"output_tokens": 5}, "content": [{"type": "text", "text": "a"}]}
    two = {"id": "2", "created": 7, "content": [{"text": "a", "type": "text"}]}
    assert round_hash("go", one) == round_hash("go", two)
    assert round_hash("go", one) != round_hash("go", {**two, "content": []})
    assert round_hash("go", one) != round_hash("stop", one)
    call = said(ToolCallPart("c1", "ls", "{}"))
    assert round_hash("go", call) == round_hash("go", said(ToolCallPart("c2", "ls", "{}")))
    assert round_hash("go", call) != round_hash("go", said(ToolCallPart("c1", "ls", '{"a":1}')))
    opaque = said(OpaquePart("anthropic", "x", '{"a":1}'))
    assert round_hash("go", opaque) != round_hash("go", said("\ud800"))


# Compaction (spec/stop_message.md 8)

CODEX = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for"


def request(*items: AnyItem, system: str | None = None) -> ModelRequest:
    return ModelRequest(model="m", items=items, system=system)


@pytest.mark.parametrize(
    "text",
    [
        CODEX,
        "context checkpoint compaction",
        "  \n Checkpoint Compaction: now",
        "Handoff summary for another LLM",
        "Please do this. Handoff summary for another LLM follows.",
    ],
)
def test_g9_a_compaction_is_known_by_how_it_begins(text: str):
    assert is_compaction(request(UserItem(text)))
    assert is_compaction(request(UserItem("x"), system=text))
    for content in (text, [{"type": "text", "text": text}]):
        assert is_compaction_body({"messages": [{"role": "user", "content": content}]})
        assert is_compaction_body({"input": [{"role": "user", "content": content}]})
        assert is_compaction_body({"system": content, "messages": []})
        assert is_compaction_body({"messages": [{"role": "system", "content": content}]})
    assert is_compaction_body({"instructions": text, "input": "x"})
    assert is_compaction_body({"input": text})


@pytest.mark.parametrize(
    "text",
    [
        'Fix the bug in this log:\n{"note": "handoff summary for another llm"}',
        "One. Two. Handoff summary for another LLM",
        "x" * 81 + " checkpoint compaction",
        "compaction",
    ],
)
def test_g9_a_sentinel_within_a_text_does_not_block(text: str):
    assert not is_compaction(request(UserItem(text)))
    assert not is_compaction_body({"messages": [{"role": "user", "content": text}]})


def test_g9_an_old_compaction_in_the_history_does_not_block_for_good():
    history = (UserItem(CODEX), said("summary"), UserItem("go on"))
    assert not is_compaction(request(*history))
    messages = [
        {"role": "user", "content": CODEX},
        {"role": "assistant", "content": CODEX},
        {"role": "user", "content": "go on"},
    ]
    assert not is_compaction_body({"messages": messages})


def test_a_compaction_may_be_flagged_and_the_sentinels_chosen():
    assert is_compaction(request(UserItem("x")), flag=True)
    assert is_compaction_body({"messages": []}, flag="True")
    assert not is_compaction_body({"messages": []}, flag="false")
    assert is_compaction(request(UserItem("Summarise all")), sentinels=["summarise ALL"])


# The follow-up (spec/stop_message.md 7)


def test_g7_the_follow_up_holds_the_reply_before_the_text():
    tools = (ToolSpec("ls", "list", {}),)
    original = ModelRequest(
        model="m",
        items=(UserItem("q"),),
        system="s",
        tools=tools,
        max_tokens=9,
        options={"tool_choice": "required", "stream": True, "temperature": 1},
    )
    follow_up = follow_up_request(original, said("a"), "go on", warning="w")
    assert follow_up == ModelRequest(
        model="m",
        items=(UserItem("q"), said("a"), SystemItem("w"), UserItem("go on")),
        system="s",
        tools=tools,
        max_tokens=9,
        options={"temperature": 1},
    )
    assert original.options["stream"] is True


def test_no_model_no_follow_up():
    assert follow_up_request(ModelRequest(model="", items=()), None, "go") is None
    assert follow_up_body({"messages": []}, chat(("stop", TEXT)), "go", stream=False) is None


def test_a_chat_follow_up_keeps_the_rest_of_the_request():
    captured: JsonObject = {
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"type": "function"}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "parameters": {"temperature": 1, "stream": True, "tool_choice": "x", "model": "evil"},
    }
    before = copy.deepcopy(captured)
    reply = chat(("length", {"content": "cut"}), ("stop", {**TEXT, "reasoning": "r"}))
    body = follow_up_body(captured, reply, "go", stream=False, warning="w")
    assert captured == before
    assert body == {
        "model": "m",
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "done"},
            {"role": "system", "content": "w"},
            {"role": "user", "content": "go"},
        ],
        "tools": [{"type": "function"}],
        "stream": False,
        "parameters": {"temperature": 1, "model": "evil"},
    }
    streamed = follow_up_body(captured, reply, "go", stream=True)
    assert streamed is not None
    assert streamed["stream"] is True
    assert streamed["stream_options"] == {"include_usage": True}


def test_an_anthropic_follow_up_sends_signed_thinking_back_and_no_empty_text():
    thinking = {"type": "thinking", "thinking": "t", "signature": "s"}
    content = [thinking, {"type": "text", "text": ""}, {"type": "text", "text": "a"}]
    reply: JsonObject = {"type": "message", "stop_reason": "end_turn", "content": content}
    captured: JsonObject = {"model": "m", "max_tokens": 5, "messages": []}
    body = follow_up_body(captured, reply, "go", stream=True, warning="w")
    assert body is not None
    assert body["messages"] == [
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "a"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "go"}, {"type": "text", "text": "w"}],
        },
    ]
    assert body["max_tokens"] == 5


def test_a_raw_responses_request_is_continued_as_responses():
    reasoning = {"type": "reasoning", "id": "r"}
    sealed = {**reasoning, "encrypted_content": "x"}
    captured: JsonObject = {"model": "m", "instructions": "i", "input": "q", "store": False}
    reply: JsonObject = {"status": "completed", "output": [reasoning, sealed, MESSAGE]}
    body = follow_up_body(captured, reply, "go", stream=False, warning="w")
    assert body is not None
    assert body["instructions"] == "i"
    assert body["input"] == [
        {"role": "user", "content": "q"},
        sealed,
        MESSAGE,
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "w"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    ]
    stored = follow_up_body({**captured, "store": True}, reply, "go", stream=False)
    assert stored is not None
    assert reasoning in stored["input"]


def test_a_reply_of_no_known_shape_is_not_continued():
    captured: JsonObject = {"model": "m", "messages": []}
    assert follow_up_body(captured, {"error": {}}, "go", stream=False) is None
    assert follow_up_body(captured, {"output": []}, "go", stream=False) is None


def test_the_request_id_gets_its_suffix_once():
    once = follow_up_request_id("req_1")
    assert once == "req_1:stop_followup"
    assert follow_up_request_id(once) == once


# What a bad follow-up may do (spec/stop_message.md 9)

FAILURE = ProviderFailure(FailureKind.SERVER, "upstream 500", status=500)


def judge(outcome: Outcome, attempt: int = 2, **changes: Any):
    facts: dict[str, Any] = {"reached_provider": True, "has_good_reply": True}
    return judge_follow_up(outcome, attempt=attempt, **(facts | changes))


def test_an_empty_or_failed_follow_up_is_tried_again_once():
    for outcome in (Outcome.EMPTY, Outcome.FAILED):
        verdict = judge(outcome, attempt=1, failure=FAILURE)
        assert (verdict.action, verdict.clears) == (Action.RETRY, False)


def test_a_second_empty_follow_up_returns_the_good_reply_and_clears():
    verdict = judge(Outcome.EMPTY)
    assert (verdict.action, verdict.clears, verdict.failure) == (Action.KEEP_LAST, True, None)
    assert verdict.notice


def test_with_the_original_empty_too_the_error_is_explicit():
    verdict = judge(Outcome.EMPTY, has_good_reply=False)
    assert (verdict.action, verdict.clears) == (Action.FAIL, True)
    assert verdict.failure is not None
    assert (verdict.failure.status, verdict.failure.code) == (502, "SERVERTOOL_EMPTY_FOLLOWUP")


def test_g13_a_failed_follow_up_never_replaces_a_good_reply():
    verdict = judge(Outcome.FAILED, failure=FAILURE)
    assert (verdict.action, verdict.clears) == (Action.KEEP_LAST, True)
    assert verdict.failure == FAILURE
    assert verdict.notice == "auto-continue ended: upstream 500"
    without = judge(Outcome.FAILED, failure=FAILURE, has_good_reply=False)
    assert (without.action, without.failure) == (Action.FAIL, FAILURE)


def test_a_disconnect_during_the_follow_up_returns_the_good_reply():
    verdict = judge(Outcome.DISCONNECTED, attempt=1)
    assert (verdict.action, verdict.clears, verdict.refunds) == (Action.KEEP_LAST, False, False)


def test_g6_only_what_never_reached_the_provider_is_refunded():
    assert judge(Outcome.DISCONNECTED, reached_provider=False).refunds
    assert judge(Outcome.FAILED, failure=FAILURE, reached_provider=False).refunds
    assert not judge(Outcome.FAILED, failure=FAILURE).refunds
    assert not judge(Outcome.REPLIED).refunds


def test_a_spent_quota_ends_the_chain_at_once_and_costs_nothing():
    for kind in (FailureKind.RATE_LIMITED, FailureKind.OVERLOADED):
        spent = ProviderFailure(kind, "come back later")
        verdict = judge(Outcome.FAILED, attempt=1, failure=spent)
        assert (verdict.action, verdict.refunds, verdict.clears) == (Action.KEEP_LAST, True, False)
        assert verdict.failure == spent
        without = judge(Outcome.FAILED, attempt=1, failure=spent, has_good_reply=False)
        assert (without.action, without.failure) == (Action.FAIL, spent)


# The client's patience (spec/stop_message.md 10)


def test_g10_the_sdk_timeout_is_in_seconds_and_the_other_in_milliseconds():
    assert client_timeout_s({"X-Stainless-Timeout": "600"}) == 600.0
    assert client_timeout_s({"x-request-timeout-ms": "600"}) == 0.6
    assert client_timeout_s({"x-stainless-timeout": "5", "x-request-timeout-ms": "9000"}) == 5.0


@pytest.mark.parametrize("value", ["NOT_GIVEN", "", "0", "-1", "nan", "inf"])
def test_a_timeout_that_is_no_number_is_none(value: str):
    assert client_timeout_s({"x-stainless-timeout": value}) is None
    assert client_timeout_s({"content-type": "600"}) is None


def test_recorded_requests_of_real_clients_are_no_compactions():
    folder = FIXTURES / "client-requests"
    if not folder.is_dir():
        pytest.skip(f"no recorded client requests at {folder}")
    for path in sorted(folder.glob("*.json")):
        for recorded in json.loads(path.read_text("utf-8")):
            if isinstance(recorded.get("body"), dict):
                assert not is_compaction_body(recorded["body"])


# All of it together, as a gateway does it


def test_from_the_directive_to_the_last_hop_nothing_of_it_reaches_the_provider():
    """Three hops of one client request, a restart in the middle, and the next request."""
    sent: list[JsonObject] = []

    def provider(body: JsonObject) -> JsonObject:
        sent.append(body)
        return chat(("stop", {"role": "assistant", "content": f"reply {len(sent)}"}))

    def serve(
        messages: list[JsonObject], stored: bytes, now_ms: int
    ) -> tuple[bytes, JsonObject, WhyNot]:
        reading = read_body({"model": "m", "messages": messages})
        state = apply_directives(decode_state(stored).state, reading.found, now_ms=now_ms).state
        body, chain = reading.body, Chain()
        while True:
            reply = provider(body)
            now = situation(
                state=decode_state(encode_state(state)).state,
                chain=chain,
                is_natural_stop=is_natural_stop_body(reply),
                round_hash=round_hash("", reply),
            )
            decision = decide_continuation(now, now_ms=now_ms)
            if isinstance(decision, Stop):
                return encode_state(state), reply, decision.reason
            state, chain = decision.state, decision.chain
            following = follow_up_body(body, reply, decision.text, stream=False)
            assert following is not None
            body = following

    question: JsonObject = {"role": "user", "content": 'do it <**stopMessage:"go on",2**>'}
    stored, reply, why = serve([question], b"null", 1000)
    assert (reply, why) == (chat(("stop", {**TEXT, "content": "reply 3"})), WhyNot.EXHAUSTED)
    assert [message["content"] for message in sent[2]["messages"]] == [
        "do it ",
        "reply 1",
        "go on",
        "reply 2",
        "go on",
    ]
    history: list[JsonObject] = [question, {"role": "assistant", "content": "reply 3"}]
    _, _, why = serve([*history, {"role": "user", "content": "thanks"}], stored, 2000)
    assert why is WhyNot.EXHAUSTED
    assert len(sent) == 4
    serve([*history, question], stored, 3000)
    assert len(sent) == 7
    assert "<**" not in json.dumps(sent)
