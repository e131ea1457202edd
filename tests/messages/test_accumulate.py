"""The accumulator knows at every moment what a stream has said so far."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.accumulate import (
    Accumulator,
    PartialBlock,
    PartialTranscript,
    StreamState,
    accumulate,
)
from midstream.messages.conversation import OpaquePart, TextPart, ThinkingPart, ToolCallPart
from midstream.messages.failure import FailureKind, ProviderFailure
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

WHOLE: list[AnyStreamMessage] = [
    StreamStarted("msg_1", "claude"),
    UsageReported(Usage(100, 1, 50, source=UsageSource.REPORTED)),
    BlockStarted(0, "thinking"),
    ThinkingDelta(0, "Let me "),
    ThinkingDelta(0, "see."),
    ThinkingSigned(0, "sig"),
    BlockFinished(0),
    BlockStarted(1, "opaque"),
    Ping(),
    OpaqueBlock(1, "redacted_thinking", '{"type":"redacted_thinking","data":"x"}'),
    BlockStarted(2, "text"),
    TextDelta(2, "I look "),
    TextDelta(2, "at it."),
    BlockFinished(2),
    ToolCallStarted(3, "call_1", "look"),
    ToolArgumentsDelta(3, '{"at":'),
    ToolArgumentsDelta(3, '"it"}'),
    ToolCallFinished(3, "call_1", "look", '{"at":"it"}', '{"caller":1}'),
    UsageReported(Usage(100, 40, 50, source=UsageSource.REPORTED)),
    StreamFinished(StopReason.TOOL_USE, "tool_use"),
]


def test_a_finished_stream_is_known_in_full():
    assert accumulate(WHOLE, "anthropic") == PartialTranscript(
        provider="anthropic",
        message_id="msg_1",
        model="claude",
        blocks=(
            PartialBlock(0, ThinkingPart("Let me see.", "sig"), complete=True),
            PartialBlock(
                1,
                OpaquePart(
                    "anthropic", "redacted_thinking", '{"type":"redacted_thinking","data":"x"}'
                ),
                complete=True,
            ),
            PartialBlock(2, TextPart("I look at it."), complete=True),
            PartialBlock(
                3, ToolCallPart("call_1", "look", '{"at":"it"}', '{"caller":1}'), complete=True
            ),
        ),
        state=StreamState.FINISHED,
        stop_reason=StopReason.TOOL_USE,
        raw_reason="tool_use",
        usage=Usage(100, 40, 50, source=UsageSource.REPORTED),
    )


def test_texts_thinking_and_calls_can_be_asked_for():
    transcript = accumulate(WHOLE)
    assert (transcript.text, transcript.thinking) == ("I look at it.", "Let me see.")
    assert [call.name for call in transcript.calls] == ["look"]


@pytest.mark.parametrize(
    ("length", "block"),
    [
        (4, PartialBlock(0, ThinkingPart("Let me "), complete=False)),
        (6, PartialBlock(0, ThinkingPart("Let me see.", "sig"), complete=False)),
        (12, PartialBlock(2, TextPart("I look "), complete=False)),
        (15, PartialBlock(3, ToolCallPart("call_1", "look", ""), complete=False)),
        (16, PartialBlock(3, ToolCallPart("call_1", "look", '{"at":'), complete=False)),
    ],
)
def test_a_cut_stream_is_known_as_far_as_it_came(length: int, block: PartialBlock):
    transcript = accumulate(WHOLE[:length])
    assert transcript.state is StreamState.RUNNING
    assert transcript.blocks[-1] == block


def test_an_opaque_block_of_which_only_the_beginning_came_is_no_block():
    assert [block.index for block in accumulate(WHOLE[:9]).blocks] == [0]


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=6))
def test_batches_make_no_difference_and_a_snapshot_disturbs_nothing(cuts: list[int]):
    accumulator = Accumulator()
    start = 0
    for end in [*sorted(cuts), len(WHOLE)]:
        accumulator.feed(WHOLE[start:end])
        assert accumulator.snapshot() == accumulate(WHOLE[:end])
        start = end


def test_a_failure_is_final_even_after_the_terminal_event():
    failure = ProviderFailure(FailureKind.OVERLOADED, "busy")
    transcript = accumulate([*WHOLE, StreamFailed(failure)])
    assert transcript.state is StreamState.FAILED
    assert transcript.failure == failure


def test_blocks_are_in_the_order_of_their_indexes_though_they_overlap():
    transcript = accumulate(
        [
            BlockStarted(0, "opaque"),
            BlockStarted(1, "text"),
            TextDelta(1, "b"),
            OpaqueBlock(0, "reasoning", "{}"),
            TextDelta(1, "c"),
        ],
        "openai_responses",
    )
    assert [block.part for block in transcript.blocks] == [
        OpaquePart("openai_responses", "reasoning", "{}"),
        TextPart("bc"),
    ]


def test_messages_without_their_beginning_are_still_heard():
    transcript = accumulate([TextDelta(0, "a"), ThinkingDelta(1, "b"), ToolArgumentsDelta(2, "{")])
    assert (transcript.text, transcript.thinking) == ("a", "b")
    call = accumulate([ToolCallFinished(0, "c", "look", "{}")]).calls
    assert call == (ToolCallPart("c", "look", "{}"),)


@pytest.mark.parametrize(
    ("messages", "usage"),
    [
        ([], Usage()),
        ([StreamStarted()], Usage()),
        ([TextDelta(0, "x" * 9)], Usage(None, 3, source=UsageSource.ESTIMATED)),
        (WHOLE[:2], Usage(100, 1, 50, source=UsageSource.ESTIMATED)),
        (WHOLE[:-2], Usage(100, 9, 50, source=UsageSource.ESTIMATED)),
        (WHOLE[:-1], Usage(100, 40, 50, source=UsageSource.ESTIMATED)),
        ([StreamFinished(StopReason.END_TURN)], Usage()),
    ],
)
def test_the_usage_of_a_cut_stream_is_estimated_and_never_a_silent_zero(
    messages: list[AnyStreamMessage], usage: Usage
):
    assert accumulate(messages).usage == usage


def test_a_transcript_survives_being_stored():
    transcript = accumulate(WHOLE, "anthropic")
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(transcript), type=PartialTranscript) == transcript
