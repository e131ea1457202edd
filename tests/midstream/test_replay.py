"""Replay: each event once and in order, across ring and log, restarts and lost hosts."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, NamedTuple, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.actors.announcer import (
    Announce,
    Announcer,
    AnnouncerMessage,
    Continue,
    FollowNotices,
    Forget,
    Notify,
    Subscribe,
    UnknownSession,
)
from midstream.actors.clock import ManualClock
from midstream.actors.ended_sessions import ENDED_LIMIT_BYTES, KEPT_AFTER_END_S
from midstream.actors.event_backlog import EventBacklog
from midstream.actors.event_channel import GapError
from midstream.actors.event_recorder import EVERY_S, WITHOUT_RECORD_S, EventRecorder
from midstream.actors.ledger import Ledger
from midstream.actors.ledger_messages import Apply
from midstream.actors.notice_board import NoticeStream
from midstream.actors.replay import Replay
from midstream.books import Books
from midstream.messages.backoff import BackoffSettings
from midstream.messages.errors import StoreError
from midstream.messages.event_log import Position
from midstream.messages.events import (
    AnyEvent,
    AttemptStarted,
    SessionEnded,
    SessionEvent,
    Text,
)
from midstream.messages.notices import Revived
from midstream.messages.record import Fence, SessionStatus
from midstream.messages.reply import ToNobody
from midstream.messages.transition import (
    AnyTransition,
    AttachRunning,
    Cancel,
    HeartbeatTouch,
    OrphanFailed,
    Recover,
)
from midstream.stores.dlq import MemoryQueue
from midstream.stores.event_log import read_tail
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition, load_session
from midstream.stores.store import Append, Operation, Receipt
from midstream.supervisors.child_spec import Surroundings
from midstream.supervisors.restart import Intensity
from midstream.supervisors.supervisor import Supervisor, open_supervisor

AT = "2026-03-01T12:00:00.000Z"
BEGIN = AttachRunning(id="ses", fence=Fence("host", 1), started_at=AT, provider="scripted")
LOST = OrphanFailed(id="ses", ended_at=AT, error="no heartbeat")
TAKE_OVER = Recover(id="ses", owner="other", at=AT)
END = Cancel(id="ses", ended_at=AT)
ENDED = SessionEnded(SessionStatus.COMPLETED, "done")
LONG = "x" * 1_000
FLUSHED_S = EVERY_S * 2


@asynccontextmanager
async def host(store: MemoryStore, *transitions: AnyTransition) -> AsyncGenerator[Books]:
    """Those who keep the books of one process."""
    for transition in transitions:
        await apply_transition(store, transition)
    books = Books(store, MemoryQueue(), ManualClock(), BackoffSettings())
    tree = Supervisor("books", books.specs, intensity=Intensity(5, within_s=4))
    async with open_supervisor(tree, Surroundings(Random(0))):
        yield books


async def say(books: Books, *events: AnyEvent) -> None:
    await books.announcer.address.tell(Announce("ses", events))


async def crash(books: Books) -> None:
    """Tell the Announcer what nobody could understand, and wait until it is back."""
    await books.announcer.address.tell(Forget(cast("Any", [])))
    await trio.sleep(1)


def texts(first: int, count: int, padding: str = "") -> list[AnyEvent]:
    return [Text(1, f"<{number}{padding}>") for number in range(first, first + count)]


async def read(replay: Replay, until: int | None = None) -> list[SessionEvent]:
    """All events, or those up to number `until`."""
    events: list[SessionEvent] = []
    with trio.fail_after(60):
        while batch := await replay.take():
            events.extend(batch)
            if until is not None and events[-1].sequence >= until:
                break
    return events


def words(events: Sequence[SessionEvent]) -> str:
    return "".join(e.event.text for e in events if isinstance(e.event, Text))


def words_of(first: int, last: int, padding: str = "") -> str:
    return "".join(f"<{number}{padding}>" for number in range(first, last + 1))


async def test_what_the_ring_has_let_go_of_comes_from_the_log_without_a_seam(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        for first in range(1, 1_001, 10):
            await say(books, *texts(first, 10, LONG))
            await trio.sleep(EVERY_S / 10)
        events = await read(books.replay("ses"), until=1_000)
        assert words(events) == words_of(1, 1_000, LONG)
        assert [e.sequence for e in events] == sorted({e.sequence for e in events})
        middle = await read(books.replay("ses", after=333), until=1_000)
        assert words(middle) == words_of(334, 1_000, LONG)


async def test_a_replay_goes_on_live_behind_the_log(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await say(books, *texts(1, 500, LONG))
        await trio.sleep(FLUSHED_S * 20)
        replay = books.replay("ses")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say_slowly, books, 501, 600)
            events = await read(replay)
        assert words(events) == words_of(1, 500, LONG) + words_of(501, 600)
        assert isinstance(events[-1].event, SessionEnded)


async def _say_slowly(books: Books, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await say(books, *texts(number, 1))
        await trio.sleep(0.01)
    await say(books, ENDED)


class Step(NamedTuple):
    """Something happens: perhaps a crash, then events, then time, then perhaps a look."""

    crash: bool
    events: int
    pause_s: float
    look: float | None
    """How much of what was said is read, from 0 to 1."""


STEP = st.builds(
    Step,
    st.booleans(),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.none() | st.floats(0, 1),
)


@given(st.lists(st.lists(STEP, max_size=5), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_wherever_one_leaves_and_comes_back_each_event_comes_once(lives: list[list[Step]]) -> None:
    """Across crashes of the Announcer, and restarts of the process."""

    async def run() -> None:
        store = MemoryStore()
        client = _Client()
        said = 0
        for number, steps in enumerate(lives):
            async with host(store, *([] if number else [BEGIN])) as books:
                if number:
                    await books.continue_events("ses", 1)
                for step in steps:
                    if step.crash:
                        await crash(books)
                    await say(books, *texts(said + 1, step.events))
                    said += step.events
                    await trio.sleep(step.pause_s)
                    if step.look is not None:
                        await client.look(books, round(said * step.look))
                if number == len(lives) - 1:
                    await say(books, ENDED)
        async with host(store) as books:
            await client.look(books, said + 1)
        assert words(client.seen) == words_of(1, said)
        assert isinstance(client.seen[-1].event, SessionEnded)

    trio.run(run, clock=MockClock(autojump_threshold=0))


class _Client:
    """Somebody who comes and goes."""

    def __init__(self) -> None:
        self.seen: list[SessionEvent] = []

    async def look(self, books: Books, until: int) -> None:
        last = self.seen[-1] if self.seen else None
        after, epoch = (last.sequence, last.epoch) if last is not None else (0, None)
        if until <= after:
            return
        replay = books.replay("ses", after, epoch)
        self.seen += await read(replay, until)
        replay.close()


async def test_numbers_go_on_after_a_crash_of_the_announcer(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await say(books, *texts(1, 3))
        replay = books.replay("ses")
        assert words(await replay.take()) == words_of(1, 3)
        await crash(books)
        await say(books, *texts(4, 2), ENDED)
        events = await read(replay)
        assert [event.sequence for event in events] == [4, 5, 6]
        assert words(events) == words_of(4, 5)


class CountedStore(MemoryStore):
    commits = 0

    async def commit(self, *arguments: Any, **named: Any) -> Any:
        self.commits += 1
        return await super().commit(*arguments, **named)


async def test_events_wait_for_the_record_of_their_session(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store) as books:
        await say(books, *texts(1, 3), ENDED)
        await trio.sleep(WITHOUT_RECORD_S * 0.9)
        await apply_transition(store, BEGIN)
        await trio.sleep(10)
        assert (await read_tail(store, "ses")).last is not None


async def test_events_without_a_record_are_let_go_of(autojump_clock: MockClock) -> None:
    store = CountedStore()
    async with host(store) as books:
        await say(books, *texts(1, 3), ENDED)
        await trio.sleep(WITHOUT_RECORD_S + 10)
        tried = store.commits
        assert tried > 100
        await trio.sleep(3_600)
        assert store.commits == tried
        await apply_transition(store, BEGIN)
        await say(books, *texts(5, 1))
        await trio.sleep(10)
        last = (await read_tail(store, "ses")).last
        assert last is not None, "what is said later finds the record"


async def crash_over(books: Books, *messages: AnnouncerMessage) -> None:
    """Let the Announcer crash with these messages in its hand."""
    for message in (Forget(cast("Any", [])), *messages):
        books.announcer.address.tell_nowait(message)
    await trio.sleep(1)


async def test_what_a_crash_of_the_announcer_lost_is_a_gap(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await say(books, *texts(1, 3))
        replay = books.replay("ses")
        assert words(await replay.take()) == words_of(1, 3)
        await crash_over(books, Announce("ses", tuple(texts(4, 2))))
        with trio.fail_after(60), pytest.raises(GapError) as gap:
            await replay.take()
        assert gap.value.after == 5
        await say(books, *texts(6, 1), ENDED)
        events = await read(books.replay("ses", after=5))
        assert [event.sequence for event in events] == [6, 7]


async def test_what_was_told_before_the_announcer_crashed_is_no_gap(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await say(books, *texts(1, 3))
        replay = books.replay("ses")
        assert words(await replay.take()) == words_of(1, 3)
        books.announcer.address.tell_nowait(Announce("ses", tuple(texts(4, 2))))
        await crash_over(books)
        await say(books, *texts(6, 1), ENDED)
        assert words(await read(replay)) == words_of(4, 6)


async def test_a_session_that_many_others_crowd_out_is_read_from_the_log(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await say(books, *texts(1, 3), ENDED)
        await trio.sleep(FLUSHED_S)
        large = SessionEnded(SessionStatus.COMPLETED, LONG * 200)
        for number in range(ENDED_LIMIT_BYTES // len(large.output) + 1):
            await books.announcer.address.tell(Announce(f"other-{number}", (large,)))
        with pytest.raises(UnknownSession):
            await books.announcer.address.ask(lambda reply: Subscribe("ses", 0, reply), 5.0)
        assert words(await read(books.replay("ses"))) == words_of(1, 3)


async def test_an_outcome_is_told_although_the_announcer_crashes_over_it(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await say(books, *texts(1, 3))
        await crash_over(books, Announce("ses", (*texts(4, 2), ENDED)))
        with pytest.raises(GapError) as gap:
            await read(books.replay("ses"))
        assert gap.value.after == 6
        [ended] = await read(books.replay("ses", after=6))
        assert (ended.sequence, ended.event) == (7, ENDED)
        await trio.sleep(KEPT_AFTER_END_S + 1)
        [ended] = await read(books.replay("ses", after=6))
        assert (ended.sequence, ended.event) == (7, ENDED), "it is in the log too"


async def test_where_a_session_goes_on_is_not_lost_with_the_announcer(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await crash_over(books, Continue("ses", Position(3, 40)))
        await say(books, *texts(41, 1), ENDED)
        [first, _] = await read(books.replay("ses", after=40, epoch=3))
        assert (first.epoch, first.sequence) == (3, 41)


async def test_numbers_of_notices_are_not_given_twice(autojump_clock: MockClock) -> None:
    notices = (Revived(session_id="ses-1"), Revived(session_id="ses-2"))

    async def follow(books: Books, after: int) -> NoticeStream:
        return await books.announcer.address.ask(lambda reply: FollowNotices(after, reply), 5.0)

    async with host(MemoryStore()) as books:
        await books.announcer.address.tell(Notify(notices))
        await crash_over(books, Notify(notices))
        for after in (0, 2, 3):
            with pytest.raises(GapError):
                await follow(books, after)
        await books.announcer.address.tell(Notify(notices))
        notice = await anext(await follow(books, 4))
        assert notice.sequence == 5


async def test_a_finished_session_is_told_by_a_later_process(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store, BEGIN) as books:
        await say(books, AttemptStarted(1), *texts(1, 50), ENDED)
    async with host(store) as books:
        events = await read(books.replay("ses", after=20))
        assert words(events) == words_of(20, 50)
        assert events[-1].sequence == 52


class FullLog(MemoryStore):
    """A store that keeps everything but events, for a while."""

    is_full = False

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        if self.is_full and any(isinstance(each, Append) for each in operations):
            raise StoreError("the log is full")
        return await super().commit(operations, key=key, durable=durable)


@pytest.mark.parametrize("comes_s", [0.0, 20.0, KEPT_AFTER_END_S + 5])
async def test_the_end_of_a_session_waits_for_what_is_still_to_be_written(
    comes_s: float, autojump_clock: MockClock
) -> None:
    """The ring has let go of it, the record says that the session is over, and the log has only
    its beginning: the events are in this process, and nowhere else."""
    store = FullLog()
    async with host(store, BEGIN) as books:
        await say(books, *texts(1, 100, LONG))
        await trio.sleep(FLUSHED_S)
        store.is_full = True
        await say(books, *texts(101, 400, LONG), ENDED)
        await apply_transition(store, END)
        await trio.sleep(comes_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_make_room_later, store)
            events = await read(books.replay("ses"))
    assert words(events) == words_of(1, 500, LONG)
    assert events[-1].sequence == 501
    assert events[-1].event == ENDED


async def _make_room_later(store: FullLog) -> None:
    await trio.sleep(40)
    store.is_full = False


async def test_a_hole_in_the_log_is_said_and_never_bridged(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store, BEGIN) as books:
        await say(books, *texts(1, 10))
        await trio.sleep(FLUSHED_S)
        store.failure = StoreError("the store is away")
        await say(books, *texts(11, 1_500, LONG))  # more than the backlog holds
        await trio.sleep(10)
        store.failure = None
        await trio.sleep(10)
        await say(books, ENDED)
        assert words(await read(books.replay("ses"), until=10)) == words_of(1, 10)
        with pytest.raises(GapError) as gap:
            await read(books.replay("ses"))
        assert gap.value.after is not None
        assert gap.value.after > 10
        rest = await read(books.replay("ses", after=gap.value.after))
        assert isinstance(rest[-1].event, SessionEnded)


async def test_while_the_store_is_away_events_wait_and_are_kept_later(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with host(store, BEGIN) as books:
        store.failure = StoreError("the store is away")
        await say(books, *texts(1, 40))
        await trio.sleep(30)
        store.failure = None
        await say(books, ENDED)
        await trio.sleep(10)
    async with host(store) as books:
        assert words(await read(books.replay("ses"))) == words_of(1, 40)


def slow_down(patch: pytest.MonkeyPatch, actor: type[Actor[Any]], hook: str) -> None:
    """Let this actor rest behind each message."""
    handle = getattr(actor, hook)

    async def rest(self: Any, mail: Any) -> None:
        await handle(self, mail)
        await trio.sleep(0.1)

    patch.setattr(actor, hook, rest)


@pytest.mark.parametrize("slow", [Announcer, EventRecorder])
async def test_what_was_said_when_the_books_are_closed_is_on_record(
    slow: type[Actor[Any]], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow those are who number events, and who keep them."""
    slow_down(monkeypatch, slow, "handle_batch")
    store = MemoryStore()
    async with host(store, BEGIN) as books:
        for number in (1, 2):
            await say(books, *texts(number, 1))
            await wait_all_tasks_blocked()
        await say(books, ENDED)
    async with host(store) as books:
        events = await read(books.replay("ses"))
        assert (words(events), events[-1].event) == (words_of(1, 2), ENDED)


async def test_what_is_to_be_written_when_the_books_are_closed_is_written(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, Ledger, "handle")
    store = MemoryStore()
    async with host(store, BEGIN) as books:
        for transition in (HeartbeatTouch(id="ses", last_activity_at=AT), END):
            await books.ledger.address.tell(Apply(transition, ToNobody()))
            await wait_all_tasks_blocked()
    kept = await load_session(store, "ses")
    assert kept is not None
    assert kept.record.status is SessionStatus.CANCELLED


async def test_what_a_lost_host_had_said_and_not_kept_is_reset(autojump_clock: MockClock) -> None:
    """A client has seen numbers 1 to 9; 7 to 9 went down with the host. What he has got of 3 to
    9 may have been one event, so he forgets all of it, and gets again what is on record."""
    contents = MemoryStore()
    store = contents.reopen()
    async with host(store, BEGIN) as books:
        await say(books, Text(1, "a"), AttemptStarted(1), *texts(1, 2))
        await trio.sleep(FLUSHED_S)
        await say(books, *texts(3, 2))
        await trio.sleep(FLUSHED_S)
        store.failure = StoreError("killed")
        await say(books, *texts(5, 3))
        await trio.sleep(FLUSHED_S)
    async with host(contents.reopen(), LOST, TAKE_OVER) as books:
        await books.continue_events("ses", 2)
        await say(books, *texts(100, 2), ENDED)
        replay = books.replay("ses", after=9, epoch=1)
        start = await replay.begin()
        assert (start.position, start.reset) == (Position(1, 2), True)
        events = await read(replay)
        assert words(events) == words_of(1, 4) + words_of(100, 101)
        assert {(event.sequence > 6, event.epoch) for event in events} == {(False, 1), (True, 2)}
        # Whoever had not seen so much misses nothing, and is not reset.
        replay = books.replay("ses", after=3, epoch=1)
        assert (await replay.begin()).reset is False
        assert words(await read(replay)) == words_of(2, 4) + words_of(100, 101)


async def test_what_an_heir_has_said_of_which_nothing_is_on_record_is_reset(
    autojump_clock: MockClock,
) -> None:
    """The log knows nothing of its epoch, and the record does."""
    contents = MemoryStore()
    async with host(contents.reopen(), BEGIN) as books:
        await say(books, Text(1, "a"), AttemptStarted(1), *texts(1, 2))
    store = contents.reopen()
    async with host(store, LOST, TAKE_OVER) as books:
        await books.continue_events("ses", 2)
        store.failure = StoreError("killed")
        await say(books, *texts(100, 3))
    async with host(contents.reopen()) as books:
        replay = books.replay("ses", after=7, epoch=2)
        start = await replay.begin()
        assert (start.position, start.reset) == (Position(1, 2), True)
        assert words(await read(replay, until=4)) == words_of(1, 2)
        with pytest.raises(GapError):
            await books.replay("ses", after=1, epoch=3).begin()
        with pytest.raises(UnknownSession):
            await books.replay("nobody", after=1, epoch=1).begin()


async def test_a_session_that_was_lost_for_good_ends_as_its_record_says(
    autojump_clock: MockClock,
) -> None:
    contents = MemoryStore()
    store = contents.reopen()
    async with host(store, BEGIN) as books:
        await say(books, *texts(1, 5))
        await trio.sleep(FLUSHED_S)
        store.failure = StoreError("killed")
    async with host(contents.reopen()) as books:
        replay = books.replay("ses")
        assert words(await read(replay, until=5)) == words_of(1, 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_later, contents)
            [ended] = await read(replay)
        assert ended.sequence == 6
        assert isinstance(ended.event, SessionEnded)
        assert (ended.event.status, ended.event.reason) == (SessionStatus.CANCELLED, "by hand")


async def _end_later(store: MemoryStore) -> None:
    await trio.sleep(20)
    await apply_transition(store, Cancel(id="ses", ended_at=AT, reason="by hand"))


async def test_a_session_of_another_process_is_followed_through_the_store(
    autojump_clock: MockClock,
) -> None:
    contents = MemoryStore()
    async with (
        host(contents.reopen(), BEGIN) as books,
        host(contents.reopen()) as elsewhere,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_say_slowly, books, 1, 300)
        events = await read(elsewhere.replay("ses"))
        assert words(events) == words_of(1, 300)
        assert isinstance(events[-1].event, SessionEnded)


async def test_a_stalled_host_writes_nothing_into_the_log_of_its_successor(
    autojump_clock: MockClock,
) -> None:
    contents = MemoryStore()
    async with host(contents.reopen(), BEGIN) as stalled:
        await say(stalled, *texts(1, 5))
        await trio.sleep(FLUSHED_S)
        async with host(contents.reopen(), LOST, TAKE_OVER) as books:
            await books.continue_events("ses", 2)
            await say(stalled, *texts(6, 5))
            await say(books, *texts(200, 5), ENDED)
            await trio.sleep(FLUSHED_S)
    async with host(contents.reopen()) as books:
        assert words(await read(books.replay("ses"))) == words_of(1, 5) + words_of(200, 204)


async def test_what_was_never_said_is_no_place_to_begin(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), BEGIN) as books:
        await say(books, *texts(1, 5))
        for after, epoch in ((6, 1), (6, None), (0, 2)):
            with pytest.raises(GapError) as gap:
                await books.replay("ses", after, epoch).take()
            assert gap.value.after == 5
        with pytest.raises(UnknownSession):
            await books.replay("nobody").take()


async def test_a_log_keeps_up_with_a_fast_stream(autojump_clock: MockClock) -> None:
    """Ten megabytes in ten seconds, far more than the ring and the backlog hold."""
    async with host(MemoryStore(), BEGIN) as books:
        for first in range(1, 10_001, 10):
            await say(books, *texts(first, 10, LONG))
            await trio.sleep(0.01)
        await say(books, ENDED)
        events = await read(books.replay("ses"))
        assert words(events) == words_of(1, 10_000, LONG)


async def test_the_backlog_is_bounded_in_bytes_for_one_and_for_all() -> None:
    backlog = EventBacklog(session_limit_bytes=10_000, total_limit_bytes=30_000)
    for number in range(1, 200):
        for session in range(10):
            event = SessionEvent(f"ses-{session}", number, Text(1, "x" * 100))
            backlog.add([event])
            assert backlog.size_bytes <= 30_000
    for session_id in backlog.waiting(10):
        block = backlog.block(session_id)
        assert block is not None
        assert block.last == 199
        assert block.first > 150
