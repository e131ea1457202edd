"""Race: what a scenario of `midstream.testing.explore` is given, and the checks of each step.

It hands out choices, opens worlds whose stores, clocks and streams are faulty, and holds
everything that happens against the invariants at once: what clients heard, what was asked of
providers, and what the store was given.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import trio

from midstream.config import Config, RulesConfig
from midstream.messages.dispatch import (
    DISPATCH_STATUS_ID,
    NEVER_PAUSED,
    DispatchState,
    DispatchStatus,
)
from midstream.messages.events import SessionEnded
from midstream.messages.record import SessionRecord
from midstream.messages.timestamps import parse_timestamp
from midstream.providers.scripted import Script, ScriptedProvider, Step
from midstream.rules.rule import Rule
from midstream.stores.store import Book, Operation, Put
from midstream.testing.choices import Choices
from midstream.testing.faults import WALL, Faults, FaultyStore, JumpingClock, faulty_script
from midstream.testing.invariants import InvariantBroken, check_session
from midstream.testing.trace import Trace
from midstream.testing.world import START_MS, ObservedSession, World, open_world

T = TypeVar("T")

SCENARIO = "scenario"

PATIENCE_S = 10.0
"""Seconds that a scenario waits for an outcome before it interrupts a stream that says nothing
any more."""

OUTCOME_S = 120.0
"""Seconds within which a session that was interrupted has its outcome, whatever goes wrong."""

QUIET_S = 10.0
"""Seconds that pass behind all outcomes: nothing that was scheduled before may start then."""


class Race:
    """One run of a scenario. `faults` says what may go wrong."""

    def __init__(self, choices: Choices, trace: Trace, faults: Faults) -> None:
        self.choices = choices
        self.trace = trace
        self.faults = faults
        self._checks: list[Callable[[], None]] = []
        self._kept = _StoreWatch()

    def pick(self, options: int) -> int:
        """A number from 0 to `options - 1`."""
        return self.choices.pick(SCENARIO, options)

    def one_of(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return self.choices.one_of(SCENARIO, options)

    def seconds(self, most_s: float) -> float:
        """A duration from 0 to `most_s`, on a coarse grid."""
        return self.choices.seconds(SCENARIO, most_s)

    def script(self, steps: Sequence[Step], most_s: float = 0.1) -> list[Step]:
        """A script, with whatever a provider may do to it."""
        return faulty_script(self.choices, steps, most_s)

    @property
    def records(self) -> Mapping[str, SessionRecord]:
        """The records that the stores of this run hold, by session."""
        return self._kept.records

    def always(self, check: Callable[[], None]) -> None:
        """Call `check` after each step of the run; what it raises ends the run."""
        self._checks.append(check)

    def note(self, who: str, what: object) -> None:
        """Write a line into the trace."""
        self.trace.note(trio.current_time(), who, what)

    def after_step(self) -> None:
        """All checks, for the scheduler."""
        for check in self._checks:
            check()

    def store(self) -> FaultyStore:
        """A store with the faults that the scenario allows, and with its promises checked."""
        store = FaultyStore()
        return self.entrust(store)

    def entrust(self, store: FaultyStore) -> FaultyStore:
        """Let a handle on a store be faulty, and hold what it is given against the design."""
        store.trace = self.trace
        store.watch = self._kept.commit
        if self.faults.store:
            store.choices = self.choices
        return store

    def clock(self) -> JumpingClock:
        """A wall clock, which a task of `trouble` sets if the scenario allows it."""
        return JumpingClock(START_MS)

    async def trouble(self, clock: JumpingClock) -> None:
        """Set the clock on the wall now and then."""
        while self.faults.wall_clock:
            await trio.sleep(self.choices.seconds(WALL, 4.0) + 0.01)
            jump_s = self.choices.one_of(WALL, (0.0, 0.0, 1.0, -1.0, 7_200.0, -7_200.0))
            if jump_s:
                self.note("wall clock", f"!! jumps by {jump_s} s")
                clock.jump(jump_s)

    @asynccontextmanager
    async def world(
        self,
        *scripts: Script,
        rules: Iterable[Rule] = (),
        config: Config | None = None,
        provider: ScriptedProvider | None = None,
        store: FaultyStore | None = None,
        **more: Any,
    ) -> AsyncGenerator[World]:
        """A world that is checked after each step, and in peace when the block has ended.

        Before that, all sessions have to have an outcome, and then nothing may start.
        """
        store = store or self.store()
        clock = self.clock()
        async with (
            open_world(
                *scripts,
                rules=rules,
                config=config or Config(rules=RulesConfig(discover=False)),
                provider=provider,
                store=store,
                clock=clock,
                seed=self.choices.seed,
                **more,
            ) as world,
            trio.open_nursery() as nursery,  # it ends before the world is checked
        ):
            world.has_gaps = "announcer" in self.faults.crashing
            watch = _WorldWatch(world, self.note)
            self.always(watch.step)
            nursery.start_soon(self.trouble, clock)
            yield world
            await self.end(world)
            nursery.cancel_scope.cancel()
            store.choices = None

    async def end(self, world: World) -> None:
        """Wait for all outcomes, and then for a while in which nothing may start."""
        for session in world.sessions:
            await self._outcome(session)
        requests = [len(session.requests) for session in world.sessions]
        await trio.sleep(QUIET_S)
        if requests != [len(session.requests) for session in world.sessions]:
            raise InvariantBroken(4, "a session asked the model again behind its outcome")
        if world.provider.live:
            raise InvariantBroken(1, f"{world.provider.live} streams are open behind all outcomes")

    async def _outcome(self, session: ObservedSession) -> None:
        with trio.move_on_after(PATIENCE_S):
            await session.result()
            return
        self.note("user", "has waited long enough, and interrupts")
        await session.interrupt()
        with trio.move_on_after(OUTCOME_S):
            await session.result()
            return
        raise InvariantBroken(4, f"{session.handle.session_id} does not end when it is stopped")


class _WorldWatch:
    """What clients heard and what was asked, held against the invariants at each step."""

    def __init__(self, world: World, note: Callable[[str, object], None]) -> None:
        self._world = world
        self._note = note
        self._seen: dict[ObservedSession, tuple[int, int, bool]] = {}

    def step(self) -> None:
        for session in self._world.sessions:
            if session.live_streams > 1:
                raise InvariantBroken(1, f"{session.live_streams} streams of one session are open")
            now = (len(session.events), len(session.requests), session.handle.ended is not None)
            before = self._seen.get(session, (0, 0, False))
            if now != before:
                self._seen[session] = now
                self._tell(session, before)
                self._check(session)

    def _tell(self, session: ObservedSession, before: tuple[int, int, bool]) -> None:
        who = session.handle.session_id[-4:]
        for request in session.requests[before[1] :]:
            kinds = ", ".join(type(item).__name__ for item in request.items)
            self._note(f"provider of {who}", f"is asked with {kinds}")
        for event in session.events[before[0] :]:
            self._note(f"client of {who}", event.event)
        if session.handle.ended is not None and not before[2]:
            self._note(f"handle of {who}", f"outcome {session.handle.ended.status}")

    def _check(self, session: ObservedSession) -> None:
        ended = session.handle.ended
        if ended is None and session.events:
            # The event may be heard one step before the handle knows.
            last = session.events[-1].event
            ended = last if isinstance(last, SessionEnded) else None
        check_session(
            session.events,
            ended=ended,
            requests=session.requests,
            requests_at_stop=session.requests_at_stop,
            continued_at_detach=session.continued_at_detach,
            has_gaps=bool(session.gaps),
            format=self._world.provider.format,
        )


class _StoreWatch:
    """Invariants 4, 8 and 10 of what stores are given: ends that stay, pauses and fences that
    only grow."""

    def __init__(self) -> None:
        self.records: dict[str, SessionRecord] = {}
        self._pause = NEVER_PAUSED

    def commit(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if not isinstance(operation, Put):
                continue
            if operation.book is Book.SESSIONS:
                self._take_record(msgspec.json.decode(operation.document, type=SessionRecord))
            elif operation.id == DISPATCH_STATUS_ID:
                self._take_pause(msgspec.json.decode(operation.document, type=DispatchStatus))

    def _take_record(self, new: SessionRecord) -> None:
        old = self.records.get(new.id)
        self.records[new.id] = new
        if old is not None:
            self._compare(old, new)

    def _take_pause(self, new: DispatchStatus) -> None:
        old, self._pause = self._pause, new
        until_before = parse_timestamp(old.paused_until)
        until = parse_timestamp(new.paused_until)
        both = old.state is new.state is DispatchState.PAUSED
        if both and until_before is not None and (until is None or until < until_before):
            raise InvariantBroken(8, f"paused until {old.paused_until}, then {new.paused_until}")

    @staticmethod
    def _compare(old: SessionRecord, new: SessionRecord) -> None:
        if old.is_terminal and not old.presumed_dead and old.status is not new.status:
            raise InvariantBroken(4, f"{old.id} was {old.status}, and is {new.status} now")
        if old.fence and new.fence and new.fence.token < old.fence.token:
            raise InvariantBroken(10, f"{old.id}: fence {old.fence} went back to {new.fence}")
