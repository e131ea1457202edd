"""BackoffMachine: may anyone dispatch now? It alone changes the shared pause.

Sessions ask it before they begin; the Ledger tells it of every end, on every path, before it
answers that the end is written, so no news of a spent quota is lost with the process. What
it decides is `decide` (messages/dispatch.py). The document is one for all hosts of a store:
each decision is made on the newest, and is made again when another host was faster. When the
store is down, it goes on with what it knows and decides again, in order, when the store is
back. `DispatchView` shows the pause to those who cannot wait.
"""

import logging

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.clock import Clock
from midstream.actors.ledger_messages import KeepState
from midstream.messages.backoff import BackoffSettings
from midstream.messages.dispatch import (
    NEVER_PAUSED,
    AnyDispatchEffect,
    AnyDispatchEvent,
    Booted,
    DispatchAsked,
    DispatchStatus,
    NeutralEnd,
    Paused,
    Refused,
    Resumed,
    Warned,
    decide,
    end_of,
)
from midstream.messages.errors import MidstreamError, StoreError, VersionConflict
from midstream.messages.lifecycle import AnyExit
from midstream.messages.reply import Reply
from midstream.stores.session_list import records_of
from midstream.stores.state import KeptStatus, load_status
from midstream.stores.store import Store, encode

_log = logging.getLogger("midstream.backoff")

KEEP_DEADLINE_S = 15.0
"""Seconds that writing the status may take."""

LAST_KEEP_DEADLINE_S = 4.0
"""Seconds for what is not kept when the machine has to go."""

LAST_KEEP_PAUSE_S = 0.2
"""Seconds between two tries then."""

UNRECORDED_PROBE_S = 60.0
"""Seconds in which a session that was let in has to come on record."""

UNHEARD_PROBE_S = 6.0
"""Seconds in which the host of a probe that is over says so itself, longer than its Ledger tries
to (`funnel.HEAR_DEADLINE_S`): it alone knows how long the provider does not want to be asked."""

UNKEPT_LIMIT = 1_000
"""Events that are remembered while the store is down; the oldest are dropped."""


class Hear(msgspec.Struct, frozen=True, tag=True):
    """Something happened that may say something about the quota. Answered when what follows
    is decided, and kept if the store can be reached."""

    event: AnyDispatchEvent
    reply: Reply[None]


class AskDispatch(msgspec.Struct, frozen=True, tag=True):
    """May this session begin? Answered with None if it may, and then it has to `Hear` of
    the session's end, whatever it is; else with why not. One that `has_begun` asks whether
    it may go on."""

    session_id: str
    reply: Reply[Refused | None]
    has_begun: bool = False


class ReadStatus(msgspec.Struct, frozen=True, tag=True):
    """Answered with the status as it is now, for all hosts."""

    reply: Reply[DispatchStatus]


class Refresh(msgspec.Struct, frozen=True, tag=True):
    """Look whether another host has changed the status, and whether those that probe live."""


BackoffMessage = Hear | AskDispatch | ReadStatus | Refresh


class DispatchView:
    """The status as this host knows it, for those who cannot wait. Only the BackoffMachine
    changes it; it outlives the machine's incarnations."""

    def __init__(self) -> None:
        self._status: DispatchStatus = NEVER_PAUSED
        self.changed = trio.Event()
        """Set, and replaced, when the status is set the next time."""
        self.reconciled = False
        """Whether the pause that a start may find was looked at; done once in a runtime."""

    @property
    def status(self) -> DispatchStatus:
        return self._status

    @status.setter
    def status(self, status: DispatchStatus) -> None:
        self._status = status
        self.changed.set()
        self.changed = trio.Event()


class BackoffMachine(Actor[BackoffMessage]):
    """See the module."""

    def __init__(
        self,
        store: Store,
        ledger: Address[KeepState],
        clock: Clock,
        settings: BackoffSettings,
        view: DispatchView,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._settings = settings
        self._view = view
        self._version = 0
        self._problem: str | None = None
        self._unkept: list[tuple[AnyDispatchEvent, int]] = []
        """What was decided without the store, each with its time in milliseconds."""
        self._lost: dict[tuple[str, bool], float] = {}
        """Probes that have no record, or one that is over (True), and since when they are seen
        so."""

    async def started(self) -> None:
        await self._reload()

    async def stopped(self, reason: AnyExit) -> None:
        """What was decided without the store is remembered here alone."""
        with trio.move_on_after(LAST_KEEP_DEADLINE_S):
            while self._unkept:
                await self._reload()
                await trio.sleep(LAST_KEEP_PAUSE_S if self._unkept else 0)

    async def handle(self, message: BackoffMessage) -> None:
        match message:
            case Hear(event, reply):
                await self._hear(event)
                reply.send(None)
            case AskDispatch(session_id, reply, has_begun):
                await self._reload()
                asked = DispatchAsked(session_id=session_id, has_begun=has_begun)
                effects = await self._decide(asked)
                refusals = (effect for effect in effects if isinstance(effect, Refused))
                reply.send(next(refusals, None))
            case ReadStatus(reply):
                await self._reload()
                reply.send(self._view.status)
            case Refresh():
                await self._reload()
                await self._release_lost_probes()

    async def _hear(self, event: AnyDispatchEvent) -> None:
        if isinstance(event, Booted):
            if self._view.reconciled:
                return
            self._view.reconciled = True
        await self._decide(event)

    async def _decide(self, event: AnyDispatchEvent) -> tuple[AnyDispatchEffect, ...]:
        """Decide on the newest status, and keep what is decided."""
        now_ms = self._clock.now_ms()
        while True:
            decision = decide(self._view.status, event, now_ms, self._settings)
            if decision.status is not self._view.status:
                before = self._unkept
                # Whoever cuts this off leaves it to `stopped`.
                self._unkept = [*before, (event, now_ms)][-UNKEPT_LIMIT:]
                try:
                    await self._keep(decision.status)
                except VersionConflict:
                    self._unkept = before
                    await self._reload()
                    continue
                except MidstreamError as error:
                    if not before:
                        _log.warning("the dispatch status is not kept: %s", error)
                self._view.status = decision.status
            _say(decision.effects)
            return decision.effects

    async def _keep(self, status: DispatchStatus) -> None:
        """What was decided without the store is in `status` too. A connection that broke is worth
        a second try; if the first was done, that is a conflict, and it is decided again."""
        try:
            version = await self._ask_ledger(status)
        except VersionConflict:
            raise
        except StoreError:
            version = await self._ask_ledger(status)
        self._version = version
        self._unkept = []

    async def _ask_ledger(self, status: DispatchStatus) -> int:
        return await self._ledger.ask(
            lambda reply: KeepState(status.id, encode(status), self._version, True, reply),
            KEEP_DEADLINE_S,
        )

    async def _reload(self) -> None:
        """Read the status, and decide again what the store does not know yet."""
        try:
            kept = await load_status(self._store)
        except StoreError as error:
            self._complain(str(error))
            return
        self._complain(kept.problem)
        if kept.version == self._version and not self._unkept:
            return
        self._version = kept.version
        self._view.status = kept.status
        if self._unkept:
            await self._catch_up(kept)

    async def _catch_up(self, kept: KeptStatus) -> None:
        status = kept.status
        for event, at_ms in self._unkept:
            status = decide(status, event, at_ms, self._settings).status
        self._view.status = status
        try:
            if status is not kept.status:
                await self._keep(status)
        except MidstreamError as error:
            _log.debug("the dispatch status is still not kept: %s", error)

    async def _release_lost_probes(self) -> None:
        """A probe whose host died must not keep the others waiting for ever: it counts as
        ended when its record has said so for a while, or when it has none for too long."""
        probes = self._view.status.probes
        if not probes:
            return
        try:
            records = await records_of(self._store, probes)
        except StoreError:
            return  # the reload has complained already
        now = trio.current_time()
        lost = [
            (probe, probe in records)
            for probe in probes
            if probe not in records or records[probe].is_terminal
        ]
        self._lost = {each: self._lost.get(each, now) for each in lost}
        for (probe, is_over), since in self._lost.items():
            if now - since > (UNHEARD_PROBE_S if is_over else UNRECORDED_PROBE_S):
                end = end_of(records[probe]) if is_over else NeutralEnd(session_id=probe)
                await self._decide(end)

    def _complain(self, problem: str | None) -> None:
        """Say once what is wrong with the status; it pauses nobody (spec/animator.md 14.19)."""
        if problem is not None and problem != self._problem:
            _log.warning("the dispatch status cannot be read: %s", problem)
        self._problem = problem


def _say(effects: tuple[AnyDispatchEffect, ...]) -> None:
    for effect in effects:
        match effect:
            case Paused(until=until, level=level, reason=reason):
                _log.warning("nobody dispatches until %s (level %d): %s", until, level, reason)
            case Resumed():
                _log.info("the pause is over")
            case Warned(message=message):
                _log.warning("%s", message)
            case _:
                pass
