"""A connection to a server that is opened again whenever it breaks.

It owns the websocket, the requests that wait for their answer, and the sinks of the sessions
that are followed. When the connection breaks, requests stay: they are sent again over the next
one, under the same number, so that the server carries them out once. Sinks are closed: who
follows a session subscribes again behind the last event that he has (`remote_session.py`).
"""

import math
from collections.abc import Callable
from contextlib import suppress
from random import Random  # noqa: TID251 - the type; the instance is the client's

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from midstream.client.connecting import (
    CLOSE_DEADLINE_S,
    CONNECT_DEADLINE_S,
    NETWORK_ERRORS,
    explained,
    ping_for_ever,
    reason_of,
    websocket_to,
)
from midstream.client.endpoint import Endpoint
from midstream.client.errors import CannotConnect, ConnectionLost, OutcomeUnknown, error_of
from midstream.client.sink import Sink
from midstream.messages import wire
from midstream.messages.errors import MidstreamError
from midstream.messages.events import SessionEvent
from midstream.messages.wire import Capability
from midstream.messages.wire_codec import CLIENT_CODECS, WireError

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
"""Between two attempts to connect; doubled each time, and drawn from its second half."""

_NOT_REPEATABLE = wire.Submit | wire.Interrupt | wire.Cancel | wire.ToolResult
_OF_ONE_CONNECTION = wire.Subscribe | wire.Unsubscribe


class _Pending:
    """A request that waits for its answer; `sent_to` is the server that may have it, and
    `sent_over` the connection."""

    def __init__(self, request: wire.AnyRequest) -> None:
        self.request = request
        self.sent_to: str | None = None
        self.sent_over: WebSocketConnection | None = None
        self.answer: wire.AnyResult | MidstreamError | None = None
        self.arrived = trio.Event()

    def settle(self, answer: wire.AnyResult | MidstreamError) -> None:
        if not self.arrived.is_set():
            self.answer = answer
            self.arrived.set()


class Link:
    """See the module. `run` keeps it; `patience_s` is how long it tries to come back."""

    def __init__(
        self,
        endpoint: Endpoint,
        protocol: str,
        token: str | None,
        random: Random,
        patience_s: float = math.inf,
    ) -> None:
        self._endpoint = endpoint
        self._codec = CLIENT_CODECS[protocol]
        self._hello = wire.Hello(
            token=token,
            capabilities=(Capability.DELTAS.value,),
            client=f"{random.getrandbits(128):032x}",
        )
        self._random = random
        self._patience_s = patience_s
        self._websocket: WebSocketConnection | None = None
        self._server = ""
        self._next_id = 0
        self._pending: dict[int, _Pending] = {}
        self._sinks: dict[str, Sink] = {}
        self._end: MidstreamError | None = None

    def follows(self, session_id: str) -> bool:
        """Whether a session is followed over this link."""
        return session_id in self._sinks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, and connect again, until cancelled. Started when the first connection
        stands; raises `CannotConnect` if it cannot be had.

        Later, it gives up when the server does not let it in any more, or `patience_s` are
        over; then all requests fail.
        """
        started = False

        def on_welcome() -> None:
            nonlocal started, broke_at, delay_s
            broke_at, delay_s = None, FIRST_DELAY_S
            if not started:
                started = True
                task_status.started()

        broke_at: float | None = None
        delay_s = FIRST_DELAY_S
        try:
            while True:
                problem = await self._connect_once(on_welcome)
                if not started or isinstance(problem, CannotConnect):
                    raise CannotConnect(f"{self._endpoint.url}: {reason_of(problem)}") from problem
                now = trio.current_time()
                broke_at = broke_at if broke_at is not None else now
                if now - broke_at >= self._patience_s:
                    reason = reason_of(problem)
                    raise CannotConnect(f"{self._endpoint.url} did not come back: {reason}")
                await trio.sleep(delay_s * self._random.uniform(0.5, 1.0))
                delay_s = min(LONGEST_DELAY_S, delay_s * 2)
        except CannotConnect as error:
            self._give_up(error)
            if not started:
                raise
        finally:
            self._give_up(ConnectionLost(f"the client of {self._endpoint.url} was closed"))

    async def request(self, make: Callable[[int], wire.AnyRequest]) -> wire.AnyResult:
        """Send a request, and wait for its result, over as many connections as it takes.

        Raises what the server answers (`error_of`), `OutcomeUnknown`, and why the link gave up.
        """
        if self._end is not None:
            raise self._end
        self._next_id += 1
        pending = _Pending(make(self._next_id))
        self._pending[pending.request.id] = pending
        try:
            await self._send(pending)
            await pending.arrived.wait()
        finally:
            del self._pending[pending.request.id]
        if isinstance(pending.answer, MidstreamError):
            raise pending.answer
        assert pending.answer is not None
        return pending.answer

    async def follow(
        self, session_id: str, after: int, epoch: int | None
    ) -> tuple[Sink, wire.Subscribed]:
        """Subscribe to a session, to which this link is not subscribed yet. Raises what
        `request` raises, and `BrokenLink` if the connection broke meanwhile."""
        sink = self._sinks[session_id] = Sink(after)
        try:
            result = await self.request(
                lambda id: wire.Subscribe(id=id, session=session_id, after=after, epoch=epoch)
            )
        except BaseException:
            self._drop(session_id, sink)
            raise
        assert isinstance(result, wire.Subscribed)
        return sink, result

    async def unfollow(self, session_id: str, sink: Sink) -> None:
        """End a subscription, unless it has ended by itself or with its connection.

        Finished even if the caller is being cancelled, since otherwise the session could not
        be followed over this link again.
        """
        if self._sinks.get(session_id) is not sink:
            return
        self._drop(session_id, sink)
        with trio.move_on_after(CLOSE_DEADLINE_S) as patience, suppress(MidstreamError):
            patience.shield = True
            await self.request(lambda id: wire.Unsubscribe(id=id, session=session_id))

    # --- one connection

    async def _connect_once(self, on_welcome: Callable[[], None]) -> Exception:
        """Connect and stay connected for as long as it lasts. Returns why it did not."""
        problems: list[Exception] = []
        try:
            async with websocket_to(self._endpoint, self._codec.protocol) as websocket:
                await self._serve(websocket, on_welcome)
        except* CannotConnect as group:
            problems += group.exceptions
        except* NETWORK_ERRORS as group:
            problems += group.exceptions
        return explained(problems[0] if problems else ConnectionLost("it was closed"))

    async def _serve(self, websocket: WebSocketConnection, on_welcome: Callable[[], None]) -> None:
        await self._be_welcome(websocket)
        on_welcome()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ping_for_ever, websocket)
                nursery.start_soon(self._send_again)
                await self._listen(websocket)
        finally:
            self._disconnect()

    async def _be_welcome(self, websocket: WebSocketConnection) -> None:
        with trio.fail_after(CONNECT_DEADLINE_S):
            await websocket.send_message(self._codec.encode(self._hello))
            frame = self._codec.decode(await websocket.get_message())
        if isinstance(frame, wire.Error):
            raise CannotConnect(frame.message)
        if not isinstance(frame, wire.Welcome):
            raise WireError("the server did not say welcome")
        self._server = frame.server
        self._websocket = websocket

    async def _listen(self, websocket: WebSocketConnection) -> None:
        while True:
            self._hear(self._codec.decode(await websocket.get_message()))

    def _hear(self, frame: wire.AnyServerFrame) -> None:
        match frame:
            case wire.Ack(id=id, result=result):
                if (pending := self._pending.get(id)) is not None:
                    pending.settle(result)
            case wire.Error(id=int(id)):
                if (pending := self._pending.get(id)) is not None:
                    pending.settle(error_of(frame))
            case wire.Event(session=session):
                if (sink := self._sinks.get(session)) is not None:
                    event = SessionEvent(session, frame.sequence, frame.event, frame.epoch)
                    sink.push(event)
            case wire.Lagged(session=session) | wire.Error(session=str(session)):
                if (sink := self._sinks.pop(session, None)) is not None:
                    sink.close(error_of(frame) if isinstance(frame, wire.Error) else None)
            case _:
                pass

    async def _send(self, pending: _Pending) -> None:
        if self._websocket is None:
            return
        pending.sent_to, pending.sent_over = self._server, self._websocket
        with suppress(ConnectionClosed):  # it is sent again over the next connection
            await self._websocket.send_message(self._codec.encode(pending.request))

    async def _send_again(self) -> None:
        for pending in tuple(self._pending.values()):
            is_lost = pending.sent_to is not None and pending.sent_to != self._server
            if is_lost and isinstance(pending.request, _NOT_REPEATABLE):
                pending.settle(OutcomeUnknown("the server was restarted before it answered"))
            elif not pending.arrived.is_set() and pending.sent_over is not self._websocket:
                await self._send(pending)

    def _disconnect(self) -> None:
        self._websocket = None
        for pending in self._pending.values():
            if isinstance(pending.request, _OF_ONE_CONNECTION):
                pending.settle(BrokenLink("the connection broke"))
        for sink in self._sinks.values():
            sink.close()
        self._sinks.clear()

    def _drop(self, session_id: str, sink: Sink) -> None:
        if self._sinks.get(session_id) is sink:
            del self._sinks[session_id]
        sink.close()

    def _give_up(self, error: MidstreamError) -> None:
        if self._end is None:
            self._end = error
        for pending in self._pending.values():
            pending.settle(self._end)
        for sink in self._sinks.values():
            sink.close(self._end)
        self._sinks.clear()


class BrokenLink(MidstreamError):
    """The connection broke during something that belongs to one connection; try again."""
