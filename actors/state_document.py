"""One document of the state book that a part of this host keeps, beside others that may.

Whoever keeps one changes it on what is there now, so that two hosts lose nothing of each
other's. A store that cannot be reached is said and costs nobody anything but the document.
"""

import logging
from collections.abc import Callable

import msgspec

from midstream.actors.address import Address
from midstream.actors.errors import AskFailed
from midstream.actors.ledger_messages import KeepState, LedgerMessage
from midstream.messages.errors import StoreError, VersionConflict
from midstream.messages.record import Shape
from midstream.stores.store import Book, Store, encode

_log = logging.getLogger("midstream.state")

ASK_DEADLINE_S = 15.0
CONFLICTS_LIMIT = 5
"""Hosts that may be faster in a row."""


class _Kept(Shape, frozen=True, kw_only=True):
    """The document as the book has it."""

    id: str
    value: msgspec.Raw


class StateDocument:
    """See the module."""

    def __init__(self, store: Store, ledger: Address[LedgerMessage], id: str) -> None:
        self._store = store
        self._ledger = ledger
        self._id = id

    async def read(self) -> bytes | None:
        """The document as JSON; None if nobody wrote it, or it cannot be read now."""
        try:
            return (await self._read())[0]
        except StoreError as error:
            _log.warning("%s cannot be read: %s", self._id, error)
            return None

    async def change(self, decide: Callable[[bytes | None], object]) -> None:
        """Put what `decide` makes of the document in its place. `decide` has no effects."""
        for _ in range(CONFLICTS_LIMIT):
            try:
                known, version = await self._read()
                kept = _Kept(id=self._id, value=encode(decide(known)))
                await self._keep(encode(kept), version)
            except VersionConflict:
                continue
            except (StoreError, AskFailed) as error:
                _log.warning("%s is not kept: %s", self._id, error)
            return
        _log.warning("%s is not kept: other hosts change it too fast", self._id)

    async def _read(self) -> tuple[bytes | None, int]:
        stored = await self._store.get(Book.STATE, self._id)
        if stored is None:
            return None, 0
        return bytes(stored.decode(_Kept).value), stored.version

    async def _keep(self, document: msgspec.Raw, version: int) -> None:
        await self._ledger.ask(
            lambda reply: KeepState(self._id, document, version, True, reply), ASK_DEADLINE_S
        )
