"""A request that is stopped while something is being written to its client.

Half of a message cannot be followed by another, whatever stops it: what is being written goes
out first, and what the client then gets is a whole answer.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import trio
from gateway_streams import chat_stream
from gateway_world import Reply, ScriptedUpstream, gateway_rules
from starlette.types import Message, Scope
from trio.testing import MockClock

from midstream.doors.gateway import Gateway
from midstream.doors.gateway_client import LAST_SEND_S
from midstream.doors.gateway_request import Begun, Finished
from midstream.doors.gateway_upstream import Upstream
from midstream.messages.events import AnyEvent
from midstream.messages.loop_guard import FOLLOW_UP_TIMEOUT_S
from midstream.messages.record import SessionStatus
from midstream.providers.http import Timeouts

PATIENT = Timeouts(connect_s=1e6, first_byte_s=1e6, idle_s=1e6)
STREAM = chat_stream("Hello, world")
HELLO = 'Hello <**stopMessage:"go on",1**>'
HEAD, BODY = "http.response.start", "http.response.body"
NOWHERE = b"\0"


@dataclass
class Server:
    """What stands between the gateway and one client: takes the first message that holds
    `slow_at`, or the head without it, only when it is let. With `NOWHERE` it is never slow."""

    body: bytes
    slow_at: bytes | None
    sent: list[Message] = field(default_factory=list[Message])
    begun: list[Begun] = field(default_factory=list[Begun])
    finished: list[Finished] = field(default_factory=list[Finished])
    is_slow: trio.Event = field(default_factory=trio.Event)
    may_go_on: trio.Event = field(default_factory=trio.Event)

    async def receive(self) -> Message:
        if self.body:
            body, self.body = self.body, b""
            return {"type": "http.request", "body": body}
        await trio.sleep_forever()
        raise AssertionError

    async def send(self, message: Message) -> None:
        is_head = message["type"] == HEAD
        if is_head if self.slow_at is None else self.slow_at in message.get("body", b""):
            self.is_slow.set()
            await self.may_go_on.wait()
        self.sent.append(message)

    def begin(self, begun: Begun) -> "Server":
        self.begun.append(begun)
        if self.slow_at == NOWHERE:
            self.is_slow.set()
        return self

    def note(self, events: Sequence[AnyEvent]) -> None:
        pass

    async def finish(self, finished: Finished) -> None:
        self.finished.append(finished)

    @property
    def text(self) -> str:
        """The body; fails for messages that no server would take."""
        assert [message["type"] for message in self.sent] == [HEAD, *[BODY] * (len(self.sent) - 1)]
        more = [message["more_body"] for message in self.sent[1:]]
        assert more == [True] * (len(more) - 1) + [False]
        return b"".join(message["body"] for message in self.sent[1:]).decode()


@asynccontextmanager
async def asked(slow_at: bytes | None, content: str, *replies: Reply) -> AsyncGenerator[Server]:
    """A request whose client is slow with one message; at the end it is let to go on."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, ScriptedUpstream(replies).handle, [listener])
        address = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        upstream = Upstream("up", address, timeouts=PATIENT)
        asks: Any = {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": content}],
        }
        server, rules = Server(msgspec.json.encode(asks), slow_at), gateway_rules()
        gateway = Gateway([upstream], lambda: rules, server.begin)
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [],
        }
        async with trio.open_nursery() as requests:
            requests.start_soon(gateway, scope, server.receive, server.send)
            await server.is_slow.wait()
            yield server
        await upstream.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("slow_at", [None, b"Hello"])
async def test_what_is_being_written_is_written_before_a_stop_is_told(
    slow_at: bytes | None,
) -> None:
    async with asked(slow_at, "Hello", Reply(STREAM[:4], hold=True)) as server:
        server.begun[0].stop("enough")
        await trio.testing.wait_all_tasks_blocked()
        server.may_go_on.set()
    assert "enough" in server.text
    assert server.finished[0].status is SessionStatus.CANCELLED


@pytest.mark.parametrize("slow_at", [None, b"choices"])
@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_that_is_being_written_whole_is_written_whole(
    status: int, slow_at: bytes | None
) -> None:
    whole = b'{"id": "x", "choices": []}'
    reply = Reply([whole], status, "application/json")
    async with asked(slow_at, "Hello", reply) as server:
        server.begun[0].stop("enough")
        await trio.testing.wait_all_tasks_blocked()
        server.may_go_on.set()
    assert server.text == whole.decode()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(STREAM[:4], hold=True), id="a stream"),
        pytest.param(Reply([b'{"id": "x", "choices": []}'], 200, "application/json"), id="whole"),
        pytest.param(Reply([b'{"error": {}}'], 400, "application/json"), id="a refusal"),
    ],
)
async def test_a_client_gets_a_whole_answer_whenever_its_request_is_stopped(reply: Reply) -> None:
    for rounds in range(60):
        async with asked(NOWHERE, "Hello", reply) as server:
            for _ in range(rounds):
                await trio.lowlevel.checkpoint()
            server.begun[0].stop("enough")
        assert server.text


async def test_a_client_that_does_not_read_is_not_waited_for_long(mock_clock: MockClock) -> None:
    async with asked(b"Hello", "Hello", Reply(STREAM[:4], hold=True)) as server:
        server.begun[0].stop("enough")
        await trio.testing.wait_all_tasks_blocked()
        assert not server.finished
        mock_clock.jump(LAST_SEND_S)
    assert not any(b"Hello" in message.get("body", b"") for message in server.sent)
    assert not any(message.get("more_body") is False for message in server.sent)
    assert server.finished[0].status is SessionStatus.CANCELLED


async def test_what_is_being_written_is_written_before_a_continuation_is_cut(
    mock_clock: MockClock,
) -> None:
    ended = Reply(chat_stream("One."))
    speaking = Reply(chat_stream("Two is more.")[:2], hold=True)
    async with asked(b"Two", HELLO, ended, speaking) as server:
        mock_clock.jump(FOLLOW_UP_TIMEOUT_S)
        await trio.testing.wait_all_tasks_blocked()
        server.may_go_on.set()
    assert "One." in server.text
    assert server.text.endswith("data: [DONE]\n\n")
