"""Hostile clients beside an honest one: nothing they send harms the server or the other.

Attacks are drawn from a seed, many at a time, on streams in memory; some again over real
sockets. The honest client's session has to arrive whole, and the server has to take the next
client when all is over.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from raw_client import RawClient, raw_client
from trio.testing import MockClock

from midstream.config import WebsocketConfig
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.wire_codec import JSON_PROTOCOL, MSGPACK_PROTOCOL
from midstream.providers.scripted import Pause, Script, answer
from midstream.testing.wire import HOST, open_wire
from midstream.testing.world import open_world
from midstream.websocket import open_websocket

TOKEN = "s3cret-token"
HELLO = json.dumps({"type": "hello", "token": TOKEN, "capabilities": ["deltas"]}).encode()
WORDS = 400
STORY = "".join(f"<{number}>" for number in range(WORDS))


def story(pause_s: float) -> Script:
    yield from (StreamStarted(), BlockStarted(0, "text"))
    for number in range(WORDS):
        yield from (TextDelta(0, f"<{number}>"), Pause(pause_s))
    yield from answer("")[1:]


def handshake(
    host: str = HOST,
    origin: str | None = None,
    protocol: str = JSON_PROTOCOL,
    extensions: str | None = None,
) -> bytes:
    lines = [
        "GET /v1 HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Sec-WebSocket-Protocol: {protocol}",
        *([f"Origin: {origin}"] if origin else []),
        *([f"Sec-WebSocket-Extensions: {extensions}"] if extensions else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True
) -> bytes:
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    mask = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head = bytes([first, mask | size])
    elif size < 65_536:
        head = bytes([first, mask | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, mask | 127]) + size.to_bytes(8, "big")
    return head + (b"\0\0\0\0" if masked else b"") + payload


Attack = Callable[[Random], Sequence[bytes | float]]
"""The pieces that are sent, one after the other, and the seconds between them. None of them
has to make sense."""


def noise(random: Random) -> list[bytes]:
    return [random.randbytes(random.randint(1, 3_000)) for _ in range(random.randint(1, 5))]


def half_a_handshake(random: Random) -> list[bytes]:
    whole = handshake()
    return [whole[: random.randrange(len(whole))]]


def a_broken_handshake(random: Random) -> list[bytes]:
    whole = bytearray(handshake())
    for _ in range(random.randint(1, 8)):
        whole[random.randrange(len(whole))] = random.randrange(256)
    return [bytes(whole)]


def an_endless_handshake(random: Random) -> list[bytes]:
    return [b"GET /v1 HTTP/1.1\r\n", *[b"X-Long: " + b"x" * 4_000 + b"\r\n"] * 50]


def a_foreign_origin(random: Random) -> list[bytes]:
    return [handshake(origin="https://evil.example")]


def a_foreign_name(random: Random) -> list[bytes]:
    return [handshake(host=random.choice(["evil.example", "xn--", "\u00e9" * 70, "[::1", " "]))]


def a_wrong_token(random: Random) -> list[bytes]:
    wrong = json.dumps({"type": "hello", "token": TOKEN[:-1]}).encode()
    return [handshake(), frame(1, wrong)]


def silence(random: Random) -> list[bytes]:
    return [handshake()]


def frames_of_noise(random: Random) -> list[bytes]:
    return [handshake(), frame(1, HELLO), *noise(random)]


def strange_frames(random: Random) -> list[bytes]:
    strange = [
        frame(
            random.randrange(16),
            random.randbytes(random.randint(0, 300)),
            fin=random.random() < 0.7,
            rsv=random.choice([0, 0, 0, 1, 7]),
            masked=random.random() < 0.8,
        )
        for _ in range(random.randint(1, 20))
    ]
    return [handshake(), frame(1, HELLO), *strange]


def a_huge_frame(random: Random) -> list[bytes]:
    head = bytes([0x82, 0x80 | 127]) + (2**62).to_bytes(8, "big") + b"\0\0\0\0"
    return [handshake(), frame(1, HELLO), head, *[b"x" * 65_536] * 20]


def a_message_without_end(random: Random) -> list[bytes]:
    part = frame(0, b"", fin=False)
    return [handshake(), frame(1, HELLO), frame(1, b"", fin=False), *[part * 100] * 30]


def pings_without_end(random: Random) -> list[bytes]:
    return [handshake(), frame(1, HELLO), *[frame(9, b"ping") * 50] * 30]


def bad_text(random: Random) -> list[bytes]:
    return [handshake(), frame(1, HELLO), frame(1, b"\xff\xfe\xed\xa0\x80")]


def bad_closes(random: Random) -> list[bytes]:
    payload = random.choice([b"\x03", b"\x03\xed", b"\x00\x00", b"\x03\xe8" + b"\xff" * 50])
    return [handshake(), frame(1, HELLO), frame(8, payload), frame(1, b"{}"), frame(9)]


def requests_that_make_no_sense(random: Random) -> list[bytes]:
    kinds = ["submit", "cancel", "subscribe", "unsubscribe", "tool_result", "list", "status", "?"]
    values: list[Any] = [
        None,
        -1,
        2**70,
        "x" * 200,
        [],
        {},
        [[[[[[]]]]]],
        {"kind": 5},
        "ses-none",
        "\u0000",
    ]
    names = ["id", "session", "segments", "after", "epoch", "limit", "call_id", "content", "tools"]
    said: list[bytes] = []
    for _ in range(30):
        fields = {name: random.choice(values) for name in random.sample(names, 4)}
        request = {"type": random.choice(kinds), "id": 1, **fields}
        said.append(frame(1, json.dumps(request).encode()))
    return [handshake(), frame(1, HELLO), *said]


def deep_nesting(random: Random) -> list[bytes]:
    deep = b'{"type":"submit","id":1,"segments":' + b"[" * 200_000
    return [handshake(), frame(1, HELLO), frame(1, deep)]


def deep_nesting_in_binary(random: Random) -> list[bytes]:
    hello = msgspec.msgpack.encode(json.loads(HELLO))
    deep = b"\x83\xa4type\xa6submit\xa2id\x01\xa8segments" + b"\x91" * 200_000
    liar = b"\xdd\xff\xff\xff\xff"  # an array of four billion entries, of which none comes
    start = [handshake(protocol=MSGPACK_PROTOCOL), frame(2, hello)]
    return [*start, frame(2, deep), frame(2, liar), frame(2, random.randbytes(300))]


def numbers_without_end(random: Random) -> list[bytes]:
    number = random.choice([b"9" * 500_000, b"1e999999999", b"-" + b"0" * 500_000, b"NaN"])
    return [handshake(), frame(1, HELLO), frame(1, b'{"type":"ping","id":' + number + b"}")]


def one_byte_at_a_time(random: Random) -> list[bytes | float]:
    """A slow loris: it is never silent, and never gets anywhere."""
    pieces: list[bytes | float] = []
    for byte in handshake() + frame(1, HELLO):
        pieces += [bytes([byte]), random.uniform(0, 0.5)]
    return pieces


def a_bomb(random: Random) -> list[bytes]:
    """Little that would be much, if the server agreed to unpack it."""
    start = handshake(extensions="permessage-deflate; client_max_window_bits")
    return [start, frame(1, HELLO), frame(1, zlib.compress(b"x" * 5_000_000), rsv=4)]


def requests_without_end(random: Random) -> list[bytes]:
    """They make sense, but nobody could want so many answers."""
    kinds = [
        {"type": "list", "limit": 500},
        {"type": "status"},
        {"type": "subscribe", "session": "ses-none"},
        {"type": "unsubscribe", "session": "ses-none"},
        {"type": "cancel", "session": "ses-none"},
    ]
    said = [json.dumps({**random.choice(kinds), "id": id}).encode() for id in range(2_000)]
    return [handshake(), frame(1, HELLO), *[frame(1, request) for request in said]]


def subscriptions_without_end(random: Random) -> list[bytes]:
    said = [{"type": "subscribe", "id": id, "session": f"ses-{id}"} for id in range(500)]
    return [handshake(), frame(1, HELLO), *[frame(1, json.dumps(one).encode()) for one in said]]


ATTACKS: list[Attack] = [
    noise,
    half_a_handshake,
    a_broken_handshake,
    an_endless_handshake,
    a_foreign_origin,
    a_foreign_name,
    a_wrong_token,
    silence,
    frames_of_noise,
    strange_frames,
    a_huge_frame,
    a_message_without_end,
    pings_without_end,
    bad_text,
    bad_closes,
    requests_that_make_no_sense,
    deep_nesting,
    deep_nesting_in_binary,
    numbers_without_end,
    one_byte_at_a_time,
    a_bomb,
    requests_without_end,
    subscriptions_without_end,
]


async def attack(stream: trio.abc.Stream, seed: int, which: Attack) -> None:
    """Send the pieces, read what comes or do not, and leave in some way."""
    random = Random(seed)
    pieces = which(random)
    async with stream:
        with trio.move_on_after(120), suppress(trio.BrokenResourceError):
            for number, piece in enumerate(pieces):
                if not isinstance(piece, bytes):
                    await trio.sleep(piece)
                    continue
                await stream.send_all(piece)
                if number < 2:
                    await trio.sleep(0.01)
            if random.random() < 0.5:
                while await stream.receive_some():
                    pass
            elif random.random() < 0.5:
                await trio.sleep(random.uniform(0, 30))


async def honest(client: RawClient) -> None:
    await client.submit()
    events = [frame["event"] for frame in await client.events()]
    assert "".join(e["text"] for e in events if e["event"] == "text") == STORY
    assert events[-1]["status"] == "completed"


@pytest.mark.parametrize("which", ATTACKS, ids=lambda which: which.__name__)
async def test_an_attack_harms_nobody(which: Attack, autojump_clock: MockClock) -> None:
    config = WebsocketConfig(hosts=(HOST,), half_open=8)
    async with (
        open_world(story(0.02), answer("the next")) as world,
        open_wire(world.runtime, config, token=TOKEN) as wire,
    ):
        hello = json.loads(HELLO)
        del hello["type"]
        async with trio.open_nursery() as attackers, raw_client(wire, hello=hello) as client:
            for seed in range(12):
                stream = wire.stream(is_buffered=seed % 2 == 0)
                attackers.start_soon(attack, stream, seed, which)
            await honest(client)
        await trio.sleep(60)
        assert wire.service.connections == 0
        async with raw_client(wire, hello=hello) as client:
            await client.submit()
            assert (await client.events())[-1]["event"]["output"] == "the next"


async def test_all_attacks_at_once_over_sockets() -> None:
    config = WebsocketConfig(port=0, half_open=16)
    async with (
        open_world(story(0.002), answer("the next")) as world,
        open_websocket(world.runtime, config, token=TOKEN) as door,
    ):
        port = int(door.urls[0].rpartition(":")[2].partition("/")[0])
        hello = json.loads(HELLO)
        del hello["type"]
        async with trio.open_nursery() as attackers:
            for number, which in enumerate(ATTACKS * 2):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                attackers.start_soon(attack, stream, number, which)
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            name = f"127.0.0.1:{port}"
            with trio.fail_after(30):
                async with raw_client(stream, host=name, hello=hello) as client:
                    await honest(client)
            attackers.cancel_scope.cancel()
        with trio.fail_after(10):
            while True:
                if not (await door.status()).connections:
                    break
                await trio.sleep(0.05)
