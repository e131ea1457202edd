"""A session and its streams, as programs of plain threads see them: `Handle`, `Stream`."""

from collections.abc import Iterator
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
    """An iterator over what a session says; it ends with the session.

    Leaving it (`close`, or the end of a `with`) ends the subscription, never the session.
    Raises `Lagged` if its consumer was so slow that events had to be dropped.
    """

    def __init__(
        self, portal: BlockingPortal, fetched: Fetched[T], timeout_s: float | None = None
    ) -> None:
        self._portal = portal
        self._fetched = fetched
        self._timeout_s = timeout_s

    def within(self, timeout_s: float) -> "Stream[T]":
        """The same stream, which raises `TimeoutError` when nothing comes for so many seconds.
        It may be iterated over again.

        >>> for chunk in handle.chunks.within(30): ...
        """
        return Stream(self._portal, self._fetched, timeout_s)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        ready = self._fetched.ready
        while not ready:
            fetch = Call(self._portal, self._fetched.fetch)
            if not fetch.in_thread(self._timeout_s) and not ready:
                raise StopIteration
        return ready.popleft()

    def close(self) -> None:
        """End the subscription."""
        Call(self._portal, self._fetched.close).in_thread()
        self._fetched.ready.clear()

    def __enter__(self) -> "Stream[T]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


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

    def result(self, timeout_s: float | None = None) -> SessionEnded:
        """Wait for the session's outcome. Leaving the wait does not end the session."""
        return Call(self._portal, self._handle.result).in_thread(timeout_s)

    def record(self, timeout_s: float | None = None) -> SessionRecord:
        """Wait for the session's outcome, and give its record."""
        return Call(self._portal, self._handle.record).in_thread(timeout_s)

    def admitted(self) -> bool:
        """Wait until it is known whether the session was let in."""
        return Call(self._portal, self._handle.admitted).in_thread()

    def answer(
        self, call_id: str, content: str, *, is_error: bool = False, attempt: int | None = None
    ) -> bool:
        """Answer a call for which `ToolWanted` came; whether the answer was taken."""
        answer = partial(self._handle.answer, is_error=is_error, attempt=attempt)
        return Call(self._portal, answer, call_id, content).in_thread()

    def interrupt(self) -> None:
        """Let the model stop. Returns when the session has been told."""
        Call(self._portal, self._handle.interrupt).in_thread()

    def detach(self) -> None:
        """Say that the client has gone: the session is not continued by itself."""
        Call(self._portal, self._handle.detach).in_thread()

    def cancel(self, reason: str | None = None) -> None:
        """End the session as cancelled, for `reason`."""
        Call(self._portal, self._handle.cancel, reason).in_thread()

    def _stream(self, stream: EventStream[T]) -> Stream[T]:
        return Stream(self._portal, Fetched(stream.take, stream.aclose))
