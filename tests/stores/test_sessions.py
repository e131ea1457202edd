"""Session records in a store: one funnel, whoever is faster."""

from typing import Any

import msgspec
import pytest
import trio

from midstream.messages.errors import FenceLost, RecordError, VersionConflict
from midstream.messages.record import Crossing, Fence, SessionRecord, SessionStatus
from midstream.messages.transition import (
    AnyTransition,
    AttachRunning,
    Cancel,
    HeartbeatTouch,
    OrphanFailed,
    Outcome,
    Recover,
    Revive,
    Terminal,
)
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import (
    KeptSession,
    Seen,
    SessionWrite,
    apply_transition,
    load_session,
    transcript_operations,
    write_transition,
)
from midstream.stores.store import Book, Log, Operation, Receipt, RequireFence, Store

OWNER = Fence("host-a", 1)
START = "2026-03-01T12:00:00.000Z"
LATER = "2026-03-01T12:00:30.000Z"

BEGIN = AttachRunning(id="s", fence=OWNER, started_at=START, provider="anthropic")
BEAT = HeartbeatTouch(id="s", fence=OWNER, last_activity_at=LATER)
CANCEL = Cancel(id="s", ended_at=LATER, reason="user")
LOST = OrphanFailed(id="s", ended_at=LATER, error="no heartbeat for 91 s")
REVIVED = Revive(id="s", fence=OWNER, last_activity_at=LATER)
COMPLETED = Terminal(
    id="s",
    fence=OWNER,
    status=Outcome.COMPLETED,
    ended_at=LATER,
    exit_code=0,
    last_activity_at=LATER,
)


async def record_of(store: Store) -> SessionRecord:
    kept = await load_session(store, "s")
    assert kept is not None
    return kept.record


async def transcript_of(store: Store) -> list[Any]:
    return [msgspec.json.decode(entry) for entry in await store.read(Log.TRANSCRIPTS, "s")]


class Overtaken(MemoryStore):
    """A store in which somebody else is faster, once."""

    def __init__(self, faster: Any) -> None:
        super().__init__()
        self.faster = faster

    async def commit(
        self, operations: Any, *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        faster, self.faster = self.faster, None
        if faster is not None:
            await apply_transition(self, faster)
        return await super().commit(operations, key=key, durable=durable)


async def test_a_session_begins_and_ends_in_the_store_and_is_announced_once_each() -> None:
    store = MemoryStore()

    began = await apply_transition(store, BEGIN)
    beaten = await apply_transition(store, BEAT)
    ended = await apply_transition(store, COMPLETED)
    again = await apply_transition(store, COMPLETED)

    assert [write.crossing for write in (began, beaten, ended, again)] == [
        Crossing.STARTED,
        None,
        Crossing.ENDED,
        None,
    ]
    assert [write.durable for write in (began, beaten, ended)] == [True, False, True]
    assert await load_session(store, "s") == KeptSession(ended.after, 3)
    assert again.operations == ()


PASTS: tuple[tuple[AnyTransition, ...], ...] = (
    (),
    (BEGIN,),
    (BEGIN, BEAT),
    (BEGIN, CANCEL),
    (BEGIN, LOST),
    (BEGIN, COMPLETED),
    (BEGIN, LOST, Recover(id="s", owner="host-b", at=LATER)),
)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("transition", [BEGIN, BEAT, CANCEL, LOST, COMPLETED, REVIVED])
@pytest.mark.parametrize("past", PASTS)
async def test_what_was_seen_of_a_session_changes_nothing_but_what_is_read(
    past: tuple[AnyTransition, ...], transition: AnyTransition, key: str | None
) -> None:
    async def outcome(seen: Seen | None) -> SessionWrite | str:
        store = MemoryStore()
        for earlier in past:
            await apply_transition(store, earlier)
        try:
            write = await apply_transition(store, transition, key=key, seen=seen)
        except (RecordError, FenceLost) as error:
            return type(error).__name__
        assert await record_of(store) == write.after
        return write

    wanted = await outcome(None)
    earlier_store = MemoryStore()
    assert await outcome(Seen(None)) == wanted
    for earlier in past:
        await apply_transition(earlier_store, earlier)
        seen = Seen(await load_session(earlier_store, "s"))
        assert await outcome(seen) == wanted, seen


async def test_a_session_that_nobody_began_cannot_beat() -> None:
    with pytest.raises(RecordError):
        await apply_transition(MemoryStore(), BEAT)


def test_an_owners_write_carries_its_fence_and_a_cancel_does_not() -> None:
    kept = KeptSession(write_transition(None, BEGIN).after, 1)

    assert RequireFence("s", 1) in write_transition(kept, BEAT).operations
    assert RequireFence("s", 1) in write_transition(kept, COMPLETED).operations
    for transition in (CANCEL, LOST, Recover(id="s", owner="host-b", at=LATER)):
        kinds = {type(operation) for operation in write_transition(kept, transition).operations}
        assert RequireFence not in kinds


@pytest.mark.parametrize(
    ("faster", "mine", "status", "announced"),
    [
        (CANCEL, COMPLETED, SessionStatus.CANCELLED, None),
        (COMPLETED, CANCEL, SessionStatus.COMPLETED, None),
        (BEAT, COMPLETED, SessionStatus.COMPLETED, Crossing.ENDED),
        (BEAT, CANCEL, SessionStatus.CANCELLED, Crossing.ENDED),
        (CANCEL, LOST, SessionStatus.CANCELLED, None),
    ],
)
async def test_whoever_is_first_wins_and_the_other_announces_nothing(
    faster: Any, mine: Any, status: SessionStatus, announced: Crossing | None
) -> None:
    store = Overtaken(None)
    await apply_transition(store, BEGIN)
    store.faster = faster

    write = await apply_transition(store, mine)

    assert write.crossing is announced
    assert (await record_of(store)).status is status


async def test_a_stalled_owner_cannot_write_over_its_successor() -> None:
    store = Overtaken(None)
    await apply_transition(store, BEGIN)
    store.faster = Recover(id="s", owner="host-b", at=LATER)

    with pytest.raises(FenceLost):
        await apply_transition(store, COMPLETED)

    record = await record_of(store)
    assert (record.status, record.fence) == (SessionStatus.RUNNING, Fence("host-b", 2))


async def test_of_two_hosts_that_recover_a_session_one_gets_it() -> None:
    store = MemoryStore()
    await apply_transition(store, BEGIN)
    kept = await load_session(store, "s")
    assert kept is not None
    first = write_transition(kept, Recover(id="s", owner="host-b", at=LATER))
    second = write_transition(kept, Recover(id="s", owner="host-c", at=LATER))

    await store.commit(first.operations)
    with pytest.raises(VersionConflict):
        await store.commit(second.operations)

    assert (await record_of(store)).fence == Fence("host-b", 2)


async def test_an_owner_that_was_presumed_dead_comes_back_and_finishes() -> None:
    store = MemoryStore()
    await apply_transition(store, BEGIN)
    await apply_transition(store, LOST)

    revived = await apply_transition(store, Revive(id="s", fence=OWNER, last_activity_at=LATER))
    await apply_transition(store, COMPLETED)

    assert revived.crossing is Crossing.REVIVED
    assert (await record_of(store)).status is SessionStatus.COMPLETED


async def test_a_transcript_is_kept_with_the_end_and_the_longer_one_wins() -> None:
    store = MemoryStore()
    await apply_transition(store, BEGIN)

    await apply_transition(store, CANCEL, transcript=["a"])
    assert await transcript_of(store) == ["a"]
    late = await apply_transition(store, COMPLETED, transcript=["x", "y"])
    await apply_transition(store, COMPLETED, transcript=["z"])

    assert await transcript_of(store) == ["x", "y"]
    assert late.crossing is None
    assert late.after.status is SessionStatus.CANCELLED


def test_an_empty_or_shorter_transcript_changes_nothing() -> None:
    assert transcript_operations("s", 0, []) == ()
    assert transcript_operations("s", 2, ["a", "b"]) == ()
    assert len(transcript_operations("s", 0, ["a"])) == 1


async def test_an_end_that_is_sent_again_is_not_announced_again() -> None:
    """Also when the session has gone on since, as after a recovery."""
    store = MemoryStore()
    unowned = msgspec.structs.replace(COMPLETED, fence=None)
    await apply_transition(store, msgspec.structs.replace(BEGIN, fence=None))
    await apply_transition(store, LOST, key="dlq-1")
    await apply_transition(store, Recover(id="s", owner="host-b", at=LATER))

    again = await apply_transition(store, LOST, key="dlq-1")

    assert again.crossing is None
    assert again.after == await record_of(store)
    assert again.after.status is SessionStatus.RUNNING
    with pytest.raises(FenceLost):
        await apply_transition(store, unowned)


async def test_many_writers_of_one_record_end_it_once() -> None:
    store = MemoryStore()
    await apply_transition(store, BEGIN)
    announced = list[Crossing]()

    async def write(transition: Any) -> None:
        crossing = (await apply_transition(store, transition)).crossing
        if crossing is not None:
            announced.append(crossing)

    async with trio.open_nursery() as nursery:
        for transition in (BEAT, COMPLETED, CANCEL, LOST, BEAT, CANCEL, COMPLETED):
            nursery.start_soon(write, transition)

    assert announced == [Crossing.ENDED]
    assert (await record_of(store)).is_terminal
    assert await store.count(Book.SESSIONS, {}) == 1


def test_operations_wait_in_the_dead_letters_as_json() -> None:
    operations = write_transition(None, BEGIN).operations + transcript_operations("s", 1, [{}, 1])

    written = msgspec.json.encode(operations)

    assert msgspec.json.decode(written, type=tuple[Operation, ...]) == operations
