"""The file of the SQLite store: opening it, and bringing it to the present schema.

Whatever is wrong with the file is found here, before anything is written, and becomes one
`StoreError` that names the path and says what to do. A file is ours when it is empty or
bears our application id; its schema version is SQLite's `user_version`, and the scripts
`schema_NNN.sql` lead from one version to the next, each in a transaction.
"""

import os
import sqlite3
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from time import monotonic, sleep

from midstream.messages.errors import StoreError

APPLICATION_ID = 0x6D696473
"""`mids`, at byte 68 of the file (SQLite file format, 1.3.16)."""

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""What the write-ahead log is cut back to after a burst."""

CACHE_KIB = 1_024
"""Pages of the file that a connection keeps in memory, half of SQLite's default: the file is in
the system's memory anyway, and a process has three connections."""

WAL_RETRY_S = 0.005
"""Between two tries to switch a new file to the write-ahead log; another host's own switch
takes about as long."""

_SCRIPTS = ("schema_001.sql",)


def scripts() -> tuple[str, ...]:
    """The scripts that lead from an empty file to the present schema, in order."""
    room = resources.files("midstream.stores")
    return tuple((room / name).read_text("utf-8") for name in _SCRIPTS)


def open_writer(path: Path, busy_timeout_s: float, migrations: Sequence[str]) -> sqlite3.Connection:
    """The connection that writes. Creates the file, readable by its owner alone, and the
    directories above it; brings the schema to version `len(migrations)`.

    Raises `StoreError`.
    """
    _create(path)
    connection = _connect(path, busy_timeout_s)
    try:
        _check_owner(path, connection, len(migrations))
        _prepare(path, connection, busy_timeout_s)
        _migrate(connection, migrations)
    except sqlite3.Error as error:
        connection.close()
        raise store_error(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection that only reads a file that `open_writer` has opened before."""
    connection = _connect(path, busy_timeout_s)
    try:
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        connection.close()
        raise store_error(path, error) from error
    return connection


def store_error(path: Path, error: sqlite3.Error) -> StoreError:
    """SQLite's error in our words: which file, what is wrong, what to do."""
    problem, mend = _MENDS.get(primary_code(error), (str(error), ""))
    return StoreError(f"{path}: {problem}" + (f"; {mend}" if mend else ""))


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension (sqlite.org/rescode.html), 0 for none."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


_MENDS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: (
        "another process holds the database",
        "end that process, or give each its own file",
    ),
    sqlite3.SQLITE_READONLY: (
        "the database or its directory cannot be written",
        "give the user who runs this program write access to both",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "the database cannot be opened",
        "check that the path is a file and its directory can be written",
    ),
    sqlite3.SQLITE_NOTADB: (
        "not a SQLite database",
        "name another file; this one was not touched",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "the database is damaged",
        "restore it from a copy, or move it away to begin anew",
    ),
    sqlite3.SQLITE_FULL: ("the disk is full", "make room"),
}


def _create(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}; the path has to be a file that can be written"
        ) from error


def _connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    try:
        # Transactions are ours to begin, and a connection goes to the thread that uses it.
        connection = sqlite3.connect(
            path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        except BaseException:
            connection.close()  # it has the file open
            raise
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    return connection


def _check_owner(path: Path, connection: sqlite3.Connection, present_version: int) -> None:
    tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if tables and _number(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise StoreError(f"{path}: the database of another program; name another file")
    version = _number(connection, "PRAGMA user_version")
    if version > present_version:
        raise StoreError(
            f"{path}: written by a newer midstream (schema {version}, this one knows "
            f"{present_version}); upgrade midstream"
        )


def _prepare(path: Path, connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    mode = _switch_to_wal(connection, busy_timeout_s)
    if mode != "wal":
        raise StoreError(
            f"{path}: no write-ahead log is possible here (journal mode {mode}); "
            "put the file on a local disk"
        )
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")


def _switch_to_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> str:
    """The journal mode that the file has now.

    SQLite's own busy timeout does not cover this: the pragma reads before it locks, and a
    reader that meets another's write lock is refused at once lest the two wait for each other.
    """
    deadline = monotonic() + busy_timeout_s
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            return mode
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
        sleep(WAL_RETRY_S)


def _migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Under the write lock from the first look on: two hosts may start at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _number(connection, "PRAGMA user_version")
        for number, script in enumerate(migrations[version:], version + 1):
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """The statements of a script, of which each ends a line.

    Not `executescript`: that commits what is open before it begins.
    """
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
