"""What a host holds of a session: its events, its outcome, and the two ways to end it."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Generic, TypeVar

import trio

from midstream.actors.address import Address
from midstream.actors.announcer import AnnouncerMessage, Subscribe, UnknownSession
from midstream.actors.errors import AskFailed
from midstream.actors.outcome import Outcome
from midstream.actors.session import SessionMessage
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


class EventStream(Generic[T]):
    """An async iterator over what one session says; it ends with the session.

    Leaving it (`aclose`, or the end of an `async with`) ends the subscription, never the
    session. Raises `Lagged` if its consumer was so slow that events had to be dropped.
    """

    def __init__(
        self,
        announcer: Address[AnnouncerMessage],
        session_id: str,
        admission: Admission,
        after: int,
        select: Callable[[SessionEvent], T | None],
    ) -> None:
        self._announcer = announcer
        self._admission = admission
        self._session_id = session_id
        self._after = after
        self._select = select
        self._subscription: Subscription | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        subscription = self._subscription
        if subscription is None:
            if not await self._admission.wait():
                raise StopAsyncIteration
            subscription = await self.begin()
        async for event in subscription:
            selected = self._select(event)
            if selected is not None:
                return selected
        raise StopAsyncIteration

    async def begin(self) -> Subscription:
        """Subscribe, which iterating does by itself. Raises `GapError`, `UnknownSession`."""
        subscription: Subscription = await self._announcer.ask(
            lambda reply: Subscribe(self._session_id, self._after, reply), _SUBSCRIBE_DEADLINE_S
        )
        self._subscription = subscription
        return subscription

    async def aclose(self) -> None:
        """End the subscription."""
        if self._subscription is not None:
            self._subscription.close()

    async def __aenter__(self) -> "EventStream[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


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
        announcer: Address[AnnouncerMessage],
        outcome: Outcome,
        admission: Admission,
        *,
        streaming: bool = True,
    ) -> None:
        self.session_id = session_id
        self.conversation_id = conversation_id
        self._session = session
        self._tools = tools
        self._announcer = announcer
        self._outcome = outcome
        self._admission = admission
        self._streaming = streaming

    @property
    def chunks(self) -> EventStream[Chunk]:
        """What the model says, from the beginning of the session.

        Empty for a session that was not let in, or that does not stream.
        """
        select = _chunk if self._streaming else _nothing
        return EventStream(self._announcer, self.session_id, self._admission, 0, select)

    def events(self, after: int = 0) -> EventStream[SessionEvent]:
        """Everything that happens in the session, behind event number `after`.

        Raises `GapError` if events behind `after` are not remembered any more, and
        `UnknownSession` half a minute after the session's end.
        """
        return EventStream(
            self._announcer, self.session_id, self._admission, after, lambda event: event
        )

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

    async def detach(self) -> None:
        """Say that the client has gone. The answer to its prompt is finished, but it is not
        continued by itself; a continuation under way is cut, and the last good answer is
        the outcome."""
        if self.ended is None:
            await self._session.tell(Detach())

    async def cancel(self, reason: str | None = None) -> None:
        """End the session as cancelled, for `reason`."""
        if self.ended is None:
            await self._session.tell(Cancel(reason))


async def chunks_of(
    announcer: Address[AnnouncerMessage], session_id: str
) -> EventStream[Chunk] | None:
    """What the model says in a session that somebody else has started here, from its
    beginning; None if it is not known. Raises `GapError` if that is not remembered."""
    admission = Admission()
    admission.decide(admitted=True)
    stream = EventStream(announcer, session_id, admission, 0, _chunk)
    try:
        await stream.begin()
    except UnknownSession:
        return None
    return stream


def _nothing(event: SessionEvent) -> Chunk | None:
    return None


def _chunk(event: SessionEvent) -> Chunk | None:
    said = event.event
    return said if isinstance(said, Chunk) else None
