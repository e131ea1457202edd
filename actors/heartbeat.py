"""Heartbeat: proves that this host and its sessions live, and finds sessions that do not.

It touches the records of the sessions of this process and the heartbeat of the guild,
empties the dead-letter queue, marks sessions as dead that have been silent for too long, and
notices when somebody else has ended a session of this process, which then stops at once and
pays no more. Everything is written by the Ledger. Three loops run side by side, so that a
long search delays no sign of life; each is its own single flight.

Silence counts only while somebody listened: a session that could not report, because no host
of this store was up, has its time from then on (spec/animator.md 7, B2, B11, B17).
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from enum import Enum
from typing import NamedTuple

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.backoff_machine import BackoffMessage, Hear, Refresh
from midstream.actors.clock import Clock
from midstream.actors.ledger_messages import (
    Apply,
    DrainQueue,
    KeepState,
    LedgerMessage,
    PresumeDead,
    TellLeftBehind,
)
from midstream.actors.live_sessions import LiveSession, LiveSessions
from midstream.messages.dispatch import Booted
from midstream.messages.errors import FenceLost, MidstreamError, RecordError, VersionConflict
from midstream.messages.record import Fence, SessionRecord, SessionStatus
from midstream.messages.timestamps import format_timestamp, parse_timestamp
from midstream.messages.transition import HeartbeatTouch, OrphanFailed, Revive
from midstream.stores.session_list import ENDED_STATUSES, live_sessions, records_of
from midstream.stores.sessions import KeptSession
from midstream.stores.state import (
    GUILD_HEARTBEAT_ID,
    GuildHeartbeat,
    KeptHeartbeat,
    load_heartbeat,
)
from midstream.stores.store import Store, encode

_log = logging.getLogger("midstream.heartbeat")

BEAT_EVERY_S = 30.0
STALE_MS = 90_000
"""Silence after which a session is presumed dead; exactly so much is still alive. Both
figures: spec/animator.md 7."""

LOOK_EVERY_S = 1.0
"""How often the records of this process's sessions are looked at: a cancel from elsewhere
is to be heard within two seconds."""

LATE_MS = 5_000
"""By so much a beat may be late before it counts as a time when nobody listened."""

FUTURE_TOLERANCE_MS = 60_000
"""Clocks of hosts differ; what lies further ahead is no time of a sign of life (B17)."""

ASK_DEADLINE_S = 30.0
DRAIN_DEADLINE_S = 600.0
"""Seconds that the queue may take; what is left comes with the next tick."""


class Verdict(Enum):
    """What is done about a session that has not ended."""

    ALIVE = "alive"
    DEAD = "dead"
    BACKFILL = "backfill"
    """Its last sign of life is no instant: it begins now (spec/animator.md 14.9)."""
    NOTICE = "notice"
    """The same for a session whose record only its owner may touch: remember when we saw it."""


class Judgement(NamedTuple):
    verdict: Verdict
    silent_ms: int = 0


def judge(
    record: SessionRecord, now_ms: int, listening_since_ms: int, noticed_ms: int | None = None
) -> Judgement:
    """Whether a session that has not ended still lives.

    Silence before `listening_since_ms` does not count. `noticed_ms` is when its present
    sign of life was first seen here, for one that is no instant or lies in the future.
    """
    last_ms = parse_timestamp(record.last_activity_at)
    if last_ms is None and record.fence is not None:
        last_ms = parse_timestamp(record.started_at)  # attached: the first beat is to come
    if last_ms is None or last_ms > now_ms + FUTURE_TOLERANCE_MS:
        if record.fence is None:
            return Judgement(Verdict.BACKFILL)
        if noticed_ms is None:
            return Judgement(Verdict.NOTICE)
        last_ms = noticed_ms
    silent_ms = now_ms - max(last_ms, listening_since_ms)
    return Judgement(Verdict.DEAD if silent_ms > STALE_MS else Verdict.ALIVE, silent_ms)


def listening_since(now_ms: int, beat_ms: int | None, before_ms: int = 0) -> int:
    """Since when silence counts: since now, if the last beat is longer ago than it should be.

    `beat_ms` is the last beat: at boot that of any host, then this host's own, which was
    asleep, or without a store, if it is late. `before_ms` is the answer so far: at boot that
    of whoever has beaten last. This is the downtime credit of the reference; it is used up
    neither by the first search nor by the first host, so that a session outside has the time
    to report again (B11).
    """
    if beat_ms is None or now_ms - beat_ms > BEAT_EVERY_S * 1000 + LATE_MS:
        return now_ms
    return min(before_ms, now_ms)


def _ended_by_itself(record: SessionRecord, fence: Fence) -> bool:
    """Whether a terminal record was written by the session of this fence. Anybody may cancel
    and give up; nobody else may write another end under it."""
    others = (SessionStatus.CANCELLED, SessionStatus.DEAD_LETTERED)
    return record.fence == fence and record.status not in others


class Unused(msgspec.Struct, frozen=True):
    """Nobody sends a Heartbeat anything."""


class Heartbeat(Actor[Unused]):
    """See the module."""

    def __init__(
        self,
        store: Store,
        ledger: Address[LedgerMessage],
        machine: Address[BackoffMessage],
        clock: Clock,
        live: LiveSessions,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._machine = machine
        self._clock = clock
        self._live = live
        self._listening_since_ms = 0
        self._last_beat_ms: int | None = None
        self._noticed: dict[str, tuple[str | None, int]] = {}
        self._told: set[str] = set()
        self._problem: str | None = None

    async def started(self) -> None:
        self.spawn(self._every, LOOK_EVERY_S, self._look)
        self.spawn(self._boot)

    async def _boot(self) -> None:
        """In this order (spec/animator.md 7): what earlier hosts left behind arrives before
        anything is judged, and the guild's last beat is read before it is overwritten."""
        await self._try(self._beat)
        self.spawn(self._every, BEAT_EVERY_S, self._beat)
        await self._try(self._drain)
        await self._try(self._reconcile)
        await self._try(self._search)
        await self._try(self._tell_left_behind)
        self.spawn(self._every, BEAT_EVERY_S, self._drain_and_search)

    async def _every(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        due = trio.current_time()
        while True:
            due = max(due + period_s, trio.current_time())
            await trio.sleep_until(due)
            await self._try(work)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        """A store that is down is said once, and tried again with the next tick."""
        try:
            await work()
        except MidstreamError as error:
            if str(error) != self._problem:
                _log.warning("%s", error)
            self._problem = str(error)

    # --- signs of life

    async def _beat(self) -> None:
        now_ms = self._clock.now_ms()
        kept = await load_heartbeat(self._store)
        if self._last_beat_ms is None and kept is not None:
            self._last_beat_ms = kept.heartbeat.alive_ms
            self._listening_since_ms = kept.heartbeat.since_ms
        self._listen(now_ms)
        await self._beat_for_the_guild(now_ms, kept)
        self._last_beat_ms = now_ms
        for session in self._live:
            await self._beat_for(session)

    def _listen(self, now_ms: int) -> None:
        """Looked at by searches too: of the two that wake a host, either may be the first."""
        before_ms = self._listening_since_ms
        self._listening_since_ms = listening_since(now_ms, self._last_beat_ms, before_ms)

    async def _beat_for_the_guild(self, now_ms: int, kept: KeptHeartbeat | None) -> None:
        before = kept.heartbeat if kept is not None else None
        since_ms = listening_since(
            now_ms, before.alive_ms if before else None, before.since_ms if before else 0
        )
        beat = GuildHeartbeat(
            id=GUILD_HEARTBEAT_ID,
            guild_alive_at=format_timestamp(now_ms),
            guild_alive_since=format_timestamp(since_ms) if since_ms else None,
        )
        version = kept.version if kept is not None else 0
        try:
            await self._ledger.ask(
                lambda reply: KeepState(beat.id, encode(beat), version, False, reply),
                ASK_DEADLINE_S,
            )
        except VersionConflict:
            return  # another host has just beaten

    async def _beat_for(self, session: LiveSession) -> None:
        enrolment = session.enrolment
        touch = HeartbeatTouch(
            id=enrolment.session_id, fence=enrolment.fence, last_activity_at=self._now()
        )
        try:
            record: SessionRecord = await self._ledger.ask(
                lambda reply: Apply(touch, reply), ASK_DEADLINE_S
            )
        except FenceLost as error:
            await self._stop(session, str(error))
        except RecordError:
            return  # its prompt is being accepted
        else:
            await self._compare(session, record)

    # --- what others have done to sessions of this process

    async def _look(self) -> None:
        await self._machine.tell(Refresh())
        ids = [session.enrolment.session_id for session in self._live]
        self._told.intersection_update(ids)
        for record in (await records_of(self._store, ids, ENDED_STATUSES)).values():
            session = self._live.get(record.id)
            if session is not None:
                await self._compare(session, record)

    async def _compare(self, session: LiveSession, record: SessionRecord) -> None:
        """A session that lives here has this record: take back a mark of death, obey an end."""
        fence = session.enrolment.fence
        if record.is_revocable_by(fence):
            revive = Revive(id=record.id, fence=fence, last_activity_at=self._now())
            try:
                await self._ledger.ask(lambda reply: Apply(revive, reply), ASK_DEADLINE_S)
            except FenceLost as error:
                await self._stop(session, str(error))
        elif record.is_terminal and not _ended_by_itself(record, fence):
            await self._stop(session, record.error)

    async def _stop(self, session: LiveSession, reason: str | None) -> None:
        if session.enrolment.session_id not in self._told:
            self._told.add(session.enrolment.session_id)
            await session.cancel(reason)

    # --- what was left behind

    async def _reconcile(self) -> None:
        await self._machine.ask(lambda reply: Hear(Booted(), reply), ASK_DEADLINE_S)

    async def _drain_and_search(self) -> None:
        await self._try(self._drain)
        await self._try(self._search)
        await self._tell_left_behind()

    async def _tell_left_behind(self) -> None:
        await self._ledger.ask(TellLeftBehind, ASK_DEADLINE_S)

    async def _drain(self) -> None:
        await self._ledger.ask(DrainQueue, DRAIN_DEADLINE_S)

    async def _search(self) -> None:
        """The orphan pass. An error with one session does not end it."""
        seen: set[str] = set()
        async with aclosing(live_sessions(self._store)) as found:
            async for kept in found:
                seen.add(kept.record.id)
                if kept.record.id not in self._live:
                    await self._try(lambda kept=kept: self._examine(kept))
        for session_id in self._noticed.keys() - seen:
            del self._noticed[session_id]

    async def _examine(self, kept: KeptSession) -> None:
        record, now_ms = kept.record, self._clock.now_ms()
        self._listen(now_ms)
        text, noticed_ms = self._noticed.get(record.id, (None, None))
        if text != record.last_activity_at:
            noticed_ms = None
        judged = judge(record, now_ms, self._listening_since_ms, noticed_ms)
        match judged.verdict:
            case Verdict.ALIVE:
                pass
            case Verdict.NOTICE:
                self._noticed[record.id] = (record.last_activity_at, now_ms)
            case Verdict.BACKFILL:
                touch = HeartbeatTouch(id=record.id, last_activity_at=format_timestamp(now_ms))
                await self._ledger.ask(lambda reply: Apply(touch, reply), ASK_DEADLINE_S)
            case Verdict.DEAD:
                await self._bury(kept, now_ms, judged.silent_ms)

    async def _bury(self, kept: KeptSession, now_ms: int, silent_ms: int) -> None:
        error = f"no heartbeat for {silent_ms // 1000} seconds"
        mark = OrphanFailed(id=kept.record.id, ended_at=format_timestamp(now_ms), error=error)
        await self._ledger.ask(lambda reply: PresumeDead(kept, mark, reply), ASK_DEADLINE_S)

    def _now(self) -> str:
        return format_timestamp(self._clock.now_ms())
