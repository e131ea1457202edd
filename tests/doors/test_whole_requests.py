"""A request that was not read to its end is, before an error is answered."""

import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.doors import whole_requests
from midstream.doors.http import host_app, serve_http
from midstream.doors.whole_requests import REST_S, WholeRequests

MORE: Message = {"type": "http.request", "body": b"more", "more_body": True}
LAST: Message = {"type": "http.request", "body": b"last", "more_body": False}
GONE: Message = {"type": "http.disconnect"}
CLOSES = (b"connection", b"close")


def refusing(status: int) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


class Exchange:
    """One request to an app that refuses it; its client sends `messages`, and then no more."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.left = list(messages)
        self.answer: list[Message] = []

    async def run(self, status: int) -> "Exchange":
        await WholeRequests(refusing(status))({"type": "http"}, self._receive, self._send)
        return self

    @property
    def closes(self) -> bool:
        return CLOSES in self.answer[0]["headers"]

    async def _receive(self) -> Message:
        if not self.left:
            await trio.sleep_forever()
        return self.left.pop(0)

    async def _send(self, message: Message) -> None:
        self.answer.append(message)


@pytest.mark.parametrize("messages", [[LAST], [MORE, LAST], [MORE, MORE, LAST], [MORE, GONE]])
@pytest.mark.parametrize("status", [400, 401, 415, 500])
async def test_what_is_left_of_a_request_is_read_before_an_error_is_answered(
    messages: list[Message], status: int, autojump_clock: MockClock
) -> None:
    exchange = await Exchange(messages).run(status)
    assert (exchange.left, exchange.closes) == ([], False)
    assert [message["type"] for message in exchange.answer] == [
        "http.response.start",
        "http.response.body",
    ]


async def test_who_does_not_go_on_is_told_that_the_connection_closes(
    autojump_clock: MockClock,
) -> None:
    began_at = trio.current_time()
    exchange = await Exchange([MORE]).run(401)
    assert exchange.closes
    assert trio.current_time() - began_at == pytest.approx(REST_S)


async def test_who_sends_without_end_is_told_that_the_connection_closes(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(whole_requests, "REST_LIMIT_BYTES", 10)
    exchange = await Exchange([MORE] * 100).run(413)
    assert (len(exchange.left), exchange.closes) == (97, True)


async def test_an_answer_that_is_no_error_waits_for_nothing(autojump_clock: MockClock) -> None:
    exchange = await Exchange([MORE]).run(200)
    assert (exchange.left, exchange.closes) == ([MORE], False)


@asynccontextmanager
async def connection() -> AsyncGenerator[trio.SocketStream]:
    """A connection to a host that refuses everybody, by the head of the request alone."""
    async with serve_http(host_app([], "secret"), "127.0.0.1", 0) as url:
        stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with stream:
            yield stream


async def hear_refusals(stream: trio.SocketStream, number: int) -> None:
    said = b""
    while said.count(b"HTTP/1.1 401") < number:
        data = await stream.receive_some()
        assert data, said
        said += data


HEAD = b"POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


async def test_the_request_behind_one_that_was_refused_is_answered() -> None:
    async with connection() as stream:
        await stream.send_all(HEAD)
        await wait_all_tasks_blocked(0.01)
        await stream.send_all(b"body" + HEAD + b"body")
        with trio.fail_after(20):
            await hear_refusals(stream, 2)


async def test_a_connection_outlives_the_patience_of_its_clients(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0.02  # what is under way in a socket is no silence
    async with connection() as stream:
        for silence_s in (0, 5, 15, 60):
            await trio.sleep(silence_s)
            await stream.send_all(HEAD + b"body")
            await hear_refusals(stream, 1)
