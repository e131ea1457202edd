"""The book of sessions, as programs of plain threads see it."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar, TypeVarTuple

import msgspec

from midstream import runtime as trio_runtime
from midstream.embedding.crossing import BlockingPortal, Call
from midstream.messages.dispatch import DispatchStatus
from midstream.messages.record import SessionRecord
from midstream.messages.session_cost import SessionCost
from midstream.session_book import Overview
from midstream.stores.session_list import SessionFilter, SessionPage
from midstream.stores.store import Cursor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Sessions:
    """The book of all sessions of the store; see `midstream.SessionBook`."""

    def __init__(self, portal: BlockingPortal, runtime: trio_runtime.Runtime) -> None:
        self._portal = portal
        self._book = runtime.sessions

    def list_sessions(
        self,
        which: SessionFilter | None = None,
        *,
        limit: int = 20,
        after: Cursor | None = None,
    ) -> SessionPage:
        """Sessions, the newest first."""
        listing = partial(self._book.list_sessions, which, limit=limit, after=after)
        return Call(self._portal, listing).in_thread()

    def session(self, session_id: str) -> SessionRecord:
        """The record of a session. Raises `UnknownSession`."""
        return Call(self._portal, self._book.session, session_id).in_thread()

    def overview(self) -> Overview:
        """Where everything stands now."""
        return Call(self._portal, self._book.overview).in_thread()

    def cancel(self, session_id: str, reason: str | None = None) -> SessionRecord:
        """End a session as cancelled, whichever process it lives in; its record then."""
        return Call(self._portal, self._book.cancel, session_id, reason).in_thread()

    def session_costs(self, session_ids: Iterable[str]) -> dict[str, SessionCost]:
        """What these sessions have cost, by id."""
        return Call(self._portal, self._book.session_costs, tuple(session_ids)).in_thread()

    def status(self) -> DispatchStatus:
        """The shared pause, as it is now for all hosts."""
        return Call(self._portal, self._book.status).in_thread()

    def transcript(self, session_id: str, start: int = 0) -> Sequence[msgspec.Raw]:
        """What the provider of a session outside wrote, raw, from position `start` on."""
        return Call(self._portal, self._book.transcript, session_id, start).in_thread()

    def reminded_of(self, record: SessionRecord) -> tuple[str, ...]:
        """The rules of which the session's conversation was reminded, and still is."""
        return Call(self._portal, self._book.reminded_of, record).in_thread()
