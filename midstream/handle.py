"""What a host holds of a session: its events, its outcome, and the two ways to end it."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import trio

from midstream.actors.address import Address
from midstream.actors.announcer import AnnouncerMessage, Subscribe, UnknownSession
from midstream.actors.errors import AskFailed
from midstream.actors.event_channel import GapError
from midstream.actors.outcome import Outcome
from midstream.actors.replay import Replay
from midstream.actors.session import SessionMessage
from midstream.actors.stop_latch import StopLatch
from midstream.actors.subscription import Subscription
from midstream.actors.tool_runner import ToolRunnerMessage
from midstream.messages.events import (
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
from midstream.messages.work import Cancel, Detach, Interrupt, ToolAnswer

Chunk = Text | Thinking | ToolUse | ToolWanted | ToolResult | Retracted
"""What the model says, piece by piece. `Retracted` voids all pieces of its attempt."""

T = TypeVar("T")

_SUBSCRIBE_DEADLINE_S = 10.0
_ANSWER_DEADLINE_S = 10.0


class Admission:
    """Whether a session is let in, once that is decided: see `BackoffMachine`."""

    def __init__(self) -> None:
        self._decided = trio.Event()
        self._admitted = False

    def decide(self, *, admitted: bool) -> None:
        """It is; its events can be subscribed to. Or it is not, and has none."""
        self._admitted = admitted
        self._decided.set()

    async def wait(self) -> bool:
        """Wait for the decision."""
        await self._decided.wait()
        return self._admitted


class EventStream(trio.abc.AsyncResource, Generic[T]):
    """An async iterator over what one session says; it ends with the session.

    Leaving it (`aclose`, or the end of an `async with`) ends the subscription, never the
    session. Raises `Lagged` if its consumer was so slow that events had to be dropped.
    """

    def __init__(
        self, replay: Replay, admission: Admission, select: Callable[[SessionEvent], T | None]
    ) -> None:
        self._replay = replay
        self._admission = admission
        self._select = select
        self._ready: deque[T] = deque()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not self._ready:
            self._ready.extend(await self.take())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def take(self) -> list[T]:
        """All that is there by now; waits for the first. Empty at the end."""
        ready = list(self._ready)
        self._ready.clear()
        if not ready and not await self._admission.wait():
            return []
        while not ready:
            events = await self._replay.take()
            if not events:
                break
            ready = [one for one in map(self._select, events) if one is not None]
        return ready

    async def aclose(self) -> None:
        """End the subscription."""
        self._replay.close()
        self._ready.clear()


class SessionHandle:
    """One session, from the moment its prompt was handed in.

    >>> handle = runtime.animate("Write a haiku about actors")
    >>> async for chunk in handle.chunks:
    ...     show(chunk)
    >>> ended = await handle.result()
    """

    def __init__(
        self,
        session_id: str,
        conversation_id: str,
        session: Address[SessionMessage],
        tools: Address[ToolRunnerMessage],
        stop: StopLatch,
        replay: Callable[[int], Replay],
        outcome: Outcome,
        admission: Admission,
        *,
        streaming: bool = True,
    ) -> None:
        self.session_id = session_id
        self.conversation_id = conversation_id
        self._session = session
        self._tools = tools
        self._stop = stop
        self._replay = replay
        self._outcome = outcome
        self._admission = admission
        self._streaming = streaming

    async def admitted(self) -> bool:
        """Wait until it is known whether the session was let in. One that was not has ended
        as `rate-limited`, and left no record and no event."""
        return await self._admission.wait()

    @property
    def chunks(self) -> EventStream[Chunk]:
        """What the model says, from the beginning of the session.

        Empty for a session that was not let in, or that does not stream.
        """
        select = _chunk if self._streaming else _nothing
        return EventStream(self._replay(0), self._admission, select)

    def events(self, after: int = 0) -> EventStream[SessionEvent]:
        """Everything that happens in the session, behind event number `after`.

        Those that are remembered no more come from the event log, in which adjacent deltas
        are joined. Raises `GapError` if events behind `after` are nowhere on record, and
        `UnknownSession` for a session that left no record, half a minute after its end at the
        latest.
        """
        return EventStream(self._replay(after), self._admission, lambda event: event)

    async def result(self) -> SessionEnded:
        """Wait for the session's outcome. Leaving the wait does not end the session."""
        return await self._outcome.wait()

    async def record(self) -> SessionRecord:
        """Wait for the session's outcome, and give its record: when it began and ended, what
        it has cost, its metadata. A session that was not let in has one too, which is kept
        nowhere else."""
        return await self._outcome.record()

    @property
    def ended(self) -> SessionEnded | None:
        """The outcome, or None while the session runs."""
        return self._outcome.ended

    async def answer(
        self,
        call_id: str,
        content: str,
        *,
        is_error: bool = False,
        attempt: int | None = None,
    ) -> bool:
        """Answer a call for which `ToolWanted` came; `content` is text for the model.

        Returns whether the answer was taken. It is not if the call does not wait for one:
        before `ToolWanted`, after an answer, after the deadline, or when the session was
        stopped. `attempt` is that of `ToolWanted`, for servers that use ids again.

        >>> case midstream.ToolWanted(call_id=call_id, arguments=arguments):
        ...     await handle.answer(call_id, await ask_somebody(arguments))
        """
        if self.ended is not None:
            return False
        try:
            return await self._tools.ask(
                lambda reply: ToolAnswer(call_id, content, is_error, attempt, reply),
                _ANSWER_DEADLINE_S,
            )
        except AskFailed:
            return False

    async def interrupt(self) -> None:
        """Let the model stop. What it has said stays in the conversation.

        Nothing that was scheduled before, such as a retry, starts any more. Returns when
        the session has been told; `result` tells when it has ended.
        """
        if self.ended is None:
            await self._session.tell(Interrupt())
            self._stop.set()

    async def detach(self) -> None:
        """Say that the client has gone. The answer to its prompt is finished, but it is not
        continued by itself; a continuation under way is cut, and the last good answer is
        the outcome."""
        if self.ended is None:
            await self._session.tell(Detach())
            self._stop.leave()

    async def cancel(self, reason: str | None = None) -> None:
        """End the session as cancelled, for `reason`."""
        if self.ended is None:
            await self._session.tell(Cancel(reason))
            self._stop.set()


async def chunks_of(
    announcer: Address[AnnouncerMessage], session_id: str, replay: Replay
) -> EventStream[Chunk] | None:
    """What the model says in a session that somebody else has started here, from its
    beginning; None if the Announcer does not know it."""
    try:
        subscription: Subscription = await announcer.ask_through_crashes(
            lambda reply: Subscribe(session_id, 0, reply), _SUBSCRIBE_DEADLINE_S
        )
        subscription.close()
    except UnknownSession:
        return None
    except GapError:
        pass  # it is known, and its beginning is in the log
    admission = Admission()
    admission.decide(admitted=True)
    return EventStream(replay, admission, _chunk)


def _nothing(event: SessionEvent) -> Chunk | None:
    return None


def _chunk(event: SessionEvent) -> Chunk | None:
    said = event.event
    return said if isinstance(said, Chunk) else None
