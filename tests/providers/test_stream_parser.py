"""Bytes to messages: the same ones for every cut, and always an end."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.accumulate import StreamState, accumulate
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    OpaqueBlock,
    Ping,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ThinkingSigned,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.providers.recording import parse_recording
from midstream.providers.replay import DECODERS
from midstream.providers.stream_parser import StreamParser

FOLDERS = (
    "anthropic-messages",
    "openai-chat",
    "openai-compatible",
    "openai-responses",
    "assembled",
)
LOST = ProviderFailure(FailureKind.NETWORK, "gone")


def messages_of(parser: StreamParser, pieces: list[bytes]) -> list[AnyStreamMessage]:
    messages = [message for piece in pieces for message in parser.feed(piece)] + parser.end()
    return [message for message in messages if not isinstance(message, Ping)]


@pytest.mark.recordings(*FOLDERS)
def test_every_cut_of_the_bytes_gives_the_same_messages(recording: Path):
    format, recorded = parse_recording(recording.read_bytes())
    data = b"".join(piece.data for piece in recorded)
    expected = messages_of(StreamParser(DECODERS[format]()), [data])
    rng = random.Random(1)
    for _ in range(4):
        ends = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(60))})
        pieces = [data[start:end] for start, end in pairwise(ends)]
        assert messages_of(StreamParser(DECODERS[format]()), pieces) == expected


@pytest.mark.recordings(*FOLDERS)
def test_every_recorded_stream_is_well_formed(recording: Path):
    """Started first, blocks that begin before they go on and end once, one terminal message."""
    format, recorded = parse_recording(recording.read_bytes())
    parser = StreamParser(DECODERS[format]())
    messages = messages_of(parser, [piece.data for piece in recorded])
    ends = [message for message in messages if isinstance(message, StreamFinished | StreamFailed)]
    assert ends == messages[-1:]
    if isinstance(messages[-1], StreamFinished):
        assert isinstance(messages[0], StreamStarted)
    kinds: dict[int, str] = {}
    for message in messages:
        match message:
            case BlockStarted(index, kind):
                assert index == len(kinds)
                kinds[index] = kind
            case ToolCallStarted(index):
                assert index == len(kinds)
                kinds[index] = "call"
            case TextDelta(index):
                assert kinds[index] == "text"
            case ThinkingDelta(index) | ThinkingSigned(index):
                assert kinds[index] == "thinking"
            case ToolArgumentsDelta(index):
                assert kinds[index] == "call"
            case BlockFinished(index):
                assert kinds[index] in ("text", "thinking")
                kinds[index] = "closed"
            case ToolCallFinished(index):
                assert kinds[index] == "call"
                kinds[index] = "closed"
            case OpaqueBlock(index):
                assert kinds[index] == "opaque"
                kinds[index] = "closed"
            case _:
                pass
    if isinstance(messages[-1], StreamFinished):
        assert set(kinds.values()) <= {"closed"}


TYPES = {
    "anthropic": "message_start content_block_start content_block_delta content_block_stop "
    "message_delta message_stop ping error",
    "openai_chat": "chunk",
    "openai_responses": "response.created response.output_item.added response.output_item.done "
    "response.output_text.delta response.reasoning_summary_text.delta response.output_text.done "
    "response.function_call_arguments.delta response.function_call_arguments.done "
    "response.custom_tool_call_input.delta response.content_part.done response.completed "
    "response.incomplete response.failed error",
}
FIELD_NAMES = """
    index delta message content_block usage error choices id model type text thinking signature
    partial_json content input name finish_reason stop_reason tool_calls function arguments
    reasoning reasoning_details item response output_index content_index output call_id summary
    part status incomplete_details reason action environment citation code input_tokens"""
KIND_NAMES = """
    text_delta input_json_delta thinking_delta signature_delta citations_delta novel text
    thinking tool_use server_tool_use message reasoning function_call custom_tool_call
    shell_call apply_patch_call reasoning.text"""
FIELDS, KINDS = FIELD_NAMES.split(), KIND_NAMES.split()
LEAVES = st.one_of(st.none(), st.integers(-1, 2), st.sampled_from(["a", "{", *KINDS]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(
    format=st.sampled_from(sorted(DECODERS)),
    events=st.lists(
        st.tuples(st.integers(0, 99), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)),
        max_size=6,
    ),
)
def test_whatever_comes_nothing_is_raised_and_the_stream_ends(
    format: str, events: list[tuple[int, dict[str, Any]]]
):
    parser = StreamParser(DECODERS[format]())
    types = TYPES[format].split()
    messages: list[AnyStreamMessage] = []
    for choice, fields in events:
        event = {**fields, "type": types[choice % len(types)]}
        messages += parser.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    messages += parser.end()
    assert isinstance(messages[-1], StreamFinished | StreamFailed)
    assert accumulate(messages, format).state is not StreamState.RUNNING


@pytest.mark.parametrize("format", DECODERS)
def test_json_that_is_nested_too_deep_fails_the_stream(format: str):
    parser = StreamParser(DECODERS[format]())
    deep = b'{"type":"error","error":' + b"[" * 200_000
    last = (parser.feed(b"data: " + deep + b"\n\n") + parser.end())[-1]
    assert isinstance(last, StreamFailed)


@pytest.mark.parametrize("format", DECODERS)
def test_no_bytes_at_all_are_a_failed_stream(format: str):
    parser = StreamParser(DECODERS[format]())
    assert parser.feed(b"") == []
    last = parser.end()
    assert [type(message) for message in last] == [StreamFailed]
    assert parser.over


@pytest.mark.parametrize("format", DECODERS)
def test_a_lost_connection_is_the_failure_of_the_stream_and_nothing_follows(format: str):
    parser = StreamParser(DECODERS[format]())
    assert parser.fail(LOST) == [StreamFailed(LOST)]
    assert parser.feed(b'data: {"type":"message_stop"}\n\n') == []
    assert parser.end() == []
    assert parser.fail(LOST) == []


def test_an_event_that_never_ends_fails_the_stream():
    parser = StreamParser(DECODERS["anthropic"]())
    messages = [message for _ in range(20) for message in parser.feed(b"x" * 1024 * 1024)]
    (last,) = messages
    assert isinstance(last, StreamFailed)
    assert "larger than" in last.failure.message
