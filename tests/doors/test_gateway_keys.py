"""Keys of clients go to the upstream, and nowhere else."""

import httpx2
import pytest
from gateway_streams import anthropic_stream
from gateway_world import Reply, gateway_world
from starlette.types import Message

from midstream.doors.gateway_backoff import window_key
from midstream.doors.gateway_client import Client

KEY = "sk-do-not-show-4711"
CARRIERS = pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", f"Bearer {KEY}"),
        ("x-api-key", KEY),
        ("api-key", KEY),
        ("cookie", f"session={KEY}"),
    ],
)


def client_with(*headers: tuple[str, str]) -> Client:
    async def receive() -> Message:
        raise AssertionError("nothing is read here")

    async def send(message: Message) -> None:
        raise AssertionError(f"nothing is answered here: {message}")

    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": raw}
    return Client(scope, receive, send)


@CARRIERS
async def test_headers_that_are_shown_hold_no_key_however_they_are_spelt(
    name: str, value: str
) -> None:
    for spelling in (name, name.upper(), name.title()):
        client = client_with((spelling, value), ("X-Session-Id", "s-1"))
        assert client.shown_headers == {"x-session-id": "s-1"}


@CARRIERS
async def test_what_is_told_of_a_request_holds_no_key_and_the_upstream_gets_it(
    name: str, value: str
) -> None:
    async with (
        gateway_world(Reply(anthropic_stream("All is well"))) as world,
        httpx2.AsyncClient(headers={name: value, "x-session-id": "s-1"}) as client,
    ):
        await client.post(f"{world.url}/v1/messages", json={"model": "m", "stream": True})
    [request] = world.requests
    assert request.begun.headers["x-session-id"] == "s-1"
    assert not [each for each in request.begun.headers.values() if KEY in each]
    assert world.upstream.asked[0].headers[name] == value


@pytest.mark.parametrize("name", ["x-api-key", "authorization"])
async def test_a_window_is_that_of_its_key_and_does_not_say_which(name: str) -> None:
    mine, again, theirs = (
        window_key("up", client_with((name, key))) for key in (KEY, KEY, "sk-another")
    )
    assert mine == again != theirs
    assert not any(KEY in part for part in mine)
