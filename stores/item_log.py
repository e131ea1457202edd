"""The log of a conversation: its items in order, those that have left the context too."""

import msgspec

from midstream.messages.conversation import AnyItem
from midstream.messages.errors import Unreadable
from midstream.stores.store import MAX_LIMIT, Log, Store

_decoder = msgspec.json.Decoder[AnyItem](AnyItem)


async def read_items(store: Store, conversation_id: str, start: int = 0) -> tuple[AnyItem, ...]:
    """The items from position `start` on. Raises `StoreError`; `Unreadable` when one is none."""
    items: list[AnyItem] = []
    while True:
        page = await read_page(store, conversation_id, start + len(items), MAX_LIMIT)
        items += page
        if len(page) < MAX_LIMIT:
            return tuple(items)


async def read_page(store: Store, conversation_id: str, start: int, limit: int) -> list[AnyItem]:
    """The items from position `start` on, at most `limit`. Raises as `read_items` does."""
    entries = await store.read(Log.ITEMS, conversation_id, start, limit)
    return [
        _decode(conversation_id, position, entry) for position, entry in enumerate(entries, start)
    ]


def _decode(conversation_id: str, position: int, entry: msgspec.Raw) -> AnyItem:
    try:
        return _decoder.decode(entry)
    except msgspec.MsgspecError as error:
        # Also what a newer version has written.
        problem = f"item {position} of {conversation_id} cannot be read: {error}"
        raise Unreadable(problem) from error
