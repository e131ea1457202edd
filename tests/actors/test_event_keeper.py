"""The log of a session holds each event once, whoever sends it how often."""

import tracemalloc
from random import Random

import msgspec
import pytest

from midstream.actors import event_keeper
from midstream.actors.event_keeper import EventKeeper
from midstream.messages.event_log import Block, block_of
from midstream.messages.events import SessionEnded, SessionEvent, Text
from midstream.messages.record import Fence, SessionStatus
from midstream.messages.transition import AttachRunning, OrphanFailed, Recover
from midstream.stores.event_log import LogReader
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition
from midstream.stores.store import Log

AT = "2026-01-01T00:00:00.000Z"


def block(first: int, last: int, epoch: int = 1) -> Block:
    numbers = range(first, last + 1)
    return block_of([SessionEvent("ses", n, Text(1, f"<{n}>"), epoch) for n in numbers])


async def store_with_session() -> MemoryStore:
    store = MemoryStore()
    began = AttachRunning(id="ses", fence=Fence("host-a", 1), started_at=AT, provider="p")
    await apply_transition(store, began)
    return store


async def kept_numbers(store: MemoryStore) -> list[int]:
    """The numbers in the log itself, also those that its readers would skip."""
    entries = await store.length(Log.EVENTS, "ses")
    blocks = await LogReader(store, "ses").read(0)
    assert len(blocks) == entries
    return [number for one in blocks for number in range(one.first, one.last + 1)]


@pytest.mark.parametrize("seed", range(20))
async def test_blocks_that_are_sent_again_or_reach_back_are_kept_once(seed: int) -> None:
    random, store, keeper = Random(seed), await store_with_session(), None
    done = 0
    while done < 30:
        if keeper is None or random.random() < 0.5:
            keeper = EventKeeper(store)  # the Ledger has crashed
        first = random.randint(max(1, done - 5), done + 1)
        last = max(first, done + random.randint(-2, 6))
        kept = await keeper.keep({"ses": block(first, last)})
        assert kept.through == {"ses": last}
        done = max(done, last)
    assert await kept_numbers(store) == list(range(1, done + 1))


@pytest.mark.parametrize("has_kept", [False, True])
async def test_the_log_takes_nothing_from_an_owner_that_has_lost_the_session(
    has_kept: bool,
) -> None:
    store = await store_with_session()
    stalled = EventKeeper(store)
    await stalled.keep({"ses": block(1, 3)})
    await apply_transition(store, OrphanFailed(id="ses", ended_at=AT, error="no heartbeat"))
    await apply_transition(store, Recover(id="ses", owner="host-b", at=AT))
    if has_kept:
        await EventKeeper(store).keep({"ses": block(4, 5, epoch=2)})
    before = await kept_numbers(store)
    kept = await stalled.keep({"ses": block(4, 9)})
    assert (kept.through, kept.refused) == ({}, frozenset({"ses"}))
    assert await kept_numbers(store) == before


async def test_events_of_a_session_without_a_record_are_neither_kept_nor_refused() -> None:
    kept = await EventKeeper(MemoryStore()).keep({"ses": block(1, 3)})
    assert (kept.through, kept.refused) == ({}, frozenset())


async def test_nothing_is_remembered_of_the_logs_of_sessions_that_have_ended() -> None:
    store, began = MemoryStore(), AttachRunning(id="", started_at=AT, provider="p")
    keeper = EventKeeper(store)
    end = SessionEnded(SessionStatus.COMPLETED, "done")

    async def run(*names: str) -> int:
        """Bytes that the keeper holds once these have ended."""
        for name in names:
            fence = Fence("host-a", 1)
            await apply_transition(store, msgspec.structs.replace(began, id=name, fence=fence))
        for number, event in ((1, Text(1, "Hi")), (2, end)):
            await keeper.keep({n: block_of([SessionEvent(n, number, event)]) for n in names})
        own = tracemalloc.Filter(inclusive=True, filename_pattern=event_keeper.__file__)
        kept = tracemalloc.take_snapshot().filter_traces([own]).statistics("filename")
        return sum(each.size for each in kept)

    tracemalloc.start()
    try:
        sizes = [await run(*(f"ses-{n}" for n in range(s, s + 20))) for s in range(0, 400, 20)]
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 4_096, "the table of four hundred takes twice as much"
    assert await store.length(Log.EVENTS, "ses-399") == 2
