"""Claude Code's lines to stream messages: both accounts of a message, calls, ends."""

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from claude_code_lines import (
    INIT,
    SESSION,
    Line,
    assistant,
    block_start,
    block_stop,
    call,
    delta,
    event,
    failed,
    json_delta,
    message_end,
    message_start,
    result,
    synthetic,
    text,
    tool_result,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.accumulate import PartialTranscript, StreamState, accumulate
from midstream.messages.conversation import OpaquePart, TextPart, ThinkingPart, ToolCallPart
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.settle import Ending, Outcome, open_calls, settle
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    Ping,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallAnswered,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.messages.usage import UsageSource
from midstream.providers.claude_code_format import ClaudeCodeDecoder
from midstream.providers.claude_code_parts import CallPart, SessionPart, decode_part
from midstream.providers.ndjson import NdjsonReader

NOW_S = 1_755_700_000.0


def decoded(lines: Iterable[Line], exit_code: int | None = 0) -> list[AnyStreamMessage]:
    decoder = ClaudeCodeDecoder(lambda: NOW_S)
    for line in lines:
        decoder.feed(line)
    if not decoder.writer.over:
        decoder.end("claude", exit_code, "")
    return decoder.writer.take()


def transcript(lines: Iterable[Line], exit_code: int | None = 0) -> PartialTranscript:
    return accumulate(decoded(lines, exit_code), "claude_code")


def texts(partial: PartialTranscript) -> list[str]:
    return [b.part.text for b in partial.blocks if isinstance(b.part, TextPart)]


def opaque(partial: PartialTranscript, kind: str) -> list[OpaquePart]:
    parts = [b.part for b in partial.blocks]
    return [p for p in parts if isinstance(p, OpaquePart) and p.kind == kind]


def calls(partial: PartialTranscript) -> list[CallPart]:
    return [c for p in opaque(partial, "tool_use") if (c := decode_part(p, CallPart))]


def failure(partial: PartialTranscript) -> ProviderFailure:
    assert partial.state is StreamState.FAILED
    assert partial.failure is not None
    return partial.failure


STREAMED_TEXT = [
    message_start(input_tokens=7, output_tokens=1),
    block_start(0, text=""),
    delta(0, "Hello "),
    delta(0, "you"),
    assistant(text("Hello you")),
    block_stop(0),
    *message_end(output_tokens=5),
]
STREAMED_CALL = [
    message_start("msg_2"),
    block_start(0, "tool_use", id="toolu_1", name="Bash", input={}),
    json_delta(0, '{"command": '),
    json_delta(0, '"ls"}'),
    assistant(call(command="ls"), message_id="msg_2"),
    block_stop(0),
    *message_end("tool_use"),
]


# --- the two accounts


def test_a_streamed_message_is_told_once_though_it_comes_twice():
    said = decoded([INIT, *STREAMED_TEXT, result("Hello you")])
    assert [m.text for m in said if isinstance(m, TextDelta)] == ["Hello ", "you"]
    assert isinstance(said[0], StreamStarted)
    assert said[0].model == "claude-x"
    assert said[-1] == StreamFinished(StopReason.END_TURN, "end_turn")


def test_without_partial_messages_the_whole_ones_are_told():
    partial = transcript([INIT, assistant(text("Hello you")), result("Hello you")])
    assert texts(partial) == ["Hello you"]
    assert partial.state is StreamState.FINISHED


def test_a_whole_message_may_come_behind_the_end_of_the_streamed_one():
    lines = [line for line in STREAMED_TEXT if line["type"] != "assistant"]
    partial = transcript([INIT, *lines, assistant(text("Hello you")), result()])
    assert texts(partial) == ["Hello you"]


def test_e10_what_was_lost_of_a_streamed_text_is_added_from_the_whole():
    lines = [INIT, message_start(), block_start(0), delta(0, "Hel"), assistant(text("Hello"))]
    assert texts(transcript([*lines, block_stop(0), *message_end(), result()])) == ["Hello"]


def test_several_messages_become_one_answer_with_blocks_numbered_on():
    lines = [*STREAMED_CALL, tool_result("a.txt"), *STREAMED_TEXT]
    partial = transcript([INIT, *lines, result("Hello you")])
    assert [b.index for b in partial.blocks] == [0, 1, 2]
    assert all(block.complete for block in partial.blocks)


def test_a_message_that_broke_off_and_was_asked_for_again_is_taken_back():
    lines = [INIT, message_start("msg_1"), block_start(0), delta(0, "Partial ans")]
    partial = transcript([*lines, assistant(text("Whole answer."), message_id="msg_2"), result()])
    assert texts(partial) == ["Whole answer."]
    assert [json.loads(p.data) for p in opaque(partial, "retracted")] == [{"text": "Partial ans"}]


def test_of_a_message_that_broke_off_the_blocks_that_were_whole_stay():
    lines = [*STREAMED_TEXT[:-2], block_start(1, "tool_use", id="toolu_1", name="Bash", input={})]
    lines += [json_delta(1, '{"comm'), *STREAMED_CALL, tool_result("ok")]
    messages = decoded([INIT, *lines, result("x")])
    partial = accumulate(messages, "claude_code")
    assert texts(partial) == ["Hello you"]
    assert len(opaque(partial, "retracted")) == 1
    assert [c.result for c in calls(partial)] == ["ok"]
    finished = [m.arguments for m in messages if isinstance(m, ToolCallFinished)]
    assert finished == ['{"command": "ls"}'], "half a call is never finished"


def test_thinking_keeps_its_signature_in_both_accounts():
    signature = delta(0, "c2ln", "signature_delta", "signature")
    whole = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    streamed = [
        message_start(),
        block_start(0, "thinking", thinking="", signature=""),
        delta(0, "Hm.", "thinking_delta", "thinking"),
        signature,
        assistant(whole),
        block_stop(0),
        *message_end(),
    ]
    for lines in (streamed, [assistant(whole)]):
        partial = transcript([INIT, *lines, result("x")])
        assert partial.blocks[0].part == ThinkingPart("Hm.", "c2ln")


def test_blocks_that_nobody_knows_are_carried():
    block = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": "x"}}
    partial = transcript([INIT, assistant(block), result("x")])
    assert json.loads(opaque(partial, "server_tool_use")[0].data) == block


# --- calls


def test_a_call_is_told_as_any_other_so_that_rules_see_it():
    said = decoded([INIT, *STREAMED_CALL, result("x")])
    assert ToolCallStarted(0, "toolu_1", "Bash") in said
    pieces = [m.fragment for m in said if isinstance(m, ToolArgumentsDelta)]
    assert pieces == ['{"command": ', '"ls"}']
    finished = [m for m in said if isinstance(m, ToolCallFinished)]
    assert finished == [ToolCallFinished(0, "toolu_1", "Bash", '{"command": "ls"}')]


def test_a_call_is_complete_before_the_program_can_have_its_result():
    decoder = ClaudeCodeDecoder()
    for line in STREAMED_CALL[:5]:  # as far as the whole block, before its stop
        decoder.feed(line)
    assert any(isinstance(m, ToolCallFinished) for m in decoder.writer.take())


def _is_answer(message: AnyStreamMessage) -> bool:
    return isinstance(message, ToolCallAnswered)


@pytest.mark.parametrize("lines", [STREAMED_CALL, [assistant(call(command="ls"))]])
def test_a_call_that_the_program_runs_is_nobody_elses_to_run(lines: list[Line]):
    partial = transcript([INIT, *lines, tool_result("a.txt"), result("done")])
    assert partial.calls == ()
    items = settle(partial, Outcome(Ending.FINISHED), "claude_code")
    assert open_calls(items) == ()
    [told] = calls(partial)
    assert (told.name, msgspec.json.decode(told.arguments)) == ("Bash", {"command": "ls"})
    answered = [m for m in decoded([INIT, *lines, tool_result("a.txt")]) if _is_answer(m)]
    assert answered == [ToolCallAnswered(0, "toolu_1", "Bash", "a.txt")]
    assert (told.result, told.is_error) == ("a.txt", False)


def test_a_call_whose_result_never_came_says_that_nobody_knows():
    partial = transcript([INIT, *STREAMED_CALL], exit_code=-9)
    assert [c.result for c in calls(partial)] == [None]
    assert not any(isinstance(b.part, ToolCallPart) for b in partial.blocks)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image", "source": 1}], "[image]"),
        (None, ""),
        (3, ""),
    ],
)
def test_b14_a_result_may_have_any_shape(content: object, said: str):
    lines = [INIT, assistant(call()), tool_result(content, is_error=True), result("x")]
    [told] = calls(transcript(lines))
    assert (told.result, told.is_error) == (said, True)


def test_b14_a_result_is_found_at_the_top_of_the_line_too():
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "here"}
    line: Line = {"type": "user", "content": [block]}
    [told] = calls(transcript([INIT, assistant(call()), line, result("x")]))
    assert told.result == "here"


def test_a_result_of_a_call_that_was_never_told_is_nothing():
    assert calls(transcript([INIT, tool_result("x", call_id="toolu_9"), result("x")])) == []


def test_a_long_result_is_kept_as_far_as_it_helps():
    lines = [INIT, assistant(call()), tool_result("x" * 1_000_000), result("x")]
    [told] = calls(transcript(lines))
    assert told.result is not None
    assert len(told.result) == 2000


def test_of_a_sub_agent_only_the_calls_are_told():
    inside = {"parent_tool_use_id": "toolu_1", "message_id": "msg_9"}
    lines = [
        assistant(call("Task", prompt="do it")),
        {**event("content_block_delta", index=0, delta={}), "parent_tool_use_id": "toolu_1"},
        assistant(text("I am inside."), call("Write", "toolu_2", file_path="a.ts"), **inside),
        tool_result("written", "toolu_2"),
        tool_result("I am inside.", "toolu_1"),
        assistant(text("Done."), message_id="msg_3"),
    ]
    partial = transcript([INIT, *lines, result("Done.")])
    assert texts(partial) == ["Done."]
    assert [(c.name, c.result) for c in calls(partial)] == [
        ("Task", "I am inside."),
        ("Write", "written"),
    ]


def test_a_sub_agent_does_not_end_the_message_that_called_it():
    inside = {"parent_tool_use_id": "toolu_1", "message_id": "msg_9"}
    lines = [*STREAMED_CALL[:5], assistant(text("inside"), **inside), *STREAMED_CALL[5:]]
    partial = transcript([INIT, *lines, tool_result("ok"), result("x")])
    assert opaque(partial, "retracted") == []


# --- ends


def test_the_session_stands_at_the_end_of_the_answer_and_is_known_from_its_beginning():
    partial = transcript([INIT, assistant(text("Hi")), result("Hi")])
    part = partial.blocks[-1].part
    assert isinstance(part, OpaquePart)
    assert decode_part(part, SessionPart) == SessionPart(SESSION)
    assert partial.session_id == SESSION
    assert transcript([INIT, assistant(text("Hi"))]).session_id == SESSION


def test_usage_is_that_of_the_result():
    partial = transcript([INIT, *STREAMED_TEXT, result(usage={"input_tokens": 9})])
    assert (partial.usage.input_tokens, partial.usage.output_tokens) == (9, 5)
    assert partial.usage.source is UsageSource.REPORTED


def test_usage_of_a_run_that_was_cut_is_what_its_messages_said():
    lines = [*STREAMED_TEXT, message_start("msg_2", input_tokens=20, output_tokens=1)]
    partial = transcript([INIT, *lines], exit_code=-9)
    assert (partial.usage.input_tokens, partial.usage.output_tokens) == (27, 6)
    assert partial.usage.source is UsageSource.ESTIMATED


def test_zeros_in_a_failed_result_do_not_hide_what_the_models_used():
    models = {"a": {"inputTokens": 12, "outputTokens": 1}, "b": {"inputTokens": 3}}
    line = failed("API Error", usage={"input_tokens": 0, "output_tokens": 0}, modelUsage=models)
    partial = transcript([INIT, line])
    assert (partial.usage.input_tokens, partial.usage.output_tokens) == (15, 1)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", StopReason.END_TURN),
        (None, StopReason.END_TURN),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("refusal", StopReason.REFUSAL),
        ("tool_use", StopReason.END_TURN),
        ("brand_new", StopReason.OTHER),
    ],
)
def test_why_the_model_stopped(raw: str | None, reason: StopReason):
    assert transcript([INIT, result("x", stop_reason=raw)]).stop_reason is reason


def test_a_command_of_the_program_is_answered_by_its_result():
    assert texts(transcript([INIT, synthetic("Total cost: 0"), result("Total cost: 0")])) == [
        "Total cost: 0"
    ]


def test_b19_subtype_success_does_not_make_a_success():
    assert failure(transcript([INIT, failed("API Error: boom")])).message == "API Error: boom"


def test_the_programs_own_words_are_no_answer():
    partial = transcript([INIT, synthetic("API Error: boom", error="unknown"), failed("x")])
    assert texts(partial) == []
    assert partial.blocks == ()


@pytest.mark.parametrize(
    ("fields", "notice", "kind"),
    [
        ({"api_error_status": 529}, {}, FailureKind.OVERLOADED),
        ({"api_error_status": 401}, {}, FailureKind.AUTH),
        ({"api_error_status": 400}, {}, FailureKind.INVALID_REQUEST),
        ({"api_error_status": 500}, {}, FailureKind.SERVER),
        ({"api_error_status": 429}, {}, FailureKind.RATE_LIMITED),
        ({}, {"error": "authentication_failed"}, FailureKind.AUTH),
        ({}, {"error": "billing_error"}, FailureKind.RATE_LIMITED),
        ({}, {"error": "invalid_request"}, FailureKind.INVALID_REQUEST),
        ({}, {"error": "server_error"}, FailureKind.SERVER),
        ({}, {"error": "unknown"}, FailureKind.SERVER),
    ],
)
def test_what_a_failed_result_means(fields: Line, notice: Line, kind: FailureKind):
    lines = [INIT, synthetic("API Error: no", **notice), failed("API Error: no", **fields)]
    assert failure(transcript(lines)).kind is kind


def test_a_rejected_window_says_how_long_to_wait():
    info = {"status": "rejected", "resetsAt": NOW_S + 90, "rateLimitType": "five_hour"}
    lines = [INIT, {"type": "rate_limit_event", "rate_limit_info": info}, failed("limit")]
    found = failure(transcript(lines))
    assert (found.kind, found.retry_after_s) == (FailureKind.RATE_LIMITED, 90)


@pytest.mark.parametrize(
    ("exit_code", "kind", "said"),
    [
        (0, FailureKind.PROTOCOL, "exited with code 0"),
        (1, FailureKind.SERVER, "exited with code 1"),
        (-9, FailureKind.SERVER, "ended by SIGKILL"),
        (-1000, FailureKind.SERVER, "ended by signal 1000"),
        (None, FailureKind.PROTOCOL, "closed its output"),
    ],
)
def test_an_end_without_a_result_is_never_a_success(
    exit_code: int | None, kind: FailureKind, said: str
):
    found = failure(transcript([INIT, *STREAMED_TEXT], exit_code))
    assert found.kind is kind
    assert said in found.message


def test_an_end_without_a_result_behind_a_limit_is_that_limit():
    lines = [INIT, {"type": "system", "subtype": "api_retry", "error": "rate_limit"}]
    assert failure(transcript(lines, exit_code=1)).kind is FailureKind.RATE_LIMITED


def test_nothing_is_said_behind_the_result():
    said = decoded([INIT, result("x"), assistant(text("late")), result("again")])
    assert isinstance(said[-1], StreamFinished)
    assert not any(isinstance(m, TextDelta) and m.text == "late" for m in said)


def test_keys_that_the_program_echoes_are_not_passed_on():
    decoder = ClaudeCodeDecoder()
    decoder.end("claude", 1, "bad key sk-ant-REDACTED")
    [message] = decoder.writer.take()
    assert isinstance(message, StreamFailed)
    assert "abcdefghijklmnop" not in message.failure.message


def test_signs_of_life_are_pings():
    lines: list[Line] = [
        {"type": "system", "subtype": "status"},
        {"type": "system", "subtype": "task_progress"},
        {"type": "brand_new_type"},
        {"no_type": 1},
    ]
    for line in lines:
        decoder = ClaudeCodeDecoder()
        decoder.feed(line)
        assert decoder.writer.take() == [Ping()]


# --- every line, however it is shaped

FIELDS = [
    "type",
    "id",
    "name",
    "input",
    "index",
    "delta",
    "content",
    "content_block",
    "message",
    "text",
    "error",
    "usage",
    "is_error",
    "stop_reason",
    "session_id",
    "tool_use_id",
    "model",
    "subtype",
    "parent_tool_use_id",
]
LINES = ("assistant", "user", "result", "system", "stream_event", "other")
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
kinds = st.sampled_from(["text", "tool_use", "thinking", "tool_result", "message_start", "result"])
trees = st.recursive(
    st.one_of(scalars, kinds),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=8,
)
wild_lines = st.fixed_dictionaries(
    {"type": st.sampled_from(LINES)},
    optional={
        "message": trees,
        "event": trees,
        "content": trees,
        "error": trees,
        "usage": trees,
        "modelUsage": trees,
        "rate_limit_info": trees,
        "result": trees,
        "errors": trees,
        "is_error": trees,
        "api_error_status": trees,
        "total_cost_usd": trees,
        "session_id": trees,
        "parent_tool_use_id": trees,
    },
)


@given(st.lists(wild_lines, max_size=6))
@settings(deadline=None, max_examples=200)
def test_whatever_a_line_holds_the_stream_is_well_formed(lines: list[Line]):
    messages = decoded(lines)
    assert isinstance(messages[-1], StreamFinished | StreamFailed)
    assert not any(isinstance(m, StreamFinished | StreamFailed) for m in messages[:-1])
    accumulate(messages, "claude_code")
    msgspec.json.encode(messages)


# --- recorded runs


def recorded(path: Path, size: int) -> list[Line]:
    reader = NdjsonReader()
    content = path.read_bytes()
    lines: list[Line] = []
    for start in range(0, len(content), size):
        lines += reader.feed(content[start : start + size])
    return lines + reader.end()


@pytest.mark.parametrize(
    ("name", "expected", "kind"),
    [
        ("recorded-2.1.7-basic-query", ["4"], None),
        ("api-retry-429", ["Hello from the mock server."], None),
        ("api-retry-529", ["Hello from the mock server."], None),
        ("tool-roundtrip", ["Hello from the mock server."] * 2, None),
        ("tool-ran-before-stream-error", ["Hello from the mock server."] * 2, None),
        (
            "connection-closed-mid-response",
            ["Hello from the mock server."],
            FailureKind.SERVER,
        ),
        ("error-max-turns", ["Hello from the mock server."], FailureKind.INVALID_REQUEST),
        ("nofallback-overloaded", [], FailureKind.OVERLOADED),
        ("result-400", [], FailureKind.INVALID_REQUEST),
        ("result-401", [], FailureKind.AUTH),
        ("result-429-noretry", [], FailureKind.RATE_LIMITED),
        ("result-429-retry-after-3600", [], FailureKind.RATE_LIMITED),
        ("result-529-final", [], FailureKind.OVERLOADED),
    ],
)
@pytest.mark.parametrize("size", [1, 700, 1_000_000])
def test_recorded_runs(
    recordings: Path, name: str, expected: list[str], kind: FailureKind | None, size: int
):
    lines = recorded(recordings / "claude-code-ndjson" / f"{name}.ndjson", size)
    messages = decoded(lines)
    partial = accumulate(messages, "claude_code")
    assert texts(partial) == expected
    assert (partial.failure.kind if partial.failure else None) is kind
    started = sum(isinstance(m, ToolCallStarted) for m in messages)
    assert started == len(calls(partial))
    if kind is None:
        assert all(c.result == "mock-tool-ran" for c in calls(partial))
        assert sum(isinstance(m, BlockFinished) for m in messages) == len(expected)


def test_recorded_usage_and_cost_are_those_of_the_result(recordings: Path):
    partial = transcript(recorded(recordings / "claude-code-ndjson/tool-roundtrip.ndjson", 99))
    assert (partial.usage.input_tokens, partial.usage.output_tokens) == (24, 18)
    assert partial.usage.cost_usd == 0.00057


def test_output_of_other_agents_is_never_taken_for_an_answer(recordings: Path):
    for path in sorted((recordings / "agent-cli-output").iterdir()):
        partial = transcript(recorded(path, 500))
        assert failure(partial).kind is FailureKind.PROTOCOL, path.name
