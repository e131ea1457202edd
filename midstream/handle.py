"""What a host holds of a session: its events, its outcome, and the two ways to end it."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Generic, TypeVar

import trio

from midstream.actors.address import Address
from midstream.actors.announcer import AnnouncerMessage, Subscribe
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
from midstream.messages.work import Cancel, Interrupt, ToolAnswer

Chunk = Text | Thinking | ToolUse | ToolWanted | ToolResult | Retracted
"""What the model says, piece by piece. `Retracted` voids all pieces of its attempt."""

T = TypeVar("T")

_SUBSCRIBE_DEADLINE_S = 10.0
_ANSWER_DEADLINE_S = 10.0


class EventStream(Generic[T]):
    """An async iterator over what one session says; it ends with the session.

    Leaving it (`aclose`, or the end of an `async with`) ends the subscription, never the
    session. Raises `Lagged` if its consumer was so slow that events had to be dropped.
    """

    def __init__(
        self,
        announcer: Address[AnnouncerMessage],
        session_id: str,
        known: trio.Event,
        after: int,
        select: Callable[[SessionEvent], T | None],
    ) -> None:
        self._announcer = announcer
        self._known = known
        self._session_id = session_id
        self._after = after
        self._select = select
        self._subscription: Subscription | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        subscription = self._subscription
        if subscription is None:
            subscription = self._subscription = await self._subscribe()
        async for event in subscription:
            selected = self._select(event)
            if selected is not None:
                return selected
        raise StopAsyncIteration

    async def _subscribe(self) -> Subscription:
        await self._known.wait()
        return await self._announcer.ask(
            lambda reply: Subscribe(self._session_id, self._after, reply), _SUBSCRIBE_DEADLINE_S
        )

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
    ) -> None:
        self.session_id = session_id
        self.conversation_id = conversation_id
        self._session = session
        self._tools = tools
        self._announcer = announcer
        self._outcome = outcome
        self._known = trio.Event()

    def became_known(self) -> None:
        """For the runtime: events of this session can be subscribed to from now on."""
        self._known.set()

    @property
    def chunks(self) -> EventStream[Chunk]:
        """What the model says, from the beginning of the session."""
        return EventStream(self._announcer, self.session_id, self._known, 0, _chunk)

    def events(self, after: int = 0) -> EventStream[SessionEvent]:
        """Everything that happens in the session, behind event number `after`.

        Raises `GapError` if events behind `after` are not remembered any more, and
        `UnknownSession` half a minute after the session's end.
        """
        return EventStream(
            self._announcer, self.session_id, self._known, after, lambda event: event
        )

    async def result(self) -> SessionEnded:
        """Wait for the session's outcome. Leaving the wait does not end the session."""
        return await self._outcome.wait()

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

    async def cancel(self, reason: str | None = None) -> None:
        """End the session as cancelled, for `reason`."""
        if self.ended is None:
            await self._session.tell(Cancel(reason))


def _chunk(event: SessionEvent) -> Chunk | None:
    said = event.event
    return said if isinstance(said, Chunk) else None
