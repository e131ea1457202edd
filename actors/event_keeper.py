"""Appends to the event logs of sessions. Used by the Ledger alone.

Blocks of many sessions are one commit. Each carries the fence of its session's owner, and
numbers: what a log holds already is not appended again, so a block may be sent twice.
"""

from collections.abc import Iterable, Mapping

from midstream.actors.ledger_messages import KeptEvents
from midstream.messages.errors import FenceLost, VersionConflict
from midstream.messages.event_log import Block, block_behind
from midstream.stores.event_log import append_operations, read_tail
from midstream.stores.sessions import load_session
from midstream.stores.store import Store

LENGTHS_KEPT = 4_096
"""Logs whose length is remembered, which saves reading it before each commit."""


class EventKeeper:
    """See the module."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lengths: dict[str, int] = {}

    async def keep(self, blocks: Mapping[str, Block]) -> KeptEvents:
        """Append one block to the log of each session. Raises `StoreError`."""
        known = {name: block for name, block in blocks.items() if name in self._lengths}
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
        operations = [
            operation
            for name, block in blocks.items()
            for operation in append_operations(name, block, self._lengths[name])
        ]
        try:
            await self._store.commit(operations, durable=False)
        except (VersionConflict, FenceLost):
            self._forget(blocks)
            return False
        for name in blocks:
            self._lengths[name] += 1
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
                self._remember(session_id, tail.length)
                return True
            try:
                operations = append_operations(session_id, rest, tail.length)
                await self._store.commit(operations, durable=False)
            except VersionConflict:
                continue  # it was appended while we read
            except FenceLost:
                return None if await load_session(self._store, session_id) is None else False
            self._remember(session_id, tail.length + 1)
            return True

    def _remember(self, session_id: str, length: int) -> None:
        self._lengths[session_id] = length
        if len(self._lengths) > LENGTHS_KEPT:
            self._forget([next(iter(self._lengths))])

    def _forget(self, session_ids: Iterable[str]) -> None:
        for session_id in tuple(session_ids):
            self._lengths.pop(session_id, None)
