"""What the gateway keeps of a request, and of an answer that a rule holds back, is bounded."""

import httpx2
import pytest
from gateway_streams import STREAMS, anthropic_stream
from gateway_world import Reply, gateway_rules, gateway_world, rule
from msgspec.structs import replace
from starlette.types import Message

from midstream.doors import gateway_client
from midstream.doors.gateway_client import BodyTooLarge, Client
from midstream.doors.gateway_exchange import Exchange, Phase
from midstream.doors.gateway_protocols import WIRES

LIMIT_BYTES = 20_000


@pytest.mark.parametrize("path", STREAMS)
def test_an_answer_that_is_held_for_too_long_fails_and_nothing_of_it_goes_out(path: str) -> None:
    rules = replace(gateway_rules(rule("secret.*never ends")), hold_limit_bytes=LIMIT_BYTES)
    exchange = Exchange(WIRES[path], rules, {}, streams=True, recorded={}, turn=1, now_s=0.0)
    exchange.begin()
    out, read = b"", 0
    for piece in STREAMS[path]("well, secret" + " and more" * LIMIT_BYTES, size=20):
        out += exchange.feed(piece)
        read += len(piece)
        if exchange.phase is not Phase.STREAMING:
            break
    assert exchange.phase is Phase.OVER
    assert read < LIMIT_BYTES + 10_000
    assert b"secret" not in out
    assert f"more than {LIMIT_BYTES} bytes".encode() in out


def client_sending(*pieces: bytes) -> tuple[Client, list[bytes]]:
    """A client over ASGI, and the pieces of its body that nobody has taken."""
    left = list(pieces)

    async def receive() -> Message:
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(message: Message) -> None:
        raise AssertionError(f"nothing is answered here: {message}")

    headers: list[tuple[bytes, bytes]] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": headers}
    return Client(scope, receive, send), left


async def test_a_body_is_read_up_to_the_limit_and_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_client, "BODY_LIMIT_BYTES", 10)
    client, left = client_sending(b"12345", b"67890")
    assert await client.read_body() == b"1234567890"
    assert left == []
    client, left = client_sending(b"12345", b"678901", b"never read", b"nor this")
    with pytest.raises(BodyTooLarge, match="larger than 10 bytes"):
        await client.read_body()
    assert left == [b"never read", b"nor this"]


async def test_whoever_sends_too_much_is_told_and_the_upstream_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_client, "BODY_LIMIT_BYTES", 1_000)
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 2_000}]}
    async with (
        gateway_world(Reply(anthropic_stream("never"))) as world,
        httpx2.AsyncClient() as client,
    ):
        refused = await client.post(f"{world.url}/v1/messages", json=body)
    assert refused.status_code == 413
    assert "larger than 1000 bytes" in refused.json()["error"]["message"]
    assert world.upstream.asked == []
