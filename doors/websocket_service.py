"""Serves websocket connections, one stream at a time to whoever calls it.

It owns the list of those that are here. A connection can fail in any way without a traceback
at its peer and without harm to another. Half-open ones are bounded in number and time, and
the oldest makes room. At a stop every client is told to come back (close code 1001) before
anything is cut.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import trio
from trio_websocket import WebSocketConnection, WebSocketRequest, wrap_server_stream

from midstream.doors.answers import AnswerBook
from midstream.doors.attendance import Attendance
from midstream.doors.metered_stream import MeteredStream
from midstream.doors.session_host import SessionHost
from midstream.doors.turnstile import Turnstile
from midstream.doors.websocket_access import Access
from midstream.doors.websocket_connection import Close, Connection
from midstream.doors.websocket_peer import Peer
from midstream.doors.websocket_requests import Requests
from midstream.messages import wire
from midstream.messages.wire import CloseCode
from midstream.messages.wire_codec import SERVER_CODECS

_log = logging.getLogger("midstream.websocket")

PATH = "/v1"

HANDSHAKE_DEADLINE_S = 10.0

CLOSE_DEADLINE_S = 2.0
"""Seconds for the closing handshake, at a stop too."""

RECEIVE_BYTES = 4_096
"""What is read at once, so that a connection that is idle holds little."""

DEFAULT_LIMITS = wire.Limits(
    message_bytes=1_048_576, frames_per_s=100.0, bytes_per_s=1_048_576.0, subscriptions=32
)


class WebsocketSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a door is opened with. `connections` are all at once, `half_open` those of them
    that have not said `hello`. `server_id` is another after each start."""

    server_id: str
    version: str
    access: Access = msgspec.field(default_factory=Access)
    host: str = "127.0.0.1"
    port: int = 0
    tls: ssl.SSLContext | None = None
    limits: wire.Limits = DEFAULT_LIMITS
    connections: int = 4_096
    half_open: int = 256


class _Visit:
    """One connection, from its first byte to its last."""

    def __init__(self) -> None:
        self.whole = trio.CancelScope(shield=True)
        self.stay = trio.CancelScope()
        self.closing: Close | None = None
        self.peer: Peer | None = None
        self.stream: MeteredStream | None = None
        self.is_welcome = False

    def leave(self, code: CloseCode, reason: str) -> None:
        """Let it end, with a closing handshake."""
        if self.closing is None:
            self.closing = Close(code, reason)
        self.stay.cancel()

    def on_violation(self, reason: str) -> None:
        """Its bytes break a rule."""
        self.leave(CloseCode.POLICY, reason)

    def on_end(self) -> None:
        """No bytes come any more. A websocket notices that itself, a handshake does not."""
        if self.peer is None:
            self.stay.cancel()

    def welcome(self) -> None:
        """The client has said who it is."""
        self.is_welcome = True
        if self.stream is not None:
            self.stream.is_welcome = True


class WebsocketService:
    """See the module. `spawn` runs what must not end with a connection."""

    def __init__(
        self,
        host: SessionHost,
        settings: WebsocketSettings,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._host = host
        self._settings = settings
        self._answers = AnswerBook(spawn)
        self._attendance = Attendance(spawn, host.detach)
        self._turnstile = Turnstile()
        self._requests = Requests(host, lambda: (self.connections, self.subscriptions))
        self._visits: dict[_Visit, None] = {}
        self._nobody_here = trio.Event()
        self._nobody_here.set()

    @property
    def connections(self) -> int:
        """How many are here."""
        return len(self._visits)

    @property
    def subscriptions(self) -> int:
        """How many sessions they follow, all together."""
        return sum(visit.peer.subscriptions for visit in self._visits if visit.peer)

    async def run(self) -> None:
        """Has to run beside what is served."""
        await self._turnstile.run()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection to its end, and close it. Raises nothing of its own."""
        if len(self._visits) >= self._settings.connections:
            await trio.aclose_forcefully(stream)
            return
        visit = _Visit()
        self._visits[visit] = None
        self._nobody_here = trio.Event()
        self._crowd_out()
        try:
            with visit.whole:
                await self._receive(visit, stream)
        except Exception as error:  # noqa: BLE001 - whatever a peer brings about, the door stays
            _log.info("a connection ended: %s", _described(error))
            _log.debug("it ended with this", exc_info=error)
        finally:
            del self._visits[visit]
            if not self._visits:
                self._nobody_here.set()
            await trio.aclose_forcefully(stream)

    async def see_everybody_out(self) -> None:
        """Tell all that the server stops, give them a moment, and cut those that stay."""
        for visit in self._visits:
            visit.leave(CloseCode.GOING_AWAY, "the server stops")
        with trio.move_on_after(CLOSE_DEADLINE_S):
            await self._nobody_here.wait()
        for visit in self._visits:
            visit.whole.cancel()

    def _crowd_out(self) -> None:
        """Whoever does not say hello makes room for those that came later."""
        half_open = [visit for visit in self._visits if not visit.is_welcome]
        if len(half_open) > self._settings.half_open:
            half_open[0].leave(CloseCode.CROWDED_OUT, "too many are waiting")

    async def _receive(self, visit: _Visit, stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as reader:
            limits = self._settings.limits
            visit.stream = MeteredStream(stream, limits, visit.on_violation, visit.on_end)
            websocket: WebSocketConnection | None = None
            with visit.stay:
                websocket = await self._shake_hands(reader, visit.stream)
                if websocket is not None:
                    visit.peer = self._peer(websocket, visit)
                    visit.closing = await self._run(visit.peer) or visit.closing
            if websocket is not None and visit.closing is not None:
                with trio.move_on_after(CLOSE_DEADLINE_S):
                    await websocket.aclose(visit.closing.code, visit.closing.reason)
            reader.cancel_scope.cancel()

    async def _run(self, peer: Peer) -> Close | None:
        try:
            return await peer.run()
        except Exception:  # noqa: BLE001 - a mistake of ours ends this connection, and no other
            _log.exception("serving a connection failed")
            return Close(CloseCode.INTERNAL, "the server made a mistake")

    async def _shake_hands(
        self, reader: trio.Nursery, stream: trio.abc.Stream
    ) -> WebSocketConnection | None:
        limit_bytes = self._settings.limits.message_bytes
        with trio.move_on_after(HANDSHAKE_DEADLINE_S):
            request = await wrap_server_stream(reader, stream, 1, limit_bytes, RECEIVE_BYTES)
            refused = self._refusal(request)
            if refused is not None:
                status, reason = refused
                await request.reject(status, body=f"{reason}\n".encode())
                return None
            offered = request.proposed_subprotocols
            chosen = next(protocol for protocol in offered if protocol in SERVER_CODECS)
            return await request.accept(subprotocol=chosen)
        return None

    def _refusal(self, request: WebSocketRequest) -> tuple[int, str] | None:
        """Why this handshake is refused: a status of HTTP, and a line that explains it."""
        origins = [value for name, value in request.headers if name == b"origin"]
        origin = b", ".join(origins).decode("latin-1") if origins else None
        # The Host is the one header that trio-websocket has parsed and does not show.
        host = request._event.host  # pyright: ignore[reportPrivateUsage]
        objection = self._settings.access.objection(host, origin)
        if objection is not None:
            return 403, objection
        if request.path.partition("?")[0] != PATH:
            return 404, f"the websocket is at {PATH}"
        if not any(protocol in SERVER_CODECS for protocol in request.proposed_subprotocols):
            return 400, f"offer one of the subprotocols {', '.join(SERVER_CODECS)}"
        return None

    def _peer(self, websocket: WebSocketConnection, visit: _Visit) -> Peer:
        settings = self._settings
        codec = SERVER_CODECS[websocket.subprotocol or ""]
        welcome = wire.Welcome(
            server=settings.server_id, version=settings.version, limits=settings.limits
        )
        return Peer(
            websocket,
            Connection(settings.access, codec, welcome),
            codec,
            self._host,
            self._requests,
            self._answers,
            self._attendance,
            self._turnstile,
            visit.welcome,
        )


def _described(error: Exception) -> str:
    """An error in one line, from the inside of its groups."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return f"{type(error).__name__}: {error}"
