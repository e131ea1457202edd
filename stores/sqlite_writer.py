"""The one thread that writes a SQLite file, and how trio tasks hand it their commits.

Tasks put commits into a queue and wait; the thread takes what waits and writes it in one
transaction, each commit in a savepoint of its own, so that many small commits cost one
sync of the disk. A commit that is refused rolls back to its savepoint and leaves its
neighbours alone. A task that is cancelled takes back a commit that has not begun; one
that has begun is finished, whoever still waits for it.
"""

import queue
import sqlite3
import threading
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path

import trio

from midstream.messages.errors import FenceLost, StoreError, VersionConflict
from midstream.stores.sqlite_file import primary_code, store_error
from midstream.stores.sqlite_statements import Step, apply
from midstream.stores.store import Receipt

MAX_BATCH = 256
"""Commits in one transaction: enough to hide a sync, few enough to answer soon."""

CLOSE_TIMEOUT_S = 30.0
"""How long closing waits for what has begun; more than one commit can ever take."""


class _Phase(Enum):
    WAITING = auto()
    BEGUN = auto()
    WITHDRAWN = auto()


class Commit:
    """One commit on its way through the queue, and the task that waits for its answer."""

    def __init__(self, steps: Sequence[Step], key: str | None, durable: bool) -> None:
        self.steps = steps
        self.key = key
        self.durable = durable
        self._token = trio.lowlevel.current_trio_token()
        self._answered = trio.Event()
        self._answer: Receipt | Exception | None = None
        self._phase = _Phase.WAITING
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Called by the thread: whether the commit is still wanted."""
        return self._enter(_Phase.BEGUN)

    def answer(self, answer: Receipt | Exception) -> None:
        """Called by the thread: hand the answer over and wake the task."""
        self._answer = answer
        try:
            self._token.run_sync_soon(self._answered.set)
        except trio.RunFinishedError:
            return  # nobody is left to wait

    async def wait(self) -> Receipt:
        """Called by the task: the receipt, or the error as raised by `Store.commit`."""
        try:
            await self._answered.wait()
        except trio.Cancelled:
            self._enter(_Phase.WITHDRAWN)
            raise
        if isinstance(self._answer, Receipt):
            return self._answer
        assert self._answer is not None
        raise self._answer

    def _enter(self, phase: _Phase) -> bool:
        with self._lock:
            if self._phase is not _Phase.WAITING:
                return False
            self._phase = phase
            return True


class Writer:
    """The thread. It owns its connection and closes it when it ends."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._commits: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        self._closed = False
        # A daemon: a host that dies without closing its store must not hang on it.
        self._thread = threading.Thread(target=self._run, name=f"writes {path}", daemon=True)
        self._thread.start()

    async def commit(self, steps: Sequence[Step], key: str | None, durable: bool) -> Receipt:
        """Write, and wait for it. See `Store.commit`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        commit = Commit(steps, key, durable)
        self._commits.put(commit)
        return await commit.wait()

    async def aclose(self) -> None:
        """Finish what is in the queue and end the thread. Not cancellable, but bounded."""
        if not self._closed:
            self._closed = True
            self._commits.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        open_for_more = True
        while open_for_more:
            batch: list[Commit] = []
            waiting = self._commits.get()
            while waiting is not None:
                if waiting.begin():
                    batch.append(waiting)
                if len(batch) == MAX_BATCH or self._commits.empty():
                    break
                waiting = self._commits.get()
            open_for_more = waiting is not None
            if batch:
                self._write(batch)
        self._connection.close()

    def _write(self, batch: Sequence[Commit]) -> None:
        try:
            answers = self._transaction(batch)
        except sqlite3.Error as error:
            if len(batch) > 1 and primary_code(error) != sqlite3.SQLITE_BUSY:
                # One commit may have spoilt it for all: find out which.
                for commit in batch:
                    self._write([commit])
                return
            answers = [store_error(self._path, error) for _ in batch]
        except Exception as error:  # noqa: BLE001 - the tasks that wait must hear of it
            answers = [error for _ in batch]
        for commit, answer in zip(batch, answers, strict=True):
            commit.answer(answer)

    def _transaction(self, batch: Sequence[Commit]) -> list[Receipt | Exception]:
        """In a write-ahead log, NORMAL loses nothing to the death of the process, only to
        the loss of power; one FULL commit syncs the log and all that came before it."""
        level = "FULL" if any(commit.durable for commit in batch) else "NORMAL"
        self._connection.execute(f"PRAGMA synchronous = {level}")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            answers = [self._savepoint(commit) for commit in batch]
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return answers

    def _savepoint(self, commit: Commit) -> Receipt | Exception:
        self._connection.execute("SAVEPOINT one")
        try:
            answer = apply(self._connection, commit.steps, commit.key)
        except (VersionConflict, FenceLost) as refusal:
            self._connection.execute("ROLLBACK TO one")
            answer = refusal
        self._connection.execute("RELEASE one")
        return answer
