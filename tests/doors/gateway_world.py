"""A gateway on loopback with a scripted upstream behind it: the world of the gateway tests."""

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from midstream.actors.stop_message_book import StopMessageBook
from midstream.actors.turn_settings import OnExhausted, PromptBudget
from midstream.doors.gateway import Gateway, gateway_app
from midstream.doors.gateway_request import Begun, Finished
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.http import serve_http
from midstream.messages.events import AnyEvent
from midstream.rules.policy import PolicySettings
from midstream.rules.rule import Action, InterruptMode, Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments

FIXTURES = Path(
    os.environ.get(
        "MIDSTREAM_FIXTURES", Path(__file__).resolve().parents[2].parent / "shared/fixtures"
    )
)
needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the fixtures are not here")


def rule(
    condition: str,
    *,
    name: str = "no-secret",
    scope: Sequence[Source] = (Source.TEXT, Source.TOOL),
    action: Action = Action.REMIND,
    mode: InterruptMode | None = None,
) -> Rule:
    return Rule(
        name=name,
        body="Never say that word.",
        conditions=(condition,),
        scope=tuple(ScopeToken(source) for source in scope),
        action=action,
        interrupt_mode=mode,
    )


def gateway_rules(*rules: Rule, on_exhausted: OnExhausted = OnExhausted.DELIVER) -> GatewayRules:
    rule_set = RuleSet(rules)
    raw = rule_set.wants_raw_arguments
    return GatewayRules(
        rule_set=rule_set,
        new_arguments=lambda call_id, tool: ToolArguments(call_id, tool, raw=raw),
        policy=PolicySettings(),
        budget=PromptBudget(),
        on_exhausted=on_exhausted,
        retry_delay_s=0.0,
    )


@dataclass
class Reply:
    """What the upstream answers: head, then pieces; `hold` keeps the connection open."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Sequence[tuple[str, str]] = ()
    hold: bool = False
    last_piece_after: trio.Event | None = None
    breaks: bool = False
    """Close the connection without the end of the body."""


@dataclass
class Asked:
    """A request that the upstream got."""

    line: str
    headers: dict[str, str]
    body: bytes
    at_s: float = field(default_factory=trio.current_time)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class ScriptedUpstream:
    """Answers the requests in order with its replies, the last one again and again; or each as
    `choose` says."""

    replies: Sequence[Reply] = ()
    asked: list[Asked] = field(default_factory=list[Asked])
    was_asked: trio.Event = field(default_factory=trio.Event)
    closed: trio.Event = field(default_factory=trio.Event)
    next_asked: trio.Event = field(default_factory=trio.Event)
    url: str = ""
    choose: "Callable[[Asked], Reply] | None" = None

    async def handle(self, stream: trio.SocketStream) -> None:
        async with stream:
            while (request := await _read_request(stream)) is not None:
                if self.choose is not None:
                    reply = self.choose(request)
                else:
                    reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
                self.asked.append(request)
                self.was_asked.set()
                self.next_asked.set()
                self.next_asked = trio.Event()
                if not await self._answer(stream, reply):
                    return

    async def wait_asked(self, times: int) -> None:
        """Until it was asked so many times."""
        with trio.fail_after(5):
            while len(self.asked) < times:
                await self.next_asked.wait()

    async def _answer(self, stream: trio.SocketStream, reply: Reply) -> bool:
        head = f"HTTP/1.1 {reply.status} Scripted\r\ncontent-type: {reply.content_type}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
        try:
            await stream.send_all(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            for number, piece in enumerate(reply.pieces, 1):
                if reply.last_piece_after is not None and number == len(reply.pieces):
                    await reply.last_piece_after.wait()
                await stream.send_all(b"%x\r\n%s\r\n" % (len(piece), piece))
            if reply.hold:
                while await stream.receive_some():
                    pass
                self.closed.set()
                return False
            if reply.breaks:
                return False
            await stream.send_all(b"0\r\n\r\n")
        except trio.BrokenResourceError:
            self.closed.set()
            return False
        return True


async def _read_request(stream: trio.SocketStream) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            more = await stream.receive_some()
        except trio.BrokenResourceError:
            return None
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await stream.receive_some()
    return Asked(first, headers, body)


@dataclass
class Request:
    """The record of one request: what is told of it, and its end."""

    begun: Begun
    reports: trio.MemorySendChannel[Finished]
    events: list[AnyEvent] = field(default_factory=list[AnyEvent])
    over: trio.Event = field(default_factory=trio.Event)

    def note(self, events: Sequence[AnyEvent]) -> None:
        self.events += events

    async def finish(self, finished: Finished) -> None:
        await self.reports.send(finished)
        self.over.set()


@dataclass
class World:
    url: str
    upstream: ScriptedUpstream
    requests: list[Request]
    reports: trio.MemoryReceiveChannel[Finished]

    async def finished(self) -> Finished:
        """What became of the next request that ended."""
        with trio.fail_after(5):
            return await self.reports.receive()


@asynccontextmanager
async def gateway_world(
    *replies: Reply,
    rules: GatewayRules | None = None,
    keep_alive_s: float = 10.0,
    make: Callable[[str], Upstream] | None = None,
    stop_messages: StopMessageBook | None = None,
) -> AsyncGenerator[World]:
    """A running gateway before an upstream that gives `replies`."""
    scripted = ScriptedUpstream(replies)
    ended, reports = trio.open_memory_channel[Finished](100)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        scripted.url = f"http://127.0.0.1:{port}"
        nursery.start_soon(trio.serve_listeners, scripted.handle, [listener])
        upstream = make(scripted.url) if make else Upstream("up", scripted.url)
        requests: list[Request] = []
        watched = rules or gateway_rules()

        def begin(begun: Begun) -> Request:
            requests.append(Request(begun, ended))
            return requests[-1]

        gateway = Gateway(
            [upstream],
            lambda: watched,
            begin,
            keep_alive_s,
            stop_messages=stop_messages,
        )
        async with serve_http(gateway_app(gateway), "127.0.0.1", 0) as url:
            yield World(url, scripted, requests, reports)
        await upstream.aclose()
        nursery.cancel_scope.cancel()


def cut(data: bytes, size: int) -> list[bytes]:
    """`data` in pieces of `size` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]
