"""What every store has to pass.

A store's own test module makes a class of `StoreConformance` and gives it a fixture
`world`: something that opens handles on one and the same contents, as two hosts would.
Nothing here knows what the store is made of.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
import pytest
import trio

from midstream.messages.errors import FenceLost, StoreError, VersionConflict
from midstream.messages.record import Fence, SessionRecord, SessionStatus
from midstream.stores.store import (
    MAX_LIMIT,
    Append,
    Between,
    Book,
    Clear,
    Condition,
    Cursor,
    Delete,
    Log,
    Operation,
    Put,
    Query,
    Receipt,
    RequireFence,
    Store,
    Stored,
    encode,
)


class World(Protocol):
    """Opens handles on the same contents."""

    async def open(self) -> Store: ...


def session(id: str, **changes: Any) -> SessionRecord:
    record = SessionRecord(
        id=id,
        status=SessionStatus.RUNNING,
        started_at="2026-03-01T12:00:00.000Z",
        provider="anthropic",
        conversation_id="c-1",
        fence=Fence("host-a", 1),
    )
    return msgspec.structs.replace(record, **changes)


def put(id: str, document: object, expected_version: int = 0, book: Book = Book.STATE) -> Put:
    return Put(book, id, encode(document), expected_version)


def append(key: str, entries: list[object], expected_length: int, log: Log = Log.ITEMS) -> Append:
    return Append(log, key, tuple(encode(entry) for entry in entries), expected_length)


def plain(stored: Stored | None) -> Any:
    return None if stored is None else msgspec.json.decode(stored.document)


async def entries_of(store: Store, log: Log, key: str) -> list[Any]:
    return [msgspec.json.decode(entry) for entry in await store.read(log, key)]


async def ids(store: Store, where: dict[str, Condition], **query: Any) -> list[str]:
    page = await store.find(Book.SESSIONS, Query(where=where, **query))
    return [row.id for row in page.rows]


class StoreConformance:
    """The suite."""

    @pytest.fixture
    async def store(self, world: World) -> AsyncIterator[Store]:
        async with await world.open() as store:
            yield store

    # --- documents --------------------------------------------------------------------

    async def test_what_was_put_is_found_at_its_version(self, store: Store) -> None:
        assert await store.get(Book.STATE, "a") is None

        first = await store.put(Book.STATE, "a", {"n": 1}, 0)
        second = await store.put(Book.STATE, "a", {"n": 2}, first)

        stored = await store.get(Book.STATE, "a")
        assert (first, second) == (1, 2)
        assert stored is not None
        assert (stored.id, stored.version, plain(stored)) == ("a", 2, {"n": 2})
        assert stored.decode(dict[str, int]) == {"n": 2}
        with pytest.raises(StoreError, match="a: cannot be read as SessionRecord"):
            stored.decode(SessionRecord)

    async def test_books_do_not_share_ids(self, store: Store) -> None:
        await store.put(Book.STATE, "a", {"n": 1}, 0)
        await store.put(Book.CONVERSATIONS, "a", {"n": 2}, 0)

        assert plain(await store.get(Book.STATE, "a")) == {"n": 1}
        assert plain(await store.get(Book.CONVERSATIONS, "a")) == {"n": 2}

    async def test_a_document_is_replaced_only_by_who_has_seen_its_version(
        self, store: Store
    ) -> None:
        await store.put(Book.STATE, "a", {"n": 1}, 0)
        await store.put(Book.STATE, "a", {"n": 2}, 1)

        with pytest.raises(VersionConflict, match="state/a: exists already, at version 2"):
            await store.put(Book.STATE, "a", {"n": 9}, 0)
        with pytest.raises(VersionConflict, match="state/a: expected version 1, found 2"):
            await store.put(Book.STATE, "a", {"n": 9}, 1)
        with pytest.raises(VersionConflict, match="state/b: expected version 1, found none"):
            await store.put(Book.STATE, "b", {"n": 9}, 1)
        assert plain(await store.get(Book.STATE, "a")) == {"n": 2}

    async def test_a_deleted_document_is_gone(self, store: Store) -> None:
        await store.put(Book.STATE, "a", {"n": 1}, 0)

        for expected in (0, 2):
            with pytest.raises(VersionConflict):
                await store.commit([Delete(Book.STATE, "a", expected)])
        assert (await store.commit([Delete(Book.STATE, "a", 1)])).results == (0,)

        assert await store.get(Book.STATE, "a") is None
        with pytest.raises(VersionConflict):
            await store.commit([Delete(Book.STATE, "a", 0)])
        assert await store.put(Book.STATE, "a", {"n": 2}, 0) == 1

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "naïve 日本語 🙂 \U0010ffff",
            "nul \x00 and \x1f",
            '\u2028 "quoted" \\ \'; --',
            "\ufeff",
        ],
    )
    async def test_any_text_survives(self, store: Store, text: str) -> None:
        await store.put(Book.STATE, f"id {text}".replace("\x00", ""), {text: text}, 0)
        await store.append(Log.EVENTS, "s", [text, {"t": text}], 0)

        stored = await store.get(Book.STATE, f"id {text}".replace("\x00", ""))
        assert plain(stored) == {text: text}
        assert await entries_of(store, Log.EVENTS, "s") == [text, {"t": text}]

    async def test_a_large_document_survives(self, store: Store) -> None:
        large = {"text": "0123456789abcdeé" * 65_536}

        await store.put(Book.STATE, "large", large, 0)
        await store.append(Log.ITEMS, "c", [large, large], 0)

        assert plain(await store.get(Book.STATE, "large")) == large
        assert await entries_of(store, Log.ITEMS, "c") == [large, large]

    async def test_a_name_that_is_no_text_is_refused_wherever_it_is_used(
        self, store: Store
    ) -> None:
        name = "a\ud800"
        for use in (
            lambda: store.get(Book.STATE, name),
            lambda: store.find(Book.SESSIONS, Query({"id": name})),
            lambda: store.count(Book.SESSIONS, {"status": (name,)}),
            lambda: store.read(Log.ITEMS, name),
            lambda: store.length(Log.ITEMS, name),
            lambda: store.put(Book.STATE, name, {}, 0),
            lambda: store.append(Log.ITEMS, name, [{}], 0),
            lambda: store.commit([RequireFence(name, 1)]),
            lambda: store.commit([], key=name),
        ):
            with pytest.raises(StoreError, match="lone surrogate"):
                await use()

    async def test_what_is_no_text_is_refused_and_nothing_is_kept(self, store: Store) -> None:
        with pytest.raises(StoreError, match="lone surrogate"):
            await store.put(Book.STATE, "a", {"t": "\ud800"}, 0)
        with pytest.raises(StoreError, match="lone surrogate"):
            await store.put(Book.STATE, "a\ud800", {}, 0)
        with pytest.raises(StoreError, match="what is no JSON cannot be kept"):
            await store.put(Book.STATE, "a", {"t": object()}, 0)
        with pytest.raises(StoreError, match="sessions/s: not a document of this book"):
            await store.put(Book.SESSIONS, "s", ["no", "object"], 0)
        with pytest.raises(StoreError, match="status"):
            await store.put(Book.SESSIONS, "s", {"status": 4}, 0)

        assert await store.count(Book.STATE, {}) == await store.count(Book.SESSIONS, {}) == 0

    # --- finding ----------------------------------------------------------------------

    async def _three_sessions(self, store: Store) -> None:
        for record in (
            session("a", started_at="2026-03-01T12:00:00.000Z", status=SessionStatus.COMPLETED),
            session("b", started_at="2026-03-02T12:00:00.000Z", provider="openai"),
            session("c", started_at="2026-03-03T12:00:00.000Z", conversation_id=None),
        ):
            await store.put(Book.SESSIONS, record.id, record, 0)

    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            ({}, "abc"),
            ({"status": "running"}, "bc"),
            ({"status": ("running", "completed")}, "abc"),
            ({"status": ["pending"]}, ""),
            ({"status": ()}, ""),
            ({"provider": "openai"}, "b"),
            ({"id": ("a", "c", "unknown")}, "ac"),
            ({"id": Between("b")}, "bc"),
            ({"conversationId": "c-1"}, "ab"),
            ({"conversationId": ""}, "c"),
            ({"conversationId": "c-1", "status": "running"}, "b"),
            ({"startedAt": Between("2026-03-02")}, "bc"),
            ({"startedAt": Between("2026-03-01", "2026-03-03")}, "ab"),
            ({"startedAt": Between(below="2026-03-02T12:00:00.000Z")}, "a"),
            ({"provider": "'; DROP TABLE sessions; --"}, ""),
        ],
    )
    async def test_documents_are_found_and_counted_by_their_fields(
        self, store: Store, where: dict[str, Condition], expected: str
    ) -> None:
        await self._three_sessions(store)

        assert "".join(await ids(store, where)) == expected
        assert await store.count(Book.SESSIONS, where) == len(expected)

    async def test_a_changed_document_is_found_by_what_it_says_now(self, store: Store) -> None:
        await self._three_sessions(store)

        ended = session("b", status=SessionStatus.FAILED)
        await store.put(Book.SESSIONS, "b", ended, 1)

        assert await ids(store, {"status": "running"}) == ["c"]
        assert await ids(store, {"status": "failed"}) == ["b"]

    async def test_rows_come_in_the_order_asked_for(self, store: Store) -> None:
        await self._three_sessions(store)
        await store.put(Book.SESSIONS, "0", session("0", started_at="2026-03-02T12:00:00.000Z"), 0)

        assert await ids(store, {}, order_by="startedAt") == ["a", "0", "b", "c"]
        assert await ids(store, {}, order_by="startedAt", descending=True) == ["c", "b", "0", "a"]
        assert await ids(store, {}, order_by="conversationId") == ["c", "0", "a", "b"]
        assert await ids(store, {}, descending=True, limit=2) == ["c", "b"]

    async def test_text_is_ordered_by_code_point(self, store: Store) -> None:
        names = ["Z", "a", "z", "é", "\uffee", "\U0001f642"]
        for name in reversed(names):
            await store.put(Book.SESSIONS, name, session(name, provider=name), 0)

        assert await ids(store, {}) == names
        assert await ids(store, {}, order_by="provider") == names

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("order_by", ["id", "startedAt", "status"])
    async def test_pages_hold_every_row_once_while_others_are_added(
        self, store: Store, order_by: str, descending: bool
    ) -> None:
        expected = {f"s-{number:02}" for number in range(23)}
        for number, id in enumerate(sorted(expected)):
            started_at = f"2026-03-0{1 + number % 4}T12:00:00.000Z"
            await store.put(Book.SESSIONS, id, session(id, started_at=started_at), 0)
        seen, after, pages = list[str](), None, 0
        while True:
            query = Query({"provider": "anthropic"}, order_by, descending, 5, after)
            page = await store.find(Book.SESSIONS, query)
            seen += [row.id for row in page.rows]
            pages += 1
            if page.next is None:
                break
            after = page.next
            added = session(f"x-{pages}", provider="another")
            await store.put(Book.SESSIONS, added.id, added, 0)

        assert len(seen) == len(set(seen))
        assert set(seen) == expected
        assert pages == 5

    async def test_a_page_goes_on_after_a_row_that_is_gone(self, store: Store) -> None:
        await self._three_sessions(store)
        page = await store.find(Book.SESSIONS, Query(limit=1))
        await store.commit([Delete(Book.SESSIONS, "a", 1)])

        assert page.next == Cursor("a", "a")
        assert await ids(store, {}, after=page.next) == ["b", "c"]

    async def test_the_last_full_page_has_no_next(self, store: Store) -> None:
        await self._three_sessions(store)

        assert (await store.find(Book.SESSIONS, Query(limit=3))).next is None
        assert (await store.find(Book.STATE, Query())) == ((), None)

    async def test_a_query_that_no_index_serves_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"no index on 'error'; it has: id, startedAt"):
            await store.find(Book.SESSIONS, Query(where={"error": "x"}))
        with pytest.raises(StoreError, match="no index on 'output'"):
            await store.find(Book.SESSIONS, Query(order_by="output"))
        with pytest.raises(StoreError, match=r"it has: id$"):
            await store.count(Book.STATE, {"status": "x"})
        for limit in (0, MAX_LIMIT + 1):
            with pytest.raises(StoreError, match="follow the cursor"):
                await store.find(Book.SESSIONS, Query(limit=limit))
            with pytest.raises(StoreError, match="follow the cursor"):
                await store.read(Log.ITEMS, "c", 0, limit)

    # --- logs -------------------------------------------------------------------------

    @pytest.mark.parametrize("log", list(Log))
    async def test_entries_keep_their_order_and_their_sequence(
        self, store: Store, log: Log
    ) -> None:
        assert await store.length(log, "a") == 0
        assert await entries_of(store, log, "a") == []

        assert await store.append(log, "a", [1, {"two": 2}], 0) == 2
        assert await store.append(log, "b", ["other"], 0) == 1
        assert await store.append(log, "a", ["three"], 2) == 3

        assert await entries_of(store, log, "a") == [1, {"two": 2}, "three"]
        assert await entries_of(store, log, "b") == ["other"]
        assert await store.length(log, "a") == 3

    async def test_entries_are_read_from_a_position_on(self, store: Store) -> None:
        await store.append(Log.EVENTS, "s", list(range(10)), 0)

        async def window(start: int, limit: int) -> list[int]:
            return [int(bytes(raw)) for raw in await store.read(Log.EVENTS, "s", start, limit)]

        assert await window(0, 3) == [0, 1, 2]
        assert await window(7, 5) == [7, 8, 9]
        assert await window(10, 5) == []
        assert await window(99, 5) == []
        assert await window(2**70, 5) == []
        assert await window(-(2**70), 2) == [0, 1]

    async def test_an_append_that_expects_another_length_is_refused(self, store: Store) -> None:
        await store.append(Log.ITEMS, "c", ["one"], 0)

        for expected in (0, 2):
            with pytest.raises(
                VersionConflict, match=f"items/c: expected {expected} entries, found 1"
            ):
                await store.append(Log.ITEMS, "c", ["two"], expected)

        assert await entries_of(store, Log.ITEMS, "c") == ["one"]

    async def test_a_cleared_sequence_begins_again(self, store: Store) -> None:
        await store.append(Log.TRANSCRIPTS, "s", ["short"], 0)

        with pytest.raises(VersionConflict):
            await store.commit([Clear(Log.TRANSCRIPTS, "s", 2)])
        receipt = await store.commit(
            [Clear(Log.TRANSCRIPTS, "s", 1), append("s", ["a", "b"], 0, Log.TRANSCRIPTS)]
        )

        assert receipt.results == (0, 2)
        assert await entries_of(store, Log.TRANSCRIPTS, "s") == ["a", "b"]

    # --- commits ----------------------------------------------------------------------

    async def test_a_commit_is_kept_whole(self, store: Store) -> None:
        receipt = await store.commit(
            [
                put("a", {"n": 1}),
                append("c", ["one", "two"], 0),
                put("a", {"n": 2}, 1),
                put("i", {"conversationId": "c", "rule": "r"}, book=Book.INJECTIONS),
            ]
        )

        assert receipt == Receipt((1, 2, 2, 1))
        assert plain(await store.get(Book.STATE, "a")) == {"n": 2}
        assert await store.length(Log.ITEMS, "c") == 2
        assert await store.count(Book.INJECTIONS, {"conversationId": "c"}) == 1

    async def test_a_commit_without_operations_is_answered(self, store: Store) -> None:
        assert await store.commit([]) == Receipt(())

    @pytest.mark.parametrize(
        "last",
        [
            put("a", {"n": 9}, 7),
            put("a", {"n": 9}),
            Delete(Book.STATE, "kept", 7),
            append("c", ["x"], 1),
            Clear(Log.ITEMS, "kept", 0),
            RequireFence("nobody", 1),
            put("s", ["no object"], book=Book.SESSIONS),
        ],
        ids=lambda operation: type(operation).__name__,
    )
    async def test_a_commit_that_fails_at_its_end_keeps_nothing(
        self, store: Store, last: Operation
    ) -> None:
        await store.commit([put("kept", {"n": 1}), append("kept", ["one"], 0)])

        with pytest.raises((StoreError, FenceLost)):
            await store.commit(
                [
                    put("a", {"n": 1}),
                    put("kept", {"n": 2}, 1),
                    append("c", ["one", "two"], 0),
                    append("kept", ["two"], 1),
                    Delete(Book.STATE, "kept", 2),
                    Clear(Log.ITEMS, "kept", 2),
                    append("kept", ["anew"], 0),
                    last,
                ],
                key="k",
            )

        kept = await store.get(Book.STATE, "kept")
        assert await store.get(Book.STATE, "a") is None
        assert kept is not None
        assert (kept.version, plain(kept)) == (1, {"n": 1})
        assert await store.length(Log.ITEMS, "c") == 0
        assert await entries_of(store, Log.ITEMS, "kept") == ["one"]
        assert await store.commit([put("a", {"n": 1})], key="k") == Receipt((1,))

    async def test_a_commit_with_a_known_key_is_answered_and_not_done(self, store: Store) -> None:
        operations = [put("a", {"n": 1}), append("c", ["one"], 0)]

        first = await store.commit(operations, key="ses-1/ended")
        second = await store.commit(operations, key="ses-1/ended")
        other = await store.commit([append("c", ["two"], 1)], key="ses-1/other")

        assert first == second == Receipt((1, 1))
        assert (first.replayed, second.replayed, other.replayed) == (False, True, False)
        assert await entries_of(store, Log.ITEMS, "c") == ["one", "two"]

    async def test_a_key_is_remembered_by_every_host(self, world: World) -> None:
        async with await world.open() as here, await world.open() as there:
            first = await here.commit([append("c", ["one"], 0)], key="k")
            second = await there.commit([append("c", ["one"], 0)], key="k")

            assert first == second
            assert second.replayed
            assert await there.length(Log.ITEMS, "c") == 1

    # --- fences -----------------------------------------------------------------------

    async def test_every_write_of_a_session_needs_its_fence(self, store: Store) -> None:
        await store.put(Book.SESSIONS, "s", session("s"), 0)
        await store.commit([RequireFence("s", 1), append("c", ["mine"], 0)])

        await store.put(Book.SESSIONS, "s", session("s", fence=Fence("host-b", 2)), 1)

        with pytest.raises(FenceLost, match="sessions/s: expected fence token 1, found 2"):
            await store.commit([RequireFence("s", 1), append("c", ["late"], 1)])
        await store.commit([RequireFence("s", 2), append("c", ["successor's"], 1)])
        assert await entries_of(store, Log.ITEMS, "c") == ["mine", "successor's"]

    async def test_a_session_without_a_fence_satisfies_none(self, store: Store) -> None:
        await store.put(Book.SESSIONS, "s", session("s", fence=None), 0)

        for id in ("s", "unknown"):
            with pytest.raises(FenceLost, match="found None"):
                await store.commit([RequireFence(id, 1)])

    # --- many at once -----------------------------------------------------------------

    async def test_of_two_who_compare_and_set_one_wins(self, world: World) -> None:
        async with await world.open() as here, await world.open() as there:
            await here.put(Book.STATE, "a", {"by": None}, 0)
            outcomes = list[str]()

            async def race(store: Store, name: str) -> None:
                try:
                    await store.put(Book.STATE, "a", {"by": name}, 1)
                except VersionConflict:
                    outcomes.append("lost")
                else:
                    outcomes.append(name)

            async with trio.open_nursery() as nursery:
                for store, name in ((here, "h1"), (there, "t1"), (here, "h2"), (there, "t2")):
                    nursery.start_soon(race, store, name)

            assert outcomes.count("lost") == 3
            winner = next(name for name in outcomes if name != "lost")
            assert plain(await there.get(Book.STATE, "a")) == {"by": winner}

    async def test_many_writers_lose_no_increment(self, world: World) -> None:
        async with await world.open() as here, await world.open() as there:
            await here.put(Book.STATE, "n", {"n": 0}, 0)

            async def increment(store: Store) -> None:
                while True:
                    stored = await store.get(Book.STATE, "n")
                    assert stored is not None
                    try:
                        await store.put(
                            Book.STATE, "n", {"n": plain(stored)["n"] + 1}, stored.version
                        )
                    except VersionConflict:
                        continue
                    return

            async with trio.open_nursery() as nursery:
                for number in range(16):
                    nursery.start_soon(increment, here if number % 2 else there)

            assert plain(await here.get(Book.STATE, "n")) == {"n": 16}

    async def test_a_refused_commit_does_not_touch_its_neighbours(self, store: Store) -> None:
        refusals = list[int]()

        async def write(number: int) -> None:
            expected = 5 if number % 3 == 0 else 0
            try:
                await store.put(Book.STATE, f"d-{number}", {"n": number}, expected)
            except VersionConflict:
                refusals.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(write, number)

        assert sorted(refusals) == [number for number in range(30) if number % 3 == 0]
        assert await store.count(Book.STATE, {}) == 20

    async def test_what_one_host_committed_the_other_reads(self, world: World) -> None:
        async with await world.open() as here, await world.open() as there:
            for number in range(5):
                await here.append(Log.EVENTS, "s", [number], number)
                assert await entries_of(there, Log.EVENTS, "s") == list(range(number + 1))

    async def test_a_cancelled_caller_leaves_all_or_nothing_and_a_working_store(
        self, store: Store
    ) -> None:
        for number in range(12):
            operations = [put(f"d-{number}", {"n": number}), append(f"c-{number}", ["one"], 0)]
            with trio.move_on_after(0.0005 * number):
                await store.commit(operations, key=f"k-{number}")

            stored = await store.get(Book.STATE, f"d-{number}")
            settled = await store.commit(operations, key=f"k-{number}")
            assert settled == Receipt((1, 1))
            assert settled.replayed or stored is None
            assert await store.length(Log.ITEMS, f"c-{number}") == 1

    async def test_a_caller_that_is_cancelled_already_writes_nothing(self, store: Store) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.put(Book.STATE, "a", {}, 0)

        assert scope.cancelled_caught
        assert await store.get(Book.STATE, "a") is None

    # --- the end ----------------------------------------------------------------------

    async def test_a_closed_store_says_so(self, world: World) -> None:
        store = await world.open()
        await store.put(Book.STATE, "a", {}, 0)
        await store.aclose()
        await store.aclose()

        with pytest.raises(StoreError, match="closed"):
            await store.get(Book.STATE, "a")
        with pytest.raises(StoreError, match="closed"):
            await store.put(Book.STATE, "b", {}, 0)
