"""What Chat Completions streams say, in all the dialects of their servers (spec/gateway.md 1)."""

import json
from typing import Any

import pytest

from midstream.messages.accumulate import PartialTranscript, accumulate
from midstream.messages.conversation import OpaquePart
from midstream.messages.failure import FailureKind
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    Ping,
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
from midstream.providers.openai_chat_stream import OpenAIChatStreamDecoder
from midstream.providers.stream_parser import StreamParser


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "model": "gpt", "choices": [choice]}


def piece(index: int | None = 0, id: str | None = None, **function: Any) -> dict[str, Any]:
    return {"index": index, "id": id, "function": function}


def heard(*events: dict[str, Any] | str) -> list[AnyStreamMessage]:
    parser = StreamParser(OpenAIChatStreamDecoder())
    messages: list[AnyStreamMessage] = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        messages += parser.feed(f"data: {data}\n\n".encode())
    return messages + parser.end()


def transcript(*events: dict[str, Any] | str) -> PartialTranscript:
    return accumulate(heard(*events), "openai_chat")


def calls(*events: dict[str, Any] | str) -> list[tuple[str, str, str]]:
    return [(call.call_id, call.name, call.arguments) for call in transcript(*events).calls]


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def test_a_whole_answer_is_told_message_by_message():
    messages = heard(
        {"choices": [], "prompt_filter_results": []},
        chunk(role="assistant", content=""),
        chunk(reasoning_content="Hm."),
        chunk(content="I look."),
        chunk(tool_calls=[piece(0, "call_1", name="look", arguments="")]),
        chunk(tool_calls=[piece(0, arguments='{"at"')]),
        chunk(tool_calls=[piece(0, arguments=": 1}")]),
        chunk("tool_calls"),
        {"choices": [], "usage": USAGE},
        "[DONE]",
    )
    assert messages == [
        StreamStarted(None, None),
        BlockStarted(0, "thinking"),
        ThinkingDelta(0, "Hm."),
        BlockFinished(0),
        BlockStarted(1, "text"),
        TextDelta(1, "I look."),
        ToolCallStarted(2, "call_1", "look"),
        ToolArgumentsDelta(2, '{"at"'),
        ToolArgumentsDelta(2, ": 1}"),
        UsageReported(Usage(9, 5, 4, source=UsageSource.REPORTED)),
        ToolCallFinished(2, "call_1", "look", '{"at": 1}'),
        BlockFinished(1),
        StreamFinished(StopReason.TOOL_USE, "tool_calls"),
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("stop", StopReason.END_TURN),
        ("tool_calls", StopReason.TOOL_USE),
        ("function_call", StopReason.TOOL_USE),
        ("length", StopReason.MAX_TOKENS),
        ("content_filter", StopReason.CONTENT_FILTER),
        ("MALFORMED_FUNCTION_CALL", StopReason.OTHER),
    ],
)
def test_stop_reasons(raw: str, expected: StopReason):
    for ends in ([chunk(raw), "[DONE]"], [chunk(raw)]):
        assert heard(chunk(content="a"), *ends)[-1] == StreamFinished(expected, raw)


def test_done_without_a_reason_ends_the_stream_as_what_it_was():
    assert heard(chunk(content="a"), "[DONE]")[-1] == StreamFinished(StopReason.END_TURN, None)
    call = chunk(tool_calls=[piece(0, "c", name="look")])
    assert heard(call, "[DONE]")[-1] == StreamFinished(StopReason.TOOL_USE, None)


def test_stop_after_a_call_means_that_the_call_is_to_be_run():
    call = chunk(tool_calls=[piece(0, "c", name="look")])
    assert heard(call, chunk("stop"))[-1] == StreamFinished(StopReason.TOOL_USE, "stop")


def test_a_stream_with_neither_reason_nor_done_has_failed():
    last = heard(chunk(content="a"))[-1]
    assert isinstance(last, StreamFailed)
    assert last.failure.kind == FailureKind.PROTOCOL


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "Hm."},
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm."}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]},
    ],
)
def test_reasoning_is_heard_wherever_it_stands(delta: dict[str, Any]):
    result = transcript(chunk(**delta), chunk("stop", content="So."))
    assert (result.thinking, result.text) == ("Hm.", "So.")


def test_content_may_be_a_list_of_parts():
    assert transcript(chunk("stop", content=[{"type": "text", "text": "So."}])).text == "So."


def test_content_is_one_text_whatever_comes_in_between():
    call = chunk(tool_calls=[piece(0, "c", name="look")])
    messages = heard(chunk(content="a"), chunk(reasoning="b"), call, chunk("stop", content="c"))
    assert {m.index for m in messages if isinstance(m, TextDelta)} == {0}
    assert accumulate(messages).text == "ac"


def test_signed_and_encrypted_reasoning_is_carried_to_be_sent_back():
    result = transcript(
        chunk(reasoning_details=[{"type": "reasoning.text", "text": "a", "index": 0}]),
        chunk(reasoning_details=[{"type": "reasoning.text", "text": "b", "index": 0}]),
        chunk(reasoning_details=[{"type": "reasoning.text", "signature": "s", "index": 0}]),
        chunk("stop", reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}]),
    )
    opaque = result.blocks[-1].part
    assert isinstance(opaque, OpaquePart)
    assert json.loads(opaque.data) == [
        {"type": "reasoning.text", "text": "ab", "signature": "s", "index": 0},
        {"type": "reasoning.encrypted", "data": "x"},
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "c", name="look", arguments='{"a":1}')],
        [piece(0, "c", name="look", arguments=None), piece(0, arguments='{"a":1}')],
        [piece(0, "c", name="look"), piece(0, "c", name="look", arguments='{"a":1}')],
        [piece(0, "c", name="look", arguments=""), piece(0, name="", arguments='{"a":1}')],
        [piece(None, "c", name="look"), piece(None, arguments='{"a":1}')],
        [piece(0, "c", name="look", arguments={"a": 1})],
    ],
    ids=["whole", "null", "repeated", "empty name", "no index", "an object"],
)
def test_a_call_is_put_together_from_every_kind_of_pieces(pieces: list[dict[str, Any]]):
    chunks = [chunk(tool_calls=[each]) for each in pieces]
    assert calls(*chunks, chunk("tool_calls")) == [("c", "look", '{"a":1}')]


def test_null_arguments_are_none():
    call = chunk(tool_calls=[piece(0, "c", name="look", arguments=None)])
    assert calls(call, chunk("tool_calls")) == [("c", "look", "{}")]


def test_calls_in_one_chunk_and_calls_that_share_an_index_are_told_apart():
    both = [piece(0, "a", name="look", arguments="{}"), piece(1, "b", name="peek", arguments="{}")]
    expected = [("a", "look", "{}"), ("b", "peek", "{}")]
    assert calls(chunk(tool_calls=both), chunk("tool_calls")) == expected
    same = [{**each, "index": 0} for each in both]
    assert calls(*(chunk(tool_calls=[each]) for each in same), chunk("stop")) == expected
    unnumbered = [{**each, "index": None} for each in both]
    assert calls(chunk(tool_calls=unnumbered), chunk("stop")) == expected


def test_calls_without_an_id_get_one_that_is_unique():
    both = [piece(0, name="look"), piece(1, name="look")]
    ids = [call_id for call_id, _, _ in calls(chunk(tool_calls=both), chunk("stop"))]
    assert len(set(ids)) == 2
    assert all(ids)


def test_what_the_server_wants_back_with_a_call_is_kept():
    call = piece(0, "c", name="look", arguments="{}")
    call["extra_content"] = {"google": {"thought_signature": "s"}}
    finished = heard(chunk(tool_calls=[call]), chunk("tool_calls"))
    assert (
        ToolCallFinished(
            0, "c", "look", "{}", '{"extra_content":{"google":{"thought_signature":"s"}}}'
        )
        in finished
    )


def test_the_older_function_call_is_a_call():
    chunks = [
        chunk(function_call={"name": "look", "arguments": '{"a"'}),
        chunk("function_call", function_call={"arguments": ":1}"}),
    ]
    assert [(name, text) for _, name, text in calls(*chunks)] == [("look", '{"a":1}')]


def test_a_refusal_is_text_and_a_reason():
    result = transcript(chunk(refusal="I can"), chunk("stop", refusal="not."))
    assert (result.text, result.stop_reason) == ("I cannot.", StopReason.REFUSAL)


def test_only_choice_0_is_heard():
    result = transcript(chunk(content="a"), chunk(index=1, content="b"), chunk("stop"))
    assert result.text == "a"
    other = heard(chunk(content="a"), chunk("stop", index=1))
    assert isinstance(other[-1], StreamFailed)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, (9, 5, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 5}, (9, 5, None)),
        ({"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 3}, (9, 5, 3)),
    ],
)
def test_usage_is_read_in_every_place(usage: dict[str, Any], expected: tuple[int | None, ...]):
    in_choice = chunk("stop")
    in_choice["choices"][0]["usage"] = usage
    behind: dict[str, Any] = {"choices": [], "usage": usage}
    without_choices: dict[str, Any] = {"usage": usage}
    for events in ([in_choice], [chunk("stop"), behind], [chunk("stop"), without_choices]):
        found = transcript(chunk(content="a"), *events).usage
        assert (found.input_tokens, found.output_tokens, found.cache_read_tokens) == expected


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": "x", "code": 429}}, FailureKind.RATE_LIMITED),
        ({"error": "it broke"}, FailureKind.SERVER),
        ({**chunk(), "error": {"code": 400}}, FailureKind.INVALID_REQUEST),
        ({"object": "error", "message": "x", "code": 400}, FailureKind.INVALID_REQUEST),
        (chunk("error"), FailureKind.SERVER),
    ],
)
def test_an_error_inside_the_stream_fails_it_even_after_a_reason(
    event: dict[str, Any], kind: FailureKind
):
    for before in ([chunk(content="a")], [chunk("length", content="a")]):
        last = heard(*before, event, "[DONE]")[-1]
        assert isinstance(last, StreamFailed)
        assert last.failure.kind == kind


def test_a_chunk_that_is_malformed_fails_the_stream():
    for event in ("{", '{"choices": 3}'):
        last = heard(chunk(content="a"), event, chunk("stop"))[-1]
        assert isinstance(last, StreamFailed)
        assert last.failure.kind == FailureKind.PROTOCOL


def test_padding_and_unknown_fields_are_passed_over():
    padded = chunk("stop", content="a", p="xxxx", provider_metadata={"a": 1})
    padded["obfuscation"] = "abc"
    assert transcript(padded).text == "a"


def test_comments_alone_are_a_ping():
    parser = StreamParser(OpenAIChatStreamDecoder())
    assert parser.feed(b": OPENROUTER PROCESSING\n\n") == [Ping()]
    assert parser.feed(b': x\n\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n')[-1] == (
        TextDelta(0, "a")
    )
