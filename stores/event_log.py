"""The event log of a session in a store: blocks, found by the number of their events.

Written by the Ledger alone (`append_operations`), read by everybody. A log may
have holes, where the store was away for longer than the events were remembered elsewhere;
readers see them by the numbers, and say so instead of guessing (architecture.md invariant 11).
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from midstream.messages.errors import StoreError, Unreadable
from midstream.messages.event_log import Block, may_be_joined, runs_up_to
from midstream.messages.events import AttemptStarted, Retracted, ToolResult, ToolWanted
from midstream.messages.repair import repaired
from midstream.stores.store import Append, Log, RequireFence, Store, encode

PAGE = 32
"""Blocks that are read at once; each holds what was said in a quarter of a second."""

_decoder = msgspec.json.Decoder(Block)


class LogTail(NamedTuple):
    """How far a log goes: the number of blocks, and the last of them."""

    length: int
    last: Block | None


async def read_tail(store: Store, session_id: str) -> LogTail:
    """The end of a session's log. Raises `StoreError`."""
    length = await store.length(Log.EVENTS, session_id)
    last = await _read_one(store, session_id, length - 1) if length else None
    return LogTail(length, last)


def append_operations(session_id: str, block: Block, length: int) -> tuple[RequireFence, Append]:
    """What keeps one more block behind `length` others, for the owner of its epoch."""
    try:
        entry = encode(block)
    except StoreError:  # a lone surrogate
        entry = encode(repaired(block))
    return RequireFence(session_id, block.epoch), Append(Log.EVENTS, session_id, (entry,), length)


class LogReader:
    """Reads a session's log page by page, from behind a number to its end, again and again
    while it grows."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._index: int | None = None

    async def read(self, after: int) -> list[Block]:
        """The next blocks with events behind number `after`, which never goes back; empty
        if there are none yet. Raises `StoreError`."""
        if self._index is None:
            length = await self._store.length(Log.EVENTS, self._session_id)
            self._index = await _first_block(
                self._store, self._session_id, length, lambda block: block.last > after
            )
        page = await self._store.read(Log.EVENTS, self._session_id, self._index, PAGE)
        self._index += len(page)
        return [_decode(self._session_id, entry) for entry in page]


async def unsettled_attempt(store: Store, session_id: str) -> int | None:
    """The attempt that a log ends in the middle of; None if it was retracted, or has come as
    far as its tools, so that its message is on record. Raises `StoreError`."""
    index = await store.length(Log.EVENTS, session_id)
    while index:
        first = max(0, index - PAGE)
        page = await store.read(Log.EVENTS, session_id, first, index - first)
        for entry in reversed(page):
            for run in reversed(_decode(session_id, entry).runs):
                if isinstance(run.event, Retracted | ToolWanted | ToolResult):
                    return None
                if isinstance(run.event, AttemptStarted):
                    return run.event.attempt
        index = first
    return None


async def end_of_epoch(store: Store, session_id: str, epoch: int) -> int | None:
    """The last number of an epoch that is over, as far as it is on record; None if the log
    has no block of a later one. Raises `StoreError`."""
    length = await store.length(Log.EVENTS, session_id)
    index = await _first_block(store, session_id, length, lambda block: block.epoch > epoch)
    if index == length:
        return None
    return (await _read_one(store, session_id, index)).first - 1


async def seam_before(store: Store, session_id: str, number: int) -> int:
    """The last place, behind `number` or before, over which no joined event can reach.

    Behind any other place, what somebody has seen cannot be taken back: the deltas on either
    side of it may have come as one. Raises `StoreError`.
    """
    length = await store.length(Log.EVENTS, session_id)
    holds = await _first_block(store, session_id, length, lambda block: block.last >= number)
    index = min(holds + 1, length)
    seam, behind = number, None
    while index:
        first = max(0, index - PAGE)
        page = await store.read(Log.EVENTS, session_id, first, index - first)
        for entry in reversed(page):
            for before, event in runs_up_to(_decode(session_id, entry), number):
                if not may_be_joined(event, event if behind is None else behind):
                    return seam
                seam, behind = before, event
        index = first
    return seam


async def _first_block(
    store: Store, session_id: str, length: int, holds: Callable[[Block], bool]
) -> int:
    """The index of the first block for which `holds` is true, as it is for all behind it."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if holds(await _read_one(store, session_id, middle)):
            high = middle
        else:
            low = middle + 1
    return low


async def _read_one(store: Store, session_id: str, index: int) -> Block:
    entries = await store.read(Log.EVENTS, session_id, index, 1)
    if not entries:
        raise StoreError(f"the event log of {session_id} is shorter than it was")
    return _decode(session_id, entries[0])


def _decode(session_id: str, entry: msgspec.Raw) -> Block:
    try:
        return _decoder.decode(entry)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the event log of {session_id} cannot be read: {error}") from error
