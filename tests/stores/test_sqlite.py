"""The SQLite store: it passes the suite, and keeps its word through kills and bad files."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from conformance import StoreConformance, entries_of, plain, put, session

from midstream.messages.errors import StoreError
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.stores.sqlite import SqliteStore, open_sqlite
from midstream.stores.sqlite_file import open_writer, scripts
from midstream.stores.sqlite_statements import prepared
from midstream.stores.sqlite_writer import Commit, Writer
from midstream.stores.store import Between, Book, Log, Put, Query, Receipt, encode


class OneFile:
    """Handles on one file, as the processes of one machine have them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def open(self) -> SqliteStore:
        return await open_sqlite(self.path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "midstream.sqlite3"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with await open_sqlite(path) as store:
        yield store


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def world(self, tmp_path: Path) -> OneFile:
        return OneFile(tmp_path / "midstream.sqlite3")


# --- the file -------------------------------------------------------------------------


async def test_what_was_committed_is_there_when_the_file_is_opened_again(path: Path) -> None:
    async with await open_sqlite(path) as first:
        await first.commit([put("a", {"n": 1})], key="k")
        await first.append(Log.EVENTS, "s", ["one"], 0)

    async with await open_sqlite(path) as second:
        assert plain(await second.get(Book.STATE, "a")) == {"n": 1}
        assert await entries_of(second, Log.EVENTS, "s") == ["one"]
        assert (await second.commit([put("a", {"n": 1})], key="k")).replayed


async def test_the_file_and_its_directories_are_made_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rooms" / "midstream.sqlite3"

    async with await open_sqlite(path) as store:
        await store.put(Book.STATE, "a", {}, 0)
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}

    assert set(modes) == {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    assert set(modes.values()) == {0o600}


async def test_documents_can_be_read_by_any_sqlite_shell(store: SqliteStore, path: Path) -> None:
    await store.put(Book.SESSIONS, "s", session("s"), 0)

    with contextlib.closing(sqlite3.connect(path)) as shell:
        query = "SELECT json_extract(document, '$.provider'), fence, status FROM sessions"
        assert shell.execute(query).fetchall() == [("anthropic", 1, "running")]


async def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    await trio.Path(path).write_text("Dear diary, " * 100)

    with pytest.raises(StoreError, match="not a SQLite database") as caught:
        await open_sqlite(path)

    assert str(path) in str(caught.value)
    assert await trio.Path(path).read_text() == "Dear diary, " * 100


async def test_the_database_of_another_program_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE sessions (id TEXT)")

    with pytest.raises(StoreError, match="another program") as caught:
        await open_sqlite(path)

    assert str(path) in str(caught.value)


async def test_a_newer_schema_is_refused(path: Path) -> None:
    async with await open_sqlite(path) as store:
        await store.put(Book.STATE, "a", {}, 0)
    with contextlib.closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")

    with pytest.raises(StoreError, match=r"schema 99.*upgrade") as caught:
        await open_sqlite(path)

    assert str(path) in str(caught.value)


async def test_a_file_that_another_process_holds_is_reported(path: Path) -> None:
    await (await open_sqlite(path)).aclose()
    with contextlib.closing(sqlite3.connect(path)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StoreError, match="another process holds") as caught:
            await open_sqlite(path, busy_timeout_s=0.05)

    assert str(path) in str(caught.value)
    await (await open_sqlite(path)).aclose()


async def test_a_write_that_waits_too_long_for_another_process_fails_and_the_next_works(
    path: Path,
) -> None:
    async with await open_sqlite(path, busy_timeout_s=0.05) as store:
        with contextlib.closing(sqlite3.connect(path)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another process holds"):
                await store.put(Book.STATE, "a", {"n": 1}, 0)
            assert await store.get(Book.STATE, "a") is None
        assert await store.put(Book.STATE, "a", {"n": 2}, 0) == 1


@pytest.mark.parametrize("place", ["a directory", "below a file"])
async def test_a_path_that_cannot_be_a_file_is_reported(tmp_path: Path, place: str) -> None:
    await trio.Path(tmp_path / "file").touch()
    path = tmp_path if place == "a directory" else tmp_path / "file" / "midstream.sqlite3"

    with pytest.raises(StoreError) as caught:
        await open_sqlite(path)

    assert str(path) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("what", ["directory", "file"])
async def test_what_cannot_be_written_is_reported(tmp_path: Path, what: str) -> None:
    path = tmp_path / "midstream.sqlite3"
    await (await open_sqlite(path)).aclose()
    locked, mode = (tmp_path, 0o500) if what == "directory" else (path, 0o400)
    await trio.Path(locked).chmod(mode)

    try:
        with pytest.raises(StoreError) as caught:
            await open_sqlite(path)
    finally:
        await trio.Path(tmp_path).chmod(0o700)

    assert str(path) in str(caught.value)


# --- the schema -----------------------------------------------------------------------

LATER = "CREATE TABLE later (id TEXT);\nINSERT INTO later\nVALUES ('a;b');\n-- done\n"
BROKEN = "CREATE TABLE half (id TEXT);\nCREATE TABLE half (id TEXT);\n"


def tables(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as shell:
        rows = shell.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in rows}


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as shell:
        return shell.execute("PRAGMA user_version").fetchone()[0]


async def test_an_older_file_is_brought_to_the_present_and_keeps_what_it_holds(
    path: Path,
) -> None:
    async with await open_sqlite(path) as store:
        await store.put(Book.STATE, "a", {"n": 1}, 0)

    open_writer(path, 1, (*scripts(), LATER)).close()
    open_writer(path, 1, (*scripts(), LATER)).close()

    assert version(path) == len(scripts()) + 1
    with contextlib.closing(sqlite3.connect(path)) as shell:
        assert shell.execute("SELECT id FROM later").fetchall() == [("a;b",)]
        assert shell.execute("SELECT document FROM state").fetchall() == [('{"n":1}',)]


async def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    await (await open_sqlite(path)).aclose()
    before = tables(path)

    with pytest.raises(StoreError, match="half") as caught:
        open_writer(path, 1, (*scripts(), LATER, BROKEN))

    assert str(path) in str(caught.value)
    assert tables(path) == before
    assert version(path) == len(scripts())


async def test_hosts_that_start_at_once_make_one_schema(path: Path) -> None:
    stores: list[SqliteStore] = []

    async def start() -> None:
        stores.append(await open_sqlite(path))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(start)

    for number, store in enumerate(stores):
        await store.put(Book.STATE, f"d-{number}", {}, 0)
    assert await stores[0].count(Book.STATE, {}) == 4
    for store in stores:
        await store.aclose()


async def test_a_host_waits_while_another_writes_to_a_file_without_a_log_yet(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            other.rollback()

    monkeypatch.setattr("midstream.stores.sqlite_file.sleep", pause)

    async with contextlib.aclosing(await open_sqlite(path)) as store:
        assert await store.count(Book.STATE, {}) == 0

    assert len(pauses) == 3
    other.close()


async def test_a_host_does_not_wait_for_ever_for_a_file_without_a_log(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreError, match="another process holds the database"):
            await open_sqlite(path, busy_timeout_s=0.02)


# --- the writer -----------------------------------------------------------------------


async def test_a_commit_that_the_database_rejects_does_not_touch_its_neighbours(
    store: SqliteStore, path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as shell:
        shell.execute(
            "CREATE TRIGGER poison BEFORE INSERT ON state WHEN NEW.id = 'd-7' "
            "BEGIN SELECT RAISE(ROLLBACK, 'poisoned'); END"
        )
    failures: list[str] = []

    async def write(number: int) -> None:
        try:
            await store.put(Book.STATE, f"d-{number}", {}, 0)
        except StoreError as error:
            failures.append(str(error))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(write, number)

    assert failures == [f"{path}: poisoned"]
    assert await store.count(Book.STATE, {}) == 19


async def test_a_close_finishes_what_was_handed_over(path: Path) -> None:
    store = await open_sqlite(path)
    with contextlib.closing(sqlite3.connect(path)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(store.append, Log.EVENTS, f"s-{number}", ["one"], 0)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(store.aclose)
            await trio.testing.wait_all_tasks_blocked()
            holder.execute("ROLLBACK")

    async with await open_sqlite(path) as again:
        for number in range(40):
            assert await again.length(Log.EVENTS, f"s-{number}") == 1


@pytest.mark.parametrize(("durable", "level"), [(True, "FULL"), (False, "NORMAL")])
async def test_what_has_to_survive_the_loss_of_power_is_synced_to_the_disk(
    path: Path, durable: bool, level: str
) -> None:
    said: list[str] = []
    connection = open_writer(path, 5.0, scripts())
    connection.set_trace_callback(said.append)
    writer = Writer(path, connection)
    try:
        await writer.commit(prepared([put("a", {})]), None, durable)
    finally:
        await writer.aclose()
    begins = said.index("BEGIN IMMEDIATE")
    assert [line for line in said[:begins] if "synchronous" in line] == [
        f"PRAGMA synchronous = {level}"
    ]


async def test_a_commit_that_nobody_waits_for_is_taken_back_unless_it_has_begun() -> None:
    waiting, begun = Commit((), None, durable=True), Commit((), None, durable=True)
    assert begun.begin()
    for commit in (waiting, begun):
        with trio.CancelScope() as scope:
            scope.cancel()
            await commit.wait()

    assert not waiting.begin()
    begun.answer(Receipt((1,)))
    assert await begun.wait() == Receipt((1,))


async def test_a_close_works_in_a_cancelled_scope(path: Path) -> None:
    store = await open_sqlite(path)
    await store.put(Book.STATE, "a", {}, 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.aclose()

    with pytest.raises(StoreError, match="closed"):
        await store.get(Book.STATE, "a")


async def test_reads_do_not_wait_for_a_writer_of_another_process(
    store: SqliteStore, path: Path
) -> None:
    await store.put(Book.STATE, "a", {"n": 1}, 0)
    with contextlib.closing(sqlite3.connect(path)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        holder.execute("DELETE FROM state")
        assert plain(await store.get(Book.STATE, "a")) == {"n": 1}
        holder.execute("ROLLBACK")


WRITER = """
import sys, trio
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import Book, Log

async def main():
    store = await open_sqlite(sys.argv[1])
    async def write(lane):
        for number in range(1_000_000):
            durable = number % 4 == 0
            await store.append(Log.EVENTS, f"s-{lane}", [number], number, durable=durable)
            print(lane, number, flush=True)
    async with trio.open_nursery() as nursery:
        for lane in range(4):
            nursery.start_soon(write, lane)

trio.run(main)
"""


async def test_a_kill_in_the_middle_of_writing_loses_nothing_that_was_acknowledged(
    path: Path,
) -> None:
    def write_and_be_killed() -> dict[int, int]:
        command = [sys.executable, "-P", "-c", WRITER, str(path)]
        acknowledged = dict[int, int]()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lane, number = map(int, line.split())
                acknowledged[lane] = number + 1
                if sum(acknowledged.values()) == 300:
                    process.send_signal(signal.SIGKILL)
                    break
            for line in process.stdout:
                if line.endswith("\n"):
                    lane, number = map(int, line.split())
                    acknowledged[lane] = number + 1
        return acknowledged

    acknowledged = await trio.to_thread.run_sync(write_and_be_killed)

    assert sum(acknowledged.values()) >= 300
    async with await open_sqlite(path) as store:
        for lane, count in acknowledged.items():
            kept = await entries_of(store, Log.EVENTS, f"s-{lane}")
            assert kept == list(range(len(kept)))
            assert len(kept) >= count
            await store.append(Log.EVENTS, f"s-{lane}", ["goes on"], len(kept))


# --- many records ---------------------------------------------------------------------


def plan(path: Path, sql: str) -> str:
    with contextlib.closing(sqlite3.connect(path)) as shell:
        return " ".join(row[3] for row in shell.execute(f"EXPLAIN QUERY PLAN {sql}"))


async def test_pages_of_many_sessions_are_served_by_an_index(
    store: SqliteStore, path: Path
) -> None:
    """No scan and no sort, so the cost of a page does not grow with the book."""
    for order in (
        "WHERE status = 'a' ORDER BY startedAt DESC, id DESC",
        "WHERE conversationId = 'a' ORDER BY startedAt DESC, id DESC",
        "WHERE provider = 'a' AND (startedAt, id) < ('a', 'b') ORDER BY startedAt DESC, id DESC",
        "ORDER BY startedAt DESC, id DESC",
        "WHERE startedAt >= 'a' AND startedAt < 'b' ORDER BY startedAt ASC, id ASC",
        "WHERE id > 'a' ORDER BY id",
    ):
        found = plan(path, f"SELECT id, version, document FROM sessions {order} LIMIT 51")
        assert "USING" in found
        assert "INDEX" in found
        assert "TEMP B-TREE" not in found


async def test_a_book_of_thousands_is_paged_whole_and_counted(store: SqliteStore) -> None:
    def record(number: int) -> SessionRecord:
        status = SessionStatus.RUNNING if number % 100 == 0 else SessionStatus.COMPLETED
        started_at = f"2026-03-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"
        return session(f"s-{number:05}", status=status, started_at=started_at)

    for first in range(0, 4_000, 500):
        await store.commit(
            [
                Put(Book.SESSIONS, f"s-{number:05}", encode(record(number)), 0)
                for number in range(first, first + 500)
            ],
            durable=False,
        )
    seen, after = list[str](), None
    while True:
        query = Query({"status": "completed"}, "startedAt", descending=True, limit=700, after=after)
        page = await store.find(Book.SESSIONS, query)
        seen += [row.id for row in page.rows]
        after = page.next
        if after is None:
            break

    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen)) == 3_960
    assert await store.count(Book.SESSIONS, {"status": ("pending", "running")}) == 40
    day = Between("2026-03-01T00:00:00.000Z", "2026-03-01T01:00:00.000Z")
    assert await store.count(Book.SESSIONS, {"startedAt": day}) == 3_600
