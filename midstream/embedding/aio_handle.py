"""A session and its streams, as programs of asyncio see them: `Handle`, `Stream`."""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
)
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar, TypeVarTuple

from midstream.embedding.crossing import BlockingPortal, Call
from midstream.embedding.streams import Fetched
from midstream.handle import Chunk, EventStream, SessionHandle
from midstream.messages.events import SessionEnded, SessionEvent
from midstream.messages.record import SessionRecord

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Stream(Generic[T]):
    """An async iterator over what a session says; it ends with the session.

    Leaving it (`aclose`, or the end of an `async with`) ends the subscription, never the
    session. Raises `Lagged` if its consumer was so slow that events had to be dropped. One
    task may iterate at a time.
    """

    def __init__(self, portal: BlockingPortal, fetched: Fetched[T]) -> None:
        self._portal = portal
        self._fetched = fetched

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        ready = self._fetched.ready
        while not ready:
            if not await Call(self._portal, self._fetched.fetch).in_asyncio() and not ready:
                raise StopAsyncIteration
        return ready.popleft()

    async def aclose(self) -> None:
        """End the subscription."""
        await Call(self._portal, self._fetched.close).in_asyncio()
        self._fetched.ready.clear()

    async def __aenter__(self) -> "Stream[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class Handle:
    """One session; see `midstream.SessionHandle`."""

    def __init__(self, portal: BlockingPortal, handle: SessionHandle) -> None:
        self.session_id = handle.session_id
        self.conversation_id = handle.conversation_id
        self._portal = portal
        self._handle = handle

    @property
    def chunks(self) -> Stream[Chunk]:
        """What the model says, from the beginning of the session."""
        return self._stream(self._handle.chunks)

    def events(self, after: int = 0) -> Stream[SessionEvent]:
        """Everything that happens in the session, behind event number `after`."""
        return self._stream(self._handle.events(after))

    @property
    def ended(self) -> SessionEnded | None:
        """The outcome, or None while the session runs."""
        return self._handle.ended

    async def result(self) -> SessionEnded:
        """Wait for the session's outcome. Leaving the wait does not end the session."""
        return await self._call(self._handle.result)

    async def record(self) -> SessionRecord:
        """Wait for the session's outcome, and give its record."""
        return await self._call(self._handle.record)

    async def admitted(self) -> bool:
        """Wait until it is known whether the session was let in."""
        return await Call(self._portal, self._handle.admitted).in_asyncio()

    async def answer(
        self, call_id: str, content: str, *, is_error: bool = False, attempt: int | None = None
    ) -> bool:
        """Answer a call for which `ToolWanted` came; whether the answer was taken."""
        answer = partial(self._handle.answer, is_error=is_error, attempt=attempt)
        return await self._call(answer, call_id, content)

    async def interrupt(self) -> None:
        """Let the model stop. Returns when the session has been told."""
        await self._call(self._handle.interrupt)

    async def detach(self) -> None:
        """Say that the client has gone: the session is not continued by itself."""
        await self._call(self._handle.detach)

    async def cancel(self, reason: str | None = None) -> None:
        """End the session as cancelled, for `reason`."""
        await self._call(self._handle.cancel, reason)

    async def _call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        return await Call(self._portal, function, *args).in_asyncio()

    def _stream(self, stream: EventStream[T]) -> Stream[T]:
        return Stream(self._portal, Fetched(stream.take, stream.aclose))
