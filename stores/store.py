"""What every store is: books of versioned documents, and logs that only grow.

The Ledger is the only writer and the readers are many. A store promises four things:
a commit is kept whole or not at all; what it has acknowledged is there after the process
is killed at any moment; a document is replaced only by one who has seen its version; and
a commit that carries a key is applied once, however often it arrives. Documents and
entries are JSON texts, made by `encode`. Nothing here belongs to one database: the suite
in tests/stores/conformance.py is what a store has to pass.

Sources: spec/animator.md 2, architecture.md invariants 4, 5 and 10.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

import msgspec

from midstream.messages.errors import StoreError, Unreadable

T = TypeVar("T")

_log = logging.getLogger("midstream.store")


class Book(StrEnum):
    """A collection of documents, each under its id."""

    SESSIONS = "sessions"
    STATE = "state"
    CONVERSATIONS = "conversations"
    INJECTIONS = "injections"


class Log(StrEnum):
    """A collection of sequences, each under its key; the first entry has position 0."""

    ITEMS = "items"
    """The items of a conversation, by conversation id."""
    EVENTS = "events"
    """The events of a session, by session id."""
    TRANSCRIPTS = "transcripts"
    """What a provider wrote, raw, by session id."""


class Put(msgspec.Struct, frozen=True, tag="put", tag_field="op"):
    """Write a document whose version is `expected_version`; 0 means that it must be new."""

    book: Book
    id: str
    document: msgspec.Raw
    expected_version: int


class Delete(msgspec.Struct, frozen=True, tag="delete", tag_field="op"):
    """Remove a document whose version is `expected_version`."""

    book: Book
    id: str
    expected_version: int


class Append(msgspec.Struct, frozen=True, tag="append", tag_field="op"):
    """Add entries to a sequence that has `expected_length` entries."""

    log: Log
    key: str
    entries: tuple[msgspec.Raw, ...]
    expected_length: int


class Clear(msgspec.Struct, frozen=True, tag="clear", tag_field="op"):
    """Empty a sequence that has `expected_length` entries."""

    log: Log
    key: str
    expected_length: int


class RequireFence(msgspec.Struct, frozen=True, tag="require_fence", tag_field="op"):
    """The session's record must carry this fence token, or nothing of the commit is kept.

    It makes the token a predicate of every write of a session, also of those that do not
    touch the record (spec/lessons.md 54).
    """

    session_id: str
    token: int


Operation = Put | Delete | Append | Clear | RequireFence


@dataclass(frozen=True)
class Receipt:
    """What a commit did: for each operation the new version of its document, or the new
    length of its sequence; 0 where there is neither.

    `replayed` says that a commit with this key had been applied before. It is no part of
    the answer, which is the same as the first time.
    """

    results: tuple[int, ...]
    replayed: bool = field(default=False, compare=False)


class Stored(NamedTuple):
    """A document as it is kept. Versions count from 1."""

    id: str
    version: int
    document: msgspec.Raw

    def decode(self, kind: type[T]) -> T:
        """The document as a struct; raises `Unreadable` when it is none."""
        try:
            return msgspec.json.decode(self.document, type=kind)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"{self.id}: cannot be read as {kind.__name__}: {error}") from error


class Between(NamedTuple):
    """A condition on a field: `at_least` <= value < `below`, as text."""

    at_least: str = ""
    below: str | None = None


Condition = str | Between | Collection[str]
"""Equal to a text, in a range, or one of several texts."""


class Cursor(NamedTuple):
    """Where a page ended: the value of the field it is ordered by, and the id."""

    value: str
    id: str


class Page(NamedTuple):
    """Some rows, and where to go on; `next` is None after the last page."""

    rows: tuple[Stored, ...]
    next: Cursor | None

    def readable(self, kind: type[T]) -> Iterator[tuple[T, int]]:
        """The documents as structs, each with its version. One that is none, such as a newer
        version may write, hides none of the others: it is passed over, with a warning."""
        for row in self.rows:
            try:
                document = row.decode(kind)
            except Unreadable as error:
                _log.warning("a document is passed over: %s", error)
            else:
                yield document, row.version


class Query(NamedTuple):
    """Which documents of a book, in which order, and how many.

    Conditions and order are on `id` and the indexed fields of the book (`INDEXED`); ties
    are in the order of ids. A document without the field has the empty text.
    """

    where: Mapping[str, Condition] = {}
    order_by: str = "id"
    descending: bool = False
    limit: int = 50
    after: Cursor | None = None


MAX_LIMIT = 1_000
"""Rows that one call of `find` or `read` gives at most, so that memory stays flat."""

INDEXED: Mapping[Book, tuple[str, ...]] = {
    Book.SESSIONS: ("startedAt", "status", "conversationId", "provider"),
    Book.STATE: (),
    Book.CONVERSATIONS: (),
    Book.INJECTIONS: ("conversationId", "rule"),
}
"""Top-level fields of the documents by which they can be found (spec/animator.md 2)."""


class Store(Protocol):
    """One place where records rest.

    Every method raises `StoreError` when the store cannot be reached or is closed. Reads
    see every commit that was acknowledged before they began.
    """

    async def get(self, book: Book, id: str) -> Stored | None:
        """The document, or None."""
        ...

    async def find(self, book: Book, query: Query) -> Page:
        """One page of the documents that meet the query."""
        ...

    async def count(self, book: Book, where: Mapping[str, Condition]) -> int:
        """How many documents meet the conditions."""
        ...

    async def read(
        self, log: Log, key: str, start: int = 0, limit: int = MAX_LIMIT
    ) -> Sequence[msgspec.Raw]:
        """Entries from position `start` on; fewer than `limit` only at the end."""
        ...

    async def length(self, log: Log, key: str) -> int:
        """How many entries the sequence has; 0 for one that nobody began."""
        ...

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        """Carry out all operations in order, or none.

        With a `key` that was committed before, nothing is done and the first answer is
        given. A `durable` commit survives the loss of power, and so does all that was
        acknowledged before it; every commit survives the death of the process.

        Raises `VersionConflict` when a document or a sequence is not as expected, and
        `FenceLost` when the writer lost its session. A caller that is cancelled learns
        nothing: the commit was applied whole or not at all, and its key makes it safe to
        send again.
        """
        ...

    async def aclose(self) -> None:
        """Finish the commits that have begun and let go of everything. May be repeated."""
        ...

    async def put(
        self, book: Book, id: str, document: object, expected_version: int, *, durable: bool = True
    ) -> int:
        """Commit one document; the new version."""
        operation = Put(book, id, encode(document), expected_version)
        return (await self.commit([operation], durable=durable)).results[0]

    async def append(
        self,
        log: Log,
        key: str,
        entries: Sequence[object],
        expected_length: int,
        *,
        durable: bool = True,
    ) -> int:
        """Commit entries of one sequence; the new length."""
        encoded = tuple(encode(entry) for entry in entries)
        operation = Append(log, key, encoded, expected_length)
        return (await self.commit([operation], durable=durable)).results[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def encode(value: object) -> msgspec.Raw:
    """A struct, or plain data, as the JSON text that stores keep.

    Raises `StoreError` for what JSON has no form for, and for text with a lone surrogate, which
    is no text to any database; it has to be repaired at the edge where it came in
    (spec/lessons.md 40).
    """
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except UnicodeEncodeError as error:
        raise StoreError(
            f"text with a lone surrogate (code point {ord(error.object[error.start]):#x}) "
            "cannot be kept; replace it where it enters"
        ) from error
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise StoreError(f"what is no JSON cannot be kept: {error}") from error
