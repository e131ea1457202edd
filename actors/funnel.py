"""The funnel: every change of a session's record passes here, and is told once.

Reduce, write, and with it what there is to tell, and only then: if the record has crossed a
line, say so to the Announcer, and tell the BackoffMachine what the end says about the quota.
Attached and detached sessions, cancels, orphans and letters from the queue all take this way,
so that none of them can forget it (spec/animator.md B1, B3). What was told is taken out of the
store again; what a killed host could not tell is told by whoever finds it. Used by the Ledger
alone.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import trio

from midstream.actors.address import Address
from midstream.actors.announcer import AnnouncerMessage, Notify
from midstream.actors.backoff_machine import BackoffMessage, Hear
from midstream.actors.clock import Clock
from midstream.actors.errors import ActorDied, ActorEnded, AskFailed
from midstream.messages.dispatch import (
    RATE_LIMIT_TAG,
    NeutralEnd,
    OtherEnd,
    QuotaSpent,
    end_of,
)
from midstream.messages.errors import StoreError, VersionConflict
from midstream.messages.notices import AnyNotice, Phase, RecordFailed, notices_of, notices_say
from midstream.messages.record import Crossing, SessionRecord, SessionStatus, TerminationTag
from midstream.messages.timestamps import parse_timestamp
from midstream.messages.transition import AnyTransition, AttachRunning
from midstream.stores.sessions import (
    KeptSession,
    Seen,
    SessionWrite,
    apply_transition,
    load_session,
)
from midstream.stores.store import Store
from midstream.stores.untold import Untold, load_untold, removal

_log = logging.getLogger("midstream.ledger")

STORE_DEADLINE_S = 10.0
"""Seconds after which a store that does not answer counts as down; twice what SQLite waits
for another process."""

FORGET_DEADLINE_S = 2.0
TOLD_KEPT = 4_096
"""Sessions of which is remembered that they were told of, while the store is down."""

SEEN_KEPT = 1_024
"""Sessions of doors whose records are remembered, so that their ends need not be read first."""

NOTIFY_DEADLINE_S = 5.0
"""Seconds that a notice waits to be said; the Announcer waits for nobody."""

HEAR_DEADLINE_S = 5.0
"""Seconds that the end of a session waits for the news about the quota to be kept."""

LATE_NEWS_MS = 120_000
"""For so long a spent quota is news. A host that lives finds it untold within two of its beats,
and begins with the shortest window then, which hits the time that is left well enough."""


class Hint:
    """What a report says about the quota beside what the record can hold."""

    def __init__(
        self,
        late_tag: TerminationTag | None = None,
        retry_after_ms: int | None = None,
        *,
        asked: bool = True,
    ) -> None:
        self.late_tag = late_tag
        """The tag of a report that may come too late to change the record."""
        self.retry_after_ms = retry_after_ms
        self.asked = asked
        """Whether the provider was asked anything at all."""


NO_HINT = Hint()


def quota_news(
    crossing: Crossing | None, record: SessionRecord, hint: Hint = NO_HINT
) -> QuotaSpent | OtherEnd | NeutralEnd | None:
    """What the BackoffMachine has to hear after this write; None for most."""
    news = end_of(record, hint.late_tag, hint.retry_after_ms)
    if crossing is not Crossing.ENDED:
        # A spent quota is true whoever ended the session first (spec/animator.md 14.7), but
        # a report that comes twice has been heard.
        late = isinstance(news, QuotaSpent) and record.status is not SessionStatus.RATE_LIMITED
        return news if late else None
    if isinstance(news, OtherEnd) and not hint.asked:
        return NeutralEnd(session_id=record.id)
    return news


def late_news(record: SessionRecord, now_ms: int) -> QuotaSpent | None:
    """What the BackoffMachine has to hear of an end that is told late: that the quota is spent, if
    that is not long ago. Whether others have ended, it finds out by itself."""
    ended_ms = parse_timestamp(record.ended_at)
    news = quota_news(Crossing.ENDED, record)
    is_recent = ended_ms is not None and abs(now_ms - ended_ms) <= LATE_NEWS_MS
    return news if isinstance(news, QuotaSpent) and is_recent else None


def rate_limit_tag(source: str, detail: str | None) -> TerminationTag:
    """The tag of a report that says no more than that the quota is spent."""
    return TerminationTag(kind=RATE_LIMIT_TAG, source=source, detail=detail)


class _Told(NamedTuple):
    """Notices of one write that were told; the version that it gave the record, if known."""

    notices: tuple[AnyNotice, ...]
    version: int | None


class Funnel:
    """See the module."""

    def __init__(
        self,
        store: Store,
        announcer: Address[AnnouncerMessage],
        machine: Address[BackoffMessage],
        clock: Clock,
    ) -> None:
        self._store = store
        self._announcer = announcer
        self._machine = machine
        self._clock = clock
        self._told: dict[str, tuple[_Told, ...]] = {}
        """What was told, by session, and may still be kept as untold."""
        self._seen: dict[str, KeptSession] = {}
        """The records of live sessions that have begun here by `AttachRunning`, as they were
        written last. It only saves reading: every write is checked by the store."""
        self._left: frozenset[str] = frozenset()
        """What was found untold the last time somebody looked."""

    async def apply(
        self,
        transition: AnyTransition,
        *,
        transcript: Sequence[object] = (),
        key: str | None = None,
        hint: Hint = NO_HINT,
        check: Callable[[SessionRecord | None], None] | None = None,
    ) -> SessionRecord:
        """Write `transition` and tell what there is to tell; the record as it is then.

        Raises what `apply_transition` raises, and `StoreError` at the deadline.
        """
        write: SessionWrite | None = None
        seen = self._seen_of(transition) if check is None else None
        with trio.move_on_after(STORE_DEADLINE_S):
            write = await apply_transition(
                self._store, transition, transcript=transcript, key=key, check=check, seen=seen
            )
        if write is None:
            raise StoreError(f"the store has not answered for {STORE_DEADLINE_S:g} seconds")
        self._see(write, has_begun=seen is not None)
        await self.tell(write, hint)
        return write.after

    async def tell(self, write: SessionWrite, hint: Hint = NO_HINT) -> None:
        """Tell everybody what `write`, which is committed, means. What the pause does not hear of
        any more is told by the next host, whose pause does."""
        if await self.hear(quota_news(write.crossing, write.after, hint)):
            await self.announce(write.before, write.crossing, write.after, write.version)

    def _seen_of(self, transition: AnyTransition) -> Seen | None:
        kept = self._seen.get(transition.id)
        is_known = kept is not None or isinstance(transition, AttachRunning)
        return Seen(kept) if is_known else None

    def _see(self, write: SessionWrite, *, has_begun: bool) -> None:
        """Remember how the record of a door's session was written."""
        self._seen.pop(write.after.id, None)
        if has_begun and not write.after.is_terminal:
            self._seen[write.after.id] = KeptSession(write.after, write.version)
            if len(self._seen) > SEEN_KEPT:
                del self._seen[next(iter(self._seen))]

    async def announce(
        self,
        before: SessionRecord | None,
        crossing: Crossing | None,
        record: SessionRecord,
        version: int | None,
    ) -> None:
        """Say what has become known by writing `record`, as this `version`, over `before`.
        Without a version it was written earlier, and is found again."""
        notices = notices_of(before, crossing, record)
        if notices and await self._notify(notices):
            self._remember_told(record.id, _Told(notices, version))

    def _remember_told(self, session_id: str, *told: _Told) -> None:
        self._told[session_id] = (*self._told.get(session_id, ()), *told)
        while len(self._told) > TOLD_KEPT:
            del self._told[next(iter(self._told))]

    async def forget_told(self) -> None:
        """Take out of the store what was told; nobody waits for that."""
        try:
            with trio.fail_after(FORGET_DEADLINE_S):
                for session_id, notices in tuple(self._told.items()):
                    await self._take_out(session_id, notices)
                    self._forget(session_id, notices)
        except (StoreError, trio.TooSlowError) as error:
            _log.debug("what was told is still kept: %s", error)

    def _forget(self, session_id: str, done: Sequence[_Told]) -> None:
        """Not before it is taken out: who looks meanwhile would tell it once more."""
        left = tuple(each for each in self._told.pop(session_id, ()) if each not in done)
        if left:
            self._told[session_id] = left

    async def _take_out(self, session_id: str, told: Sequence[_Told]) -> None:
        done = [removal(session_id, each.version) for each in told if each.version is not None]
        if len(done) == len(told):
            with suppress(VersionConflict):  # some of it is out already, and the rest is not
                await self._store.commit(done, durable=False)
                return
        heard = {notice for each in told for notice in each.notices}
        while True:
            kept = await load_untold(self._store, session_id)
            left = [each.removal for each in kept if heard.issuperset(each.notices)]
            if not left:
                return
            with suppress(VersionConflict):  # some of it was taken out meanwhile: look again
                await self._store.commit(left, durable=False)
                return

    async def tell_left_behind(self) -> None:
        """Tell what a host that was killed has written and could not tell any more. What is
        there for the second time was left behind: a host that lives takes it out at once.
        Raises `StoreError`."""
        await self.forget_told()
        kept = [each for each in await load_untold(self._store) if not self._is_told(each)]
        left = [each for each in kept if each.id in self._left]
        for session_id in dict.fromkeys(each.session_id for each in left):
            await self._tell_late([each for each in left if each.session_id == session_id])
        self._left = frozenset(each.id for each in kept if each not in left)

    async def _tell_late(self, left: Sequence[Untold]) -> None:
        """Tell what was left behind of one session, unless something later was told already. If
        this host goes meanwhile, it is for the next."""
        kept = await load_session(self._store, left[0].session_id)
        record = kept.record if kept is not None else None
        if record is not None and not notices_say(left[-1].notices, record):
            record = None
        # Before it is taken out: to hear of it twice does no harm.
        news = None if record is None else late_news(record, self._clock.now_ms())
        if not await self.hear(news):
            return
        may_be_kept = False
        try:
            await self._store.commit([each.removal for each in left], durable=False)
        except VersionConflict:
            return  # somebody else tells it
        except StoreError as error:
            # It may be out by now, and then nobody else would tell it.
            _log.debug("what is told late may be kept: %s", error)
            may_be_kept = True
        notices = tuple(notice for each in left for notice in each.notices)
        if record is not None and not await self._notify(notices):
            with suppress(VersionConflict):  # it is still there
                await self._store.commit([each.addition for each in left], durable=False)
        elif may_be_kept:
            self._remember_told(left[0].session_id, *(_Told(e.notices, e.version) for e in left))

    def _is_told(self, kept: Untold) -> bool:
        told = {notice for some in self._told.values() for each in some for notice in each.notices}
        return set(kept.notices) <= told

    async def hear(self, news: QuotaSpent | OtherEnd | NeutralEnd | None) -> bool:
        """Let the BackoffMachine decide, and wait until that is kept. Whether the end may be told:
        while nobody has heard that a quota is spent it is to be found untold."""
        if news is None:
            return True
        try:
            await self._machine.ask_through_crashes(
                lambda reply: Hear(news, reply), HEAR_DEADLINE_S
            )
        except AskFailed as error:
            _log.warning(
                "the end of %s does not count for the pause yet: %s", news.session_id, error
            )
            return not isinstance(news, QuotaSpent)
        return not self._machine.has_ended

    async def failed(self, session_id: str, phase: Phase, error: Exception) -> None:
        """Say that a write failed."""
        _log.warning("%s: a write failed (%s): %s", session_id, phase, error)
        failure = RecordFailed(session_id=session_id, phase=phase, error=str(error))
        await self._announcer.tell(Notify((failure,)))

    async def _notify(self, notices: tuple[AnyNotice, ...]) -> bool:
        """Say them. Whether that is done, or a crash of the Announcer has left a hole that says
        so; one that goes with its host has said nothing, and then the others find them."""
        while True:
            try:
                await self._announcer.ask(lambda reply: Notify(notices, reply), NOTIFY_DEADLINE_S)
            except AskFailed as error:
                comes_back = isinstance(error, ActorDied) and not isinstance(error, ActorEnded)
                if error.picked_up or not comes_back:
                    return error.picked_up
            else:
                return True
