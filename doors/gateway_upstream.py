"""The server behind the gateway: one request, its answer as bytes, over httpx2 on trio.

The connections are those of `providers/http_connections.py`: one for each request, kept
only when its answer was read to the end, closed at once otherwise. `Upstream.open` is the
whole interface: leaving its block settles the connection, also under cancellation.
"""

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase

import httpx2
import trio

from midstream.messages.errors import MidstreamError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.providers.http import Timeouts
from midstream.providers.http_connections import CLOSE_S, Lane, Lanes, TransportFactory

MAX_CONNECTIONS = 1000
"""Requests to one upstream at a time; the gateway's clients bring their own limits."""

READ_AHEAD_BYTES = 64 * 1024
"""What may have come of an answer before somebody takes it: about one read of the socket
(httpcore reads 64 KiB at a time)."""

CONNECT_DELAYS_S = (0.1, 0.5)
"""Waits between tries to connect (spec/gateway.md 3.7). What the upstream has answered is
never asked for again by the gateway: a refusal goes to the client, who knows best."""

Headers = Sequence[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""RFC 9110, 7.6.1."""
_KEY_HEADERS = frozenset((b"authorization", b"x-api-key"))
_VERSION = re.compile(r"/v\d+[a-z0-9]*$")


class UpstreamFailed(MidstreamError):
    """No answer, or it broke off. `failure` says why, in words that hold no key."""

    def __init__(self, failure: ProviderFailure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class Upstream:
    """One server. `key` takes the place of the client's own, if there is one; `serves` are
    the protocols that it speaks (format names; empty for all), `models` the globs of the
    models that are sent to it."""

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        serves: frozenset[str] = frozenset(),
        models: Sequence[str] = (),
        key: str | None = None,
        timeouts: Timeouts | None = None,
        transport: TransportFactory | None = None,
    ) -> None:
        self.name = name
        self.serves = serves
        self._models = models
        base = base_url.rstrip("/")
        version = _VERSION.search(base)
        self._base = base[: version.start()] if version else base
        self._version = version[0] if version else "/v1"
        self._key = key
        self._timeouts = timeouts or Timeouts()
        tls = base.startswith("https:")
        self._lanes = Lanes(MAX_CONNECTIONS, tls=tls, transport=transport)

    def wants(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self._models)

    def url(self, path: str, query: bytes) -> str:
        """The address of a client's path, which begins with `/v1`."""
        rest = path.removeprefix("/v1")
        return f"{self._base}{self._version}{rest}" + (f"?{query.decode()}" if query else "")

    def request_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """The client's headers as they go to this server."""
        dropped = _nominated(headers) | {b"host", b"content-length", b"accept-encoding"}
        if self._key is not None:
            dropped |= _KEY_HEADERS
        kept = [(n, v) for n, v in _end_to_end(headers) if n.lower() not in dropped]
        kept.append((b"accept-encoding", b"identity"))
        if self._key is not None:
            # Anthropic refuses a request that has both.
            if any(name.lower() == b"anthropic-version" for name, _ in headers):
                kept.append((b"x-api-key", self._key.encode()))
            else:
                kept.append((b"authorization", b"Bearer " + self._key.encode()))
        return kept

    @asynccontextmanager
    async def open(
        self,
        nursery: trio.Nursery,
        method: str,
        url: str,
        headers: Headers,
        body: bytes,
        *,
        on_sending: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator["Answer"]:
        """Send the request; the block gets the answer once its head is there. A task in
        `nursery` reads it as long as the block lasts. `on_sending` is called when there is a
        place for it, and nothing of it was sent yet.

        Raises `UpstreamFailed`.
        """
        exchange = Answer(self._lanes, self._timeouts)
        try:
            await exchange.start(method, url, headers, body, on_sending)
            nursery.start_soon(exchange.receive)
            yield exchange
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await exchange.release()

    async def prepare(self) -> None:
        """Have a client ready for the first request."""
        await self._lanes.prepare()

    async def aclose(self) -> None:
        await self._lanes.aclose()


class Answer:
    """One request and its answer. `status` and `headers` are those of the server."""

    def __init__(self, lanes: Lanes, timeouts: Timeouts) -> None:
        self._lanes = lanes
        self._timeouts = timeouts
        self._has_place = False
        self._lane: Lane | None = None
        self._body: AsyncGenerator[bytes] | None = None
        self._ahead = _ReadAhead()
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.content_type = ""

    async def start(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes,
        on_sending: Callable[[], None],
    ) -> None:
        patience: dict[str, float | None] = {"connect": self._timeouts.connect_s, "read": None}
        try:
            with trio.fail_after(self._timeouts.first_byte_s):
                await self._lanes.wait_for_place()
                self._has_place = True
                on_sending()
                response = await self._send(method, url, headers, body, patience)
        except trio.TooSlowError:
            message = f"the upstream did not answer within {self._timeouts.first_byte_s:g} s"
            raise UpstreamFailed(ProviderFailure(FailureKind.TIMEOUT, message)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UpstreamFailed(_failure_of(error)) from error
        patience["read"] = self._timeouts.idle_s
        self.status = response.status_code
        self.headers = response_headers(response.headers.raw)
        self.content_type = response.headers.get("content-type", "")
        plain = response.headers.get("content-encoding", "identity") == "identity"
        if plain and not response.is_stream_consumed:
            self._body = response.aiter_raw()
        else:  # compressed although nobody asked for it
            self._body = response.aiter_bytes()
            unpacked = (b"content-encoding", b"content-length")
            self.headers = [(n, v) for n, v in self.headers if n.lower() not in unpacked]

    async def _send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes,
        patience: dict[str, float | None],
    ) -> httpx2.Response:
        """Send the request; where there is no connection, so that nothing of it was sent,
        once more on another."""
        for delay_s in (*CONNECT_DELAYS_S, None):
            self._lane = lane = self._lanes.take()
            request = lane.client.build_request(
                method,
                url,
                headers=list(headers),
                content=body,
                extensions={"trace": lane.trace, "timeout": patience},
            )
            if not body and method in ("GET", "HEAD", "DELETE", "OPTIONS"):
                request.headers.pop("content-length", None)
            try:
                return await lane.client.send(request, stream=True)
            except httpx2.ConnectError:
                if delay_s is None:
                    raise
                self._lane = None
                await lane.aclose()
            await trio.sleep(delay_s)
        raise AssertionError("the last try returns or raises")

    async def receive(self) -> None:
        """Read the body until it is over or the answer is released."""
        assert self._body is not None
        await self._ahead.fill(self._body)

    async def read(self) -> bytes | None:
        """The next bytes as they came; None at the end. Raises `UpstreamFailed`."""
        return await self._ahead.take()

    async def read_all(self, limit_bytes: int) -> bytes:
        """The whole body. Raises `UpstreamFailed`, also for one that is larger."""
        pieces: list[bytes] = []
        size = 0
        while (data := await self.read()) is not None:
            pieces.append(data)
            size += len(data)
            if size > limit_bytes:
                problem = f"the answer is larger than {limit_bytes} bytes"
                raise UpstreamFailed(ProviderFailure(FailureKind.PROTOCOL, problem))
        return b"".join(pieces)

    async def release(self) -> None:
        """Keep the connection if it is clean, else close it at once."""
        lane, self._lane = self._lane, None
        try:
            await self._ahead.stop()
            if lane is not None and self._ahead.ended:
                await self._lanes.give_back(lane)
            elif lane is not None:
                await self._abandon(lane)
        finally:
            if self._has_place:
                self._has_place = False
                self._lanes.leave_place()

    async def _abandon(self, lane: Lane) -> None:
        await lane.aclose()
        if self._body is None:
            return
        if lane.socket is not None:
            # As in providers/http.py: with the connection closed, reading on ends the
            # client's generators, which it leaves to the garbage collector otherwise.
            with suppress(httpx2.HTTPError):
                async for _ in self._body:
                    pass
        await self._body.aclose()


class _ReadAhead:
    """What has come of one answer's body and was not taken yet.

    `fill` is run by one task, `take` and `stop` are called by another. `ended` says that all
    of the body has come.
    """

    def __init__(self) -> None:
        self.ended = False
        self._failure: ProviderFailure | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._arrived = trio.lowlevel.ParkingLot()
        self._taken = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._stopped: trio.Event | None = None

    async def fill(self, body: AsyncGenerator[bytes]) -> None:
        if self._scope.cancel_called:
            return  # released before this task got its first turn
        self._stopped = trio.Event()
        try:
            with self._scope:
                async for data in body:
                    self._pieces.append(data)
                    self._size += len(data)
                    self._arrived.unpark()
                    if self._size >= READ_AHEAD_BYTES:
                        await self._taken.park()
                self.ended = True
        except httpx2.HTTPError as error:
            self._failure = _failure_of(error)
        finally:
            self._arrived.unpark()
            self._stopped.set()

    async def take(self) -> bytes | None:
        """All that is there, or the next that comes; None at the end. Raises
        `UpstreamFailed`."""
        while not self._pieces:
            if self.ended:
                return None
            if self._failure is not None:
                raise UpstreamFailed(self._failure)
            await self._arrived.park()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._taken.unpark()
        return data

    async def stop(self) -> None:
        """End `fill`, and wait until it has ended."""
        self._scope.cancel()
        if self._stopped is not None:
            await self._stopped.wait()


def response_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A server's headers as they go to the client. The date is the gateway's own."""
    dropped = _nominated(headers) | {b"date"}
    return [(n.lower(), v) for n, v in _end_to_end(headers) if n.lower() not in dropped]


def _end_to_end(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


def _nominated(headers: Headers) -> set[bytes]:
    """The names that `connection` declares to be for this hop only."""
    return {
        word.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for word in value.split(b",")
    }


def _failure_of(error: Exception) -> ProviderFailure:
    """What an exception of the HTTP client means, in words that quote no header."""
    if isinstance(error, httpx2.TimeoutException):
        return ProviderFailure(FailureKind.TIMEOUT, "the upstream was silent for too long")
    if isinstance(error, httpx2.LocalProtocolError | httpx2.InvalidURL):
        problem = "the request cannot be sent to the upstream: its address or a header is illegal"
        return ProviderFailure(FailureKind.INVALID_REQUEST, problem)
    if isinstance(error, httpx2.ConnectError):
        return ProviderFailure(FailureKind.NETWORK, "no connection to the upstream")
    return ProviderFailure(FailureKind.NETWORK, "the connection to the upstream broke")
