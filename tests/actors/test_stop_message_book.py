"""The stopMessages of conversations that live with their clients: counted once, kept, merged."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from midstream.actors.stop_message_book import StopMessageBook
from midstream.config import Config
from midstream.messages.errors import StoreError
from midstream.messages.stop_message import StopMessageState, reserve, set_text
from midstream.runtime import open_runtime
from midstream.stores.memory import MemoryStore
from midstream.stores.store import Book, Operation, Receipt, Store, Stored

KEY = "session-1"


class Flaky(MemoryStore):
    """A store that can be away."""

    is_away = False

    async def get(self, book: Book, id: str) -> Stored | None:
        self._require()
        return await super().get(book, id)

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        self._require()
        return await super().commit(operations, key=key, durable=durable)

    def _require(self) -> None:
        if self.is_away:
            raise StoreError("the store is away")


@asynccontextmanager
async def book_on(store: Store) -> AsyncGenerator[StopMessageBook]:
    async with open_runtime(Config(), cwd="/", store=store, rules=()) as runtime:
        yield runtime.stop_message_book(Path("/"))


def arm(state: StopMessageState | None) -> tuple[StopMessageState, None]:
    return set_text(state or StopMessageState(), "go on", 5, now_ms=1), None


def spend(state: StopMessageState | None) -> tuple[StopMessageState | None, bool]:
    """Reserve one; whether there was one left."""
    reserved = reserve(state, now_ms=2) if state else None
    return (state, False) if reserved is None else (reserved[0], True)


async def used(book: StopMessageBook) -> int:
    state = (await book.read(KEY)).state
    return 0 if state is None else state.used


async def test_what_is_kept_is_there_for_the_next_host() -> None:
    store = MemoryStore()
    async with book_on(store) as book:
        await book.change(KEY, arm, uses_tools=True)
        assert await book.change(KEY, spend)
    async with book_on(store) as book:
        kept = await book.read(KEY)
        assert kept.uses_tools
        assert kept.state is not None
        assert (kept.state.text, kept.state.used) == ("go on", 1)


async def test_two_hosts_never_spend_the_same_send_twice() -> None:
    store = MemoryStore()
    spent: list[bool] = []

    async def spend_some(book: StopMessageBook) -> None:
        for _ in range(4):
            spent.append(await book.change(KEY, spend))

    async with book_on(store) as one, book_on(store) as other:
        await one.change(KEY, arm)
        async with trio.open_nursery() as nursery:
            for book in (one, other, one, other):
                nursery.start_soon(spend_some, book)
        assert spent.count(True) == 5
        assert await used(one) == await used(other) == 5


async def test_a_store_that_is_away_costs_no_request_and_is_told_later() -> None:
    store = Flaky()
    async with book_on(store) as book:
        await book.change(KEY, arm)
        store.is_away = True
        assert await book.change(KEY, spend)
        assert await book.change(KEY, spend)
        assert await used(book) == 2
        store.is_away = False
        assert await used(book) == 2
        assert await book.change(KEY, spend)
    async with book_on(store) as book:
        assert await used(book) == 3


async def test_what_changes_nothing_is_not_written() -> None:
    store = MemoryStore()
    async with book_on(store) as book:
        await book.change(KEY, arm)
        before = (await book.read(KEY)).version
        await book.change(KEY, lambda state: (state, None))
        assert (await book.read(KEY)).version == before
