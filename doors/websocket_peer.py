"""The I/O of one websocket connection: receives, carries out, sends, and notices death.

`Connection` decides what is done about each message. Events of a session go out in a task
of its own, which takes what is there, joins deltas, and waits for the client to take it:
a client that is slow gets fewer and longer deltas, then `lagged`, and nobody else waits
(architecture.md, the way of a token). Requests are carried out side by side, so many at a time.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from midstream.actors.replay import Replay
from midstream.actors.subscription import Lagged
from midstream.doors.answers import Answer, AnswerBook
from midstream.doors.attendance import Attendance
from midstream.doors.session_host import SessionHost
from midstream.doors.turnstile import Turnstile
from midstream.doors.websocket_connection import (
    Admit,
    Carry,
    Close,
    Connection,
    Effect,
    Follow,
    Send,
    Unfollow,
)
from midstream.doors.websocket_requests import Carried, Once, Requests
from midstream.messages import wire
from midstream.messages.errors import MidstreamError
from midstream.messages.event_log import joined
from midstream.messages.events import SessionEnded, SessionEvent
from midstream.messages.wire import CloseCode
from midstream.messages.wire_codec import Codec

HELLO_DEADLINE_S = 10.0

PING_EVERY_S = 20.0
"""Seconds between two pings of the server; proxies cut connections that are silent for a
minute."""

PONG_DEADLINE_S = 20.0
"""Seconds for the pong. A client that takes nothing for so long is gone, or as good as."""

SUBSCRIPTION_LIMIT_BYTES = 131_072
"""What waits for a client in one subscription. Little: whoever lags resumes from the log."""

REQUESTS_AT_ONCE = 8
"""Requests of one client that are carried out side by side."""


class Peer:
    """See the module. `on_welcome` is called when the client was let in."""

    def __init__(
        self,
        websocket: WebSocketConnection,
        connection: Connection,
        codec: Codec[wire.AnyClientFrame],
        host: SessionHost,
        requests: Requests,
        answers: AnswerBook,
        attendance: Attendance,
        turnstile: Turnstile,
        on_welcome: Callable[[], None],
    ) -> None:
        self._websocket = websocket
        self._connection = connection
        self._codec = codec
        self._host = host
        self._requests = requests
        self._answers = answers
        self._attendance = attendance
        self._turnstile = turnstile
        self._on_welcome = on_welcome
        self._pumps: dict[str, _Pump] = {}
        self._slots = trio.CapacityLimiter(REQUESTS_AT_ONCE)
        self._nursery: trio.Nursery | None = None
        self._closing: Close | None = None

    @property
    def subscriptions(self) -> int:
        """How many sessions are followed."""
        return len(self._pumps)

    async def run(self) -> Close | None:
        """Serve until one side closes; how we do, or None if the other side has."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._receive_all()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self._attendance.leave(self)
        return self._closing

    async def _receive_all(self) -> None:
        try:
            message = await self._first_message()
            while message is not None:
                for effect in self._connection.receive(message):
                    await self._carry_out(effect)
                if self._closing is not None:
                    return
                message = await self._websocket.get_message()
        except ConnectionClosed:
            return

    async def _first_message(self) -> str | bytes | None:
        with trio.move_on_after(HELLO_DEADLINE_S):
            return await self._websocket.get_message()
        self._closing = Close(CloseCode.NO_HELLO, "hello did not come in time")
        return None

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(frame):
                await self._send(frame)
            case Close():
                self._closing = effect
            case Admit():
                self._on_welcome()
                self._start(self._notice_death)
            case Carry(request):
                slot = object()
                await self._slots.acquire_on_behalf_of(slot)
                self._start(partial(self._answer, request, slot))
            case Follow(request):
                replay = self._host.replay(
                    request.session, request.after, request.epoch, SUBSCRIPTION_LIMIT_BYTES
                )
                self._follow(request.session, replay, request.id)
            case Unfollow(request):
                await self._unfollow(request)

    async def _send(self, frame: wire.AnyServerFrame) -> None:
        await self._websocket.send_message(self._codec.encode(frame))

    def _start(self, function: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._until_closed, function)

    async def _until_closed(self, function: Callable[[], Awaitable[None]]) -> None:
        try:
            await function()
        except ConnectionClosed:
            assert self._nursery is not None
            self._nursery.cancel_scope.cancel()

    async def _notice_death(self) -> None:
        number = 0
        while True:
            await trio.sleep(PING_EVERY_S)
            number += 1
            with trio.move_on_after(PONG_DEADLINE_S) as patience:
                await self._websocket.ping(number.to_bytes(8, "big"))
            if patience.cancelled_caught:
                # Closed without a code: no closing handshake can be had.
                assert self._nursery is not None
                self._nursery.cancel_scope.cancel()

    # --- requests

    async def _answer(self, request: Carried, slot: object) -> None:
        try:
            carry = partial(self._carry_out_request, request)
            client = self._connection.client
            if client is not None and isinstance(request, Once):
                answer = await self._answers.once(client, request.id, carry)
            else:
                answer = await carry()
        finally:
            self._slots.release_on_behalf_of(slot)
        if isinstance(request, wire.Submit) and isinstance(answer, wire.Ack):
            await self._on_submitted(request, answer)
        else:
            await self._send(answer)

    # --- events

    async def _carry_out_request(self, request: Carried) -> Answer:
        answer = await self._requests.carry_out(request)
        if isinstance(answer, wire.Ack) and isinstance(answer.result, wire.Submitted):
            self._attendance.begin(answer.result.session, self)
            if self._nursery is None:  # the client has not waited for the answer
                self._attendance.leave(self)
        return answer

    async def _on_submitted(self, request: wire.Submit, answer: wire.Ack) -> None:
        assert isinstance(answer.result, wire.Submitted)
        session = answer.result.session
        self._attendance.join(session, self)
        await self._send(answer)
        if not request.follow or session in self._pumps or not self._connection.may_follow():
            return
        self._connection.begin_to_follow(session)
        replay = self._host.replay(session, 0, None, SUBSCRIPTION_LIMIT_BYTES)
        self._follow(session, replay, None)

    def _follow(self, session: str, replay: Replay, id: int | None) -> None:
        self._attendance.join(session, self)
        pump = self._pumps[session] = _Pump()
        self._start(partial(self._pump, pump, session, replay, id))

    async def _unfollow(self, request: wire.Unsubscribe) -> None:
        pump = self._pumps.get(request.session)
        if pump is not None:
            pump.scope.cancel()
            await pump.over.wait()
        result = wire.Unsubscribed(session=request.session)
        await self._send(wire.Ack(id=request.id, result=result))

    async def _pump(self, pump: "_Pump", session: str, replay: Replay, id: int | None) -> None:
        last_words: wire.AnyServerFrame | None = None
        try:
            with pump.scope:
                last_words = await self._send_events(session, replay, id)
        finally:
            replay.close()
            del self._pumps[session]
            self._connection.stop_following(session)
            pump.over.set()
        if last_words is not None:
            await self._send(last_words)

    async def _send_events(
        self, session: str, replay: Replay, id: int | None
    ) -> wire.AnyServerFrame | None:
        """Send them to their end. Returns what is to be said of another end than their own."""
        try:
            start = await replay.begin()
            if id is not None:
                epoch, after = start.position.epoch, start.position.sequence
                result = wire.Subscribed(
                    session=session, epoch=epoch, after=after, reset=start.reset
                )
                await self._send(wire.Ack(id=id, result=result))
                id = None
            while events := await self._next_events(replay):
                if isinstance(events[-1].event, SessionEnded):
                    self._attendance.ended(session)
                for event in joined(events):
                    frame = wire.Event(
                        session=session,
                        epoch=event.epoch,
                        sequence=event.sequence,
                        event=event.event,
                    )
                    if self._connection.shows(frame):
                        await self._send(frame)
        except Lagged:
            place = replay.position
            return wire.Lagged(session=session, epoch=place.epoch, after=place.sequence)
        except MidstreamError as error:
            refusal = self._host.refusal_for(error)
            return wire.Error(
                code=refusal.code,
                message=str(refusal),
                id=id,
                session=session,
                after=refusal.after,
            )
        return None

    async def _next_events(self, replay: Replay) -> list[SessionEvent]:
        await replay.ready()
        await self._turnstile.pass_through()
        return await replay.take()


class _Pump:
    """The task that sends the events of one session."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.over = trio.Event()
