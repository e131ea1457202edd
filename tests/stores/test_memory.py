"""The store in memory: it passes the suite, and can be told to be down."""

import pytest
import trio
import trio.testing
from conformance import StoreConformance

from midstream.messages.errors import StoreError
from midstream.stores.memory import MemoryStore
from midstream.stores.store import Book, Store


class SharedMemory:
    """Handles on one memory."""

    def __init__(self) -> None:
        self._first = MemoryStore()

    async def open(self) -> Store:
        return self._first.reopen()


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def world(self) -> SharedMemory:
        return SharedMemory()


async def test_a_store_that_is_down_fails_every_call_until_it_is_mended() -> None:
    store = MemoryStore()
    store.failure = StoreError("the disk is full")

    with pytest.raises(StoreError, match="disk"):
        await store.put(Book.STATE, "a", {}, 0)
    with pytest.raises(StoreError, match="disk"):
        await store.get(Book.STATE, "a")
    store.failure = None
    assert await store.put(Book.STATE, "a", {}, 0) == 1


async def test_it_works_under_a_clock_that_jumps(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    with trio.fail_after(1):
        for number in range(50):
            await store.put(Book.STATE, "a", {"n": number}, number)

    assert trio.current_time() == autojump_clock.current_time() == 0
