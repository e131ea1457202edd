"""One POST whose answer is a stream of server-sent events, over httpx2 on trio.

Shared by all HTTP providers. It guarantees what `provider.py` promises: failures come as
messages and never as exceptions, and leaving the context closes the connection at once and
within `CLOSE_S`, also under cancellation (`http_connections.py` says how).
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import httpx2
import msgspec
import trio
from msgspec.structs import replace

from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import AnyStreamMessage, StreamFailed
from midstream.providers.failures import classify_response
from midstream.providers.http_connections import CLOSE_S, Lane, Lanes
from midstream.providers.provider import StreamBatches
from midstream.providers.recording import Tap
from midstream.providers.stream_parser import StreamDecoder, StreamParser

LINGER_S = 2.0
"""How long to wait for more (usage, the end of the bytes) after the terminal event."""
DRAIN_S = 0.1
"""How long to wait for the end of an answer that is known to be finished, to keep its
connection for the next one."""
ERROR_BODY_LIMIT_BYTES = 64 * 1024
ERROR_BODY_S = 10.0


class Timeouts(msgspec.Struct, frozen=True):
    """How long each step of a stream may take, in seconds.

    `connect_s` is for the TCP connection and again for the TLS handshake. `first_byte_s` runs
    from the request to the head of the answer, which some servers send with the first token
    only. `idle_s` is the longest silence between bytes after that: Anthropic pings within
    seconds, but Chat Completions servers say nothing while a model reasons.
    """

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    idle_s: float = 300.0


class HttpUpstream:
    """One server that answers with streams.

    More streams than `lanes` has places for wait within their `first_byte_s`. `secrets` are
    kept out of every failure's message. `wall_clock` gives seconds since 1970, for a
    `retry-after` that names a date. `tap` is called once for each stream, and what it returns
    is told of every read: seconds since the request, and the bytes (`recording.py` keeps them).
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        timeouts: Timeouts,
        secrets: Sequence[str] = (),
        wall_clock: Callable[[], float] | None = None,
        tap: Callable[[], Tap] | None = None,
    ) -> None:
        self.lanes = lanes
        self.timeouts = timeouts
        self._secrets = secrets
        self._wall_clock = wall_clock
        self._tap = tap

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
        self._lane: Lane | None = None
        self._body: AsyncGenerator[bytes] | None = None
        self._ready: list[AnyStreamMessage] = []
        self._read_to_end = False

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
        # The client keeps what this says of each read, so that a read needs no scope of ours.
        # It looks when the body is begun, and the head has a limit of its own.
        patience: dict[str, float | None] = {"connect": timeouts.connect_s, "read": None}
        try:
            with trio.fail_after(timeouts.first_byte_s):
                await self._upstream.lanes.wait_for_place()
                self._has_place = True
                self._lane = self._upstream.lanes.take()
                request = self._lane.client.build_request(
                    "POST",
                    url,
                    headers={"accept-encoding": "identity", **headers},
                    content=body,
                    extensions={"trace": self._lane.trace, "timeout": patience},
                )
                response = await self._lane.client.send(request, stream=True)
                patience["read"] = timeouts.idle_s
                self._body = _body_of(response)
                if not _is_stream(response):
                    refusal = await self._read_refusal()
                    self._ready = self._parser.fail(self._upstream.classify(response, refusal))
        except trio.TooSlowError:
            awaited = "answer" if self._has_place else "free connection"
            message = f"no {awaited} within {timeouts.first_byte_s:g} s"
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
        try:
            if self._parser.ending:
                with trio.fail_after(LINGER_S):
                    data = await anext(self._body)
            else:
                data = await anext(self._body)
        except StopAsyncIteration:
            self._read_to_end = True
            return self._parser.end()
        except (trio.TooSlowError, httpx2.ReadTimeout):
            message = f"the stream was silent for {self._upstream.timeouts.idle_s:g} s"
            return self._parser.fail(ProviderFailure(FailureKind.TIMEOUT, message))
        except httpx2.HTTPError as error:
            return self._parser.fail(_failure_of(error, self._upstream.timeouts))
        if self._tap is not None:
            self._tap(trio.current_time() - self._began_at_s, data)
        return self._parser.feed(data)

    async def _read_refusal(self) -> bytes:
        assert self._body is not None
        body = b""
        with trio.move_on_after(ERROR_BODY_S), suppress(httpx2.HTTPError):
            async for data in self._body:
                body += data
                if len(body) > ERROR_BODY_LIMIT_BYTES:
                    return body
            self._read_to_end = True
        return body

    async def _drain(self) -> None:
        """Read on for a moment when the stream is over but not its bytes."""
        if self._body is None or self._read_to_end or not self._parser.over:
            return
        with trio.move_on_after(DRAIN_S), suppress(httpx2.HTTPError):
            async for _ in self._body:
                pass
            self._read_to_end = True

    async def _release(self) -> None:
        lane, self._lane = self._lane, None
        try:
            if lane is not None and self._read_to_end:
                await self._upstream.lanes.give_back(lane)
            elif lane is not None:
                await self._abandon(lane)
        finally:
            if self._has_place:
                self._has_place = False
                self._upstream.lanes.leave_place()

    async def _abandon(self, lane: Lane) -> None:
        await lane.aclose()
        if self._body is None:
            return
        if lane.socket is not None:
            # httpx2 does not close the generators inside its own, and trio warns about one
            # that is left to the garbage collector. With the connection closed, reading on
            # ends them all, after what was received already.
            with suppress(httpx2.HTTPError):
                async for _ in self._body:
                    pass
        await self._body.aclose()


def _body_of(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The bytes as they are read; decoded only if the server compressed them unasked."""
    plain = response.headers.get("content-encoding", "identity") == "identity"
    if plain and not response.is_stream_consumed:  # as it is if a transport gave it whole
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
