"""The connections to one server: one for each stream, kept only when it is clean.

How cancellation is kept from leaking connections (spec/lessons.md E, note on httpcore): a
cancelled request can leave a connection behind that httpcore's pool counts for ever, for
example between the end of the connect and the first byte sent (seen with httpcore2 2.16), and
a socket in the middle of a TLS handshake is left to the garbage collector. So no pool is
shared. Each stream has a `Lane`, an HTTP client with room for one connection, which is kept
for the next stream only if the answer was read to its end, and is closed otherwise, first of
all its socket, which httpcore's `trace` extension tells. Nothing that a cancelled request did
can outlive its lane. HTTP/2 would share one connection between streams, so it is off.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import httpx2
import trio

CLOSE_S = 1.0
"""The longest that closing a connection may take."""
KEEP_ALIVE_S = 30.0
"""How long an idle connection is kept; servers commonly drop theirs after a minute."""
MAX_IDLE = 8
"""How many idle connections are kept."""

TransportFactory = Callable[[], httpx2.AsyncBaseTransport]

_CONNECTED = ("connection.connect_tcp.complete", "connection.connect_unix_socket.complete")


class _Socket(Protocol):
    def aclose(self) -> Awaitable[None]: ...


class Lane:
    """An HTTP client that never has more than one connection.

    `socket` is that connection's, once there is one. Whoever sends a request gives `trace` to
    it as an extension.
    """

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.socket: _Socket | None = None
        self.idle_since_s = 0.0

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """httpcore's account of what it does."""
        if name in _CONNECTED:
            self.socket = info["return_value"]

    async def aclose(self) -> None:
        """Close the connection, whatever is going on in it."""
        if self.socket is not None:
            await self.socket.aclose()
        await self.client.aclose()


class Lanes:
    """Lanes to one server, at most `max_connections` of them in use at a time.

    `tls` says whether it is spoken to over TLS. `transport` makes the httpx2 transport of each
    lane, where the default (TLS and proxies as the environment says) does not do; it has to
    keep the timeouts of its requests, as httpx2's own does.
    """

    def __init__(
        self, max_connections: int, *, tls: bool, transport: TransportFactory | None
    ) -> None:
        self._places = trio.Semaphore(max_connections)
        self._tls = tls
        self._ssl_context: ssl.SSLContext | None = None
        self._transport = transport
        self._idle: list[Lane] = []
        self._closed = False

    async def wait_for_place(self) -> None:
        """Wait until a lane may be taken; `leave_place` ends the use of it."""
        await self._places.acquire()

    def leave_place(self) -> None:
        self._places.release()

    def take(self) -> Lane:
        """An idle lane, or a new one."""
        if self._idle:
            return self._idle.pop()
        if self._ssl_context is None:
            # Made once: reading the certificates takes as long as a short answer.
            self._ssl_context = httpx2.create_ssl_context(verify=self._tls)
        return self._new(self._ssl_context)

    async def prepare(self) -> None:
        """Have a lane ready for the first stream, which else waits, with all others, until
        certificates are read and the client's modules are loaded: a tenth of a second."""
        if self._transport is not None or self._ssl_context is not None:
            return
        create = partial(httpx2.create_ssl_context, verify=self._tls)
        try:
            context = await trio.to_thread.run_sync(create)
        except OSError:
            return  # the first stream tries again, and its error reaches whoever asks
        self._ssl_context = context
        lane = await trio.to_thread.run_sync(self._new, context)
        await self.give_back(lane)

    def _new(self, context: ssl.SSLContext) -> Lane:
        return Lane(
            httpx2.AsyncClient(
                verify=context,
                transport=self._transport() if self._transport else None,
                limits=httpx2.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_S),
                http2=False,
                follow_redirects=False,
            )
        )

    async def give_back(self, lane: Lane) -> None:
        """Keep a lane whose answer was read to its end, and close those that are too old."""
        now_s = trio.current_time()
        lane.idle_since_s = now_s
        self._idle.append(lane)
        young = [each for each in self._idle if now_s - each.idle_since_s < KEEP_ALIVE_S]
        kept = [] if self._closed else young[-MAX_IDLE:]
        dropped = [each for each in self._idle if each not in kept]
        self._idle = kept
        await _close(dropped)

    async def aclose(self) -> None:
        """Close the idle lanes, and from now on each lane that is given back."""
        self._closed = True
        idle, self._idle = self._idle, []
        await _close(idle)


async def _close(lanes: list[Lane]) -> None:
    for lane in lanes:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            await lane.aclose()
