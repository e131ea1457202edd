"""A conversation as it is read from a store: the context, and what belongs to it."""

import msgspec
from msgspec.structs import replace

from midstream.messages.conversation import AnyItem
from midstream.messages.injection import InjectionRecord, in_context, last_turns
from midstream.stores.conversation_meta import KeptMeta, load_meta
from midstream.stores.item_log import read_items
from midstream.stores.sessions import KeptSession, load_session
from midstream.stores.store import MAX_LIMIT, Book, Query, Store


class Conversation(msgspec.Struct, frozen=True):
    """A conversation as it was read. `items` are those in the context, from position
    `start` on; `session` is the one that was accepted last, live or not."""

    kept: KeptMeta
    items: tuple[AnyItem, ...] = ()
    injections: tuple[InjectionRecord, ...] = ()
    session: KeptSession | None = None

    @property
    def id(self) -> str:
        return self.kept.meta.id

    @property
    def turn(self) -> int:
        """How many messages the model has written."""
        return self.kept.meta.turn

    @property
    def recorded(self) -> dict[str, int]:
        """The rules whose reminders are in the context, each with its newest turn."""
        return last_turns(self.injections)

    @property
    def length(self) -> int:
        """The position of the next item."""
        return self.kept.meta.start + len(self.items)


async def load_conversation(
    store: Store, id: str, known: Conversation | None = None
) -> Conversation:
    """The conversation as it is at one moment; empty if nobody began it.

    `known` is an earlier reading; what has not changed since is not read again. Raises
    `StoreError`.
    """
    while True:
        kept = await load_meta(store, id)
        session_id = kept.meta.session_id
        session = await load_session(store, session_id) if session_id else None
        if known is not None and known.kept.version == kept.version:
            return replace(known, session=session)
        items = await read_items(store, id, kept.meta.start)
        records = await _load_injections(store, id)
        if await load_meta(store, id) == kept:
            injections = in_context(records, items, kept.meta.start)
            return Conversation(kept, items, injections, session)


async def _load_injections(store: Store, id: str) -> list[InjectionRecord]:
    records: list[InjectionRecord] = []
    query = Query({"conversationId": id}, limit=MAX_LIMIT)
    while True:
        page = await store.find(Book.INJECTIONS, query)
        records += [row.decode(InjectionRecord) for row in page.rows]
        if page.next is None:
            return records
        query = query._replace(after=page.next)
