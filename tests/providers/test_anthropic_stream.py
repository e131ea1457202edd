"""What Anthropic's stream says, and what else comes under its name (spec/gateway.md 1)."""

import json
from pathlib import Path
from typing import Any

import pytest

from midstream.messages.accumulate import accumulate
from midstream.messages.conversation import OpaquePart, TextPart, ThinkingPart, ToolCallPart
from midstream.messages.failure import FailureKind
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    OpaqueBlock,
    Ping,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ThinkingSigned,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
    UsageReported,
)
from midstream.messages.usage import Usage, UsageSource
from midstream.providers.anthropic_stream import AnthropicStreamDecoder
from midstream.providers.stream_parser import StreamParser

START: dict[str, Any] = {
    "type": "message_start",
    "message": {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 9, "output_tokens": 1}},
}
STOP: dict[str, Any] = {"type": "message_stop"}


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def reason(stop_reason: str | None, output_tokens: int = 5) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": stop_reason},
        "usage": {"output_tokens": output_tokens},
    }


def text(index: int, words: str) -> list[dict[str, Any]]:
    return [begin(index, type="text", text=""), delta(index, "text_delta", text=words), end(index)]


def heard(*events: dict[str, Any] | str | bytes, name: str = "") -> list[AnyStreamMessage]:
    parser = StreamParser(AnthropicStreamDecoder())
    messages: list[AnyStreamMessage] = []
    for event in events:
        raw = json.dumps(event) if isinstance(event, dict) else event
        data = raw if isinstance(raw, bytes) else raw.encode()
        head = f"event: {name}\n".encode() if name else b""
        messages += parser.feed(head + b"data: " + data + b"\n\n")
    return messages + parser.end()


def test_a_whole_answer_is_told_message_by_message():
    call = begin(2, type="tool_use", id="toolu_1", name="look", input={}, caller={"type": "direct"})
    messages = heard(
        START,
        begin(0, type="thinking", thinking="", signature=""),
        {"type": "ping"},
        delta(0, "thinking_delta", thinking="Hm."),
        delta(0, "signature_delta", signature="sig"),
        end(0),
        *text(1, "I look."),
        call,
        delta(2, "input_json_delta", partial_json=""),
        delta(2, "input_json_delta", partial_json='{"at'),
        delta(2, "input_json_delta", partial_json='": 1}'),
        end(2),
        reason("tool_use"),
        STOP,
    )
    assert messages == [
        StreamStarted("msg_1", "claude"),
        UsageReported(Usage(9, 1, source=UsageSource.REPORTED)),
        BlockStarted(0, "thinking"),
        Ping(),
        ThinkingDelta(0, "Hm."),
        ThinkingSigned(0, "sig"),
        BlockFinished(0),
        BlockStarted(1, "text"),
        TextDelta(1, "I look."),
        BlockFinished(1),
        ToolCallStarted(2, "toolu_1", "look"),
        ToolArgumentsDelta(2, '{"at'),
        ToolArgumentsDelta(2, '": 1}'),
        ToolCallFinished(2, "toolu_1", "look", '{"at": 1}', '{"caller":{"type":"direct"}}'),
        UsageReported(Usage(9, 5, source=UsageSource.REPORTED)),
        StreamFinished(StopReason.TOOL_USE, "tool_use"),
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("end_turn", StopReason.END_TURN),
        ("stop_sequence", StopReason.STOP_SEQUENCE),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("refusal", StopReason.REFUSAL),
        ("pause_turn", StopReason.PAUSE_TURN),
        ("something_new", StopReason.OTHER),
    ],
)
def test_stop_reasons(raw: str, expected: StopReason):
    assert heard(START, reason(raw), STOP)[-1] == StreamFinished(expected, raw)


def test_a_tool_without_arguments_has_an_empty_object():
    call = begin(0, type="tool_use", id="t", name="look", input={})
    messages = heard(START, call, delta(0, "input_json_delta", partial_json=""), end(0), STOP)
    assert ToolCallFinished(0, "t", "look", "{}") in messages


def test_arguments_that_came_whole_with_the_start_are_heard_as_a_piece_too():
    call = begin(0, type="tool_use", id="t", name="look", input={"at": 1})
    messages = heard(START, call, end(0), STOP)
    assert ToolArgumentsDelta(0, '{"at": 1}') in messages
    assert ToolCallFinished(0, "t", "look", '{"at": 1}') in messages


def test_messages_in_one_stream_become_one_answer():
    second = {"type": "message_start", "message": {"id": "msg_2", "usage": {"input_tokens": 4}}}
    messages = heard(
        START, *text(0, "a"), reason("pause_turn", 2), STOP,
        second, *text(0, "b"), reason("end_turn", 3), STOP,
    )  # fmt: skip
    transcript = accumulate(messages)
    assert [(block.index, block.part) for block in transcript.blocks] == [
        (0, TextPart("a")),
        (1, TextPart("b")),
    ]
    assert (transcript.message_id, transcript.raw_reason) == ("msg_1", "end_turn")
    assert (transcript.usage.input_tokens, transcript.usage.output_tokens) == (13, 5)
    assert sum(isinstance(message, StreamFinished) for message in messages) == 1


def test_a_message_start_that_is_repeated_counts_once():
    transcript = accumulate(heard(START, START, *text(0, "a"), reason("end_turn"), STOP))
    assert (transcript.text, transcript.usage.input_tokens) == ("a", 9)


def test_content_that_comes_whole_inside_message_start_is_heard():
    whole = {
        "type": "message_start",
        "message": {
            "content": [
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t", "name": "n"},
            ],
            "stop_reason": "tool_use",
        },
    }
    transcript = accumulate(heard(whole, STOP))
    assert [block.part for block in transcript.blocks] == [
        TextPart("a"),
        ToolCallPart("t", "n", "{}"),
    ]
    assert transcript.stop_reason == StopReason.TOOL_USE


def test_a_call_id_that_is_used_twice_is_made_unique():
    calls = [
        event
        for index in (0, 1)
        for event in (begin(index, type="tool_use", id="t", name="look"), end(index))
    ]
    assert [call.call_id for call in accumulate(heard(START, *calls, STOP)).calls] == ["t", "t_2"]


def test_blocks_without_start_or_end_are_heard():
    transcript = accumulate(
        heard(
            START,
            delta(3, "text_delta", text="a"),
            delta(4, "thinking_delta", thinking="b"),
            end(7),
            reason("end_turn"),
            STOP,
        )
    )
    assert (transcript.text, transcript.thinking) == ("a", "b")
    assert all(block.complete for block in transcript.blocks)


def test_a_block_that_nobody_knows_is_carried_as_it_came():
    raw = b'{"type":"content_block_start","index":0,"content_block":{ "type" :"novel", "x": [1] }}'
    messages = heard(START, raw, end(0), STOP)
    assert OpaqueBlock(0, "novel", '{ "type" :"novel", "x": [1] }') in messages


def test_deltas_of_opaque_blocks_are_put_into_them():
    messages = heard(
        START,
        begin(0, type="server_tool_use", id="s", name="web_search", input={}),
        delta(0, "input_json_delta", partial_json='{"query":'),
        delta(0, "input_json_delta", partial_json='"x"}'),
        end(0),
        begin(1, type="compaction", content=None, encrypted_content=None),
        delta(1, "compaction_delta", content="Sum", encrypted_content=None),
        delta(1, "compaction_delta", content="med up.", encrypted_content="e"),
        end(1),
        STOP,
    )
    blocks = [json.loads(m.data) for m in messages if isinstance(m, OpaqueBlock)]
    assert blocks == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "compaction", "content": "Summed up.", "encrypted_content": "e"},
    ]


def test_citations_follow_their_text():
    cited = delta(0, "citations_delta", citation={"type": "char_location"})
    transcript = accumulate(
        heard(START, begin(0, type="text", text="", citations=[]), cited, end(0), STOP), "anthropic"
    )
    assert [block.part for block in transcript.blocks] == [
        TextPart(""),
        OpaquePart("anthropic", "citations", '[{"type":"char_location"}]'),
    ]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "something_new", "index": "text", "delta": [1], "message": 3},
        {"type": "vertex_event"},
        {"no": "type"},
    ],
)
def test_events_that_nobody_knows_are_ignored(event: dict[str, Any]):
    messages = heard(START, event, *text(0, "a"), reason("end_turn"), STOP, name="x")
    assert isinstance(messages[-1], StreamFinished)
    assert accumulate(messages).text == "a"


@pytest.mark.parametrize("event", ["{", "null", "[]", '{"type":"content_block_delta","index":"x"}'])
def test_an_event_that_is_malformed_fails_the_stream(event: str):
    last = heard(START, event, STOP)[-1]
    assert isinstance(last, StreamFailed)
    assert last.failure.kind == FailureKind.PROTOCOL


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error"}}, FailureKind.OVERLOADED),
        ({"type": "error", "message": "oops", "delta": "?"}, FailureKind.SERVER),
        ({"type": "error"}, FailureKind.SERVER),
    ],
)
def test_an_error_event_fails_the_stream_and_nothing_follows(
    event: dict[str, Any], kind: FailureKind
):
    messages = heard(START, begin(0, type="text", text=""), event, *text(0, "more"), STOP)
    assert isinstance(messages[-1], StreamFailed)
    assert messages[-1].failure.kind == kind
    assert not any(isinstance(message, TextDelta) for message in messages)


def test_an_error_event_without_json_fails_the_stream():
    last = heard("upstream went away", name="error")[-1]
    assert isinstance(last, StreamFailed)
    assert last.failure.message == "upstream went away"


@pytest.mark.parametrize("missing", [1, 2])
def test_a_stream_without_its_terminal_event_has_failed(missing: int):
    events = [START, *text(0, "a"), reason("end_turn"), STOP]
    last = heard(*events[:-missing])[-1]
    assert isinstance(last, StreamFailed)
    assert last.failure.kind == FailureKind.PROTOCOL


def test_a_character_that_is_cut_in_halves_comes_out_whole():
    """spec/lessons.md E 40."""
    event = delta(0, "text_delta", text="HALF")
    halves = [json.dumps(event).replace("HALF", t) for t in ("a\\ud83d", "\\ude00b", "\\ud83d")]
    messages = heard(START, begin(0, type="text", text=""), *halves, end(0), STOP)
    assert [m.text for m in messages if isinstance(m, TextDelta)] == ["a", "😀b", "\ufffd"]


def test_bytes_that_are_no_utf_8_are_replaced_and_not_fatal():
    event = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\xff"}}'
    assert accumulate(heard(START, event, STOP)).text == "a\ufffd"


def test_thinking_keeps_its_last_signature_and_redacted_thinking_its_data(recordings: Path):
    data = (recordings / "anthropic-messages" / "redacted-thinking.sse").read_bytes()
    parser = StreamParser(AnthropicStreamDecoder())
    transcript = accumulate(parser.feed(data) + parser.end(), "anthropic")
    first = transcript.blocks[0].part
    assert isinstance(first, OpaquePart)
    assert first.kind == "redacted_thinking"
    assert first.data.encode() in data
    signed = accumulate(
        heard(
            START,
            begin(0, type="thinking", thinking="a"),
            delta(0, "signature_delta", signature="1"),
            delta(0, "signature_delta", signature="2"),
            STOP,
        )
    )
    assert signed.blocks[0].part == ThinkingPart("a", "2")
