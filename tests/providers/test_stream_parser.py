"""Bytes to messages: the same ones for every cut, and always an end."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

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
