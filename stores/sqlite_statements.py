"""The SQL of the SQLite store: operations and queries as statements on one connection.

Synchronous and without transactions of its own; the writer and the readers call it. Names
of tables and columns come from enums and from `INDEXED` alone, never from data.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from midstream.stores.fields import Fields, fields_of, refused
from midstream.stores.store import (
    INDEXED,
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
    Stored,
)

LAST_POSITION = 2**63 - 1
"""The largest number that SQLite knows."""


class Step(NamedTuple):
    """An operation with what was taken from its document, for a `Put`."""

    operation: Operation
    fields: Fields | None


def prepared(operations: Sequence[Operation]) -> tuple[Step, ...]:
    """Done by the caller, so that the writer only writes. Raises `StoreError`."""
    return tuple(
        Step(op, fields_of(op.book, op.id, op.document) if isinstance(op, Put) else None)
        for op in operations
    )


# --- writing --------------------------------------------------------------------------


def apply(connection: sqlite3.Connection, steps: Sequence[Step], key: str | None) -> Receipt:
    """All steps, and the receipt under `key`; or the receipt that is there.

    Raises `VersionConflict` or `FenceLost` in the middle; the caller rolls back.
    """
    if key is not None:
        row = connection.execute("SELECT results FROM receipts WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return Receipt(msgspec.json.decode(row[0], type=tuple[int, ...]), replayed=True)
    receipt = Receipt(tuple(_carry_out(connection, step) for step in steps))
    if key is not None:
        results = msgspec.json.encode(receipt.results).decode()
        connection.execute("INSERT INTO receipts VALUES (?, ?)", (key, results))
    return receipt


def _carry_out(connection: sqlite3.Connection, step: Step) -> int:
    operation = step.operation
    match operation:
        case Put():
            assert step.fields is not None
            return _put(connection, operation, step.fields)
        case Delete():
            where = "WHERE id = ? AND version = ?"
            place = (operation.id, operation.expected_version)
            cursor = connection.execute(f"DELETE FROM {operation.book.value} {where}", place)
            if cursor.rowcount != 1:
                raise refused(operation, _version(connection, operation))
            return 0
        case Append():
            return _append(connection, operation)
        case Clear():
            _expect_length(connection, operation)
            log = operation.log.value
            connection.execute(f"DELETE FROM {log} WHERE key = ?", (operation.key,))
            return 0
        case RequireFence():
            query = "SELECT fence FROM sessions WHERE id = ?"
            row = connection.execute(query, (operation.session_id,)).fetchone()
            if row is None or row[0] != operation.token:
                raise refused(operation, None if row is None else row[0])
            return 0


def _put(connection: sqlite3.Connection, operation: Put, fields: Fields) -> int:
    values = (*fields.values, fields.fence) if operation.book is Book.SESSIONS else fields.values
    document = bytes(operation.document)
    if operation.expected_version == 0:
        cursor = connection.execute(_insert(operation.book), (operation.id, *values, document))
    else:
        place = (operation.id, operation.expected_version)
        cursor = connection.execute(_update(operation.book), (*values, document, *place))
    if cursor.rowcount != 1:
        raise refused(operation, _version(connection, operation))
    return operation.expected_version + 1


def _append(connection: sqlite3.Connection, operation: Append) -> int:
    first = _expect_length(connection, operation)
    connection.executemany(
        f"INSERT INTO {operation.log.value} VALUES (?, ?, CAST(? AS TEXT))",
        [
            (operation.key, position, bytes(entry))
            for position, entry in enumerate(operation.entries, first)
        ],
    )
    return first + len(operation.entries)


def _expect_length(connection: sqlite3.Connection, operation: Append | Clear) -> int:
    found = length(connection, operation.log, operation.key)
    if found != operation.expected_length:
        raise refused(operation, found)
    return found


def _version(connection: sqlite3.Connection, operation: Put | Delete) -> int | None:
    query = f"SELECT version FROM {operation.book.value} WHERE id = ?"
    row = connection.execute(query, (operation.id,)).fetchone()
    return None if row is None else int(row[0])


@cache
def _insert(book: Book) -> str:
    names = ", ".join(("id", "version", *_columns(book), "document"))
    marks = ", ".join(("?", "1", *("?" for _ in _columns(book)), "CAST(? AS TEXT)"))
    return f"INSERT INTO {book.value} ({names}) VALUES ({marks}) ON CONFLICT (id) DO NOTHING"


@cache
def _update(book: Book) -> str:
    settings = [f"{name} = ?" for name in _columns(book)]
    changes = ", ".join(("version = version + 1", *settings, "document = CAST(? AS TEXT)"))
    return f"UPDATE {book.value} SET {changes} WHERE id = ? AND version = ?"


def _columns(book: Book) -> tuple[str, ...]:
    return (*INDEXED[book], "fence") if book is Book.SESSIONS else INDEXED[book]


# --- reading --------------------------------------------------------------------------


def get(connection: sqlite3.Connection, book: Book, id: str) -> Stored | None:
    """The document, or None."""
    query = f"SELECT version, CAST(document AS BLOB) FROM {book.value} WHERE id = ?"
    row = connection.execute(query, (id,)).fetchone()
    return None if row is None else Stored(id, row[0], msgspec.Raw(row[1]))


def find(connection: sqlite3.Connection, book: Book, query: Query) -> Page:
    """One page. It asks for a row more than the page has, to know whether that is all."""
    conditions, values = _where(query.where)
    order = query.order_by
    sense, beyond = ("DESC", "<") if query.descending else ("ASC", ">")
    if query.after is not None:
        conditions.append(f"({order}, id) {beyond} (?, ?)")
        values += query.after
    rows = connection.execute(
        f"SELECT id, version, CAST(document AS BLOB), {order} FROM {book.value} "
        f"{_clause(conditions)} ORDER BY {order} {sense}, id {sense} LIMIT ?",
        (*values, query.limit + 1),
    ).fetchall()
    shown = rows[: query.limit]
    last = Cursor(shown[-1][3], shown[-1][0]) if len(rows) > len(shown) else None
    return Page(tuple(Stored(row[0], row[1], msgspec.Raw(row[2])) for row in shown), last)


def count(connection: sqlite3.Connection, book: Book, where: Mapping[str, Condition]) -> int:
    """How many documents meet the conditions."""
    conditions, values = _where(where)
    query = f"SELECT count(*) FROM {book.value} {_clause(conditions)}"
    return int(connection.execute(query, values).fetchone()[0])


def read(
    connection: sqlite3.Connection, log: Log, key: str, start: int, limit: int
) -> list[msgspec.Raw]:
    """Entries from position `start` on."""
    rows = connection.execute(
        f"SELECT CAST(entry AS BLOB) FROM {log.value} "
        "WHERE key = ? AND position >= ? ORDER BY position LIMIT ?",
        (key, max(0, min(start, LAST_POSITION)), limit),
    )
    return [msgspec.Raw(row[0]) for row in rows]


def length(connection: sqlite3.Connection, log: Log, key: str) -> int:
    """How many entries the sequence has."""
    query = f"SELECT max(position) FROM {log.value} WHERE key = ?"
    last = connection.execute(query, (key,)).fetchone()[0]
    return 0 if last is None else int(last) + 1


def _where(where: Mapping[str, Condition]) -> tuple[list[str], list[str]]:
    conditions: list[str] = []
    values: list[str] = []
    for name, condition in where.items():
        if isinstance(condition, str):
            conditions.append(f"{name} = ?")
            values.append(condition)
        elif isinstance(condition, Between):
            conditions.append(f"{name} >= ?")
            values.append(condition.at_least)
            if condition.below is not None:
                conditions.append(f"{name} < ?")
                values.append(condition.below)
        else:
            conditions.append(f"{name} IN ({', '.join('?' for _ in condition)})")
            values += condition
    return conditions, values


def _clause(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""
