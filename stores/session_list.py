"""Finding session records: by what they are, page by page, whatever their number.

Everything here reads through the indexes of the store and holds one page at a time, so that
a book of a hundred thousand sessions costs no more memory than one of ten.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

import msgspec

from midstream.messages.record import LIVE_STATUSES, SessionRecord, SessionStatus
from midstream.messages.timestamps import format_timestamp, parse_timestamp
from midstream.stores.sessions import KeptSession
from midstream.stores.store import MAX_LIMIT, Between, Book, Condition, Cursor, Query, Store

DAY_MS = 86_400_000

IDS_AT_ONCE = 500
"""Ids in one condition; databases bound the number of parameters."""

ENDED_STATUSES = tuple(status.value for status in SessionStatus if status.is_terminal)


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions. `since` and `until` are instants, or days: `until` a day means to its
    end (spec/animator.md B18). What is empty does not restrict."""

    statuses: tuple[SessionStatus, ...] = ()
    provider: str | None = None
    conversation_id: str | None = None
    since: str | None = None
    until: str | None = None

    def conditions(self) -> Mapping[str, Condition]:
        """The same for a store. Raises `ValueError` for what is no instant."""
        where: dict[str, Condition] = {}
        if len(self.statuses) == 1:
            where["status"] = self.statuses[0].value
        elif self.statuses:
            where["status"] = tuple(status.value for status in self.statuses)
        if self.provider is not None:
            where["provider"] = self.provider
        if self.conversation_id is not None:
            where["conversationId"] = self.conversation_id
        if self.since is not None or self.until is not None:
            where["startedAt"] = Between(_first(self.since), _behind(self.until))
        return where


class SessionPage(msgspec.Struct, frozen=True):
    """Some records, the newest first; `next` leads on, None behind the last."""

    records: tuple[SessionRecord, ...]
    next: Cursor | None


async def list_sessions(
    store: Store, which: SessionFilter, limit: int, after: Cursor | None = None
) -> SessionPage:
    """One page, without what cannot be read. Raises `StoreError`, and `ValueError` for a bad
    instant."""
    query = Query(which.conditions(), "startedAt", descending=True, limit=limit, after=after)
    page = await store.find(Book.SESSIONS, query)
    return SessionPage(tuple(record for record, _ in page.readable(SessionRecord)), page.next)


async def find_sessions(
    store: Store, where: Mapping[str, Condition]
) -> AsyncGenerator[KeptSession, None]:
    """All records that meet the conditions and can be read, in the order of ids, each as it
    was when its page was read. Raises `StoreError`."""
    query = Query(where, limit=MAX_LIMIT)
    while True:
        page = await store.find(Book.SESSIONS, query)
        for record, version in page.readable(SessionRecord):
            yield KeptSession(record, version)
        if page.next is None:
            return
        query = query._replace(after=page.next)


def live_sessions(store: Store) -> AsyncGenerator[KeptSession, None]:
    """All sessions that have not ended, as far as the store knows."""
    return find_sessions(store, {"status": LIVE_STATUSES})


async def records_of(
    store: Store, ids: Collection[str], statuses: Sequence[str] = ()
) -> dict[str, SessionRecord]:
    """The records with these ids, those that exist, can be read and, if given, have one of
    `statuses`. No query without ids (spec/animator.md 5.4)."""
    found: dict[str, SessionRecord] = {}
    wanted = list(dict.fromkeys(ids))
    restricted: dict[str, Condition] = {"status": tuple(statuses)} if statuses else {}
    for first in range(0, len(wanted), IDS_AT_ONCE):
        where = {"id": tuple(wanted[first : first + IDS_AT_ONCE]), **restricted}
        page = await store.find(Book.SESSIONS, Query(where, limit=IDS_AT_ONCE))
        found.update((record.id, record) for record, _ in page.readable(SessionRecord))
    return found


def _first(since: str | None) -> str:
    return "" if since is None else format_timestamp(_instant(since))


def _behind(until: str | None) -> str | None:
    if until is None:
        return None
    ms = _instant(until)
    return format_timestamp(ms + (DAY_MS if _is_day(until) else 1))


def _instant(text: str) -> int:
    ms = parse_timestamp(text)
    if ms is None:
        raise ValueError(f"no instant: {text!r}; write 2026-03-01 or 2026-03-01T12:00:00Z")
    return ms


def _is_day(text: str) -> bool:
    return ":" not in text and "T" not in text.upper().strip()
