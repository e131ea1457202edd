"""Recorded streams, played from every kind of file and at every pace."""

import json
from pathlib import Path

import httpx2
import pytest
import trio
import trio.testing

from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.errors import ConfigError
from midstream.messages.stream import AnyStreamMessage, StreamFailed, StreamFinished, TextDelta
from midstream.providers.openai_chat import OpenAIChatProvider
from midstream.providers.provider import Provider
from midstream.providers.recording import record
from midstream.providers.replay import ReplayProvider

REQUEST = ModelRequest(model="m", items=(UserItem("hello"),))
CHAT = [
    '{"choices":[{"index":0,"delta":{"content":"Héllo"}}]}',
    '{"choices":[{"index":0,"delta":{"content":" you"},"finish_reason":"stop"}]}',
]
SSE = "".join(f"data: {chunk}\n\n" for chunk in [*CHAT, "[DONE]"])


async def play(provider: Provider) -> list[tuple[float, str]]:
    """Texts of a stream, each with the time at which it came."""
    began_s = trio.current_time()
    texts: list[tuple[float, str]] = []
    async with provider.open(REQUEST) as batches:
        async for batch in batches:
            text = "".join(message.text for message in batch if isinstance(message, TextDelta))
            if text:
                texts.append((round(trio.current_time() - began_s, 6), text))
    return texts


async def messages_of(provider: Provider) -> list[AnyStreamMessage]:
    async with provider.open(REQUEST) as batches:
        return [message async for batch in batches for message in batch]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.sse", SSE),
        ("crlf.sse", SSE.replace("\n", "\r\n")),
        ("no-final-newline.sse", SSE.rstrip("\n")),
        ("comments.sse", ": hello\n\n" + SSE),
        ("a.chunks.jsonl", "\n".join(CHAT)),
    ],
)
async def test_a_file_is_played_through_the_decoder_of_its_format(
    tmp_path: Path, name: str, content: str
):
    path = tmp_path / name
    path.write_bytes(content.encode())
    provider = ReplayProvider(path)
    assert provider.format == "openai_chat"
    assert await play(provider) == [
        (pytest.approx(0, abs=5), "Héllo"),
        (pytest.approx(0, abs=5), " you"),
    ]


async def test_events_come_at_the_pace_that_is_asked_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
):
    path = tmp_path / "a.sse"
    path.write_bytes(SSE.encode())
    assert await play(ReplayProvider(path, pace_s=0.5)) == [(0.5, "Héllo"), (1.0, " you")]


async def test_without_a_pace_nothing_waits(tmp_path: Path, autojump_clock: trio.testing.MockClock):
    path = tmp_path / "a.sse"
    path.write_bytes(SSE.encode())
    assert await play(ReplayProvider(path)) == [(0.0, "Héllo"), (0.0, " you")]


async def test_a_recording_keeps_its_own_times_unless_a_pace_is_given(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
):
    """It is made of a stream over HTTP, cut in the middle of a character."""

    class SlowTransport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            async def body():
                data = SSE.encode()
                cut = data.index("é".encode()) + 1
                for wait_s, piece in [(1.0, data[:cut]), (2.5, data[cut:])]:
                    await trio.sleep(wait_s)
                    yield piece

            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, headers=headers, content=body())

    live = OpenAIChatProvider(
        base_url="http://localhost/v1", transport=SlowTransport, tap=record(tmp_path, "hello")
    )
    assert await play(live) == [(3.5, "Héllo you")]
    path = tmp_path / "hello-1.recording.jsonl"
    assert [json.loads(line).get("at_s") for line in path.read_text().splitlines()] == [
        None,
        1.0,
        3.5,
    ]
    assert await play(ReplayProvider(path)) == [(3.5, "Héllo you")]
    assert await play(ReplayProvider(path, pace_s=0.0)) == [(0.0, "Héllo you")]
    assert await messages_of(ReplayProvider(path)) == await messages_of(live)


async def test_several_files_are_played_in_turn_and_the_last_one_again(tmp_path: Path):
    first, second = tmp_path / "1.sse", tmp_path / "2.sse"
    first.write_bytes(SSE.encode())
    second.write_bytes(SSE.replace("you", "there").encode())
    provider = ReplayProvider(first, second)
    assert [(await play(provider))[-1][1] for _ in range(3)] == [" you", " there", " there"]


async def test_a_file_that_stops_in_the_middle_is_a_failed_stream(tmp_path: Path):
    path = tmp_path / "a.sse"
    path.write_bytes(SSE.encode()[:100])
    assert isinstance((await messages_of(ReplayProvider(path)))[-1], StreamFailed)


@pytest.mark.recordings(
    "anthropic-messages", "openai-chat", "openai-compatible", "openai-responses"
)
async def test_every_recorded_stream_plays_and_its_format_is_found(recording: Path):
    provider = ReplayProvider(recording)
    folder_format = recording.parent.name.replace("-", "_")
    expected = {"anthropic_messages": "anthropic", "openai_compatible": "openai_chat"}
    assert provider.format == expected.get(folder_format, folder_format)
    messages = await messages_of(provider)
    assert isinstance(messages[-1], StreamFinished | StreamFailed)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no event tells which wire format"),
        ("data: {}\n\n", "no event tells which wire format"),
        ('{"midstream_recording":1}\n{"at":1}\n', "malformed"),
    ],
)
def test_a_file_that_cannot_be_played_is_refused_with_its_name(
    tmp_path: Path, content: str, problem: str
):
    path = tmp_path / "odd.sse"
    path.write_text(content)
    with pytest.raises(ConfigError, match=problem) as refused:
        ReplayProvider(path)
    assert "odd.sse" in str(refused.value)


def test_a_missing_file_an_unknown_format_and_a_mixture_are_refused(tmp_path: Path):
    chat, other = tmp_path / "chat.sse", tmp_path / "other.sse"
    chat.write_bytes(SSE.encode())
    other.write_text('data: {"type":"message_stop"}\n\n')
    for arguments, format, problem in [
        ((tmp_path / "none.sse",), None, "cannot be read"),
        ((chat,), "morse", "unknown"),
        ((chat, other), None, "more than one format"),
        ((), None, "nothing to play"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            ReplayProvider(*arguments, format=format)


def test_the_format_can_be_given_for_a_stream_that_does_not_tell_it(tmp_path: Path):
    path = tmp_path / "a.sse"
    path.write_text("data: [DONE]\n\n")
    assert ReplayProvider(path, format="openai_chat").format == "openai_chat"
