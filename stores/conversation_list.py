"""Finding conversations, the one that was spoken in last first.

A conversation is found through its sessions, which are indexed by when they began; each
costs a few small reads, whatever its length.
"""

import logging

import msgspec

from midstream.messages.conversation import UserItem
from midstream.messages.errors import Unreadable
from midstream.messages.record import SessionRecord
from midstream.stores.conversation_meta import ConversationMeta, load_meta
from midstream.stores.item_log import read_page
from midstream.stores.session_list import SessionFilter, list_sessions
from midstream.stores.store import MAX_LIMIT, Book, Cursor, Log, Store

_log = logging.getLogger("midstream.store")

_OPENING_ITEMS = 8
"""Items at the beginning among which the user's first words are looked for."""


class ConversationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation: its document, the session that began last, and how it opens."""

    meta: ConversationMeta
    session: SessionRecord
    sessions: int
    items: int
    """How many items are in its log, those that have left the context too."""
    opening: str
    """The first words of the user."""


async def list_conversations(store: Store, limit: int) -> tuple[ConversationSummary, ...]:
    """The `limit` conversations with the newest sessions, without those that cannot be read.
    Raises `StoreError`."""
    newest: dict[str, SessionRecord] = {}
    after: Cursor | None = None
    while len(newest) < limit:
        page = await list_sessions(store, SessionFilter(), min(MAX_LIMIT, 4 * limit), after)
        for record in page.records:
            if record.conversation_id is not None and len(newest) < limit:
                newest.setdefault(record.conversation_id, record)
        after = page.next
        if after is None:
            break
    summaries: list[ConversationSummary] = []
    for id, record in newest.items():
        try:
            summaries.append(await _summary(store, id, record))
        except Unreadable as error:
            _log.warning("a conversation is passed over: %s", error)
    return tuple(summaries)


async def _summary(store: Store, id: str, record: SessionRecord) -> ConversationSummary:
    opening = await read_page(store, id, 0, _OPENING_ITEMS)
    words = [item.text for item in opening if isinstance(item, UserItem) and not item.automatic]
    return ConversationSummary(
        meta=(await load_meta(store, id)).meta,
        session=record,
        sessions=await store.count(Book.SESSIONS, {"conversationId": id}),
        items=await store.length(Log.ITEMS, id),
        opening=words[0] if words else "",
    )
