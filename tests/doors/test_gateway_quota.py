"""That a key is out of quota all requests of that key know at once, however slow clients are.

No server: clients are functions, the upstream is a transport, and time is virtual.
"""

from collections.abc import Callable
from typing import Any, cast

import httpx2
import msgspec
import pytest
import trio
from gateway_streams import anthropic_stream, event
from gateway_world import gateway_rules, rule
from starlette.types import Message, Scope
from trio.testing import MockClock

from midstream.doors.gateway import Gateway
from midstream.doors.gateway_files import GatewayFiles
from midstream.doors.gateway_upstream import Upstream

WINDOW_S = 30


def spent() -> httpx2.Response:
    return httpx2.Response(
        429, headers={"retry-after": str(WINDOW_S)}, json={"error": {"message": "slow down"}}
    )


def streaming(*pieces: bytes) -> httpx2.Response:
    kind = {"content-type": "text/event-stream"}
    return httpx2.Response(200, headers=kind, content=b"".join(pieces))


def broken_off(*, as_an_event: bool) -> httpx2.Response:
    """A refusal, in place of the stream or within it."""
    if not as_an_event:
        return spent()
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "slow down"}}
    return streaming(*anthropic_stream("well")[:4], event(error))


class Provider(httpx2.AsyncBaseTransport):
    """Answers in this order, and remembers when it was asked."""

    def __init__(self, *answers: httpx2.Response) -> None:
        self._answers = list(answers)
        self.asked_at_s: list[float] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await trio.lowlevel.checkpoint()
        self.asked_at_s.append(trio.current_time())
        return self._answers[len(self.asked_at_s) - 1]


class Reader:
    """A client that stops reading at what `hangs_at` says, until `reads_on`."""

    def __init__(self, hangs_at: Callable[[Message], bool] = lambda message: False) -> None:
        self._hangs_at = hangs_at
        self._has_asked = False
        self.hangs = trio.Event()
        self.reads_on = trio.Event()
        self.got: list[Message] = []

    async def ask(self, gateway: Gateway) -> None:
        scope: Scope = {"type": "http", "method": "POST", "path": "/v1/messages"}
        scope["headers"] = [(b"x-api-key", b"sk-mine")]
        await gateway(scope, self._receive, self._send)

    @property
    def status(self) -> int:
        return self.got[0]["status"]

    async def _receive(self) -> Message:
        if self._has_asked:
            await trio.sleep_forever()
        self._has_asked = True
        asks = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Go"}]}
        return {"type": "http.request", "body": msgspec.json.encode(asks)}

    async def _send(self, message: Message) -> None:
        if self._hangs_at(message):
            self.hangs.set()
            await self.reads_on.wait()
        self.got.append(message)


def a_gateway(provider: Provider, files: GatewayFiles | None = None) -> Gateway:
    upstream = Upstream("up", "http://up.test", transport=lambda: provider)
    return Gateway([upstream], lambda: gateway_rules(rule("SECRET")), files=files)


@pytest.mark.parametrize("as_an_event", [False, True])
async def test_others_know_of_a_refusal_before_its_client_has_read_it(
    as_an_event: bool, autojump_clock: MockClock
) -> None:
    provider = Provider(
        broken_off(as_an_event=as_an_event), streaming(*anthropic_stream("too early"))
    )
    gateway = a_gateway(provider)
    slow, other = Reader(lambda message: b"slow down" in message.get("body", b"")), Reader()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.ask, gateway)
            await slow.hangs.wait()
            await other.ask(gateway)
            slow.reads_on.set()
    assert other.status == 429
    assert len(provider.asked_at_s) == 1


class SlowFiles:
    """Files that the first request waits for, until `are_read`."""

    def __init__(self) -> None:
        self.are_looked_for = trio.Event()
        self.are_read = trio.Event()

    async def attach(self, session: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        if not self.are_looked_for.is_set():
            self.are_looked_for.set()
            await self.are_read.wait()
        return body, []


async def test_a_request_is_not_sent_in_a_window_that_opens_while_it_is_made_ready(
    autojump_clock: MockClock,
) -> None:
    provider, files = Provider(spent(), streaming(*anthropic_stream("too early"))), SlowFiles()
    gateway = a_gateway(provider, cast("GatewayFiles", files))
    first, other = Reader(), Reader()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.ask, gateway)
            await files.are_looked_for.wait()
            await other.ask(gateway)
            await trio.sleep(WINDOW_S / 2)
            files.are_read.set()
    assert (first.status, other.status) == (429, 429)
    assert dict(first.got[0]["headers"])[b"retry-after"] == str(WINDOW_S // 2).encode()
    assert len(provider.asked_at_s) == 1
