"""EventRecorder: has the event logs written, a few times a second, and delays nobody.

It owns the events that the Announcer has numbered and no log has taken yet; the Announcer
tells it and goes on. What was said in a quarter of a second is one block for each session,
many sessions are one write of the Ledger, and one write is under way at a time. While the
store is away the events wait, bounded; what had to be dropped is a hole in the log.
"""

import logging
from collections.abc import Mapping

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.event_backlog import EventBacklog
from midstream.actors.ledger_messages import KeepEvents, KeptEvents
from midstream.messages.errors import MidstreamError
from midstream.messages.event_log import Block
from midstream.messages.events import SessionEvent
from midstream.messages.lifecycle import AnyExit

_log = logging.getLogger("midstream.events")

EVERY_S = 0.25
"""Seconds in which events are gathered before they are written together."""

AGAIN_S = 2.0
"""Seconds until a write that failed, or came too early, is tried again."""

WITHOUT_RECORD_S = 300.0
"""Seconds for which events wait for the record of their session. What the store could not take
is tried again every 30 seconds; a session that is on no record by now never will be."""

SESSIONS_AT_ONCE = 128
"""Sessions whose events are one write."""

SESSIONS_IN_ONE_GO = 8
"""Sessions whose events are put together without letting anybody else run: half a
millisecond at most."""

WRITE_DEADLINE_S = 30.0

LAST_WRITE_DEADLINE_S = 4.0
"""Seconds for what is left when the recorder has to go."""

MAILBOX_CAPACITY = 1_024
"""Messages. It handles them without waiting, so they are what comes within one turn of the
scheduler."""


class RecordEvents(msgspec.Struct, frozen=True, tag=True):
    """These events of one session are numbered."""

    events: tuple[SessionEvent, ...]


class WriteLogs(msgspec.Struct, frozen=True, tag=True):
    """It is time to write."""


class LogsWritten(msgspec.Struct, frozen=True, tag=True):
    """What became of these blocks; None if the Ledger could do nothing with them now."""

    blocks: Mapping[str, Block]
    kept: KeptEvents | None


RecorderMessage = RecordEvents | WriteLogs | LogsWritten


class EventRecorder(Actor[RecorderMessage]):
    """See the module."""

    drains = True

    def __init__(self, ledger: Address[KeepEvents], backlog: EventBacklog) -> None:
        self._ledger = ledger
        self._backlog = backlog
        self._busy = False
        """Whether a write is under way, or the time for one is set."""
        self._without_record: dict[str, float] = {}
        """Since when it is known of a session that it has no record."""
        self._handled: list[RecorderMessage] = []
        """Of the batch in hand."""

    async def started(self) -> None:
        self._write_in(EVERY_S)

    async def handle_batch(self, messages: tuple[RecorderMessage, ...]) -> None:
        self._handled.clear()
        for message in messages:
            self._handle(message)
            self._handled.append(message)

    def _handle(self, message: RecorderMessage) -> None:
        match message:
            case RecordEvents(events):
                self._backlog.add(events)
                self._write_in(EVERY_S)
            case WriteLogs():
                self.spawn(self._write)
            case LogsWritten(blocks, kept):
                self._busy = False
                self._write_in(self._note(blocks, kept))

    def lost(self, messages: tuple[RecorderMessage, ...]) -> None:
        """Events wait for the next incarnation."""
        for message in messages:
            is_handled = any(message is handled for handled in self._handled)
            if isinstance(message, RecordEvents) and not is_handled:
                self._backlog.add(message.events)

    async def stopped(self, reason: AnyExit) -> None:
        """Write what is left, as far as there is time."""
        with trio.move_on_after(LAST_WRITE_DEADLINE_S):
            while blocks := await self._gather():
                kept = await self._ask(blocks)
                if kept is None or not kept.through:
                    return
                self._note(blocks, kept)

    def _write_in(self, delay_s: float) -> None:
        if not self._busy and len(self._backlog):
            self._busy = True
            self.spawn(self._remind, delay_s)

    async def _remind(self, delay_s: float) -> None:
        await trio.sleep(delay_s)
        await self.address.tell(WriteLogs())

    async def _write(self) -> None:
        blocks = await self._gather()
        await self.address.tell(LogsWritten(blocks, await self._ask(blocks)))

    async def _gather(self) -> Mapping[str, Block]:
        """A few sessions at a time: others are to be cut meanwhile."""
        blocks: dict[str, Block] = {}
        for number, session_id in enumerate(self._backlog.waiting(SESSIONS_AT_ONCE), start=1):
            if (block := self._backlog.block(session_id)) is not None:
                blocks[session_id] = block
            if number % SESSIONS_IN_ONE_GO == 0:
                await trio.lowlevel.checkpoint()
        return blocks

    async def _ask(self, blocks: Mapping[str, Block]) -> KeptEvents | None:
        try:
            return await self._ledger.ask(lambda reply: KeepEvents(blocks, reply), WRITE_DEADLINE_S)
        except MidstreamError as error:
            _log.warning("the events of %d sessions are not kept yet: %s", len(blocks), error)
            return None

    def _note(self, blocks: Mapping[str, Block], kept: KeptEvents | None) -> float:
        """Forget what is kept; when to write again."""
        if kept is None:
            return AGAIN_S
        for session_id, block in blocks.items():
            if session_id not in kept.through and session_id not in kept.refused:
                self._wait_for_record(session_id)
                continue
            self._without_record.pop(session_id, None)
            if session_id in kept.through:
                self._backlog.kept(session_id, block)
            else:
                _log.info("%s has another owner; its events are not kept here", session_id)
                self._backlog.drop(session_id)
        if blocks and not kept.through:
            return AGAIN_S
        return 0.0 if self._backlog.has_full_block else EVERY_S

    def _wait_for_record(self, session_id: str) -> None:
        now = trio.current_time()
        if now - self._without_record.setdefault(session_id, now) < WITHOUT_RECORD_S:
            self._backlog.postpone(session_id)
            return
        _log.info("%s is on no record; its events are not kept", session_id)
        del self._without_record[session_id]
        self._backlog.drop(session_id)
