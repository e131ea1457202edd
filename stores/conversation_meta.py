"""The one document of a conversation: where its context begins, and who speaks last.

Every write of a conversation replaces it, so that its version is the conversation's: two
who read the same state cannot both change it, and a conversation never has two live
sessions (architecture.md invariant 1).
"""

from typing import NamedTuple

import msgspec

from midstream.messages.record import Shape
from midstream.stores.store import Book, Put, Store, encode


class ConversationMeta(Shape, frozen=True, kw_only=True):
    """`turn` counts the model's messages. `start` is the position of the first item that
    is in the context; a compaction or an undo moves it. `session_id` is the session that
    was accepted last: only that one may be live, and only that one may come back.

    `states` are what others keep of the conversation, JSON each, such as `stopMessage`.
    """

    id: str
    turn: int = 0
    start: int = 0
    session_id: str | None = None
    states: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict[str, msgspec.Raw])


class KeptMeta(NamedTuple):
    """The document and its version; 0 for a conversation that nobody began."""

    meta: ConversationMeta
    version: int

    def put(self, meta: ConversationMeta) -> Put:
        """The operation that replaces the document by `meta`."""
        return Put(Book.CONVERSATIONS, meta.id, encode(meta), self.version)


async def load_meta(store: Store, id: str) -> KeptMeta:
    """Raises `StoreError`."""
    stored = await store.get(Book.CONVERSATIONS, id)
    if stored is None:
        return KeptMeta(ConversationMeta(id=id), 0)
    return KeptMeta(stored.decode(ConversationMeta), stored.version)
