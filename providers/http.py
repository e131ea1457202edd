"""One POST whose answer is a stream of server-sent events, over httpx2 on trio.

Shared by all HTTP providers. It guarantees what `provider.py` promises: failures come as
messages and never as exceptions, and leaving the context closes the connection at once and
within `CLOSE_S`, also under cancellation.

How cancellation is kept from leaking connections (spec/lessons.md E, note on httpcore): a
cancelled request can leave a connection behind that httpcore's pool counts for ever, for
example between the end of the connect and the first byte sent, and a socket in the middle of
a TLS handshake is left to the garbage collector. So no pool is shared. Each stream has a
`Lane`, an HTTP client with room for one connection, which is kept for the next stream only if
the answer was read to its end, and is closed otherwise, first of all its socket, which
httpcore's `trace` extension tells. Nothing that a cancelled request did can outlive its lane.
HTTP/2 would share one connection between streams, so it is off.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2
import trio
from msgspec.structs import replace

from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import AnyStreamMessage, StreamFailed
from midstream.providers.failures import classify_response
from midstream.providers.provider import StreamBatches
from midstream.providers.stream_parser import StreamDecoder, StreamParser

CLOSE_S = 1.0
"""The longest that closing a connection may take."""
LINGER_S = 2.0
"""How long to wait for more (usage, the end of the bytes) after the terminal event."""
DRAIN_S = 0.1
"""How long to wait for the end of an answer that is known to be finished, to keep its
connection for the next one."""
KEEP_ALIVE_S = 30.0
"""How long an idle connection is kept; servers commonly drop theirs after a minute."""
MAX_IDLE = 8
"""How many idle connections are kept."""
ERROR_BODY_LIMIT_BYTES = 64 * 1024
ERROR_BODY_S = 10.0

Tap = Callable[[float, bytes], None]
TransportFactory = Callable[[], httpx2.AsyncBaseTransport]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each step of a stream may take, in seconds.

    `connect_s` is for the TCP connection and again for the TLS handshake. `first_byte_s` runs
    from the request to the first byte of the stream; a model that reasons in silence may need
    minutes. `idle_s` is the longest silence after that: Anthropic pings within seconds, but
    Chat Completions servers say nothing while a model thinks.
    """

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    idle_s: float = 300.0


class _Closable(Protocol):
    def aclose(self) -> Awaitable[None]: ...


class _Lane:
    """An HTTP client that never has more than one connection."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.socket: _Closable | None = None
        self.idle_since_s = 0.0

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """httpcore's account of what it does: take note of the socket once it is connected."""
        if name in ("connection.connect_tcp.complete", "connection.connect_unix_socket.complete"):
            self.socket = info["return_value"]

    async def aclose(self) -> None:
        if self.socket is not None:
            await self.socket.aclose()
        await self.client.aclose()


class HttpUpstream:
    """The connections to one provider's server.

    At most `max_connections` streams run at a time; more wait for a free place within their
    `first_byte_s`. `secrets` are kept out of every failure's message. `wall_clock` gives
    seconds since 1970, for a `retry-after` that names a date. `transport` makes the httpx2
    transport of each connection, where the default (TLS and proxies as the environment says)
    does not do. `tap` is called once for each stream, and what it returns is told of every
    read: seconds since the request, and the bytes (`recording.py` keeps them).
    """

    def __init__(
        self,
        *,
        timeouts: Timeouts,
        max_connections: int = 100,
        secrets: Sequence[str] = (),
        wall_clock: Callable[[], float] | None = None,
        transport: TransportFactory | None = None,
        tap: Callable[[], Tap] | None = None,
    ) -> None:
        self.timeouts = timeouts
        self._secrets = secrets
        self._tap = tap
        self._wall_clock = wall_clock
        self._transport = transport
        self._places = trio.Semaphore(max_connections)
        self._idle: list[_Lane] = []
        self._ssl_context: Any = None
        self._closed = False

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes, decoder: StreamDecoder
    ) -> AsyncGenerator[StreamBatches]:
        """Send the request; the answer comes as batches of stream messages."""
        exchange = _Exchange(self, StreamParser(decoder), self._tap() if self._tap else None)
        try:
            await exchange.start(url, headers, body)
            yield exchange
        finally:
            await exchange.close()

    async def aclose(self) -> None:
        """Close the idle connections; those in use are closed when their streams end."""
        self._closed = True
        idle, self._idle = self._idle, []
        for lane in idle:
            await _close_bounded(lane)

    async def take_place(self) -> None:
        await self._places.acquire()

    def give_place(self) -> None:
        self._places.release()

    def take_lane(self) -> _Lane:
        if self._idle:
            return self._idle.pop()
        if self._ssl_context is None and self._transport is None:
            self._ssl_context = httpx2.create_ssl_context()
        return _Lane(
            httpx2.AsyncClient(
                verify=self._ssl_context or True,
                transport=self._transport() if self._transport else None,
                limits=httpx2.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_S),
                http2=False,
                follow_redirects=False,
            )
        )

    async def give_lane(self, lane: _Lane) -> None:
        """Keep a lane whose answer was read to its end, and close those that are too old."""
        now_s = trio.current_time()
        lane.idle_since_s = now_s
        self._idle.append(lane)
        kept = [each for each in self._idle if now_s - each.idle_since_s < KEEP_ALIVE_S]
        kept = [] if self._closed else kept[-MAX_IDLE:]
        dropped = [each for each in self._idle if each not in kept]
        self._idle = kept
        for each in dropped:
            await _close_bounded(each)

    def without_secrets(self, batch: list[AnyStreamMessage]) -> list[AnyStreamMessage]:
        """The batch, with no key in the words of its failure: some servers echo it."""
        last = batch[-1]
        if not isinstance(last, StreamFailed):
            return batch
        message = last.failure.message
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return [*batch[:-1], StreamFailed(replace(last.failure, message=message))]

    def classify(self, response: httpx2.Response, body: bytes) -> ProviderFailure:
        now_s = self._wall_clock() if self._wall_clock else None
        failure = classify_response(response.status_code, response.headers, body, now_s)
        if failure.kind is FailureKind.PROTOCOL and response.status_code == 200:
            return ProviderFailure(
                FailureKind.PROTOCOL, "the answer is one document, not a stream of events", 200
            )
        return failure


class _Exchange:
    """One request and its answer, as an iterator of batches."""

    def __init__(self, upstream: HttpUpstream, parser: StreamParser, tap: Tap | None) -> None:
        self._upstream = upstream
        self._parser = parser
        self._tap = tap
        self._began_at_s = trio.current_time()
        self._has_place = False
        self._lane: _Lane | None = None
        self._body: AsyncGenerator[bytes] | None = None
        self._ready: list[AnyStreamMessage] = []
        self._read_to_end = False
        self._has_first_byte = False

    def __aiter__(self) -> "_Exchange":
        return self

    async def __anext__(self) -> Sequence[AnyStreamMessage]:
        while not self._ready:
            if self._parser.over or self._body is None:
                raise StopAsyncIteration
            self._ready = await self._read()
        batch, self._ready = self._ready, []
        return self._upstream.without_secrets(batch) if self._parser.over else batch

    async def start(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Connect, send, and wait for the head of the answer."""
        timeouts = self._upstream.timeouts
        try:
            with trio.fail_at(self._began_at_s + timeouts.first_byte_s):
                await self._upstream.take_place()
                self._has_place = True
                self._lane = self._upstream.take_lane()
                request = self._lane.client.build_request(
                    "POST",
                    url,
                    headers={"accept-encoding": "identity", **headers},
                    content=body,
                    timeout=httpx2.Timeout(None, connect=timeouts.connect_s),
                    extensions={"trace": self._lane.trace},
                )
                response = await self._lane.client.send(request, stream=True)
                self._body = _body_of(response)
                if not _is_stream(response):
                    refusal = await self._read_refusal()
                    self._ready = self._parser.fail(self._upstream.classify(response, refusal))
        except trio.TooSlowError:
            waited = "an answer" if self._has_place else "a free connection"
            message = f"no sign of {waited} within {timeouts.first_byte_s:g} s"
            self._ready = self._parser.fail(ProviderFailure(FailureKind.TIMEOUT, message))
        except httpx2.HTTPError as error:
            self._ready = self._parser.fail(_failure_of(error, timeouts))

    async def close(self) -> None:
        """Keep the connection if it is clean, else close it at once."""
        try:
            await self._drain()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await self._release()

    async def _read(self) -> list[AnyStreamMessage]:
        assert self._body is not None
        timeouts = self._upstream.timeouts
        if self._parser.ending:
            wait_s = LINGER_S
        elif self._has_first_byte:
            wait_s = timeouts.idle_s
        else:
            wait_s = self._began_at_s + timeouts.first_byte_s - trio.current_time()
        try:
            with trio.fail_after(max(0.0, wait_s)):
                data = await anext(self._body)
        except StopAsyncIteration:
            self._read_to_end = True
            return self._parser.end()
        except trio.TooSlowError:
            silence_s = timeouts.idle_s if self._has_first_byte else timeouts.first_byte_s
            message = f"the stream was silent for {silence_s:g} s"
            return self._parser.fail(ProviderFailure(FailureKind.TIMEOUT, message))
        except httpx2.HTTPError as error:
            return self._parser.fail(_failure_of(error, timeouts))
        self._has_first_byte = True
        if self._tap is not None:
            self._tap(trio.current_time() - self._began_at_s, data)
        return self._parser.feed(data)

    async def _read_refusal(self) -> bytes:
        assert self._body is not None
        body = b""
        with trio.move_on_after(ERROR_BODY_S):
            async for data in self._body:
                body += data
                if len(body) > ERROR_BODY_LIMIT_BYTES:
                    return body
            self._read_to_end = True
        return body

    async def _drain(self) -> None:
        """Read on for a moment when only the end of the bytes is missing."""
        if self._body is None or self._read_to_end or not self._parser.over:
            return
        with trio.move_on_after(DRAIN_S), suppress(httpx2.HTTPError):
            async for _ in self._body:
                return
            self._read_to_end = True

    async def _release(self) -> None:
        lane, self._lane = self._lane, None
        try:
            if lane is not None and self._read_to_end:
                await self._upstream.give_lane(lane)
            elif lane is not None:
                await self._abandon(lane)
        finally:
            if self._has_place:
                self._has_place = False
                self._upstream.give_place()

    async def _abandon(self, lane: _Lane) -> None:
        if lane.socket is not None:
            await lane.socket.aclose()
        if self._body is not None:
            if lane.socket is not None:
                # httpx2 does not close the generators inside its own, and trio warns about
                # one that is left to the garbage collector. With the socket closed, reading
                # on ends them all, after what was received already.
                with suppress(httpx2.HTTPError):
                    async for _ in self._body:
                        pass
            await self._body.aclose()
        await lane.aclose()


async def _close_bounded(lane: _Lane) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
        await lane.aclose()


def _body_of(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The bytes as they are read; decoded only if the server compressed them unasked."""
    if response.headers.get("content-encoding", "identity") == "identity":
        return response.aiter_raw()
    return response.aiter_bytes()


def _is_stream(response: httpx2.Response) -> bool:
    """Whether the answer is to be read as events; some servers name no type, or a wrong one."""
    content_type = response.headers.get("content-type", "")
    return response.status_code == 200 and "json" not in content_type and "html" not in content_type


def _failure_of(error: httpx2.HTTPError, timeouts: Timeouts) -> ProviderFailure:
    """What an exception of the HTTP client means.

    The words are ours where the client's own might quote a header.
    """
    if isinstance(error, httpx2.ConnectTimeout):
        message = f"no connection within {timeouts.connect_s:g} s"
        return ProviderFailure(FailureKind.TIMEOUT, message)
    if isinstance(error, httpx2.TimeoutException):
        return ProviderFailure(FailureKind.TIMEOUT, "the connection was too slow")
    if isinstance(error, httpx2.LocalProtocolError):
        return ProviderFailure(FailureKind.INVALID_REQUEST, "the request has an illegal header")
    if isinstance(error, httpx2.DecodingError):
        return ProviderFailure(FailureKind.PROTOCOL, f"the answer cannot be decoded: {error}")
    if isinstance(error, httpx2.ConnectError):
        return ProviderFailure(FailureKind.NETWORK, f"no connection: {error}")
    return ProviderFailure(FailureKind.NETWORK, f"the connection broke: {error}")
