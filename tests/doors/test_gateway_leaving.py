"""Clients that leave, at any point: the provider's connection is closed, and nothing stays."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
import trio
from gateway_streams import anthropic_stream
from gateway_world import Reply, gateway_rules, gateway_world, rule
from msgspec.structs import replace

from midstream.doors.gateway import Gateway, gateway_app
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.http import serve_http
from midstream.providers.http_connections import MAX_IDLE

PATIENCE_S = 60.0
BODY = b'{"stream":true,"model":"m"}'
SECRET = rule(r"SECRET-\d+")


async def asked(url: str, body: bytes = BODY) -> trio.SocketStream:
    """A connection on which an answer was asked for."""
    host, _, port = url.removeprefix("http://").partition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    await stream.send_all(head.encode() + body)
    return stream


@dataclass
class EndlessUpstream:
    """Counts its connections, and the answers that it is giving. Never says anything (`mute`),
    or says what `pieces` are and waits for more to be wanted."""

    pieces: list[bytes]
    mute: bool = False
    connections: int = 0
    answering: int = 0
    asked: int = 0
    changed: trio.Condition = field(default_factory=trio.Condition)

    async def handle(self, stream: trio.SocketStream) -> None:
        await self._count(connections=1)
        try:
            async with stream:
                while (body := await self._request(stream)) is not None:
                    await self._count(answering=1)
                    try:
                        await self._answer(stream, ends=b'"ends"' in body)
                    finally:
                        await self._count(answering=-1)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self._count(connections=-1)

    async def until(self, *, connections: int, answering: int, asked: int = 0) -> None:
        """Wait until so many requests were made, and no more than so much is open."""
        with trio.fail_after(PATIENCE_S):
            async with self.changed:
                while (
                    self.connections > connections
                    or self.answering > answering
                    or self.asked < asked
                ):
                    await self.changed.wait()

    async def _count(self, connections: int = 0, answering: int = 0) -> None:
        with trio.CancelScope(shield=True):
            async with self.changed:
                self.connections += connections
                self.answering += answering
                self.asked += max(0, answering)
                self.changed.notify_all()

    async def _request(self, stream: trio.SocketStream) -> bytes | None:
        data = b""
        while b"}" not in data:
            more = await stream.receive_some()
            if not more:
                return None
            data += more
        return data

    async def _answer(self, stream: trio.SocketStream, *, ends: bool) -> None:
        if not self.mute:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            await stream.send_all(head + b"transfer-encoding: chunked\r\n\r\n")
            for piece in self.pieces:
                await stream.send_all(b"%x\r\n%s\r\n" % (len(piece), piece))
        if ends:
            await stream.send_all(b"0\r\n\r\n")
            return
        if await stream.receive_some():
            raise AssertionError("a second request before the first was answered")
        await stream.aclose()


@dataclass
class Leaving:
    url: str
    upstream: EndlessUpstream


@asynccontextmanager
async def world(upstream: EndlessUpstream, rules: GatewayRules) -> AsyncGenerator[Leaving]:
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, upstream.handle, [listener])
        behind = Upstream("up", f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        async with serve_http(gateway_app(Gateway([behind], lambda: rules)), "127.0.0.1", 0) as url:
            yield Leaving(url, upstream)
        await behind.aclose()
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_before_the_first_byte_is_noticed() -> None:
    upstream = EndlessUpstream([], mute=True)
    async with world(upstream, gateway_rules(SECRET)) as here:
        stream = await asked(here.url)
        await upstream.until(connections=1, answering=1, asked=1)
        await stream.aclose()
        await upstream.until(connections=0, answering=0)


async def test_a_client_that_leaves_while_text_is_held_is_noticed() -> None:
    """It hears nothing then, so nothing is written that could fail."""
    begun = anthropic_stream("SECRET-1", size=20)[:4]
    held = rule(r"SECRET-\d+ and more")
    upstream = EndlessUpstream(begun)
    async with world(upstream, gateway_rules(held)) as here:
        stream = await asked(here.url)
        await stream.receive_some()
        await stream.aclose()
        await upstream.until(connections=0, answering=0, asked=1)


async def test_a_client_that_leaves_while_it_waits_for_the_whole_answer_is_noticed() -> None:
    upstream = EndlessUpstream(anthropic_stream("Nothing of it")[:5])
    async with world(upstream, gateway_rules(SECRET)) as here:
        stream = await asked(here.url, b'{"model":"m"}')
        await upstream.until(connections=1, answering=1, asked=1)
        await stream.aclose()
        await upstream.until(connections=0, answering=0)


async def test_a_client_that_leaves_between_two_attempts_ends_the_request() -> None:
    bad = Reply(anthropic_stream("It is SECRET-1.", size=4), hold=True)
    rules = replace(gateway_rules(SECRET), retry_delay_s=3600.0)
    async with gateway_world(bad, rules=rules) as here:
        stream = await asked(here.url)
        with trio.fail_after(PATIENCE_S):
            await here.upstream.closed.wait()
        await stream.aclose()
        done = await here.finished()
    assert done.gone
    assert done.exchange.attempts == 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [60])
async def test_of_many_clients_that_leave_at_random_nothing_stays(count: int, seed: int) -> None:
    """Some read to the end, some leave after any number of bytes, some without reading."""
    pieces = anthropic_stream("All is well, and so it goes on. " * 30, size=6)
    upstream = EndlessUpstream(pieces)
    random = Random(seed)
    complete = 0

    async def read_and_leave(url: str, limit: int | None) -> None:
        nonlocal complete
        body = BODY if limit is not None else b'{"stream":true,"model":"ends"}'
        async with await asked(url, body) as stream:
            got = b""
            while limit is None or len(got) < limit:
                got += await stream.receive_some(random.randrange(1, 4096))
                if got.endswith(b"\r\n0\r\n\r\n"):
                    break
            complete += limit is None and b"message_stop" in got

    async with world(upstream, gateway_rules(SECRET)) as here:
        size = sum(map(len, pieces))
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    limit = None if number % 3 == 0 else random.randrange(0, size)
                    nursery.start_soon(read_and_leave, here.url, limit)
        await upstream.until(connections=MAX_IDLE, answering=0)
        assert complete == len(range(0, count, 3))
        # The gateway has kept its place for everybody who comes now.
        await read_and_leave(here.url, None)
    assert upstream.asked <= count + 1
    await upstream.until(connections=0, answering=0)
