"""A session on a server, as if it were here: the same calls as a `SessionHandle`."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from midstream.actors.subscription import Lagged
from midstream.client.errors import EventsLost
from midstream.client.link import BrokenLink, Link
from midstream.client.sink import Sink
from midstream.messages import wire
from midstream.messages.errors import StoreError
from midstream.messages.event_log import Position
from midstream.messages.events import (
    AttemptStarted,
    Retracted,
    SessionEnded,
    SessionEvent,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    ToolWanted,
)
from midstream.messages.record import SessionRecord

Chunk = Text | Thinking | ToolUse | ToolWanted | ToolResult | Retracted

STORE_AGAIN_S = 1.0
"""Seconds until a server whose store was away is asked again."""

LinkFor = Callable[[str], Awaitable[Link]]
"""Gives a link over which this session is not followed."""


class RemoteEvents(trio.abc.AsyncResource):
    """The events of a session behind a number, in order, each once, to the session's end.

    Connections may break meanwhile: it subscribes again behind the last event. Raises
    `GapError` where the server's record does not reach back, `UnknownSession`, `EventsLost`,
    and why the client gave up. One task may iterate at a time.
    """

    def __init__(
        self,
        session_id: str,
        link_for: LinkFor,
        after: int,
        epoch: int | None,
        note: Callable[[SessionEvent], None],
    ) -> None:
        self.after = after
        """The number of the last event that was given out."""
        self.epoch = epoch
        """Its epoch; None before the first."""
        self._session_id = session_id
        self._link_for = link_for
        self._note = note
        self._link: Link | None = None
        self._sink: Sink | None = None
        self._ready: deque[SessionEvent] = deque()
        self._over = False

    def __aiter__(self) -> AsyncIterator[SessionEvent]:
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            self._ready.extend(await self._next())
        event = self._ready.popleft()
        self.after, self.epoch = event.sequence, event.epoch
        self._over = isinstance(event.event, SessionEnded)
        self._note(event)
        return event

    async def aclose(self) -> None:
        """Leave. The session runs on."""
        self._over = True
        self._ready.clear()
        sink, self._sink = self._sink, None
        if sink is not None and self._link is not None:
            await self._link.unfollow(self._session_id, sink)

    async def _next(self) -> list[SessionEvent]:
        """The next events; none if one has to subscribe again."""
        if self._sink is None:
            await self._subscribe()
            return []
        try:
            events = await self._sink.take()
        except Lagged:
            sink, self._sink = self._sink, None
            assert self._link is not None
            await self._link.unfollow(self._session_id, sink)
            return []
        except StoreError:
            self._sink = None
            await trio.sleep(STORE_AGAIN_S)
            return []
        if not events:
            self._sink = None
        return events

    async def _subscribe(self) -> None:
        self._link = await self._link_for(self._session_id)
        try:
            sink, place = await self._link.follow(self._session_id, self.after, self.epoch)
        except BrokenLink:
            return
        except StoreError:
            await trio.sleep(STORE_AGAIN_S)
            return
        self._sink = sink
        if place.reset:
            self.after, self.epoch = place.after, place.epoch
            raise EventsLost(self._session_id, Position(place.epoch, place.after))


class RemoteChunks(trio.abc.AsyncResource):
    """What the model says in a session, piece by piece, to its end.

    When the host of the session was lost, what it had said of its last attempt is retracted,
    and comes again as far as it is on record. Leaving it (`aclose`, or the end of an
    `async with`) never ends the session.
    """

    def __init__(self, events_behind: Callable[[int, int | None], RemoteEvents]) -> None:
        self._events_behind = events_behind
        self._events = events_behind(0, None)
        self._attempts: list[tuple[int, int]] = []
        """Each with the number before its first event."""
        self._void: deque[Retracted] = deque()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._void:
            try:
                said = await anext(self._events)
            except EventsLost as lost:
                await self._begin_again(lost.position)
                continue
            if isinstance(said.event, AttemptStarted):
                self._attempts.append((said.event.attempt, said.sequence - 1))
            if isinstance(said.event, Chunk):
                return said.event
        return self._void.popleft()

    async def _begin_again(self, kept: Position) -> None:
        """Retract the attempts of which something was lost, and go back before the first."""
        start = kept.sequence
        while self._attempts:
            attempt, before = self._attempts.pop()
            self._void.append(Retracted(attempt, "its host was lost"))
            if before < kept.sequence:
                start = before
                break
        await self._events.aclose()
        self._events = self._events_behind(start, kept.epoch)

    async def aclose(self) -> None:
        """Leave."""
        await self._events.aclose()


class RemoteSession:
    """One session on a server. Made by `Client.animate` and `Client.session`."""

    def __init__(
        self, session_id: str, conversation_id: str | None, link: Link, link_for: LinkFor
    ) -> None:
        self.session_id = session_id
        self.conversation_id = conversation_id
        """None for a session that was begun elsewhere; its record has it."""
        self._link = link
        self._link_for = link_for
        self._ended: SessionEnded | None = None

    def events(self, after: int = 0, epoch: int | None = None) -> RemoteEvents:
        """Everything that happens in the session, behind event number `after` of `epoch`."""
        return RemoteEvents(self.session_id, self._link_for, after, epoch, self._note)

    @property
    def chunks(self) -> RemoteChunks:
        """What the model says, from the beginning of the session."""
        return RemoteChunks(self.events)

    async def result(self) -> SessionEnded:
        """Wait for the session's outcome. Leaving the wait does not end the session."""
        if self._ended is None:
            async with self.events() as events:
                while self._ended is None:
                    try:
                        await anext(events)
                    except EventsLost:
                        continue
        return self._ended

    @property
    def ended(self) -> SessionEnded | None:
        """The outcome, if one of the iterators of this object has come to it."""
        return self._ended

    async def interrupt(self) -> None:
        """Let the model stop. Returns when the session has been told."""
        await self._link.request(lambda id: wire.Interrupt(id=id, session=self.session_id))

    async def cancel(self, reason: str | None = None) -> None:
        """End the session as cancelled, for `reason`."""
        await self._link.request(
            lambda id: wire.Cancel(id=id, session=self.session_id, reason=reason)
        )

    async def answer(
        self, call_id: str, content: str, *, is_error: bool = False, attempt: int | None = None
    ) -> bool:
        """Answer a call for which `ToolWanted` came; whether the answer was taken."""
        result = await self._link.request(
            lambda id: wire.ToolResult(
                id=id,
                session=self.session_id,
                call_id=call_id,
                content=content,
                is_error=is_error,
                attempt=attempt,
            )
        )
        assert isinstance(result, wire.Taken)
        return result.taken

    async def record(self) -> SessionRecord:
        """The session's record, as it is now. Raises `UnknownSession`."""
        result = await self._link.request(lambda id: wire.Status(id=id, session=self.session_id))
        assert isinstance(result, wire.Record)
        return result.session

    def _note(self, event: SessionEvent) -> None:
        if isinstance(event.event, SessionEnded):
            self._ended = event.event
