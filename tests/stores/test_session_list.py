"""Finding sessions: filters, days, pages, ids."""

import msgspec
import pytest

from midstream.messages.record import Fence, SessionRecord, SessionStatus
from midstream.messages.timestamps import format_timestamp
from midstream.stores.memory import MemoryStore
from midstream.stores.session_list import (
    ENDED_STATUSES,
    SessionFilter,
    find_sessions,
    list_sessions,
    live_sessions,
    records_of,
)
from midstream.stores.store import MAX_LIMIT, Book, Put, encode

T0_MS = 1_772_323_200_000
"""2026-03-01T00:00:00Z."""
HOUR_MS = 3_600_000


def record(number: int, status: SessionStatus = SessionStatus.COMPLETED) -> SessionRecord:
    return SessionRecord(
        id=f"ses-{number:05}",
        status=status,
        started_at=format_timestamp(T0_MS + number * HOUR_MS),
        provider="anthropic" if number % 2 else "openai",
        conversation_id=f"con-{number // 3}",
        fence=Fence(owner="host-a", token=1),
    )


async def store_of(*records: SessionRecord) -> MemoryStore:
    store = MemoryStore()
    await store.commit([Put(Book.SESSIONS, r.id, encode(r), 0) for r in records])
    return store


async def ids(store: MemoryStore, which: SessionFilter, limit: int = 50) -> list[str]:
    return [found.id for found in (await list_sessions(store, which, limit)).records]


async def test_the_newest_come_first_and_pages_lead_on() -> None:
    store = await store_of(*map(record, range(5)))
    first = await list_sessions(store, SessionFilter(), 3)
    second = await list_sessions(store, SessionFilter(), 3, first.next)
    assert [r.id for r in first.records] == ["ses-00004", "ses-00003", "ses-00002"]
    assert [r.id for r in second.records] == ["ses-00001", "ses-00000"]
    assert second.next is None


async def test_filters_are_all_met() -> None:
    failed = SessionStatus.FAILED
    store = await store_of(record(0, failed), record(1, failed), record(2), record(7, failed))
    assert await ids(store, SessionFilter(statuses=(failed,))) == [
        "ses-00007",
        "ses-00001",
        "ses-00000",
    ]
    assert await ids(store, SessionFilter(statuses=(failed,), provider="anthropic")) == [
        "ses-00007",
        "ses-00001",
    ]
    assert await ids(store, SessionFilter(conversation_id="con-0", provider="openai")) == [
        "ses-00002",
        "ses-00000",
    ]
    both = SessionFilter(statuses=(failed, SessionStatus.COMPLETED))
    assert len(await ids(store, both)) == 4


async def test_b18_until_a_day_means_to_its_end() -> None:
    store = await store_of(record(23), record(24), record(47), record(48))
    assert await ids(store, SessionFilter(until="2026-03-01")) == ["ses-00023"]
    assert await ids(store, SessionFilter(since="2026-03-02", until="2026-03-02")) == [
        "ses-00047",
        "ses-00024",
    ]
    assert await ids(store, SessionFilter(since="2026-03-03T01:00:00+01:00")) == ["ses-00048"]
    assert await ids(store, SessionFilter(until="2026-03-02T00:00:00Z")) == [
        "ses-00024",
        "ses-00023",
    ]


@pytest.mark.parametrize("bad", ["yesterday", "", "2026-13-01", "12:00"])
async def test_what_is_no_instant_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="no instant"):
        await list_sessions(MemoryStore(), SessionFilter(since=bad), 10)


async def test_live_sessions_are_all_found_beyond_one_page() -> None:
    live = [record(n, SessionStatus.RUNNING) for n in range(MAX_LIMIT + 5)]
    store = await store_of(*live, record(90_000), record(90_001, SessionStatus.PENDING))
    found = [kept.record.id async for kept in live_sessions(store)]
    assert len(found) == len(set(found)) == MAX_LIMIT + 6
    assert [kept.version async for kept in find_sessions(store, {"id": "ses-90000"})] == [1]


async def test_records_are_found_by_id_whatever_their_number() -> None:
    store = await store_of(*map(record, range(1200)))
    wanted = [f"ses-{n:05}" for n in (*range(1200), 5000, 5)]
    assert len(await records_of(store, wanted)) == 1200
    assert await records_of(store, wanted, [SessionStatus.FAILED.value]) == {}


@pytest.mark.parametrize("problem", [{"status": "levitating"}, {"startedAt": None}])
async def test_a_record_that_cannot_be_read_hides_none_of_the_others(
    problem: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    good = [record(n, SessionStatus.RUNNING) for n in (1, 3)]
    store = await store_of(*good)
    bad = msgspec.to_builtins(record(2, SessionStatus.RUNNING)) | problem
    await store.put(Book.SESSIONS, "ses-00002", bad, 0)

    assert await ids(store, SessionFilter()) == ["ses-00003", "ses-00001"]
    assert [kept.record async for kept in find_sessions(store, {})] == good
    assert list(await records_of(store, ["ses-00001", "ses-00002"])) == ["ses-00001"]
    assert "a document is passed over: ses-00002: cannot be read" in caplog.text


async def test_without_ids_nothing_is_asked() -> None:
    store = MemoryStore()
    await store.aclose()
    assert await records_of(store, []) == {}


def test_every_status_is_live_or_ended() -> None:
    ended = {status.value for status in SessionStatus if status.is_terminal}
    assert set(ENDED_STATUSES) == ended
