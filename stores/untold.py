"""Notices that are not told yet: written with the change that they tell of, taken out when
they were told.

So a host that is killed between the two loses none: whoever lives finds what was left behind
(`Funnel.tell_left_behind`). Kept in the state book, where there are seldom more than a few.
"""

from collections.abc import Sequence

from midstream.messages.notices import AnyNotice, notices_of
from midstream.messages.record import Crossing, SessionRecord, Shape
from midstream.stores.store import Between, Book, Delete, Put, Query, Store, encode

UNTOLD_PREFIX = "untold/"
"""Of the names of entries in the state book."""


class Untold(Shape, frozen=True, kw_only=True):
    """The notices of one write of a record."""

    id: str
    notices: tuple[AnyNotice, ...]

    @property
    def session_id(self) -> str:
        return self.id.split("/")[1]

    @property
    def version(self) -> int:
        """Of the record that was written; later notices have later ones."""
        return int(self.id.rpartition("/")[2])

    @property
    def removal(self) -> Delete:
        """Take it out; fails with a conflict for whoever comes second."""
        return removal(self.session_id, self.version)

    @property
    def addition(self) -> Put:
        """Put it in; also back, for whoever comes next."""
        return Put(Book.STATE, self.id, encode(self), 0)


def untold(
    before: SessionRecord | None, crossing: Crossing | None, record: SessionRecord, version: int
) -> tuple[Put, ...]:
    """What goes into the commit that writes `record` over `before` as this version."""
    notices = notices_of(before, crossing, record)
    if not notices:
        return ()
    return (Untold(id=_id(record.id, version), notices=notices).addition,)


def removal(session_id: str, version: int) -> Delete:
    """What takes out the notices of the write that gave the record this version; fails with a
    conflict where they are not, or not any more."""
    return Delete(Book.STATE, _id(session_id, version), 1)


def _id(session_id: str, version: int) -> str:
    return f"{UNTOLD_PREFIX}{session_id}/{version}"


async def load_untold(store: Store, session_id: str | None = None) -> Sequence[Untold]:
    """What is not told yet and can be read, of one session or of all, the earlier first; at
    most a thousand. Raises `StoreError`."""
    start = UNTOLD_PREFIX if session_id is None else f"{UNTOLD_PREFIX}{session_id}/"
    # "0" is the character behind "/".
    query = Query(where={"id": Between(start, f"{start[:-1]}0")}, limit=1_000)
    page = await store.find(Book.STATE, query)
    return sorted((each for each, _ in page.readable(Untold)), key=lambda each: each.version)
