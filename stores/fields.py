"""What any store must know of what it keeps: indexed fields, and whether a query is sound.

Pure. Both stores take the same fields from the same documents, and refuse the same
mistakes with the same words, so that a program cannot tell them apart.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from midstream.messages.errors import FenceLost, StoreError, VersionConflict
from midstream.stores.store import (
    INDEXED,
    MAX_LIMIT,
    Append,
    Book,
    Clear,
    Condition,
    Delete,
    Operation,
    Put,
    Query,
    RequireFence,
)


class Fields(NamedTuple):
    """The indexed values of a document, in the order of `INDEXED`, and its fence token."""

    values: tuple[str, ...]
    fence: int | None


class _Fence(msgspec.Struct):
    token: int


def _decoder(book: Book) -> msgspec.json.Decoder[Any]:
    fields: list[tuple[str, Any, Any]] = [(name, str | None, None) for name in INDEXED[book]]
    if book is Book.SESSIONS:
        fields.append(("fence", _Fence | None, None))
    return msgspec.json.Decoder(msgspec.defstruct(f"{book.value}_fields", fields))


_DECODERS = {book: _decoder(book) for book in Book}


def fields_of(book: Book, id: str, document: msgspec.Raw) -> Fields:
    """Raises `StoreError` when the document is no JSON object, or a field is no text."""
    try:
        found = _DECODERS[book].decode(document)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{book.value}/{id}: not a document of this book: {error}") from error
    values = tuple(getattr(found, name) or "" for name in INDEXED[book])
    fence: _Fence | None = getattr(found, "fence", None)
    return Fields(values, fence.token if fence is not None else None)


def check_operations(operations: Sequence[Operation], key: str | None) -> None:
    """Refuse what no store could keep: names that are no text."""
    check_name("" if key is None else key)
    for operation in operations:
        check_name(_address(operation))


def check_name(text: str) -> None:
    """Refuse the name of what no store could keep."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"a name with a lone surrogate cannot be kept: {text!r}") from error


def check_query(book: Book, query: Query) -> None:
    """Refuse a field that is not indexed, and a page without bounds."""
    check_conditions(book, query.where)
    _check_field(book, query.order_by)
    check_limit(query.limit)
    if query.after is not None:
        check_name(f"{query.after.value}{query.after.id}")


def check_conditions(book: Book, where: Mapping[str, Condition]) -> None:
    """Refuse a field that is not indexed."""
    for name, condition in where.items():
        _check_field(book, name)
        texts = [condition] if isinstance(condition, str) else condition
        check_name("".join(text for text in texts if text is not None))


def check_limit(limit: int) -> None:
    """Refuse a page without bounds."""
    if not 1 <= limit <= MAX_LIMIT:
        raise StoreError(f"a page has 1 to {MAX_LIMIT} rows, not {limit}; follow the cursor")


def refused(operation: Operation, found: int | None) -> VersionConflict | FenceLost:
    """The error for an operation that met another state than it expected."""
    place = _address(operation)
    match operation:
        case Put(expected_version=0):
            return VersionConflict(f"{place}: exists already, at version {found}")
        case Put() | Delete():
            wanted = operation.expected_version
            return VersionConflict(f"{place}: expected version {wanted}, found {found or 'none'}")
        case Append() | Clear():
            wanted = operation.expected_length
            return VersionConflict(f"{place}: expected {wanted} entries, found {found}")
        case RequireFence():
            return FenceLost(f"{place}: expected fence token {operation.token}, found {found}")


def _address(operation: Operation) -> str:
    match operation:
        case Put() | Delete():
            return f"{operation.book.value}/{operation.id}"
        case Append() | Clear():
            return f"{operation.log.value}/{operation.key}"
        case RequireFence():
            return f"{Book.SESSIONS.value}/{operation.session_id}"


def _check_field(book: Book, name: str) -> None:
    known = ("id", *INDEXED[book])
    if name not in known:
        raise StoreError(f"{book.value} has no index on {name!r}; it has: {', '.join(known)}")
