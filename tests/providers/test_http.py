"""Streams over HTTP against a real server: what arrives, what fails, and what an abort closes."""

import gc
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import (
    AnyStreamMessage,
    Ping,
    StopReason,
    StreamFailed,
    StreamFinished,
    TextDelta,
)
from midstream.providers.anthropic import AnthropicProvider
from midstream.providers.http import DRAIN_S, LINGER_S, Timeouts
from midstream.providers.http_connections import CLOSE_S
from midstream.providers.openai_chat import OpenAIChatProvider

REQUEST = ModelRequest(model="m", items=(UserItem("hello"),))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
SECOND = b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
PATIENCE_S = 10.0


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WHOLE = HEAD + b"".join(map(chunk, [FIRST, SECOND, DONE])) + b"0\r\n\r\n"

Handler = Callable[["Connection"], Awaitable[None]]


class Connection:
    """The server's end of one connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.requests: list[bytes] = []
        self.closed_by_client = trio.Event()

    async def next_request(self) -> bool:
        """Read one request with its body; False when the client has closed."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = await self.receive()
            if not more:
                return False
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        while len(body) < length:
            body += await self.receive()
        self.requests.append(head + b"\r\n\r\n" + body)
        return True

    async def receive(self) -> bytes:
        try:
            data = await self.stream.receive_some()
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self.closed_by_client.set()
        return data

    async def send(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError:
            self.closed_by_client.set()

    async def until_closed(self) -> None:
        while await self.receive():
            pass


class Server:
    def __init__(self, handler: Handler) -> None:
        self.port = 0
        self.connections: list[Connection] = []
        self.accepted = trio.Event()
        self._handler = handler

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, stream: trio.SocketStream) -> None:
        connection = Connection(stream)
        self.connections.append(connection)
        self.accepted.set()
        async with stream:
            await self._handler(connection)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[Server]:
    server = Server(handler)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


async def answer(connection: Connection) -> None:
    while await connection.next_request():
        await connection.send(WHOLE)


@asynccontextmanager
async def chat(server: Server, **settings: Any) -> AsyncGenerator[OpenAIChatProvider]:
    provider = OpenAIChatProvider(base_url=server.url, **settings)
    try:
        yield provider
    finally:
        await provider.aclose()


async def everything(provider: OpenAIChatProvider) -> list[AnyStreamMessage]:
    async with provider.open(REQUEST) as batches:
        return [message async for batch in batches for message in batch]


def text_of(messages: Sequence[AnyStreamMessage]) -> str:
    return "".join(message.text for message in messages if isinstance(message, TextDelta))


async def failure_of(provider: OpenAIChatProvider) -> ProviderFailure:
    last = (await everything(provider))[-1]
    assert isinstance(last, StreamFailed)
    return last.failure


async def test_a_stream_is_read_to_its_end_and_its_connection_serves_the_next_one():
    async with serving(answer) as server, chat(server) as provider:
        for _ in range(3):
            messages = await everything(provider)
            assert text_of(messages) == "Hello"
            assert messages[-1] == StreamFinished(StopReason.END_TURN, "stop")
        assert len(server.connections) == 1
        assert len(server.connections[0].requests) == 3


async def test_each_read_gives_one_batch_with_all_that_it_completed():
    async def handler(connection: Connection) -> None:
        await connection.next_request()
        await connection.send(HEAD + chunk(FIRST + FIRST + SECOND[:10]))
        await connection.send(chunk(SECOND[10:] + DONE) + b"0\r\n\r\n")

    async with (
        serving(handler) as server,
        chat(server) as provider,
        provider.open(REQUEST) as batches,
    ):
        texts = [text_of(batch) async for batch in batches]
    assert texts == ["HelHel", "lo"]


async def test_the_request_carries_key_and_body_and_asks_for_plain_bytes():
    async with serving(answer) as server, chat(server, api_key="sk-secret") as provider:
        await everything(provider)
    request = server.connections[0].requests[0]
    assert request.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"authorization: bearer sk-secret\r\n" in request.lower()
    assert b"accept-encoding: identity\r\n" in request.lower()
    assert b'"stream":true' in request


# --- Aborts -----------------------------------------------------------------------------------


async def silent(connection: Connection) -> None:
    await connection.next_request()
    await connection.until_closed()


async def only_head(connection: Connection) -> None:
    await connection.next_request()
    await connection.send(HEAD)
    await connection.until_closed()


async def first_event(connection: Connection) -> None:
    await connection.next_request()
    await connection.send(HEAD + chunk(FIRST))
    await connection.until_closed()


async def half_an_event(connection: Connection) -> None:
    await connection.next_request()
    await connection.send(HEAD + chunk(FIRST[:20]))
    await connection.until_closed()


async def flood(connection: Connection) -> None:
    await connection.next_request()
    await connection.send(HEAD)
    while not connection.closed_by_client.is_set():
        await connection.send(chunk(FIRST) * 50)


@pytest.mark.parametrize("handler", [silent, only_head, first_event, half_an_event])
async def test_an_abort_closes_the_connection_at_once(handler: Handler):
    async with serving(handler) as server, chat(server) as provider:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def stream() -> None:
                    async with provider.open(REQUEST) as batches:
                        async for _ in batches:
                            pass

                nursery.start_soon(stream)
                await server.accepted.wait()
                await trio.testing.wait_all_tasks_blocked(0.01)
                scope.cancel()
        with trio.fail_after(PATIENCE_S):
            await server.connections[0].closed_by_client.wait()
        gc.collect()


@pytest.mark.parametrize("handler", [first_event, flood])
async def test_leaving_between_two_events_closes_the_connection_at_once(handler: Handler):
    async with serving(handler) as server, chat(server) as provider:
        async with provider.open(REQUEST) as batches:
            async for _ in batches:
                break
        with trio.fail_after(PATIENCE_S):
            await server.connections[0].closed_by_client.wait()
        gc.collect()


async def test_leaving_while_the_rest_has_arrived_already_closes_the_connection():
    async def handler(connection: Connection) -> None:
        await connection.next_request()
        await connection.send(WHOLE)
        await connection.until_closed()

    async with serving(handler) as server, chat(server) as provider:
        async with provider.open(REQUEST) as batches:
            async for _ in batches:
                break
        with trio.fail_after(PATIENCE_S):
            await server.connections[0].closed_by_client.wait()
        gc.collect()


async def test_what_follows_an_error_event_is_read_away_and_the_connection_kept():
    async def handler(connection: Connection) -> None:
        while await connection.next_request():
            error = b'data: {"error":{"code":502}}\n\n'
            await connection.send(HEAD + chunk(error) + chunk(FIRST) * 3 + b"0\r\n\r\n")

    async with serving(handler) as server, chat(server) as provider:
        for _ in range(2):
            assert (await failure_of(provider)).kind == FailureKind.SERVER
        assert len(server.connections) == 1


async def test_an_error_of_the_reader_closes_the_connection_and_passes_through():
    async with serving(first_event) as server, chat(server) as provider:

        async def fail_while_reading() -> None:
            async with provider.open(REQUEST) as batches:
                async for _ in batches:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_while_reading()
        with trio.fail_after(PATIENCE_S):
            await server.connections[0].closed_by_client.wait()


async def test_an_abort_in_the_middle_of_a_tls_handshake_closes_the_connection():
    async def handler(connection: Connection) -> None:
        await connection.until_closed()  # reads the client's hello and says nothing

    async with serving(handler) as server:
        provider = OpenAIChatProvider(
            base_url=server.url.replace("http:", "https:"), api_key="sk-secret"
        )
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(everything, provider)
                await server.accepted.wait()
                await trio.testing.wait_all_tasks_blocked(0.01)
                scope.cancel()
        with trio.fail_after(PATIENCE_S):
            await server.connections[0].closed_by_client.wait()


class CancellingTransport(httpx2.AsyncHTTPTransport):
    """Cancels `scope` when httpcore comes to the point named `at`; notes all points."""

    def __init__(self, at: str, scope: trio.CancelScope, points: list[str]) -> None:
        super().__init__(verify=False, limits=httpx2.Limits(max_connections=1))
        self._at = at
        self._scope = scope
        self._points = points

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        trace = request.extensions["trace"]

        async def cancelling(name: str, info: dict[str, Any]) -> None:
            await trace(name, info)
            self._points.append(name)
            if name == self._at:
                self._scope.cancel()

        request.extensions["trace"] = cancelling
        return await super().handle_async_request(request)


async def points_of_a_request(server: Server, at: str) -> list[str]:
    """The points that a request passes when it is cancelled at `at`; nothing must be left."""
    points: list[str] = []
    with trio.CancelScope() as scope:
        transport = CancellingTransport(at, scope, points)
        async with chat(server, max_connections=1, transport=lambda: transport) as provider:
            await everything(provider)
    return points


async def test_a_cancel_at_any_point_of_a_request_leaves_no_connection_behind():
    """Among them the end of the connect, after which httpcore's own pool would count the
    connection for ever."""
    async with serving(first_event) as server:
        points = [
            "connection.connect_tcp.complete",
            "http11.send_request_headers.started",
            "http11.send_request_headers.complete",
            "http11.send_request_body.complete",
            "http11.receive_response_headers.started",
            "http11.receive_response_headers.complete",
            "http11.receive_response_body.started",
        ]
        for at in points:
            assert at in await points_of_a_request(server, at)
        with trio.fail_after(PATIENCE_S):
            for connection in list(server.connections):
                await connection.closed_by_client.wait()
        gc.collect()


async def test_requests_that_are_cancelled_after_any_number_of_steps_leak_nothing():
    async with serving(flood) as server, chat(server, max_connections=1) as provider:
        for steps in range(40):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(everything, provider)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
        with trio.fail_after(PATIENCE_S):
            for connection in list(server.connections):
                await connection.closed_by_client.wait()
        assert len(server.connections) > 20
        gc.collect()


async def test_after_many_aborts_every_place_of_the_pool_is_free_again():
    recovered = trio.Event()

    async def handler(connection: Connection) -> None:
        await (answer if recovered.is_set() else first_event)(connection)

    async with serving(handler) as server, chat(server, max_connections=3) as provider:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    nursery.start_soon(everything, provider)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert len(server.connections) == 3
                scope.cancel()
        recovered.set()
        results: list[str] = []

        async def stream() -> None:
            results.append(text_of(await everything(provider)))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(9):
                    nursery.start_soon(stream)
        assert results == ["Hello"] * 9
        assert len(server.connections) <= 6


# --- Failures ---------------------------------------------------------------------------------


def refusing(status: bytes, body: bytes, *headers: bytes) -> Handler:
    async def handler(connection: Connection) -> None:
        while await connection.next_request():
            length = b"content-length: %d" % len(body)
            await connection.send(
                b"\r\n".join([b"HTTP/1.1 " + status, length, *headers, b"", body])
            )

    return handler


async def test_a_refusal_becomes_a_failure_and_keeps_its_connection():
    body = b'{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}'
    handler = refusing(b"429 Too Many Requests", body, b"retry-after: 7", b"x-request-id: r1")
    async with serving(handler) as server, chat(server) as provider:
        for _ in range(2):
            assert await failure_of(provider) == ProviderFailure(
                FailureKind.RATE_LIMITED, "slow down", 429, "rate_limit_exceeded", 7.0, "r1"
            )
        assert len(server.connections) == 1


async def test_a_refusal_that_breaks_off_is_classed_by_its_status():
    async def handler(connection: Connection) -> None:
        await connection.next_request()
        await connection.send(b"HTTP/1.1 529 Overloaded\r\ncontent-length: 99\r\n\r\n{")

    async with serving(handler) as server, chat(server) as provider:
        assert (await failure_of(provider)).kind == FailureKind.OVERLOADED


async def test_a_key_that_the_server_echoes_is_not_in_the_failure():
    body = b'{"error":{"message":"bad key: topsecretkey"}}'
    async with (
        serving(refusing(b"401 Unauthorized", body)) as server,
        chat(server, api_key="topsecretkey") as provider,
    ):
        failure = await failure_of(provider)
        assert failure.kind == FailureKind.AUTH
        assert failure.message == "bad key: ***"
        assert "topsecretkey" not in repr(provider)


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (b"200 OK", b"content-type: application/json", b'{"id":"x"}', FailureKind.PROTOCOL),
        (b"200 OK", b"content-type: text/html", b"<html>", FailureKind.PROTOCOL),
        (b"307 Temporary Redirect", b"location: /elsewhere", b"", FailureKind.PROTOCOL),
        (b"500 Internal Server Error", b"x: y", b"x" * 500_000, FailureKind.SERVER),
        (b"200 OK", b"content-type: text/plain", b"no events here", FailureKind.PROTOCOL),
    ],
)
async def test_what_is_no_stream_of_events_is_a_failure(
    status: bytes, headers: bytes, body: bytes, kind: FailureKind
):
    async with serving(refusing(status, body, headers)) as server, chat(server) as provider:
        assert (await failure_of(provider)).kind == kind


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", FailureKind.NETWORK),
        (b"HTTP/1.1 200", FailureKind.NETWORK),
        (b"not http at all\r\n\r\n", FailureKind.NETWORK),
        (HEAD + chunk(FIRST), FailureKind.NETWORK),
        (HEAD + chunk(FIRST) + b"0\r\n\r\n", FailureKind.PROTOCOL),
        (HEAD + chunk(FIRST[:20]) + b"0\r\n\r\n", FailureKind.PROTOCOL),
    ],
)
async def test_a_stream_that_breaks_off_is_a_failure(answer: bytes, kind: FailureKind):
    async def handler(connection: Connection) -> None:
        await connection.next_request()
        await connection.send(answer)

    async with serving(handler) as server, chat(server) as provider:
        assert (await failure_of(provider)).kind == kind


async def test_a_break_after_the_terminal_event_is_no_failure():
    async def handler(connection: Connection) -> None:
        await connection.next_request()
        await connection.send(HEAD + chunk(FIRST) + chunk(SECOND))  # and no end of the chunks

    async with serving(handler) as server, chat(server) as provider:
        messages = await everything(provider)
        assert text_of(messages) == "Hello"
        assert isinstance(messages[-1], StreamFinished)


async def test_nobody_listening_is_a_failure_of_the_network():
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    provider = OpenAIChatProvider(base_url=f"http://127.0.0.1:{port}/v1")
    assert (await failure_of(provider)).kind == FailureKind.NETWORK


async def test_a_tls_handshake_that_is_refused_is_a_failure_of_the_network():
    async def handler(connection: Connection) -> None:
        await connection.receive()
        await connection.send(b"\x15\x03\x01\x00\x02\x02\x28")  # TLS alert: handshake failure

    async with serving(handler) as server:
        provider = OpenAIChatProvider(
            base_url=server.url.replace("http:", "https:"), api_key="sk-secret"
        )
        assert (await failure_of(provider)).kind == FailureKind.NETWORK


async def test_without_a_key_nothing_is_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    provider = AnthropicProvider(base_url="https://api.example.invalid")
    async with provider.open(REQUEST) as batches:
        messages = [message async for batch in batches for message in batch]
    assert messages == [
        StreamFailed(
            ProviderFailure(
                FailureKind.AUTH, "anthropic has no key: set ANTHROPIC_API_KEY, or give api_key"
            )
        )
    ]


async def test_a_compressed_stream_that_nobody_asked_for_is_read():
    body = gzip.compress(FIRST + SECOND + DONE)

    async def handler(connection: Connection) -> None:
        await connection.next_request()
        head = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        await connection.send(head + chunk(body[:30]) + chunk(body[30:]) + b"0\r\n\r\n")

    async with serving(handler) as server, chat(server) as provider:
        assert text_of(await everything(provider)) == "Hello"


# --- Timeouts, under a clock that stands until it is told to jump -------------------------------


async def jump_s(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let the time go on once everybody waits; the sockets are real, so settle first."""
    await trio.testing.wait_all_tasks_blocked(0.02)
    clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked(0.02)


PATIENT = Timeouts(first_byte_s=60.0, idle_s=20.0)


@pytest.mark.parametrize(
    ("handler", "limit_s", "message"),
    [
        (silent, 60.0, "no answer within 60 s"),
        (only_head, 20.0, "the stream was silent for 20 s"),
        (first_event, 20.0, "the stream was silent for 20 s"),
        (half_an_event, 20.0, "the stream was silent for 20 s"),
    ],
)
async def test_silence_is_a_timeout(
    mock_clock: trio.testing.MockClock, handler: Handler, limit_s: float, message: str
):
    failures: list[ProviderFailure] = []

    async def stream(provider: OpenAIChatProvider) -> None:
        failures.append(await failure_of(provider))

    async with (
        serving(handler) as server,
        chat(server, timeouts=PATIENT) as provider,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stream, provider)
        await jump_s(mock_clock, limit_s - 0.1)
        assert failures == []
        await jump_s(mock_clock, 0.2)
        assert failures == [ProviderFailure(FailureKind.TIMEOUT, message)]


async def test_every_byte_is_a_sign_of_life(mock_clock: trio.testing.MockClock):
    go_on = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.next_request()
        await connection.send(HEAD + chunk(FIRST))
        await go_on.wait()
        await connection.send(chunk(b": still here\n\n"))
        await connection.until_closed()

    seen: list[AnyStreamMessage] = []

    async def stream(provider: OpenAIChatProvider) -> None:
        seen.extend(await everything(provider))

    async with (
        serving(handler) as server,
        chat(server, timeouts=PATIENT) as provider,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stream, provider)
        await jump_s(mock_clock, 19.0)
        go_on.set()
        await jump_s(mock_clock, 19.0)
        assert seen == []
        await jump_s(mock_clock, 2.0)
        assert Ping() in seen
        assert isinstance(seen[-1], StreamFailed)


async def test_silence_after_the_terminal_event_is_the_end(mock_clock: trio.testing.MockClock):
    async def handler(connection: Connection) -> None:
        await connection.next_request()
        await connection.send(HEAD + chunk(FIRST) + chunk(SECOND))
        await connection.until_closed()

    seen: list[AnyStreamMessage] = []

    async def stream(provider: OpenAIChatProvider) -> None:
        seen.extend(await everything(provider))

    async with (
        serving(handler) as server,
        chat(server) as provider,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stream, provider)
        await jump_s(mock_clock, LINGER_S + 0.1)
        await jump_s(mock_clock, DRAIN_S + 0.1)
    assert seen[-1] == StreamFinished(StopReason.END_TURN, "stop")


async def test_a_free_place_is_waited_for_no_longer_than_for_a_first_byte(
    mock_clock: trio.testing.MockClock,
):
    failures: list[ProviderFailure] = []

    async def stream(provider: OpenAIChatProvider) -> None:
        failures.append(await failure_of(provider))

    timeouts = Timeouts(first_byte_s=60.0)
    async with (
        serving(first_event) as server,
        chat(server, max_connections=1, timeouts=timeouts) as provider,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(everything, provider)
        await trio.testing.wait_all_tasks_blocked(0.02)
        nursery.start_soon(stream, provider)
        await jump_s(mock_clock, 61.0)
        assert [failure.message for failure in failures] == ["no free connection within 60 s"]
        nursery.cancel_scope.cancel()


class SilentTransport(httpx2.AsyncBaseTransport):
    """Answers at once with the head of a stream, and cannot be closed."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        async def body() -> AsyncGenerator[bytes]:
            yield FIRST
            await trio.sleep_forever()

        return httpx2.Response(200, content=body())

    async def aclose(self) -> None:
        await trio.sleep_forever()


async def test_a_connection_that_does_not_close_delays_nobody_for_long(
    autojump_clock: trio.testing.MockClock,
):
    provider = OpenAIChatProvider(base_url="http://localhost/v1", transport=SilentTransport)
    with trio.move_on_after(5.0):
        await everything(provider)
    assert trio.current_time() == pytest.approx(5.0 + CLOSE_S)
