"""A store in memory: for tests, and for programs that keep nothing.

The same promises as any store but one: it ends with its process. It needs no thread, so
it works under a clock that jumps. Set `failure` and every call fails as it would with a
store that is down, until it is None again.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import trio

from midstream.messages.errors import StoreError
from midstream.stores.fields import (
    Fields,
    check_conditions,
    check_limit,
    check_name,
    check_operations,
    check_query,
    fields_of,
    refused,
)
from midstream.stores.store import (
    INDEXED,
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
    Page,
    Put,
    Query,
    Receipt,
    RequireFence,
    Store,
    Stored,
)


class _Row(NamedTuple):
    stored: Stored
    fields: Fields


class _Contents:
    """What all handles on one memory share."""

    def __init__(self) -> None:
        self.books: dict[Book, dict[str, _Row]] = {book: {} for book in Book}
        self.logs: dict[tuple[Log, str], list[msgspec.Raw]] = {}
        self.receipts: dict[str, Receipt] = {}


class MemoryStore(Store):
    """A store whose contents live as long as one of its handles does."""

    def __init__(self, contents: _Contents | None = None) -> None:
        self.failure: StoreError | None = None
        self._contents = contents or _Contents()
        self._closed = False

    def reopen(self) -> "MemoryStore":
        """Another handle on the same contents, as another host would have, or the next
        process on this one."""
        return MemoryStore(self._contents)

    async def get(self, book: Book, id: str) -> Stored | None:
        await self._enter()
        check_name(id)
        row = self._contents.books[book].get(id)
        return None if row is None else row.stored

    async def find(self, book: Book, query: Query) -> Page:
        await self._enter()
        check_query(book, query)
        ordered = sorted(
            (_cursor(book, query, row), row.stored)
            for row in self._contents.books[book].values()
            if _meets(book, query.where, row)
        )
        if query.descending:
            ordered.reverse()
        first = _first_after(ordered, query)
        rows = ordered[first : first + query.limit]
        more = first + query.limit < len(ordered)
        return Page(tuple(stored for _, stored in rows), rows[-1][0] if more else None)

    async def count(self, book: Book, where: Mapping[str, Condition]) -> int:
        await self._enter()
        check_conditions(book, where)
        return sum(_meets(book, where, row) for row in self._contents.books[book].values())

    async def read(
        self, log: Log, key: str, start: int = 0, limit: int = MAX_LIMIT
    ) -> Sequence[msgspec.Raw]:
        await self._enter()
        check_name(key)
        check_limit(limit)
        first = max(0, start)
        return self._contents.logs.get((log, key), [])[first : first + limit]

    async def length(self, log: Log, key: str) -> int:
        await self._enter()
        check_name(key)
        return len(self._contents.logs.get((log, key), []))

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        await self._enter()
        check_operations(operations, key)
        if key is not None and key in self._contents.receipts:
            return Receipt(self._contents.receipts[key].results, replayed=True)
        undo: list[Callable[[], object]] = []
        try:
            receipt = Receipt(tuple(self._apply(operation, undo) for operation in operations))
        except BaseException:
            for step in reversed(undo):
                step()
            raise
        if key is not None:
            self._contents.receipts[key] = receipt
        return receipt

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    async def _enter(self) -> None:
        """A checkpoint before anything is done: what follows runs without another."""
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise StoreError("the memory store is closed")
        if self.failure is not None:
            raise self.failure

    def _apply(self, operation: Operation, undo: list[Callable[[], object]]) -> int:
        match operation:
            case Put():
                return self._put(operation, undo)
            case Delete():
                return self._delete(operation, undo)
            case Append():
                entries = self._expect_length(operation)
                undo.append(lambda: entries.__delitem__(slice(operation.expected_length, None)))
                entries.extend(operation.entries)
                return len(entries)
            case Clear():
                entries = self._expect_length(operation)
                place = (operation.log, operation.key)
                undo.append(lambda: self._contents.logs.__setitem__(place, entries))
                self._contents.logs[place] = []
                return 0
            case RequireFence():
                row = self._contents.books[Book.SESSIONS].get(operation.session_id)
                fence = None if row is None else row.fields.fence
                if fence != operation.token:
                    raise refused(operation, fence)
                return 0

    def _put(self, operation: Put, undo: list[Callable[[], object]]) -> int:
        fields = fields_of(operation.book, operation.id, operation.document)
        self._expect_version(operation)
        version = operation.expected_version + 1
        stored = Stored(operation.id, version, operation.document)
        self._set_row(operation.book, operation.id, _Row(stored, fields), undo)
        return version

    def _delete(self, operation: Delete, undo: list[Callable[[], object]]) -> int:
        self._expect_version(operation)
        self._set_row(operation.book, operation.id, None, undo)
        return 0

    def _expect_version(self, operation: Put | Delete) -> None:
        row = self._contents.books[operation.book].get(operation.id)
        version = 0 if row is None else row.stored.version
        if version != operation.expected_version or (row is None and isinstance(operation, Delete)):
            raise refused(operation, version)

    def _expect_length(self, operation: Append | Clear) -> list[msgspec.Raw]:
        entries = self._contents.logs.setdefault((operation.log, operation.key), [])
        if len(entries) != operation.expected_length:
            raise refused(operation, len(entries))
        return entries

    def _set_row(
        self, book: Book, id: str, row: _Row | None, undo: list[Callable[[], object]]
    ) -> None:
        rows = self._contents.books[book]
        old = rows.pop(id, None)
        undo.append(lambda: rows.pop(id, None) if old is None else rows.__setitem__(id, old))
        if row is not None:
            rows[id] = row


def _cursor(book: Book, query: Query, row: _Row) -> Cursor:
    return Cursor(_value(book, query.order_by, row), row.stored.id)


def _value(book: Book, name: str, row: _Row) -> str:
    return row.stored.id if name == "id" else row.fields.values[INDEXED[book].index(name)]


def _meets(book: Book, where: Mapping[str, Condition], row: _Row) -> bool:
    return all(_holds(condition, _value(book, name, row)) for name, condition in where.items())


def _holds(condition: Condition, value: str) -> bool:
    if isinstance(condition, str):
        return value == condition
    if isinstance(condition, Between):
        return value >= condition.at_least and (condition.below is None or value < condition.below)
    return value in condition


def _first_after(ordered: list[tuple[Cursor, Stored]], query: Query) -> int:
    """The index of the first row behind the cursor, in the order of the rows."""
    if query.after is None:
        return 0
    if not query.descending:
        index = bisect_left(ordered, query.after, key=lambda row: row[0])
        return index + (index < len(ordered) and ordered[index][0] == query.after)
    ascending = ordered[::-1]
    return len(ordered) - bisect_left(ascending, query.after, key=lambda row: row[0])
