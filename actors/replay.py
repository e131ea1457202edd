"""Replay: a session's events from any number to the end, wherever they are.

What the Announcer remembers comes from there and goes on live; what lies further back is
read from the event log until the two meet. It reads the log too when the Announcer knows
nothing: of a session that is long over, that lives in another process on the same store, or
whose process was lost. Each event comes once and in order; where that cannot be, it says
`GapError`, or that what was seen is not on record (`Start.reset`), and never guesses
(architecture.md invariant 11, spec/lessons.md C).
"""

from collections.abc import Container
from typing import NamedTuple

import msgspec
import trio

from midstream.actors.address import Address
from midstream.actors.announcer import AnnouncerMessage, Subscribe, UnknownSession
from midstream.actors.event_channel import GapError
from midstream.actors.subscription import DEFAULT_LIMIT_BYTES, Subscription
from midstream.messages.event_log import BEGINNING, Block, Position, block_behind, events_of
from midstream.messages.events import SessionEnded, SessionEvent
from midstream.messages.record import SessionRecord
from midstream.messages.usage import Usage
from midstream.stores.event_log import LogReader, end_of_epoch, read_tail, seam_before
from midstream.stores.sessions import load_session
from midstream.stores.store import Store

SUBSCRIBE_DEADLINE_S = 10.0

POLL_S = 0.5
"""Seconds between two looks at the log of a session that is written elsewhere."""

GRACE_S = 3.0
"""Seconds within which a log catches up with what was said, if its writer lives and the store
is well; a good deal more than `event_recorder.EVERY_S`. A writer in this process is waited for as
long as it takes: what it still has to write is known (`unwritten`)."""


class Start(NamedTuple):
    """Behind which place a replay begins. With `reset`, it is before the one asked for: what
    was seen behind it is not on record, and will not come again."""

    position: Position
    reset: bool = False


class Replay:
    """See the module. Behind number `after` of `epoch`; None for the newest.

    `limit_bytes` bounds what waits here for a slow consumer; `unwritten` holds the sessions of
    which this process has events that no log has taken yet. One task may use it at a time.
    """

    def __init__(
        self,
        announcer: Address[AnnouncerMessage],
        store: Store,
        session_id: str,
        after: int = 0,
        epoch: int | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        *,
        unwritten: Container[str],
    ) -> None:
        self._announcer = announcer
        self._store = store
        self._session_id = session_id
        self._limit_bytes = limit_bytes
        self._unwritten = unwritten
        self._asked = (after, epoch)
        self._begun = False
        self._position = BEGINNING
        self._live: Subscription | None = None
        self._log = LogReader(store, session_id)
        self._blocks: list[Block] = []
        self._patience = GRACE_S
        self._over = False

    @property
    def position(self) -> Position:
        """The place behind what was taken so far."""
        return self._position

    async def begin(self) -> Start:
        """Find the place. Raises `GapError`, `UnknownSession`, `StoreError`."""
        after, epoch = self._asked
        self._begun = True
        live = await self._subscribe(after, epoch)
        if isinstance(live, Subscription):
            self._live = live
            self._position = Position(live.epoch, after)
            return Start(self._position)
        start = await self._resolve(after, epoch, live)
        self._position = start.position
        return start

    async def ready(self) -> None:
        """Wait for the next live events, if it is these that come next. Whoever has to wait
        for something else before he takes them gets more at once. Raises `Lagged`."""
        if self._live is not None:
            await self._live.ready()

    async def take(self) -> list[SessionEvent]:
        """The next events, all that there are by now; waits for the first. Empty at the end.

        Raises `Lagged`, `GapError`, `StoreError`, and what `begin` raises.
        """
        if not self._begun:
            await self.begin()
        while not self._over:
            events = await self._next()
            if events:
                last = events[-1]
                self._position = Position(last.epoch, last.sequence)
                self._over = isinstance(last.event, SessionEnded)
                self._patience = GRACE_S
                return events
        return []

    def close(self) -> None:
        """Let go of the live events."""
        self._over = True
        if self._live is not None:
            self._live.close()

    # --- where the next events are

    async def _next(self) -> list[SessionEvent]:
        """Some of the next events; none if one has to look again."""
        if self._live is not None:
            events = await self._live.take()
            if not events:  # closed before the end: the Announcer was restarted
                self._live = None
            return events
        if not self._blocks:
            self._blocks = await self._log.read(self._position.sequence)
        if self._blocks:
            return self._from_block(self._blocks.pop(0))
        live = await self._subscribe(self._position.sequence, None)
        if isinstance(live, Subscription):
            self._live = live
        elif live is not None:
            await self._wait_for_the_log(live)
        else:
            return await self._without_announcer()
        return []

    def _from_block(self, block: Block) -> list[SessionEvent]:
        rest = block_behind(block, self._position.sequence)
        if rest is None:
            return []
        if rest.first > self._position.sequence + 1:
            raise self._gap(rest.first - 1)
        return list(events_of(self._session_id, rest))

    async def _wait_for_the_log(self, ring: GapError) -> None:
        """The ring begins behind what the log has: what lies between is being written, unless
        the store was away."""
        if self._patience <= 0:
            raise self._gap(ring.after)
        await self._pause()

    async def _without_announcer(self) -> list[SessionEvent]:
        """The log says nothing more, and nobody here knows the session."""
        kept = await load_session(self._store, self._session_id)
        if kept is None and self._patience <= 0:
            raise UnknownSession(f"no session {self._session_id} is known here")
        if kept is not None and kept.record.is_terminal and self._patience <= 0:
            return [self._end_by_record(kept.record)]
        await self._pause()
        if kept is not None and not kept.record.is_terminal:
            self._patience = GRACE_S
        return []

    async def _pause(self) -> None:
        self._patience -= POLL_S
        await trio.sleep(POLL_S)
        if self._session_id in self._unwritten:
            self._patience = GRACE_S

    def _end_by_record(self, record: SessionRecord) -> SessionEvent:
        """Its process was lost before it could say how the session ended; the record says."""
        usage = Usage()
        if record.token_usage is not None:
            usage = Usage(**msgspec.structs.asdict(record.token_usage))
        ended = SessionEnded(
            status=record.status,
            output=record.output or "",
            reason=record.error,
            usage=usage,
            duration_ms=record.duration_ms or 0,
        )
        epoch, sequence = self._position.epoch, self._position.sequence
        return SessionEvent(self._session_id, sequence + 1, ended, epoch)

    # --- finding the place

    async def _subscribe(self, after: int, epoch: int | None) -> Subscription | GapError | None:
        """The live events; why they cannot be had from there; None of an unknown session."""
        try:
            return await self._announcer.ask_through_crashes(
                lambda reply: Subscribe(self._session_id, after, reply, epoch, self._limit_bytes),
                SUBSCRIBE_DEADLINE_S,
            )
        except GapError as error:
            return error
        except UnknownSession:
            return None

    async def _resolve(self, after: int, epoch: int | None, ring: GapError | None) -> Start:
        """The place, where the ring does not reach; `ring` is None without one."""
        last_epoch = await self._last_epoch() if ring is None else 0
        while True:
            newest = await self._newest(ring)
            if epoch is not None and epoch < newest.epoch:
                return await self._after_takeover(after, epoch)
            if epoch in (None, newest.epoch) and after <= newest.sequence:
                return Start(Position(newest.epoch, after))
            if ring is not None or (epoch or 0) > last_epoch:
                raise self._gap(newest.sequence)
            if self._patience <= 0:
                return await self._reset(newest)
            await self._pause()

    async def _last_epoch(self) -> int:
        """That of the newest owner, of whose events none may be on record yet, or ever."""
        kept = await load_session(self._store, self._session_id)
        if kept is None:
            raise UnknownSession(f"no session {self._session_id} is known here")
        fence = kept.record.fence
        return BEGINNING.epoch if fence is None else fence.token

    async def _newest(self, ring: GapError | None) -> Position:
        """The place behind the last event that is known."""
        if ring is not None and ring.newest is not None:
            return ring.newest
        last = (await read_tail(self._store, self._session_id)).last
        return BEGINNING if last is None else Position(last.epoch, last.last)

    async def _after_takeover(self, after: int, epoch: int) -> Start:
        """The place was named by an earlier owner: as far as what it said is on record."""
        end = await end_of_epoch(self._store, self._session_id, epoch)
        if end is None:
            last = (await read_tail(self._store, self._session_id)).last
            end = 0 if last is None else last.last
        if after <= end:
            return Start(Position(epoch, after))
        return await self._reset(Position(epoch, end))

    async def _reset(self, kept: Position) -> Start:
        """What lies behind `kept` is not on record, and the asker has seen some of it. What he
        got as one event he can only forget as a whole."""
        seam = await seam_before(self._store, self._session_id, kept.sequence)
        return Start(Position(kept.epoch, seam), reset=True)

    def _gap(self, after: int | None) -> GapError:
        place = self._position.sequence if self._position != BEGINNING else self._asked[0]
        return GapError(
            f"the events of {self._session_id} behind number {place} are not on record"
            + (f"; they are from number {after + 1} on" if after is not None else ""),
            after,
        )
