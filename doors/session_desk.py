"""What the session routes need of a host; a runtime has it all."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from midstream.actors.replay import Replay
from midstream.messages.dispatch import DispatchStatus
from midstream.messages.events import AnyEvent
from midstream.messages.record import SessionRecord
from midstream.messages.session_reports import AnyReport, ReportAnswer
from midstream.stores.session_list import SessionFilter, SessionPage
from midstream.stores.store import Cursor


class SessionDesk(Protocol):
    """The book of sessions (`midstream.session_book`)."""

    async def list_sessions(
        self, which: SessionFilter | None = None, *, limit: int = 20, after: Cursor | None = None
    ) -> SessionPage: ...

    async def session(self, session_id: str) -> SessionRecord: ...

    async def cancel(self, session_id: str, reason: str | None = None) -> SessionRecord: ...

    async def report(self, report: AnyReport) -> ReportAnswer: ...

    async def transcript(self, session_id: str, start: int = 0) -> Sequence[msgspec.Raw]: ...

    async def status(self) -> DispatchStatus: ...

    def is_dispatchable(self) -> bool: ...


class Chunks(Protocol):
    """What the model says in one session, piece by piece."""

    def __aiter__(self) -> AsyncIterator[AnyEvent]: ...

    async def aclose(self) -> None: ...


Follow = Callable[[str], Awaitable[Chunks | None]]
"""From a session's id to what is said in it; None if it is not known here."""

ReplayOf = Callable[[str], Replay]
"""From a session's id to the events on record."""
