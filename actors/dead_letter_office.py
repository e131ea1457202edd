"""The dead-letter office: puts what could not be written into the queue, and tries again.

The letters of a session arrive in their order: one that cannot be written keeps back the
later ones of its session, and those of others only if the store is down. What never can
arrive is put aside with the reason (spec/animator.md 14.14). One letter is in hand at a time,
whoever asks. Used by the Ledger's StepWriter alone, which says how a letter is written.
"""

import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto

import trio

from midstream.actors.funnel import STORE_DEADLINE_S
from midstream.actors.ledger_messages import DrainCount
from midstream.messages.envelope import AnyEnvelope, StepEnvelope
from midstream.messages.errors import MidstreamError, StoreError, VersionConflict
from midstream.stores.dlq import DeadLetterQueue
from midstream.stores.state import load_status
from midstream.stores.store import Store

_log = logging.getLogger("midstream.ledger")

WriteLetter = Callable[[AnyEnvelope], Awaitable[object]]
"""Writes a letter. Raises `NoAnswer` or another `StoreError` if it has to be tried again,
any other error of ours if that is of no use."""


class NoAnswer(StoreError):
    """The deadline passed. What was asked for may have been done."""


class Delivery(Enum):
    """What became of one letter."""

    ARRIVED = auto()
    REJECTED = auto()
    LEFT = auto()
    STORE_DOWN = auto()


class DeadLetterOffice:
    """See the module."""

    def __init__(self, store: Store, queue: DeadLetterQueue, write: WriteLetter) -> None:
        self._store = store
        self._queue = queue
        self._write = write
        self._in_use = trio.Lock()
        self._waiting: set[str] = set()
        """Sessions that have letters in the queue."""

    async def recall(self) -> None:
        """Look into the queue for what an earlier incarnation has put there."""
        try:
            self._waiting = set(map(_session_of, await self._queue.names()))
        except StoreError as error:
            _log.warning("the dead-letter queue cannot be used: %s", error)

    def keeps_back(self, session_id: str) -> bool:
        """Whether steps of the session wait, so that later ones have to wait too."""
        return session_id in self._waiting

    async def put(self, envelope: StepEnvelope) -> None:
        """Keep a step. Raises `StoreError`."""
        async with self._in_use:
            await self._queue.put(envelope)
            self._waiting.add(envelope.session_id)

    async def deliver(self, session_id: str | None = None) -> DrainCount:
        """Try to write what waits, of one session or of all; never raises an error of ours."""
        count: Counter[Delivery] = Counter()
        async with self._in_use:
            try:
                names = await self._queue.names()
                wanted = [n for n in names if session_id is None or _session_of(n) == session_id]
                await self._deliver_all(wanted, count)
                self._waiting = set(map(_session_of, await self._queue.names()))
            except StoreError as error:
                _log.warning("the dead-letter queue cannot be used: %s", error)
        left = count[Delivery.LEFT] + count[Delivery.STORE_DOWN]
        return DrainCount(count[Delivery.ARRIVED], count[Delivery.REJECTED], left)

    async def _deliver_all(self, names: Sequence[str], count: "Counter[Delivery]") -> None:
        kept_back: set[str] = set()
        for position, name in enumerate(names):
            session_id = _session_of(name)
            waits = session_id in kept_back
            delivery = Delivery.LEFT if waits else await self._deliver_one(name)
            count[delivery] += 1
            if delivery is Delivery.LEFT:
                kept_back.add(session_id)
            if delivery is Delivery.STORE_DOWN:
                count[delivery] += len(names) - position - 1
                return

    async def _deliver_one(self, name: str) -> Delivery:
        try:
            envelope = await self._queue.read(name)
            if envelope is not None:
                await self._write(envelope)
        except MidstreamError as error:
            if isinstance(error, StoreError) and not isinstance(error, VersionConflict):
                _log.warning("%s waits in the dead-letter queue: %s", name, error)
                return await self._without_success(error)
            _log.error("%s will never arrive and is put aside: %s", name, error)
            await self._queue.reject(name, f"{type(error).__name__}: {error}")
            return Delivery.REJECTED
        except Exception:  # noqa: BLE001 - the letters of others do not wait for its mend
            _log.exception("%s waits in the dead-letter queue: it meets a bug", name)
            return Delivery.LEFT
        await self._queue.remove(name)
        return Delivery.ARRIVED

    async def _without_success(self, error: StoreError) -> Delivery:
        """Whether the store is down, or has something against this letter alone."""
        if isinstance(error, NoAnswer):
            return Delivery.STORE_DOWN
        with trio.move_on_after(STORE_DEADLINE_S):
            try:
                await load_status(self._store)
            except StoreError:
                return Delivery.STORE_DOWN
            return Delivery.LEFT
        return Delivery.STORE_DOWN


_STEP_NAME = re.compile(r"(.*)-\d{6}-\d{6}")
"""See `StepEnvelope.name`."""


def _session_of(name: str) -> str:
    """The session that a step in the queue belongs to; a report is named after its own."""
    step = _STEP_NAME.fullmatch(name)
    return step[1] if step is not None else name
