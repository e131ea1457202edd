"""The book of sessions, as hosts and commands use it: list, show, cancel, cost, status.

Reads go to the store; whatever changes something goes through the Ledger. It works for the
sessions of this process and for those of any other on the same store. A `Runtime` has one;
`open_session_book` (books.py) opens one alone, without anything that starts sessions.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import trio

from midstream.actors.address import Address
from midstream.actors.announcer import UnknownSession
from midstream.actors.backoff_machine import BackoffMessage, DispatchView, ReadStatus
from midstream.actors.clock import Clock
from midstream.actors.errors import AskFailed
from midstream.actors.ledger_messages import Apply, LedgerMessage, Report
from midstream.actors.live_sessions import LiveSession, LiveSessions
from midstream.messages.backoff import BackoffSettings
from midstream.messages.dispatch import (
    DispatchAsked,
    DispatchStatus,
    Refused,
    decide,
    is_dispatchable,
)
from midstream.messages.errors import StoreError
from midstream.messages.record import SessionRecord, SessionStatus, Shape
from midstream.messages.session_cost import SessionCost, cost_of
from midstream.messages.session_reports import AnyReport, ReportAnswer, not_taken
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import AnyTransition
from midstream.messages.transition import Cancel as CancelTransition
from midstream.providers.cancel_handle import CancelsByHandle
from midstream.providers.process_group import LocalProcesses
from midstream.stores.conversation_load import load_conversation
from midstream.stores.dlq import DeadLetterQueue
from midstream.stores.session_list import SessionFilter, SessionPage, list_sessions, records_of
from midstream.stores.sessions import load_session
from midstream.stores.state import load_heartbeat
from midstream.stores.store import Book, Cursor, Log, Store, encode

_log = logging.getLogger("midstream.sessions")

CANCEL_DEADLINE_S = 15.0
"""Seconds for a session of this process to end by itself when it is cancelled: its stream
has to settle and its last words to be written."""

ASK_DEADLINE_S = 30.0

DEFAULT_LIMIT = 20
"""Sessions on a page (spec/animator.md 5.7)."""

LARGEST_LIMIT = 500


class Overview(Shape, frozen=True, kw_only=True):
    """Where everything stands: the shared pause, who lives, what waits for the store."""

    status: DispatchStatus
    dispatchable: bool
    running: int
    pending: int
    guild_alive_at: str | None = None
    """When a host of this store was last known to live; None if none ever was."""
    dead_letters: int = 0


class SessionBook:
    """See the module. Every method that reads or writes raises `StoreError`."""

    def __init__(
        self,
        *,
        store: Store,
        queue: DeadLetterQueue,
        ledger: Address[LedgerMessage],
        machine: Address[BackoffMessage],
        view: DispatchView,
        live: LiveSessions,
        clock: Clock,
        settings: BackoffSettings,
        stoppers: Iterable[CancelsByHandle] = (),
    ) -> None:
        self._store = store
        self._queue = queue
        self._ledger = ledger
        self._machine = machine
        self._view = view
        self._live = live
        self._clock = clock
        self._settings = settings
        every = (LocalProcesses(), *stoppers)
        self._stoppers: Mapping[str, CancelsByHandle] = {each.name: each for each in every}

    async def list_sessions(
        self,
        which: SessionFilter | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        after: Cursor | None = None,
    ) -> SessionPage:
        """Sessions, the newest first, at most 500 at once. Raises `ValueError` for a bad
        instant in the filter."""
        most = min(max(1, limit), LARGEST_LIMIT)
        return await list_sessions(self._store, which or SessionFilter(), most, after)

    async def session(self, session_id: str) -> SessionRecord:
        """The record of a session. Raises `UnknownSession`."""
        kept = await load_session(self._store, session_id)
        if kept is None:
            raise UnknownSession(f"there is no session {session_id}")
        return kept.record

    async def session_costs(self, session_ids: Iterable[str]) -> dict[str, SessionCost]:
        """What these sessions have cost, by id; ids without a session are left out."""
        records = await records_of(self._store, tuple(session_ids))
        return {session_id: cost_of(record) for session_id, record in records.items()}

    async def cancel(self, session_id: str, reason: str | None = None) -> SessionRecord:
        """End a session as cancelled, whichever process it lives in; its record then.

        A session of this process stops at once, and says what it has cost until then. One
        of another process is cancelled on record, which that process notices within two
        seconds. One that has ended is left as it is. Raises `UnknownSession`.
        """
        live = self._live.get(session_id)
        if live is not None and (ended := await self._cancel_here(live, reason)):
            return ended
        before = await self.session(session_id)
        # One outside that is only presumed to be dead may still run, and cost.
        if before.is_terminal and not (before.presumed_dead and before.fence is None):
            return before
        cancel = CancelTransition(id=session_id, ended_at=self._now(), reason=reason)
        record: SessionRecord = await self._ledger.ask_through_crashes(
            lambda reply: Apply(cancel, reply), ASK_DEADLINE_S
        )
        await self._stop_outside(record)
        return record

    async def report(self, report: AnyReport) -> ReportAnswer:
        """Take what a session outside says about itself (spec/animator.md 5.5).

        Never raises: an answer that is not `ok` says why, and then whoever sent the report
        has to keep it. A terminal `status` tells the session to stop.
        """
        try:
            encode(report)  # or it would be found out where a part of it is written already
            return await self._ledger.ask(lambda reply: Report(report, reply), ASK_DEADLINE_S)
        except (StoreError, AskFailed) as error:
            return not_taken(report.session_id, str(error))

    async def apply(
        self, transition: AnyTransition, transcript: Sequence[object] = ()
    ) -> SessionRecord:
        """Change a session's record, for providers whose sessions live outside: the record
        before the launch, a timeout. The record as it is then. Raises what `reduce` raises."""
        return await self._ledger.ask_through_crashes(
            lambda reply: Apply(transition, reply, transcript), ASK_DEADLINE_S
        )

    async def transcript(self, session_id: str, start: int = 0) -> Sequence[msgspec.Raw]:
        """What the provider of a session outside wrote, raw, from position `start` on; at
        most a thousand entries at once, fewer only at the end."""
        return await self._store.read(Log.TRANSCRIPTS, session_id, start)

    async def status(self) -> DispatchStatus:
        """The shared pause, as it is now for all hosts."""
        try:
            return await self._machine.ask(ReadStatus, ASK_DEADLINE_S)
        except AskFailed as error:
            _log.warning("the dispatch status is the one known here: %s", error)
            return self._view.status

    async def overview(self) -> Overview:
        """Where everything stands now."""
        kept = await load_heartbeat(self._store)
        status = await self.status()
        return Overview(
            status=status,
            dispatchable=is_dispatchable(status, self._clock.now_ms()),
            running=await self._store.count(Book.SESSIONS, {"status": SessionStatus.RUNNING}),
            pending=await self._store.count(Book.SESSIONS, {"status": SessionStatus.PENDING}),
            guild_alive_at=kept.heartbeat.guild_alive_at if kept is not None else None,
            dead_letters=len(await self._queue.names()),
        )

    async def reminded_of(self, record: SessionRecord) -> tuple[str, ...]:
        """The rules of which the session's conversation was reminded, and still is."""
        if record.conversation_id is None:
            return ()
        return tuple((await load_conversation(self._store, record.conversation_id)).recorded)

    def is_dispatchable(self) -> bool:
        """Whether a session may begin now, as far as this host knows."""
        return is_dispatchable(self._view.status, self._clock.now_ms())

    def refusal(self, session_id: str) -> Refused | None:
        """Why this session may not begin now, as far as this host knows; None if it may."""
        asked = DispatchAsked(session_id=session_id)
        effects = decide(self._view.status, asked, self._clock.now_ms(), self._settings).effects
        return next((effect for effect in effects if isinstance(effect, Refused)), None)

    async def _cancel_here(self, live: LiveSession, reason: str | None) -> SessionRecord | None:
        """None if it does not end in time, so that it has to be ended from outside."""
        with trio.move_on_after(CANCEL_DEADLINE_S):
            await live.cancel(reason)
            return await live.outcome.record()
        return None

    async def _stop_outside(self, record: SessionRecord) -> None:
        """The record says that it is over; that its process does not stop changes nothing
        (spec/animator.md 5.3)."""
        handle = record.cancel_handle
        if handle is None:
            return
        # The provider's own way first, then that of whatever kind the handle is.
        stopper = self._stoppers.get(record.provider) or self._stoppers.get(str(handle.get("kind")))
        if stopper is None:
            return
        try:
            await stopper.cancel(handle)
        except Exception:  # noqa: BLE001 - whatever a provider raises, the record stands
            _log.exception("%s is cancelled, but could not be stopped", record.id)

    def _now(self) -> str:
        return format_timestamp(self._clock.now_ms())
