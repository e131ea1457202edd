"""What Responses streams say, and what else comes under their name (spec/gateway.md 1)."""

import json
from typing import Any

import pytest

from midstream.messages.accumulate import PartialTranscript, accumulate
from midstream.messages.conversation import OpaquePart, TextPart, ThinkingPart
from midstream.messages.failure import FailureKind
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    OpaqueBlock,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
    UsageReported,
)
from midstream.messages.usage import Usage, UsageSource
from midstream.providers.openai_responses_stream import OpenAIResponsesStreamDecoder
from midstream.providers.stream_parser import StreamParser


def life(kind: str, **response: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"id": "r", "model": "gpt", **response}}


def added(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind: str, index: int, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": text, **fields}


def closing(kind: str, index: int, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.done", "output_index": index, **fields}


def message(*texts: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": t} for t in texts]}


CREATED = life("created", status="in_progress")
COMPLETED = life("completed", status="completed", output=[])


def heard(*events: dict[str, Any] | str) -> list[AnyStreamMessage]:
    parser = StreamParser(OpenAIResponsesStreamDecoder())
    messages: list[AnyStreamMessage] = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        messages += parser.feed(f"data: {data}\n\n".encode())
    return messages + parser.end()


def transcript(*events: dict[str, Any] | str) -> PartialTranscript:
    return accumulate(heard(*events), "openai_responses")


def test_a_whole_answer_is_told_message_by_message():
    reasoning: dict[str, Any] = {"type": "reasoning", "id": "rs", "encrypted_content": "x"}
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look"}
    usage = {
        "input_tokens": 9,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4},
    }
    messages = heard(
        CREATED,
        life("in_progress"),
        added(0, **reasoning, summary=[]),
        delta("reasoning_summary_text", 0, "Hm.", summary_index=0),
        done(0, **reasoning, summary=[{"type": "summary_text", "text": "Hm."}]),
        added(1, type="message", content=[]),
        delta("output_text", 1, "I look.", content_index=0),
        done(1, **message("I look.")),
        added(2, **call, arguments=""),
        delta("function_call_arguments", 2, '{"at"'),
        delta("function_call_arguments", 2, ": 1}"),
        closing("function_call_arguments", 2, arguments='{"at": 1}'),
        done(2, **call, arguments='{"at": 1}', status="completed"),
        life("completed", status="completed", usage=usage),
    )
    finished_reasoning = {**reasoning, "summary": [{"type": "summary_text", "text": "Hm."}]}
    assert messages == [
        StreamStarted("r", "gpt"),
        BlockStarted(0, "opaque"),
        BlockStarted(1, "thinking"),
        ThinkingDelta(1, "Hm."),
        BlockFinished(1),
        OpaqueBlock(0, "reasoning", json.dumps(finished_reasoning)),
        BlockStarted(2, "text"),
        TextDelta(2, "I look."),
        BlockFinished(2),
        ToolCallStarted(3, "c", "look"),
        ToolArgumentsDelta(3, '{"at"'),
        ToolArgumentsDelta(3, ": 1}"),
        ToolCallFinished(3, "c", "look", '{"at": 1}'),
        UsageReported(Usage(9, 5, 4, source=UsageSource.REPORTED)),
        StreamFinished(StopReason.TOOL_USE, "completed"),
    ]


@pytest.mark.parametrize(
    ("last", "expected", "raw"),
    [
        (COMPLETED, StopReason.END_TURN, "completed"),
        (
            life(
                "incomplete",
                status="incomplete",
                incomplete_details={"reason": "max_output_tokens"},
            ),
            StopReason.MAX_TOKENS,
            "max_output_tokens",
        ),
        (
            life("incomplete", incomplete_details={"reason": "content_filter"}),
            StopReason.CONTENT_FILTER,
            "content_filter",
        ),
        (life("incomplete", status="incomplete"), StopReason.OTHER, "incomplete"),
    ],
)
def test_stop_reasons(last: dict[str, Any], expected: StopReason, raw: str):
    for ends in ([last], [last, "[DONE]"]):
        assert heard(CREATED, *ends)[-1] == StreamFinished(expected, raw)


def test_only_the_output_index_counts_not_the_item_ids():
    result = transcript(
        CREATED,
        {**added(0, type="message", id="one"), "item_id": "a"},
        delta("output_text", 0, "a", content_index=0, item_id="b"),
        delta("output_text", 0, "b", content_index=0, item_id="c"),
        done(0, **message("ab"), id="two"),
        COMPLETED,
    )
    assert [block.part for block in result.blocks] == [TextPart("ab")]


def test_arguments_that_come_only_at_the_end_are_heard_as_a_piece_too():
    call = {"type": "function_call", "call_id": "c", "name": "look"}
    for events in ([closing("function_call_arguments", 0, arguments="[1]")], []):
        messages = heard(
            CREATED, added(0, **call), *events, done(0, **call, arguments="[1]"), COMPLETED
        )
        assert [m.fragment for m in messages if isinstance(m, ToolArgumentsDelta)] == ["[1]"]
        assert ToolCallFinished(0, "c", "look", "[1]") in messages


def test_the_finished_arguments_count_where_the_pieces_differ():
    """spec/lessons.md E 10: compare what was collected with the final snapshot."""
    call = {"type": "function_call", "call_id": "c", "name": "look"}
    lost = delta("function_call_arguments", 0, '{"a"')
    rest = transcript(
        CREATED, added(0, **call), lost, done(0, **call, arguments='{"a":1}'), COMPLETED
    )
    assert rest.calls[0].arguments == '{"a":1}'
    other = transcript(
        CREATED, added(0, **call), lost, done(0, **call, arguments='{"b":1}'), COMPLETED
    )
    assert other.calls[0].arguments == '{"b":1}'


def test_text_that_the_deltas_left_out_is_said_when_its_part_is_finished():
    part = closing("output_text", 0, content_index=0, text="ab")
    begun = [CREATED, added(0, type="message"), delta("output_text", 0, "a", content_index=0)]
    item = done(0, **message("ab"))
    for events in ([part], [item], [part, item]):
        assert transcript(*begun, *events, COMPLETED).text == "ab"


def test_an_item_that_was_never_announced_is_heard():
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = transcript(
        CREATED,
        delta("output_text", 0, "a", content_index=0),
        delta("reasoning_text", 1, "b", content_index=0),
        done(2, **message("c")),
        done(3, **call),
        delta("function_call_arguments", 4, "{}"),
        done(4, **call),
        COMPLETED,
    )
    assert (result.text, result.thinking) == ("ac", "b")
    assert [(call.name, call.arguments) for call in result.calls] == [("look", "{}")] * 2
    assert result.calls[0].call_id == "c"


def test_a_stream_of_which_only_the_end_came_is_heard_whole():
    result = transcript(life("completed", status="completed", output=[message("a")]))
    assert (result.text, result.message_id) == ("a", "r")


def test_items_that_overlap_stay_in_the_order_in_which_they_began():
    result = transcript(
        CREATED,
        added(0, type="reasoning"),
        delta("reasoning_text", 0, "Hm.", content_index=0),
        added(1, type="message"),
        delta("output_text", 1, "So.", content_index=0),
        done(1, **message("So.")),
        done(0, type="reasoning", content=[{"type": "reasoning_text", "text": "Hm."}]),
        COMPLETED,
    )
    assert [type(block.part) for block in result.blocks] == [OpaquePart, ThinkingPart, TextPart]


def test_responses_in_one_stream_become_one_answer():
    def answer(text: str, response_id: str) -> list[dict[str, Any]]:
        usage = {"input_tokens": 2, "output_tokens": 1}
        return [
            {"type": "response.created", "response": {"id": response_id}},
            added(0, type="message"),
            done(0, **message(text)),
            life("completed", id=response_id, status="completed", usage=usage),
        ]

    result = transcript(*answer("a", "r1"), *answer("b", "r2"))
    assert [block.part for block in result.blocks] == [TextPart("a"), TextPart("b")]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (4, 2)


def test_a_refusal_is_text_and_a_reason():
    part = {"type": "refusal", "refusal": "I cannot."}
    result = transcript(
        CREATED,
        added(0, type="message"),
        delta("refusal", 0, "I can", content_index=0),
        done(0, type="message", content=[part]),
        COMPLETED,
    )
    assert (result.text, result.stop_reason) == ("I cannot.", StopReason.REFUSAL)


def test_free_form_input_is_told_as_an_argument_object_that_can_be_watched():
    tool = {"type": "custom_tool_call", "id": "ct", "call_id": "c", "name": "sql"}
    messages = heard(
        CREATED,
        added(0, **tool, input=""),
        delta("custom_tool_call_input", 0, 'SELECT "a"'),
        delta("custom_tool_call_input", 0, "\n;"),
        done(0, **tool, input='SELECT "a"\n;'),
        COMPLETED,
    )
    pieces = [m.fragment for m in messages if isinstance(m, ToolArgumentsDelta)]
    assert pieces == ['{"input":"SELECT \\"a\\"', "\\n;", '"}']
    finished = next(m for m in messages if isinstance(m, ToolCallFinished))
    assert json.loads(finished.arguments) == {"input": 'SELECT "a"\n;'}
    assert finished.arguments == "".join(pieces)
    assert finished.extra == '{"type":"custom_tool_call"}'


@pytest.mark.parametrize(
    ("item", "name", "arguments"),
    [
        (
            {"type": "local_shell_call", "action": {"command": ["ls"]}},
            "local_shell",
            {"command": ["ls"]},
        ),
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, "shell", {"commands": ["ls"]}),
        ({"type": "apply_patch_call", "operation": {"diff": "+"}}, "apply_patch", {"diff": "+"}),
    ],
)
def test_calls_of_openais_own_that_the_host_runs_are_calls(
    item: dict[str, Any], name: str, arguments: dict[str, Any]
):
    whole = {**item, "id": "i", "call_id": "c", "status": "completed"}
    result = transcript(
        CREATED, added(0, type=item["type"], call_id="c"), done(0, **whole), COMPLETED
    )
    (call,) = result.calls
    assert (call.name, json.loads(call.arguments)) == (name, arguments)
    assert json.loads(call.extra or "") == {"type": item["type"], "id": "i", "status": "completed"}
    assert result.stop_reason == StopReason.TOOL_USE


def test_a_shell_call_inside_openais_container_is_opaque():
    item = {"type": "shell_call", "call_id": "c", "environment": {"container_id": "x"}}
    result = transcript(CREATED, added(0, **item), done(0, **item), COMPLETED)
    assert result.calls == ()
    assert isinstance(result.blocks[0].part, OpaquePart)


def test_items_that_nobody_knows_are_carried_as_they_came():
    raw = '{"type":"response.output_item.done","output_index":0,"item":{ "type" :"novel", "x":[1]}}'
    assert OpaqueBlock(0, "novel", '{ "type" :"novel", "x":[1]}') in heard(CREATED, raw, COMPLETED)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.novel", "part": "text", "item": 3, "output_index": "x"},
        {"type": "keepalive", "sequence_number": 3},
        {"type": "response.web_search_call.searching", "output_index": 0},
    ],
)
def test_events_that_nobody_knows_are_ignored(event: dict[str, Any]):
    messages = heard(CREATED, event, added(0, type="message"), done(0, **message("a")), COMPLETED)
    assert isinstance(messages[-1], StreamFinished)


@pytest.mark.parametrize(
    ("events", "kind", "code"),
    [
        (
            [
                {"type": "error", "error": {"code": "insufficient_quota", "message": "x"}},
                life("failed", status="failed", error={"code": "insufficient_quota"}),
            ],
            FailureKind.RATE_LIMITED,
            "insufficient_quota",
        ),
        (
            [{"type": "error", "code": "server_error", "message": "x", "param": None}],
            FailureKind.SERVER,
            "server_error",
        ),
        (
            [life("failed", status="failed", error={"code": "rate_limit_exceeded"})],
            FailureKind.RATE_LIMITED,
            "rate_limit_exceeded",
        ),
        ([life("failed", status="failed", error=None)], FailureKind.SERVER, None),
        ([life("cancelled", status="cancelled")], FailureKind.SERVER, None),
        ([{"type": "error", "response": "?"}], FailureKind.SERVER, "error"),
    ],
)
def test_an_error_however_it_is_told_is_one_failure(
    events: list[dict[str, Any]], kind: FailureKind, code: str | None
):
    messages = heard(CREATED, *events)
    assert [type(m) for m in messages] == [StreamStarted, StreamFailed]
    last = messages[-1]
    assert isinstance(last, StreamFailed)
    assert (last.failure.kind, last.failure.code) == (kind, code)


def test_a_stream_without_its_terminal_event_has_failed():
    for ends in ([], ["[DONE]"]):
        last = heard(CREATED, added(0, type="message"), done(0, **message("a")), *ends)[-1]
        assert isinstance(last, StreamFailed)
        assert last.failure.kind == FailureKind.PROTOCOL


def test_an_event_that_is_malformed_fails_the_stream():
    for event in ("{", '{"type":"response.output_text.delta","output_index":"x"}'):
        last = heard(CREATED, event, COMPLETED)[-1]
        assert isinstance(last, StreamFailed)
        assert last.failure.kind == FailureKind.PROTOCOL
