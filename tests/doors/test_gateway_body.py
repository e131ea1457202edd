"""What a request says reaches the rules, in whatever form it comes; or it is refused."""

import gzip
import zlib
from typing import Any

import httpx2
import msgspec
import pytest
import trio
from gateway_streams import STREAMS, anthropic_stream, responses_stream
from gateway_world import Reply, World, gateway_rules, gateway_world, rule

from midstream.doors.gateway_body import UnreadableBody, unpack, zstd

SECRET = rule(r"SECRET-\d+")


def raw_deflate(data: bytes) -> bytes:
    """Without the header of zlib, as some senders do."""
    return zlib.compress(data, wbits=-15)


PACKERS: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
PACKED = [*PACKERS.items(), ("x-gzip", gzip.compress), ("deflate", raw_deflate)]
packers = pytest.mark.parametrize(("coding", "pack"), PACKED)
paths = pytest.mark.parametrize("path", STREAMS)


def request(path: str, said: str = "hi", **more: Any) -> bytes:
    """A request, with spaces that no encoder of ours would write."""
    key = "input" if path == "/v1/responses" else "messages"
    entry = {"role": "user", "content": said}
    body = {"model": "m", "stream": True, key: [entry], **more}
    return msgspec.json.format(msgspec.json.encode(body), indent=3)


async def post(
    world: World, path: str, body: bytes, coding: str | None, **headers: str
) -> httpx2.Response:
    if coding is not None:
        headers["content-encoding"] = coding
    async with httpx2.AsyncClient(timeout=30) as client:
        return await client.post(world.url + path, content=body, headers=headers)


@packers
@paths
async def test_a_compressed_request_goes_on_as_it_came(path: str, coding: str, pack: Any) -> None:
    stream = STREAMS[path]("All is well")
    packed = pack(request(path))
    async with gateway_world(Reply(stream), rules=gateway_rules(SECRET)) as world:
        answer = await post(world, path, packed, coding)
        [asked] = world.upstream.asked
        assert (await world.finished()).begun.body["model"] == "m"
    assert asked.body == packed
    assert asked.headers["content-encoding"] == coding
    assert answer.content == b"".join(stream)


@packers
@pytest.mark.parametrize("streams", [True, False])
@paths
async def test_its_answer_is_watched(path: str, streams: bool, coding: str, pack: Any) -> None:
    replies = [Reply(STREAMS[path](said)) for said in ("It is SECRET-12.", "No.")]
    packed = pack(request(path, stream=streams))
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        answer = await post(world, path, packed, coding)
        first, again = world.upstream.asked
    assert answer.status_code == 200
    assert "SECRET" not in answer.text
    assert (first.body == packed) is streams  # else it is asked for a stream
    assert "content-encoding" not in again.headers
    assert "Never say that word." in again.body.decode()


@packers
@paths
async def test_its_directives_are_carried_out_and_never_go_out(
    path: str, coding: str, pack: Any
) -> None:
    replies = [Reply(STREAMS[path](said, message_id=said)) for said in ("One.", "Two.")]
    packed = pack(request(path, 'Go. <**stopMessage:"on",1**>'))
    async with gateway_world(*replies) as world:
        await post(world, path, packed, coding)
        asked = world.upstream.asked
    assert len(asked) == 2
    for each in asked:
        assert "content-encoding" not in each.headers
        assert "stopMessage" not in repr(each.json)


async def test_a_directive_in_a_compressed_request_to_count_tokens_never_goes_out() -> None:
    packed = zstd.compress(request("/v1/messages", 'Go. <**stopMessage:"on",1**>'))
    reply = Reply([b"{}"], content_type="application/json")
    async with gateway_world(reply) as world:
        await post(world, "/v1/messages/count_tokens", packed, "zstd")
        [asked] = world.upstream.asked
    assert "content-encoding" not in asked.headers
    assert asked.json["messages"] == [{"role": "user", "content": "Go. "}]


@pytest.mark.parametrize("coding", ["br", "gzip, zstd", "gzip, gzip", "lz4"])
@pytest.mark.parametrize("rules", [(), (SECRET,)], ids=["no rule", "rules"])
@pytest.mark.parametrize("path", [*STREAMS, "/v1/messages/count_tokens", "/v1/responses/compact"])
async def test_a_coding_that_nobody_can_read_is_refused(
    path: str, rules: tuple[Any, ...], coding: str
) -> None:
    async with gateway_world(Reply([b""]), rules=gateway_rules(*rules)) as world:
        answer = await post(world, path, b"???", coding)
        assert not world.upstream.asked
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert f"content-encoding: {coding}; send it uncompressed" in error["message"]
    assert (answer.json().get("type") == "error") is path.startswith("/v1/messages")


async def test_what_is_not_watched_goes_through_in_any_coding() -> None:
    reply = Reply([b"{}"], content_type="application/json")
    async with gateway_world(reply, rules=gateway_rules(SECRET)) as world:
        answer = await post(world, "/v1/files", b"???", "br")
        [asked] = world.upstream.asked
    assert answer.status_code == 200
    assert (asked.body, asked.headers["content-encoding"]) == (b"???", "br")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("broken", ["cut", "garbage", "followed"])
async def test_a_body_that_is_not_what_it_says_is_refused(coding: str, broken: str) -> None:
    packed = PACKERS[coding](request("/v1/messages"))
    sent = {"cut": packed[:-5], "garbage": b"no such thing", "followed": packed * 2}[broken]
    async with gateway_world(Reply([b""])) as world:
        answer = await post(world, "/v1/messages", sent, coding)
        assert not world.upstream.asked
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_a_small_body_that_becomes_a_large_one_is_refused(coding: str) -> None:
    packed = PACKERS[coding](bytes(100_000))
    assert len(packed) < 500
    assert unpack(packed, coding, 100_000) == bytes(100_000)
    with pytest.raises(UnreadableBody, match="larger than 99999 bytes") as error:
        unpack(packed, coding, 99_999)
    assert error.value.status == 413


def test_a_window_that_no_sender_may_use_is_refused() -> None:
    """It would be allocated before anything of the text is there."""
    parameters = zstd.CompressionParameter
    options: dict[int, int] = {parameters.window_log: 27, parameters.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    packed = compressor.compress(b"x" * 50) + compressor.flush()
    with pytest.raises(UnreadableBody, match="cannot be read as that"):
        unpack(packed, "zstd")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"model=m", b'{"a":NaN}', b"[" * 5_000, b'{"a":"\xff"}']
)
@paths
async def test_what_is_no_json_object_is_refused_where_rules_could_not_see_its_answer(
    path: str, body: bytes
) -> None:
    reply = Reply([b"{}"], status=400, content_type="application/json")
    async with gateway_world(reply, rules=gateway_rules(SECRET)) as world:
        answer = await post(world, path, body, None)
        assert not world.upstream.asked
    assert answer.status_code == 400
    assert "no JSON object" in answer.json()["error"]["message"]
    async with gateway_world(reply) as world:
        assert (await post(world, path, body, None)).text == "{}"
        assert world.upstream.asked[0].body == body


@pytest.mark.parametrize(
    "path", ["/v1//messages", "/v1/%6Dessages", "/v1/messages/", "/up/v1/./messages"]
)
async def test_no_spelling_of_a_path_leads_past_the_rules(path: str) -> None:
    replies = [Reply(anthropic_stream(said)) for said in ("It is SECRET-12.", "No.")]
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        host, port = world.url.removeprefix("http://").split(":")
        body = request("/v1/messages")
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
        async with await trio.open_tcp_stream(host, int(port)) as stream:  # as it is written
            await stream.send_all(head.encode() + body)
            heard = b""
            with trio.fail_after(10):
                while not heard.endswith(b"0\r\n\r\n"):
                    heard += await stream.receive_some()
        assert len(world.upstream.asked) == 2
    assert b"SECRET" not in heard


@paths
async def test_half_a_character_hides_no_request(path: str) -> None:
    """A slice of an emoji, as agents cut them out of files. The provider gets what was sent."""
    replies = [Reply(STREAMS[path](said)) for said in ("It is SECRET-12.", "No.")]
    body = request(path, "half").replace(b'"half"', b'"half \\ud83d"')
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        answer = await post(world, path, body, None)
        first, again = world.upstream.asked
    assert "SECRET" not in answer.text
    assert first.body == body
    assert "half \ufffd" in repr(again.json)


async def test_a_response_in_the_background_is_watched_while_it_is_waited_for() -> None:
    replies = [Reply(responses_stream(said)) for said in ("It is SECRET-12.", "No.")]
    body = request("/v1/responses", stream=False, background=True)
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        answer = await post(world, "/v1/responses", body, None)
        asked = [(one.json["stream"], one.json["background"]) for one in world.upstream.asked]
    assert answer.json()["status"] == "completed"
    assert "SECRET" not in answer.text
    assert asked == [(True, True)] * 2
