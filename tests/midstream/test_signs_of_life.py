"""Hosts that live, stall, die and come back, on one store: whose session it is, and who pays."""

from collections.abc import Sequence
from itertools import product

import msgspec
import pytest
import trio
from hosts import (
    FATES,
    SPEAKING,
    START_MS,
    Mumbling,
    doomed_host,
    host,
    notices_so_far,
    record_of,
    until_it_speaks,
    wall_clock,
)
from trio.testing import MockClock

from midstream.actors.announcer import Announce, Announcer, AnnouncerMessage
from midstream.actors.clock import ManualClock
from midstream.actors.ledger_messages import NotRecoverable
from midstream.messages.conversation import AssistantItem, ToolResultItem, UserItem
from midstream.messages.enrolment import Enrolment, ending, opening
from midstream.messages.errors import StoreError
from midstream.messages.events import Retracted, SessionEnded
from midstream.messages.lifecycle import AnyExit
from midstream.messages.notices import AnyNotice, Began, DeadLettered, Ended, Revived
from midstream.messages.record import LIVE_STATUSES, Fence, SessionRecord, SessionStatus
from midstream.messages.session_reports import HeartbeatReport, RecordReport, ReportedStatus
from midstream.messages.timestamps import format_timestamp, parse_timestamp
from midstream.messages.transition import (
    Cancel,
    DetachedReady,
    OrphanFailed,
    Outcome,
    Recover,
    Terminal,
)
from midstream.providers.scripted import Call, Pause, ScriptedProvider, Step, answer
from midstream.runtime import Runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition
from midstream.stores.state import load_heartbeat
from midstream.stores.store import Book, Delete, Operation, Page, Put, Query, Receipt, Stored
from midstream.stores.untold import load_untold
from midstream.tools import Tool

HELLO = answer("hello")


def saying_something_after(seconds: float) -> list[Step]:
    return [Pause(seconds), *answer("done at last")]


async def heard_ago_s(store: MemoryStore, session_id: str, now_ms: int) -> float:
    last = parse_timestamp((await record_of(store, session_id)).last_activity_at)
    assert last is not None
    return (now_ms - last) / 1000


# --- those that live


async def test_b2_a_long_attached_session_is_not_taken_for_dead(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with (
        host(store, saying_something_after(600), clock=clock, seed=1) as owner,
        host(store.reopen(), clock=clock, seed=2) as other,
    ):
        handle = owner.animate("think hard")
        for _ in range(9):
            await trio.sleep(60)
            assert await heard_ago_s(store, handle.session_id, clock.now_ms()) <= 30
        assert (await handle.result()).status is SessionStatus.COMPLETED
        heard = await notices_so_far(owner) + await notices_so_far(other)
    assert [type(notice) for notice in heard] == [Began, Ended]


async def test_the_guild_beats_every_thirty_seconds(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, clock=clock):
        await trio.sleep(100)
        kept = await load_heartbeat(store)
    assert kept is not None
    assert kept.heartbeat.alive_ms is not None
    assert clock.now_ms() - kept.heartbeat.alive_ms <= 30_000


async def test_a_mark_of_death_is_taken_back_by_a_session_that_lives(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, saying_something_after(300), clock=clock) as owner:
        handle = owner.animate("hi")
        await trio.sleep(10)
        at = format_timestamp(clock.now_ms())
        await apply_transition(store, OrphanFailed(id=handle.session_id, ended_at=at, error="x"))
        await trio.sleep(2)
        record = await record_of(store, handle.session_id)
        assert (record.status, record.presumed_dead) == (SessionStatus.RUNNING, False)
        assert (await handle.result()).status is SessionStatus.COMPLETED
        assert [type(n) for n in await notices_so_far(owner)] == [Began, Revived, Ended]


# --- cancelled from elsewhere


async def test_a_cancel_from_another_host_is_heard_within_two_seconds(
    autojump_clock: MockClock,
) -> None:
    store, clock, provider = MemoryStore(), wall_clock(), ScriptedProvider(SPEAKING)
    async with (
        host(store, provider=provider, clock=clock, seed=1) as owner,
        host(store.reopen(), clock=clock, seed=2) as other,
    ):
        handle = owner.animate("hi")
        await until_it_speaks(owner, handle.session_id)
        record = await other.cancel(handle.session_id, "from elsewhere")
        assert record.status is SessionStatus.CANCELLED
        asked_at = trio.current_time()
        ended = await handle.result()
        assert trio.current_time() - asked_at <= 2
        assert provider.live == 0
        assert (ended.status, ended.reason) == (SessionStatus.CANCELLED, "from elsewhere")
        assert await handle.record() == await record_of(store, handle.session_id) == record
        conversation = await load_conversation(store, handle.conversation_id)
        assert any(isinstance(item, AssistantItem) for item in conversation.items)
        assert [type(n) for n in await notices_so_far(owner)] == [Began]
        assert [type(n) for n in await notices_so_far(other)] == [Ended]


async def test_a_session_that_finishes_after_its_cancel_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    """The cancel was first; that the answer came before anybody noticed changes nothing."""
    store, clock = MemoryStore(), wall_clock()
    async with (
        host(store, saying_something_after(0.5), clock=clock, seed=1) as owner,
        host(store.reopen(), clock=clock, seed=2) as other,
    ):
        handle = owner.animate("hi")
        await trio.sleep(0.4)
        await other.cancel(handle.session_id, "too slow")
        ended = await handle.result()
        assert (ended.status, ended.reason) == (SessionStatus.CANCELLED, "too slow")
        record = await record_of(store, handle.session_id)
        assert record.duration_ms == ended.duration_ms
        conversation = await load_conversation(store, handle.conversation_id)
        assert isinstance(conversation.items[-1], AssistantItem)


# --- those that died


async def test_a_session_whose_host_was_killed_is_found_after_ninety_seconds(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock, seed=1) as lost:
        handle = lost.animate("hi")
        await until_it_speaks(lost, handle.session_id)
    assert (await record_of(store, handle.session_id)).status is SessionStatus.RUNNING
    async with host(store.reopen(), clock=clock, seed=2) as heir:
        await trio.sleep(85)
        assert (await record_of(store, handle.session_id)).status is SessionStatus.RUNNING
        await trio.sleep(40)
        record = await record_of(store, handle.session_id)
        assert (record.status, record.presumed_dead) == (SessionStatus.FAILED, True)
        assert record.error is not None
        assert "seconds" in record.error
        assert record.exit_code == 1
        [ended] = await notices_so_far(heir)
        assert isinstance(ended, Ended)
        assert heir.is_dispatchable()  # a lost host says nothing about the quota


async def test_b11_sessions_outside_have_their_time_after_a_downtime(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, clock=clock):
        await trio.sleep(1)
        at = format_timestamp(clock.now_ms())
        ready = DetachedReady(id="ses-out", started_at=at, provider="cc", last_activity_at=at)
        await apply_transition(store, ready)
    await trio.sleep(3600)
    async with host(store.reopen(), clock=clock):
        await trio.sleep(80)
        assert (await record_of(store, "ses-out")).status is SessionStatus.RUNNING
        await trio.sleep(45)
        assert (await record_of(store, "ses-out")).presumed_dead


async def test_who_boots_second_after_a_downtime_gives_the_same_time(
    autojump_clock: MockClock,
) -> None:
    """Found by seed 212 of a race of hosts: the second one saw the fresh beat of the first, and
    took whoever could not report in the downtime for dead at once."""
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock) as owner:
        handle = owner.animate("hi")
        await until_it_speaks(owner, handle.session_id)
    await trio.sleep(600)
    async with host(store.reopen(), clock=clock, seed=1):
        await trio.sleep(20)
        async with host(store.reopen(), clock=clock, seed=2):
            await trio.sleep(60)
            assert (await record_of(store, handle.session_id)).status is SessionStatus.RUNNING
            await trio.sleep(50)
            assert (await record_of(store, handle.session_id)).presumed_dead


async def test_a_record_without_a_sign_of_life_gets_one_and_is_watched_from_then_on(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    legacy = SessionRecord(
        id="ses-legacy",
        status=SessionStatus.RUNNING,
        started_at="2020-01-01T00:00:00.000Z",
        provider="cc",
    )
    await store.put(Book.SESSIONS, legacy.id, legacy, 0)
    async with host(store, clock=clock):
        await trio.sleep(10)
        assert (await record_of(store, legacy.id)).last_activity_at is not None
        await trio.sleep(120)
        assert (await record_of(store, legacy.id)).presumed_dead


async def test_terminal_records_are_left_alone_and_others_do_not_stop_the_search(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    for number in range(3):
        at = format_timestamp(clock.now_ms())
        await apply_transition(
            store,
            DetachedReady(id=f"ses-{number}", started_at=at, provider="cc", last_activity_at=at),
        )
    done = msgspec.structs.replace(await record_of(store, "ses-1"), status=SessionStatus.COMPLETED)
    await store.put(Book.SESSIONS, "ses-1", done, 1)
    async with host(store, clock=clock):
        await trio.sleep(200)
        assert await record_of(store, "ses-1") == done
        for session_id in ("ses-0", "ses-2"):
            assert (await record_of(store, session_id)).presumed_dead


# --- taken over


async def test_a_lost_session_is_recovered_where_its_record_stops(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock, seed=1) as lost:
        handle = lost.animate("hi", metadata={"role": "coder"})
        await until_it_speaks(lost, handle.session_id)
    provider = ScriptedProvider(answer("here I am"))
    async with host(store.reopen(), provider=provider, clock=clock, seed=2) as heir:
        await trio.sleep(130)
        again = await heir.recover(handle.session_id)
        assert again.session_id == handle.session_id
        ended = await again.result()
        record = await record_of(store, handle.session_id)
        conversation = await load_conversation(store, handle.conversation_id)
        told = [type(notice) for notice in await notices_so_far(heir)]
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "here I am")
    assert provider.requests[0].items == (UserItem("hi"),)
    assert record.fence is not None
    assert record.fence.token == 2
    assert record.metadata == {"role": "coder"}
    assert [type(item) for item in conversation.items] == [UserItem, AssistantItem]
    assert told == [Ended, Revived, Ended]


async def test_a_stalled_owner_writes_nothing_over_its_successor_and_stops_paying(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    stalled_store, provider = store.reopen(), ScriptedProvider(SPEAKING)
    async with (
        host(stalled_store, provider=provider, clock=clock, seed=1) as stalled,
        host(store.reopen(), saying_something_after(100), clock=clock, seed=2) as heir,
    ):
        handle = stalled.animate("hi")
        await until_it_speaks(stalled, handle.session_id)
        stalled_store.failure = StoreError("the network is gone")
        await trio.sleep(130)
        again = await heir.recover(handle.session_id)
        await trio.sleep(1)
        stalled_store.failure = None
        old = await handle.result()
        assert provider.live == 0
        assert old.status in (SessionStatus.FAILED, SessionStatus.CANCELLED)
        assert (await record_of(store, handle.session_id)).status is SessionStatus.RUNNING
        assert (await again.result()).output == "done at last"
        record = await record_of(store, handle.session_id)
        conversation = await load_conversation(store, handle.conversation_id)
    assert (record.status, record.output) == (SessionStatus.COMPLETED, "done at last")
    assert [type(item) for item in conversation.items] == [UserItem, AssistantItem]


async def test_two_hosts_that_recover_at_once_are_told_apart(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock, seed=1) as lost:
        handle = lost.animate("hi")
        await until_it_speaks(lost, handle.session_id)
    one, two = ScriptedProvider(HELLO), ScriptedProvider(HELLO)
    async with (
        host(store.reopen(), provider=one, clock=clock, seed=2) as first,
        host(store.reopen(), provider=two, clock=clock, seed=3) as second,
    ):
        await trio.sleep(130)
        outcomes: list[object] = []

        async def recover(runtime: Runtime) -> None:
            try:
                outcomes.append(await runtime.recover(handle.session_id))
            except NotRecoverable as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(recover, first)
            nursery.start_soon(recover, second)
        await trio.sleep(5)
    assert sum(isinstance(outcome, NotRecoverable) for outcome in outcomes) == 1
    assert len(one.requests) + len(two.requests) == 1


async def test_five_recoveries_without_output_end_in_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock, seed=1) as lost:
        session_id = lost.animate("hi").session_id
        await until_it_speaks(lost, session_id)
    for number in range(5):
        async with doomed_host(store, SPEAKING, clock=clock, seed=number + 2) as heir:
            await trio.sleep(130)
            await heir.recover(session_id)
            await until_it_speaks(heir, session_id)
            assert (await record_of(store, session_id)).recoveries == number + 1
    async with host(store.reopen(), clock=clock, seed=9) as last:
        await trio.sleep(130)
        with pytest.raises(NotRecoverable, match="5 times"):
            await last.recover(session_id)
        record = await record_of(store, session_id)
        assert record.status is SessionStatus.DEAD_LETTERED
        assert DeadLettered(session_id=session_id, recoveries=5) in await notices_so_far(last)
        with pytest.raises(NotRecoverable):
            await last.recover(session_id)


async def test_only_what_is_presumed_dead_can_be_recovered(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store, HELLO, SPEAKING, clock=wall_clock()) as runtime:
        done = runtime.animate("hi")
        await done.result()
        with pytest.raises(NotRecoverable, match="completed"):
            await runtime.recover(done.session_id)
        running = runtime.animate("hi")
        await until_it_speaks(runtime, running.session_id)
        with pytest.raises(Exception, match="is being answered"):
            await runtime.recover(running.session_id)
        await runtime.cancel(running.session_id)


async def test_a_session_whose_conversation_has_gone_on_stays_dead(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock, seed=1) as lost:
        handle = lost.animate("hi")
        await until_it_speaks(lost, handle.session_id)
    async with host(store.reopen(), HELLO, clock=clock, seed=2) as heir:
        await trio.sleep(130)
        await heir.animate("again", conversation_id=handle.conversation_id).result()
        with pytest.raises(NotRecoverable, match="lost conversation"):
            await heir.recover(handle.session_id)
        assert (await record_of(store, handle.session_id)).presumed_dead


async def test_a_recovery_belongs_to_one_owner_whatever_it_is_called(
    autojump_clock: MockClock,
) -> None:
    """aegra #502: a worker that bears an old name again is not the owner."""
    store, clock = MemoryStore(), wall_clock()
    async with host(store, SPEAKING, clock=clock) as owner:
        handle = owner.animate("hi")
        await until_it_speaks(owner, handle.session_id)
        record = await record_of(store, handle.session_id)
        assert record.fence is not None
        at = format_timestamp(clock.now_ms())
        namesake = Recover(id=record.id, owner=record.fence.owner, at=at)
        await apply_transition(store, namesake)
        ended = await handle.result()
        assert ended.status is not SessionStatus.COMPLETED
        assert (await record_of(store, record.id)).status is SessionStatus.RUNNING


# --- the loops of the Heartbeat


class SlowSearches(MemoryStore):
    """A store in which a search through the sessions takes three minutes."""

    searches = 0
    most_searches = 0

    async def find(self, book: Book, query: Query) -> Page:
        if query.where.get("status") != LIVE_STATUSES:
            return await super().find(book, query)
        self.searches += 1
        self.most_searches = max(self.most_searches, self.searches)
        try:
            await trio.sleep(180)
            return await super().find(book, query)
        finally:
            self.searches -= 1


async def test_a_slow_search_delays_no_sign_of_life_and_runs_once_at_a_time(
    autojump_clock: MockClock,
) -> None:
    store, clock = SlowSearches(), wall_clock()
    async with host(store, saying_something_after(600), clock=clock) as runtime:
        handle = runtime.animate("hi")
        for _ in range(8):
            await trio.sleep(60)
            kept = await load_heartbeat(store)
            assert kept is not None
            assert clock.now_ms() - (kept.heartbeat.alive_ms or 0) <= 30_000
            assert await heard_ago_s(store, handle.session_id, clock.now_ms()) <= 30
        assert store.most_searches == 1
        await handle.result()


class SlowReads(MemoryStore):
    """A store that shows a search what was there before somebody wrote."""

    meanwhile: OrphanFailed | DetachedReady | None = None

    async def find(self, book: Book, query: Query) -> Page:
        page = await super().find(book, query)
        if self.meanwhile is not None and query.where.get("status") == LIVE_STATUSES:
            change, self.meanwhile = self.meanwhile, None
            await apply_transition(self, change)
        return page


async def test_a_beat_that_comes_while_a_session_is_judged_saves_it(
    autojump_clock: MockClock,
) -> None:
    store, clock = SlowReads(), wall_clock()
    start = format_timestamp(clock.now_ms())
    ready = DetachedReady(id="ses-out", started_at=start, provider="cc", last_activity_at=start)
    await apply_transition(store, ready)
    async with host(store, clock=clock) as runtime:
        await trio.sleep(100)
        at = format_timestamp(clock.now_ms())
        store.meanwhile = msgspec.structs.replace(ready, last_activity_at=at)
        await trio.sleep(30)
        assert store.meanwhile is None  # it was judged by what it had said before
        assert (await record_of(store, "ses-out")).status is SessionStatus.RUNNING
        assert not [n for n in await notices_so_far(runtime) if not isinstance(n, Began)]


async def test_a_host_that_was_asleep_gives_everybody_time_to_report(
    autojump_clock: MockClock,
) -> None:
    """agor #1809: after a suspended laptop wakes, nobody has beaten, and all live."""
    store, clock = MemoryStore(), ManualClock(START_MS)
    async with host(store, clock=clock):
        for _ in range(3):
            await trio.sleep(30)
            clock.advance(30)
        at = format_timestamp(clock.now_ms())
        await apply_transition(
            store,
            DetachedReady(id="ses-out", started_at=at, provider="cc", last_activity_at=at),
        )
        clock.advance(7200)
        for _ in range(2):
            await trio.sleep(30.5)
            clock.advance(30)
            assert (await record_of(store, "ses-out")).status is SessionStatus.RUNNING
        for _ in range(4):
            await trio.sleep(30.5)
            clock.advance(30)
        assert (await record_of(store, "ses-out")).presumed_dead


async def test_an_error_with_one_session_does_not_end_the_search(
    autojump_clock: MockClock,
) -> None:
    store, clock = BrokenFor("ses-1"), wall_clock()
    for number in range(3):
        at = format_timestamp(clock.now_ms())
        await apply_transition(
            store,
            DetachedReady(id=f"ses-{number}", started_at=at, provider="cc", last_activity_at=at),
        )
    store.broken = True
    async with host(store, clock=clock):
        await trio.sleep(200)
        statuses = [(await record_of(store, f"ses-{n}")).status for n in range(3)]
    assert statuses == [SessionStatus.FAILED, SessionStatus.RUNNING, SessionStatus.FAILED]


async def test_a_record_that_cannot_be_read_does_not_end_the_search(
    autojump_clock: MockClock,
) -> None:
    """Such as one that a newer version has written."""
    store, clock = MemoryStore(), wall_clock()
    at = format_timestamp(clock.now_ms())
    newer = {"id": "ses-0", "status": "running", "startedAt": at, "provider": "cc", "error": 5}
    await store.put(Book.SESSIONS, "ses-0", newer, 0)
    lost = DetachedReady(id="ses-1", started_at=at, provider="cc", last_activity_at=at)
    await apply_transition(store, lost)
    async with host(store, clock=clock):
        await trio.sleep(200)
        assert (await record_of(store, "ses-1")).presumed_dead


class BrokenFor(MemoryStore):
    """A store that cannot write one record."""

    def __init__(self, session_id: str) -> None:
        super().__init__()
        self.broken = False
        self._session_id = session_id

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        ids = [operation.id for operation in operations if isinstance(operation, Put)]
        if self.broken and self._session_id in ids:
            raise StoreError("a bad page")
        return await super().commit(operations, key=key, durable=durable)


async def test_what_ran_outside_cannot_be_recovered_here(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    at = format_timestamp(clock.now_ms())
    ready = DetachedReady(id="ses-out", started_at=at, provider="scripted", last_activity_at=at)
    await apply_transition(store, ready)
    async with host(store, clock=clock) as runtime:
        await trio.sleep(130)
        assert (await record_of(store, "ses-out")).presumed_dead
        with pytest.raises(NotRecoverable, match="ran outside"):
            await runtime.recover("ses-out")


async def presumed_dead_outside(store: MemoryStore, at_ms: int) -> None:
    """A session that ran outside, of which nobody has heard for too long."""
    at = format_timestamp(at_ms)
    ready = DetachedReady(id="ses-out", started_at=at, provider="cc", last_activity_at=at)
    await apply_transition(store, ready)
    await apply_transition(store, OrphanFailed(id="ses-out", ended_at=at, error="no heartbeat"))


async def test_a_session_outside_that_was_presumed_dead_lives_on_with_its_next_beat(
    autojump_clock: MockClock,
) -> None:
    """Its network was away for longer than it may be silent: its command must not be stopped
    for that (architecture.md invariant 10)."""
    store, clock = MemoryStore(), wall_clock()
    await presumed_dead_outside(store, clock.now_ms())
    async with host(store, clock=clock) as runtime:
        answer = await runtime.sessions.report(HeartbeatReport(session_id="ses-out"))
        assert (answer.ok, answer.status) == (True, SessionStatus.RUNNING)
        record = await record_of(store, "ses-out")
        assert (record.presumed_dead, record.error, record.ended_at) == (False, None, None)
        assert await notices_so_far(runtime) == [Revived(session_id="ses-out")]


async def test_the_end_of_a_session_outside_that_was_presumed_dead_counts(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    await presumed_dead_outside(store, clock.now_ms())
    report = RecordReport(
        session_id="ses-out", status=ReportedStatus.COMPLETED, exit_code=0, output="done"
    )
    async with host(store, clock=clock) as runtime:
        for _ in range(2):
            answer = await runtime.sessions.report(report)
            assert (answer.ok, answer.status) == (True, SessionStatus.COMPLETED)
        assert (await record_of(store, "ses-out")).output == "done"
        heard = await notices_so_far(runtime)
        assert [type(notice) for notice in heard] == [Revived, Ended]


async def test_a_session_outside_that_was_presumed_dead_can_be_cancelled(
    autojump_clock: MockClock,
) -> None:
    """Its command may still run, and cost."""
    store, clock = MemoryStore(), wall_clock()
    await presumed_dead_outside(store, clock.now_ms())
    async with host(store, clock=clock) as runtime:
        record = await runtime.cancel("ses-out", "enough")
        assert (record.status, record.error) == (SessionStatus.CANCELLED, "enough")
        answer = await runtime.sessions.report(HeartbeatReport(session_id="ses-out"))
        assert answer.status is SessionStatus.CANCELLED, "it stops"


# --- what a killed host had written, and not told


async def written_and_not_told(store: MemoryStore, at_ms: int, *after: SessionStatus) -> str:
    """A host was killed between its last writes and the notices of them."""
    at, session_id = format_timestamp(at_ms), "ses-cut"
    await apply_transition(
        store,
        DetachedReady(id=session_id, started_at=at, provider="cc", last_activity_at=at),
    )
    for status in after:
        end = Terminal(
            id=session_id,
            status=Outcome(status.value),
            ended_at=at,
            exit_code=0,
            last_activity_at=at,
        )
        await apply_transition(store, end)
    return session_id


async def test_a_notice_that_a_killed_host_could_not_tell_is_told_by_one_other_once(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    session_id = await written_and_not_told(store, clock.now_ms(), SessionStatus.COMPLETED)
    async with (
        host(store.reopen(), clock=clock, seed=1) as one,
        host(store.reopen(), clock=clock, seed=2) as other,
    ):
        await trio.sleep(200)
        heard = [*await notices_so_far(one), *await notices_so_far(other)]
    assert [type(notice) for notice in heard] == [Began, Ended]
    assert {notice.session_id for notice in heard} == {session_id}
    async with host(store.reopen(), clock=clock, seed=3) as later:
        await trio.sleep(200)
        assert await notices_so_far(later) == []


async def test_a_notice_that_cannot_be_read_keeps_no_other_from_being_told(
    autojump_clock: MockClock,
) -> None:
    """Such as one of a kind that only a newer version has."""
    store, clock = MemoryStore(), wall_clock()
    await written_and_not_told(store, clock.now_ms(), SessionStatus.COMPLETED)
    newer = {"id": "untold/ses-a/1", "notices": [{"notice": "hologram"}]}
    await store.put(Book.STATE, "untold/ses-a/1", newer, 0)
    async with host(store, clock=clock) as runtime:
        await trio.sleep(200)
        heard = await notices_so_far(runtime)
    assert [type(notice) for notice in heard] == [Began, Ended]


async def test_what_was_told_is_not_kept_as_untold(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, HELLO, SPEAKING, clock=clock) as runtime:
        await runtime.animate("hi").result()
        handle = runtime.animate("hi")
        await until_it_speaks(runtime, handle.session_id)
        assert await load_untold(store) == []
        await runtime.cancel(handle.session_id)
        assert await load_untold(store) == []
        await trio.sleep(200)
        heard = await notices_so_far(runtime)
    assert [type(notice) for notice in heard] == [Began, Ended, Began, Ended]
    assert await load_untold(store) == []


AT_A_DOOR = Enrolment(
    session_id="ses-door",
    conversation_id="con-door",
    provider="anthropic",
    started_at=format_timestamp(START_MS),
    fence=Fence("door", 1),
)


class Counted(MemoryStore):
    """A store that counts the questions about sessions."""

    asked = 0

    async def get(self, book: Book, id: str) -> Stored | None:
        self.asked += book is Book.SESSIONS
        return await super().get(book, id)

    async def find(self, book: Book, query: Query) -> Page:
        self.asked += "untold" in str(query)
        return await super().find(book, query)


async def test_the_session_of_a_door_begins_and_ends_without_reading_the_store(
    autojump_clock: MockClock,
) -> None:
    store, at = Counted(), format_timestamp(START_MS + 5)
    async with host(store, clock=wall_clock()) as runtime:
        await trio.sleep(1)
        before = store.asked
        await runtime.put_on_record(opening(AT_A_DOOR))
        ended = SessionEnded(SessionStatus.COMPLETED, "hello")
        record = await runtime.put_on_record(ending(AT_A_DOOR, ended, at, {"attempts": 2}))
        await trio.sleep(0.01)
        assert store.asked == before
        heard = await notices_so_far(runtime)
    assert (record.status, record.metadata) == (SessionStatus.COMPLETED, {"attempts": 2})
    assert [type(notice) for notice in heard] == [Began, Ended]
    assert await load_untold(store) == []


def takes_notices_out(operations: Sequence[Operation]) -> bool:
    return all(isinstance(each, Delete) and each.book is Book.STATE for each in operations)


@pytest.mark.parametrize("fates", [*product(FATES, repeat=3)], ids=", ".join)
async def test_what_was_told_is_told_once_whatever_becomes_of_its_removal(
    autojump_clock: MockClock, fates: tuple[str, ...]
) -> None:
    store, at = Mumbling(takes_notices_out, fates), format_timestamp(START_MS + 5)
    async with host(store, HELLO, clock=wall_clock()) as runtime:
        await runtime.put_on_record(opening(AT_A_DOOR))
        await trio.sleep(1)
        ended = SessionEnded(SessionStatus.COMPLETED, "hello")
        await runtime.put_on_record(ending(AT_A_DOOR, ended, at))
        await trio.sleep(1)
        handle = runtime.animate("hi")
        await handle.result()
        await trio.sleep(200)
        heard = [(type(each), each.session_id) for each in await notices_so_far(runtime)]
    assert heard == [
        (kind, id) for id in ("ses-door", handle.session_id) for kind in (Began, Ended)
    ]
    assert await load_untold(store) == []


@pytest.mark.parametrize("fates", [*product(FATES, repeat=2)], ids=", ".join)
async def test_what_is_told_late_is_told_once_whatever_becomes_of_its_removal(
    autojump_clock: MockClock, fates: tuple[str, ...]
) -> None:
    store, clock = Mumbling(takes_notices_out, fates), wall_clock()
    await written_and_not_told(store, clock.now_ms(), SessionStatus.COMPLETED)
    async with host(store, clock=clock) as runtime:
        await trio.sleep(200)
        heard = await notices_so_far(runtime)
    assert [type(notice) for notice in heard] == [Began, Ended]
    assert await load_untold(store) == []


@pytest.mark.parametrize(("ago_s", "is_news"), [(0, True), (50, True), (3600, False)])
async def test_a_quota_that_a_killed_host_has_spent_pauses_the_others_while_that_is_news(
    autojump_clock: MockClock, ago_s: int, is_news: bool
) -> None:
    store, clock = MemoryStore(), wall_clock()
    at_ms = clock.now_ms() - ago_s * 1000
    await written_and_not_told(store, at_ms, SessionStatus.RATE_LIMITED)
    async with host(store, clock=clock) as runtime:
        await trio.sleep(65)
        assert [type(notice) for notice in await notices_so_far(runtime)] == [Began, Ended]
        assert runtime.is_dispatchable() is not is_news


def slow_announcer(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every Announcer take its time to go, when it takes no mail any more."""
    stopped = Announcer.stopped

    async def slowly(self: Announcer, reason: AnyExit) -> None:
        await trio.sleep(seconds)
        await stopped(self, reason)

    monkeypatch.setattr(Announcer, "stopped", slowly)


@pytest.mark.parametrize("goes_s", [0.0, 3.0])
@pytest.mark.parametrize("stays_s", [31, 33, 40])
async def test_what_is_told_late_by_a_host_that_goes_meanwhile_is_told_by_the_next(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, stays_s: float, goes_s: float
) -> None:
    slow_announcer(monkeypatch, goes_s)
    store, clock = SlowToRemove([4.0, 4.0]), wall_clock()
    await written_and_not_told(store, clock.now_ms(), SessionStatus.COMPLETED)
    heard: list[AnyNotice] = []

    async def follow(runtime: Runtime) -> None:
        async for each in await runtime.notices():
            heard.append(each.notice)

    async with trio.open_nursery() as nursery:
        for seed in (1, 2):
            async with host(store, clock=clock, seed=seed) as runtime:
                nursery.start_soon(follow, runtime)
                await trio.sleep(stays_s if seed == 1 else 100)
    assert [type(notice) for notice in heard] == [Began, Ended]
    assert await load_untold(store) == []


def ends_well(operations: Sequence[Operation]) -> bool:
    return any(b"completed" in bytes(each.document) for each in operations if isinstance(each, Put))


@pytest.mark.parametrize("goes_s", [0.0, 4.5])
async def test_an_end_that_is_written_while_its_host_goes_is_told_by_the_next(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, goes_s: float
) -> None:
    slow_announcer(monkeypatch, goes_s)
    store, clock = Mumbling(ends_well, [4.0]), wall_clock()
    end = RecordReport(session_id="ses-out", status=ReportedStatus.COMPLETED, exit_code=0)
    async with trio.open_nursery() as nursery, host(store, clock=clock, seed=1) as runtime:
        nursery.start_soon(runtime.sessions.report, end)
        await trio.sleep(1)
    assert (await record_of(store, "ses-out")).status is SessionStatus.COMPLETED
    async with host(store, clock=clock, seed=2) as later:
        await trio.sleep(100)
        assert [type(notice) for notice in await notices_so_far(later)] == [Ended]
    assert await load_untold(store) == []


async def test_an_end_that_a_crashing_announcer_had_not_read_is_told_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle_batch, crashes = Announcer.handle_batch, ["the announcer is broken"]

    async def breaking(self: Announcer, messages: tuple[AnnouncerMessage, ...]) -> None:
        if crashes and any(isinstance(each, Announce) for each in messages):
            await trio.sleep(1)  # meanwhile the next message comes
            raise RuntimeError(crashes.pop())
        await handle_batch(self, messages)

    monkeypatch.setattr(Announcer, "handle_batch", breaking)
    end = RecordReport(session_id="ses-out", status=ReportedStatus.COMPLETED, exit_code=0)
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        await runtime.announce("another", (Retracted(1, "its host was lost"),))
        await trio.sleep(0.5)
        await runtime.sessions.report(end)
        await trio.sleep(0.6)
        assert not crashes
        assert [type(notice) for notice in await notices_so_far(runtime)] == [Ended]


class SlowToRemove(Mumbling):
    """A store that loses its first answer to a step, and takes its time to take notices out."""

    def __init__(self, delays_s: Sequence[float]) -> None:
        super().__init__(takes_notices_out, delays_s)
        self._loses_an_answer = True

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        receipt = await super().commit(operations, key=key, durable=durable)
        if key is not None and self._loses_an_answer:
            self._loses_an_answer = False
            raise StoreError("the answer was lost")
        return receipt


@pytest.mark.parametrize("delays_s", [*product((0.0, 0.4, 1.0, 1.5, 2.5), repeat=2)])
async def test_what_was_told_is_told_once_whatever_its_removals_wait_for(
    autojump_clock: MockClock, delays_s: tuple[float, float]
) -> None:
    """The beginning and the end of a session may be taken out side by side, and by another who
    only knows what they say: a step whose answer was lost has no version."""
    store = SlowToRemove(delays_s)
    async with host(store, saying_something_after(0.5), clock=wall_clock()) as runtime:
        await runtime.animate("hi").result()
        await trio.sleep(200)
        heard = await notices_so_far(runtime)
    assert [type(notice) for notice in heard] == [Began, Ended]
    assert await load_untold(store) == []


async def test_the_session_of_a_door_that_somebody_has_cancelled_stays_cancelled(
    autojump_clock: MockClock,
) -> None:
    store, at = MemoryStore(), format_timestamp(START_MS + 5)
    async with host(store, clock=wall_clock()) as runtime:
        await runtime.put_on_record(opening(AT_A_DOOR))
        await apply_transition(store, Cancel(id="ses-door", ended_at=at, reason="elsewhere"))
        ended = SessionEnded(SessionStatus.COMPLETED, "hello")
        record = await runtime.put_on_record(ending(AT_A_DOOR, ended, at))
    assert (record.status, record.error) == (SessionStatus.CANCELLED, "elsewhere")


async def test_a_notice_that_was_overtaken_is_not_told_late(autojump_clock: MockClock) -> None:
    """A host marked a session as dead and was killed; the session has come back since."""
    store, clock = MemoryStore(), wall_clock()
    await presumed_dead_outside(store, clock.now_ms())
    async with host(store, clock=clock) as runtime:
        await runtime.sessions.report(HeartbeatReport(session_id="ses-out"))
        for _ in range(5):
            await trio.sleep(30)
            await runtime.sessions.report(HeartbeatReport(session_id="ses-out"))
        heard = await notices_so_far(runtime)
    assert not [notice for notice in heard if isinstance(notice, Ended)]
    assert await load_untold(store) == []


async def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


async def test_new_output_sets_the_count_of_recoveries_back(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock, seed=1) as lost:
        session_id = lost.animate("hi").session_id
        await until_it_speaks(lost, session_id)
    for number in range(7):  # more than may be recovered without
        said = answer(f"step {number}", Call("look", '{"place": "a"}', f"call-{number}"))
        async with doomed_host(store, said, SPEAKING, clock=clock, seed=number + 2) as heir:
            await trio.sleep(130)
            await heir.recover(session_id, tools=[Tool(look)])
            await trio.sleep(2)
            record = await record_of(store, session_id)
            assert (record.status, record.recoveries) == (SessionStatus.RUNNING, 0)
            assert record.fence is not None
            assert record.fence.token == number + 2
    last = await record_of(store, session_id)
    conversation = await load_conversation(store, last.conversation_id or "")
    results = [item for item in conversation.items if isinstance(item, ToolResultItem)]
    assert len(results) == 7
