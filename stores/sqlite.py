"""The embedded store: one SQLite file, which several processes of one machine may share.

One thread writes (sqlite_writer.py), a few connections read, in trio's worker threads; in
SQLite's write-ahead log neither waits for the other. A commit survives the death of the
process at any moment; a `durable` one survives the loss of power, with all before it.
Do not use it under a clock that jumps: trio cannot see that a thread is at work, and lets
deadlines pass meanwhile. `MemoryStore` is for that.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from midstream.messages.errors import StoreError
from midstream.stores import sqlite_statements as statements
from midstream.stores.fields import (
    check_conditions,
    check_limit,
    check_name,
    check_operations,
    check_query,
)
from midstream.stores.sqlite_file import open_reader, open_writer, scripts, store_error
from midstream.stores.sqlite_writer import Writer
from midstream.stores.store import (
    MAX_LIMIT,
    Book,
    Condition,
    Log,
    Operation,
    Page,
    Query,
    Receipt,
    Store,
    Stored,
)

T = TypeVar("T")

READERS = 2
"""Connections that read: a long page must not keep a short question waiting."""

BUSY_TIMEOUT_S = 5.0
"""How long a write waits for another process that writes."""


class SqliteStore(Store):
    """A store in one file. Make one with `open_sqlite`, close it with `aclose`."""

    def __init__(self, path: Path, writer: Writer, readers: Sequence[sqlite3.Connection]) -> None:
        self._path = path
        self._writer = writer
        self._readers = list(readers)
        self._open_readers = len(readers)
        self._limiter = trio.CapacityLimiter(len(readers))
        self._closed = False

    async def get(self, book: Book, id: str) -> Stored | None:
        check_name(id)
        return await self._read(lambda connection: statements.get(connection, book, id))

    async def find(self, book: Book, query: Query) -> Page:
        check_query(book, query)
        return await self._read(lambda connection: statements.find(connection, book, query))

    async def count(self, book: Book, where: Mapping[str, Condition]) -> int:
        check_conditions(book, where)
        return await self._read(lambda connection: statements.count(connection, book, where))

    async def read(
        self, log: Log, key: str, start: int = 0, limit: int = MAX_LIMIT
    ) -> Sequence[msgspec.Raw]:
        check_name(key)
        check_limit(limit)
        return await self._read(lambda c: statements.read(c, log, key, start, limit))

    async def length(self, log: Log, key: str) -> int:
        check_name(key)
        return await self._read(lambda connection: statements.length(connection, log, key))

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        check_operations(operations, key)
        return await self._writer.commit(statements.prepared(operations), key, durable)

    async def aclose(self) -> None:
        self._closed = True
        with trio.CancelScope(shield=True):
            await self._writer.aclose()
            # One at a time behind the limiter: a reader in use comes back when its page
            # is read, and every page is bounded.
            while self._open_readers:
                self._open_readers -= 1
                async with self._limiter:
                    self._readers.pop().close()

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        return await trio.to_thread.run_sync(self._ask, query, limiter=self._limiter)

    def _ask(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """In a worker thread. The limiter lets in as many as there are connections, until
        the store is closed."""
        try:
            connection = self._readers.pop()
        except IndexError:
            raise StoreError(f"{self._path}: the store is closed") from None
        try:
            return query(connection)
        except sqlite3.Error as error:
            raise store_error(self._path, error) from error
        finally:
            self._readers.append(connection)


async def open_sqlite(path: Path | str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> SqliteStore:
    """Open, or create, the store in the file at `path`.

    Raises `StoreError`, with the path and what to do, when the file is no SQLite database,
    belongs to another program or a newer midstream, is held by another process for longer
    than `busy_timeout_s` seconds, or cannot be written.
    """
    return await trio.to_thread.run_sync(_open, Path(path), busy_timeout_s)


def _open(path: Path, busy_timeout_s: float) -> SqliteStore:
    connections = [open_writer(path, busy_timeout_s, scripts())]
    try:
        connections += [open_reader(path, busy_timeout_s) for _ in range(READERS)]
    except StoreError:
        connections[0].close()
        raise
    return SqliteStore(path, Writer(path, connections[0]), connections[1:])
