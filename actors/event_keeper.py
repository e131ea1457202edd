"""Appends to the event logs of sessions. Used by the Ledger alone.

Blocks of many sessions are one commit. Each carries the fence of its session's owner, and
numbers: what a log holds already is not appended again, so a block may be sent twice.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from midstream.actors.ledger_messages import KeptEvents
from midstream.messages.errors import FenceLost, VersionConflict
from midstream.messages.event_log import Block, block_behind
from midstream.messages.events import SessionEnded
from midstream.stores.event_log import append_operations, read_tail
from midstream.stores.sessions import load_session
from midstream.stores.store import Store

TAILS_KEPT = 4_096
"""Logs whose end is remembered, which saves reading it before each commit; none of a session
that has ended, since nothing follows."""


class _Tail(NamedTuple):
    """How many blocks a log has, and the number of its last event."""

    length: int
    last: int


class EventKeeper:
    """See the module."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tails: dict[str, _Tail] = {}

    async def keep(self, blocks: Mapping[str, Block]) -> KeptEvents:
        """Append one block to the log of each session. Raises `StoreError`."""
        known = {name: block for name, block in blocks.items() if self._follows(name, block)}
        new = {name: block for name, block in blocks.items() if name not in known}
        through: dict[str, int] = {}
        refused: set[str] = set()
        if known and not await self._keep_together(known):
            new.update(known)
            known = {}
        through.update((name, block.last) for name, block in known.items())
        for session_id, block in new.items():
            match await self._keep_one(session_id, block):
                case None:
                    pass
                case False:
                    refused.add(session_id)
                case True:
                    through[session_id] = block.last
        return KeptEvents(through, frozenset(refused))

    async def _keep_together(self, blocks: Mapping[str, Block]) -> bool:
        lengths = {name: self._tails[name].length for name in blocks}
        operations = [
            operation
            for name, block in blocks.items()
            for operation in append_operations(name, block, lengths[name])
        ]
        try:
            await self._store.commit(operations, durable=False)
        except (VersionConflict, FenceLost):
            self._forget(blocks)
            return False
        for name, block in blocks.items():
            self._remember(name, lengths[name] + 1, block)
        return True

    async def _keep_one(self, session_id: str, block: Block) -> bool | None:
        """Whether it is kept; False if the session is somebody else's, None if it cannot be
        told yet, because the session has no record."""
        while True:
            tail = await read_tail(self._store, session_id)
            if tail.last is not None and tail.last.epoch > block.epoch:
                return False
            rest = block_behind(block, tail.last.last) if tail.last is not None else block
            if rest is None:
                return True
            try:
                operations = append_operations(session_id, rest, tail.length)
                await self._store.commit(operations, durable=False)
            except VersionConflict:
                continue  # it was appended while we read
            except FenceLost:
                return None if await load_session(self._store, session_id) is None else False
            self._remember(session_id, tail.length + 1, rest)
            return True

    def _follows(self, session_id: str, block: Block) -> bool:
        """Whether the log is known to hold nothing of this block."""
        tail = self._tails.get(session_id)
        return tail is not None and block.first > tail.last

    def _remember(self, session_id: str, length: int, newest: Block) -> None:
        if isinstance(newest.runs[-1].event, SessionEnded):
            self._forget([session_id])
            return
        self._tails[session_id] = _Tail(length, newest.last)
        if len(self._tails) > TAILS_KEPT:
            self._forget([next(iter(self._tails))])

    def _forget(self, session_ids: Iterable[str]) -> None:
        for session_id in tuple(session_ids):
            self._tails.pop(session_id, None)
