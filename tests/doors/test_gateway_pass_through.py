"""What nothing has to be done about goes through as it came, over real sockets."""

import gzip
from pathlib import Path

import httpx2
import pytest
from gateway_streams import anthropic_stream, event
from gateway_world import FIXTURES, Reply, cut, gateway_rules, gateway_world, needs_fixtures, rule

from midstream.rules.rule import Action, Source

_FOLDERS = {
    "anthropic-messages": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}
EVERYWHERE = (Source.TEXT, Source.THINKING, Source.TOOL)
FAR = [
    rule("THIS NEVER COMES 4711", name="far", scope=EVERYWHERE),
    rule(r"\bnor\s+does\s+(?:this|that)\s+0815\b", name="farther", scope=EVERYWHERE),
    rule(".", name="shadow", scope=EVERYWHERE, action=Action.OBSERVE),
]
"""Rules that never match, and one that matches everything and does nothing."""


def recordings(path: str) -> list[Path]:
    """The recorded streams of one protocol that are whole."""
    [folder] = [name for name, known in _FOLDERS.items() if known == path]
    return sorted((FIXTURES / folder).glob("*.sse"))


@needs_fixtures
@pytest.mark.parametrize("path", _FOLDERS.values())
async def test_recorded_streams_go_through_byte_for_byte_past_rules(path: str) -> None:
    """In chunks that end anywhere; one that the provider broke off gets an error behind it."""
    files = recordings(path)
    data = [file.read_bytes() for file in files]
    replies = [Reply(cut(stream, 777)) for stream in data]
    async with (
        gateway_world(*replies, rules=gateway_rules(*FAR)) as world,
        httpx2.AsyncClient(timeout=30) as client,
    ):
        for file, stream in zip(files, data, strict=True):
            answer = await client.post(world.url + path, json={"stream": True, "model": "m"})
            done = await world.finished()
            if done.failure is None:
                assert answer.content == stream, file.name
            else:
                assert answer.content.startswith(stream.rstrip(b"\r\n")), file.name
    assert len(files) > 5


STRANGE = [
    b": a comment\n\n",
    b"\n",
    event({"type": "from_the_future", "text": "SECRET-1", "of": {"odd": [1, None]}}),
    b'event: content_block_delta\r\ndata:   {"type": "content_block_delta","index" :0 , '
    b'"delta":{"type":"text_delta","text":"x","new":true},"p":"abc"}\r\n\r\n',
    b"event: named\nid: 7\nretry: 10\ndata: not json\n\n",
    b"data: one\ndata: line\n\n",
]


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("watched", [True, False])
async def test_events_and_fields_that_nobody_knows_go_through(size: int, watched: bool) -> None:
    start, *rest = anthropic_stream("All is well")
    strange = [piece for piece in STRANGE if not watched or b"not json" not in piece]
    strange = [piece for piece in strange if not watched or b"one\n" not in piece]
    stream = b"".join([start, *rest[:2], *strange, *rest[2:]])
    rules = gateway_rules(*(FAR if watched else ()))
    async with (
        gateway_world(Reply(cut(stream, size)), rules=rules) as world,
        httpx2.AsyncClient() as client,
    ):
        body = {"stream": True, "model": "m"}
        answer = await client.post(f"{world.url}/v1/messages", json=body)
    assert answer.content == stream


@pytest.mark.parametrize("path", [*_FOLDERS.values(), "/v1/models"])
async def test_an_answer_that_is_compressed_unasked_is_unpacked(path: str) -> None:
    """The provider is asked for none; one that sends it all the same has to be read."""
    document = b'{"id":"x", "content":[], "choices":[], "output":[]}'
    packed = gzip.compress(document)
    reply = Reply(
        cut(packed, 10), content_type="application/json", headers=[("content-encoding", "gzip")]
    )
    async with gateway_world(reply, rules=gateway_rules(*FAR)) as world:
        async with httpx2.AsyncClient() as client:
            answer = await client.post(world.url + path, json={"model": "m"})
        asked = world.upstream.asked[0]
    assert asked.headers["accept-encoding"] == "identity"
    assert "content-encoding" not in answer.headers
    assert answer.content == document


async def test_a_stream_that_is_compressed_unasked_is_unpacked() -> None:
    stream = b"".join(anthropic_stream("All is well"))
    packed = cut(gzip.compress(stream), 10)
    async with (
        gateway_world(
            Reply(packed, headers=[("content-encoding", "gzip")]), rules=gateway_rules(*FAR)
        ) as world,
        httpx2.AsyncClient() as client,
    ):
        body = {"stream": True, "model": "m"}
        answer = await client.post(f"{world.url}/v1/messages", json=body)
    assert "content-encoding" not in answer.headers
    assert answer.content == stream


@pytest.mark.parametrize("path", [*_FOLDERS.values(), "/v1/files"])
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 500, 502, 503, 529])
async def test_a_refusal_goes_through_with_its_words_and_headers(path: str, status: int) -> None:
    words = b'{"error": {"type":"x",  "message":"no" },\n "more": 1}'
    headers = {"retry-after": "21", "x-should-retry": "false", "request-id": "req_1", "x-odd": "1"}
    reply = Reply(
        [words], status=status, content_type="application/json", headers=list(headers.items())
    )
    async with (
        gateway_world(reply, rules=gateway_rules(*FAR)) as world,
        httpx2.AsyncClient() as client,
    ):
        answer = await client.post(world.url + path, json={"stream": True, "model": "m"})
    assert answer.status_code == status
    assert answer.content == words
    assert {name: answer.headers[name] for name in headers} == headers
