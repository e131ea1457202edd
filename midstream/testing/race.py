"""Race: what a scenario of `midstream.testing.explore` is given, and the checks of each step.

It hands out choices, opens worlds whose stores, clocks and streams are faulty, and holds
everything that happens against the invariants at once: what clients heard, what was asked of
providers, and what the store was given.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from midstream.actors.announcer import Announce, Notify
from midstream.actors.backoff_machine import Hear
from midstream.actors.turn_settings import ContextMode
from midstream.config import Config, RulesConfig
from midstream.messages.conversation import AnyItem
from midstream.messages.events import AnyEvent, SessionEnded, ToolResult, ToolWanted
from midstream.messages.lifecycle import Down
from midstream.messages.notices import Ended
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.settle import settle_history
from midstream.providers.scripted import Script, ScriptedProvider, Step
from midstream.rules.rule import RepeatMode, Rule
from midstream.runtime import Runtime
from midstream.stores.store import Operation
from midstream.testing.attempt_watch import AttemptWatch
from midstream.testing.chain_watch import ChainWatch
from midstream.testing.choices import Choices
from midstream.testing.faults import (
    WALL,
    Faults,
    FaultyStore,
    JumpingClock,
    bugs_of_a_store,
    faulty_script,
)
from midstream.testing.invariants import (
    InvariantBroken,
    check_reminded_once,
    check_session,
    check_shown_is_watched,
)
from midstream.testing.pause_watch import PauseWatch
from midstream.testing.store_watch import StoreWatch
from midstream.testing.trace import Trace
from midstream.testing.world import START_MS, ObservedSession, World, open_world

T = TypeVar("T")

SCENARIO = "scenario"

PATIENCE_S = 10.0
"""Seconds that a scenario waits for an outcome before it interrupts a stream that says nothing
any more."""

OUTCOME_S = 120.0
"""Seconds within which a session that was interrupted has its outcome, whatever goes wrong."""

STUCK_S = 120
"""Seconds for which nothing happens in a session that is stuck; longer than any deadline of the
store."""

QUIET_S = 6.0
"""Seconds that pass behind all outcomes: nothing that was scheduled before may start then."""

DRAINED_S = 100
"""Seconds within which a store that is well again has everything, and it was made known: the queue
is looked at twice, and what was left untold too."""


class Race:
    """One run of a scenario. `faults` says what may go wrong."""

    def __init__(self, choices: Choices, trace: Trace, faults: Faults) -> None:
        self.choices = choices
        self.trace = trace
        self.faults = faults
        self.ends_told: Counter[str] = Counter()
        """How often the end of each session was made known by a notice."""
        self.announced: list[AnyEvent] = []
        """What all sessions have decided to say so far; clients hear it later, or never."""
        self.lost: set[str] = set()
        """The paths of actors that have gone down, and somebody knows."""
        self._checks: list[Callable[[], None]] = []
        self._attempts: AttemptWatch | None = None
        self._chains = ChainWatch()
        self._kept = StoreWatch()
        self._broken: InvariantBroken | None = None

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

    @property
    def pause(self) -> PauseWatch:
        """The pause that the hosts of this run share."""
        return self._kept.pause

    def always(self, check: Callable[[], None]) -> None:
        """Call `check` after each step of the run; what it raises ends the run."""
        self._checks.append(check)

    @contextmanager
    def never_asked_while_paused(
        self, runtime: Runtime, provider: ScriptedProvider
    ) -> Generator[None]:
        """Hold each request to `provider` against the pause that `runtime` knows of, as long as
        the block lasts (invariant 8)."""
        asked = len(provider.requests)

        def check() -> None:
            nonlocal asked
            if len(provider.requests) > asked and not runtime.is_dispatchable():
                raise InvariantBroken(8, "the provider was asked while the window is open")
            asked = len(provider.requests)

        self.always(check)
        try:
            yield
        finally:
            self._checks.remove(check)

    def watch_attempts(self, config: Config) -> None:
        """Hold the attempts of all sessions against what `config` allows."""
        self._attempts = AttemptWatch(
            config.budget, config.rules.retry_delay_ms / 1000, self._recoveries
        )

    def on_put(self, message: object) -> None:
        """Somebody puts a message into a mailbox, for the kernel."""
        if isinstance(message, Announce):
            self.announced += message.events
        if self._attempts is not None:
            with self._kept_for_the_step():
                self._attempts.put(message, trio.current_time())

    def on_taken(self, who: str, message: object) -> None:
        """An actor takes a message out of it, for the kernel."""
        if isinstance(message, Hear):
            self.pause.take(message)
        elif isinstance(message, Notify):
            ends = (notice for notice in message.notices if isinstance(notice, Ended))
            self.ends_told.update(notice.session_id for notice in ends)
        elif isinstance(message, Down):
            self.lost.add(message.who)
        self._chains.take(who, message)
        if self._attempts is not None:
            with self._kept_for_the_step():
                self._attempts.take(who, message, trio.current_time())

    def _on_commit(self, writer: FaultyStore, operations: Sequence[Operation]) -> None:
        with self._kept_for_the_step():
            self._kept.commit(operations, writer)

    @contextmanager
    def _kept_for_the_step(self) -> Generator[None]:
        """What is found in the middle of an actor's work would only crash the actor."""
        try:
            yield
        except InvariantBroken as broken:
            self._broken = self._broken or broken

    def _is_lost(self, session_id: str) -> bool:
        return self._attempts is not None and self._attempts.is_lost(session_id)

    def _recoveries(self, session_id: str) -> int:
        record = self.records.get(session_id)
        return record.recoveries if record is not None else 0

    def note(self, who: str, what: object) -> None:
        """Write a line into the trace."""
        self.trace.note(trio.current_time(), who, what)

    def after_step(self) -> None:
        """All checks, for the scheduler."""
        if self._broken is not None:
            raise self._broken
        self.pause.check()
        for check in self._checks:
            check()

    def store(self) -> FaultyStore:
        """A store with the faults that the scenario allows, and with its promises checked."""
        store = FaultyStore()
        return self.entrust(store)

    def entrust(self, store: FaultyStore) -> FaultyStore:
        """Let a handle on a store be faulty, and hold what it is given against the design."""
        store.trace = self.trace
        store.watch = partial(self._on_commit, store)
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
        config = config or Config(rules=RulesConfig(discover=False))
        rules = tuple(rules)
        self.watch_attempts(config)
        async with (
            open_world(
                *scripts,
                rules=rules,
                config=config,
                provider=provider,
                store=store,
                clock=clock,
                seed=self.choices.seed,
                **more,
            ) as world,
            trio.open_nursery() as nursery,  # it ends before the world is checked
        ):
            world.has_gaps = "announcer" in self.faults.crashing
            watch = _WorldWatch(world, self.note, rules, config.rules, self._is_lost)
            self.always(watch.step)
            nursery.start_soon(self.trouble, clock)
            if self.faults.store_has_bugs:  # whoever opens a world wants it to begin
                store.bugs = bugs_of_a_store(self.choices)
            with self.never_asked_while_paused(world.runtime, world.provider):
                yield world
                await self.end(world)
            store.choices, store.bugs = None, {}
            watch.end()
            await self._drained(world)
            self._check_kept(world, config.rules)
            self._check_counted(world)
            nursery.cancel_scope.cancel()

    async def end(self, world: World) -> None:
        """Wait for all outcomes, and then for a while in which nothing may start."""
        for session in world.sessions:
            await self._outcome(world, session)
        requests = [len(session.requests) for session in world.sessions]
        await trio.sleep(QUIET_S)
        if requests != [len(session.requests) for session in world.sessions]:
            raise InvariantBroken(4, "a session asked the model again behind its outcome")
        if world.provider.live:
            raise InvariantBroken(1, f"{world.provider.live} streams are open behind all outcomes")

    async def _drained(self, world: World) -> None:
        """Wait until the store, which is well by now, has the end of each session, and nothing
        that is still to be told."""
        for _ in range(DRAINED_S):
            if not (self._kept.untold or any(map(self._is_left_open, world.sessions))):
                return
            await trio.sleep(1.0)
        for session in world.sessions:
            if self._is_left_open(session):
                record = self.records[session.handle.session_id]
                told = f"told {self.ends_told[record.id]} times"
                raise InvariantBroken(4, f"{record.id} is over, and {record.status}, {told}")
        if self._kept.untold:
            raise InvariantBroken(4, f"{sorted(self._kept.untold)} are told again and again")

    def _is_left_open(self, session: ObservedSession) -> bool:
        """Whether the end of the session is not on record, or was not made known: once, unless
        who does so has crashed meanwhile."""
        record = self.records.get(session.handle.session_id)
        if record is None:
            return False
        told, may_be_repeated = self.ends_told[record.id], "ledger" in self.faults.crashing
        return not record.is_terminal or not told or (told > 1 and not may_be_repeated)

    def _check_kept(self, world: World, rules: RulesConfig) -> None:
        """Invariants 2, 4 and 10: the store has the outcome that was told, what the session has
        said to its last model, once, and nothing of the model that was taken back."""
        for session in world.sessions:
            handle = session.handle
            record, kept = (
                self.records.get(handle.session_id),
                self._kept.conversations.get(handle.conversation_id),
            )
            if record is None or kept is None or kept.meta is None or handle.ended is None:
                continue
            if record.status is not handle.ended.status:
                raise InvariantBroken(4, f"told {handle.ended}, but on record is {record.status}")
            if kept.meta.session_id == handle.session_id and session.requests:
                _check_context_is_kept(
                    session.requests[-1].items, kept.context, world.provider.format
                )
            if rules.context_mode is ContextMode.DISCARD and not session.gaps:
                said = self._kept.said_in(handle.conversation_id, handle.session_id)
                if unheard := _characters_beyond(session.prose, said):
                    raise InvariantBroken(2, f"{unheard} is kept, and was not said or taken back")

    def _check_counted(self, world: World) -> None:
        """Invariant 7: the store has counted what was asked for without the user."""
        for name, kept in self._kept.conversations.items():
            if kept.stop_message is None or kept.stop_message.text is None:
                continue  # there is none, or it was cleared with its count
            handles = [s.handle for s in world.sessions if s.handle.conversation_id == name]
            ended = {each.session_id: each.ended.status for each in handles if each.ended}
            self._chains.check(ended, kept.stop_message.used)

    async def _check_lives(self, world: World, session: ObservedSession) -> None:
        """A session that has waited so long waits for something: a stream, the end of a pause or of
        those that probe it, a call, or a store that takes its time."""
        events = len(session.events)
        for _ in range(STUCK_S):
            is_held = not world.runtime.is_dispatchable() or self.pause.is_waited_for_by(
                session.handle.session_id
            )
            waits = session.live_streams or is_held
            if waits or session.handle.ended is not None or len(session.events) > events:
                return
            await trio.sleep(1.0)
        said = [event.event for event in session.events]
        answered = {event.call_id for event in said if isinstance(event, ToolResult)}
        wanted = {event.call_id for event in said if isinstance(event, ToolWanted)}
        if wanted <= answered:
            raise InvariantBroken(4, f"{session.handle.session_id} waits for nothing for ever")

    async def _outcome(self, world: World, session: ObservedSession) -> None:
        with trio.move_on_after(PATIENCE_S):
            await session.result()
            return
        await self._check_lives(world, session)
        self.note("user", "has waited long enough, and interrupts")
        await session.interrupt()
        with trio.move_on_after(OUTCOME_S):
            await session.result()
            return
        raise InvariantBroken(4, f"{session.handle.session_id} does not end when it is stopped")


class _WorldWatch:
    """What clients heard and what was asked, held against the invariants at each step."""

    def __init__(
        self,
        world: World,
        note: Callable[[str, object], None],
        rules: Sequence[Rule],
        config: RulesConfig,
        is_lost: Callable[[str], bool],
    ) -> None:
        self._world = world
        self._is_lost = is_lost
        self._note = note
        self._rules = rules
        self._once = [
            rule.name
            for rule in rules
            if (rule.repeat_mode or config.repeat_mode) is RepeatMode.ONCE
        ]
        self._seen: dict[ObservedSession, tuple[int, int, bool]] = {}
        self._checked: dict[ObservedSession, int] = {}
        """How many requests of each session were looked at."""

    def step(self) -> None:
        """Called after each step of the run, so it looks for what has changed first."""
        live: set[str] = set()
        for session in self._world.sessions:
            handle, streams = session.handle, session.live_streams
            ended = handle.ended
            if ended is None:
                if handle.conversation_id in live:
                    raise InvariantBroken(1, f"{handle.conversation_id} has two live sessions")
                live.add(handle.conversation_id)
            if streams and (streams > 1 or ended is not None):
                self._check_streams(session, streams, ended)
            now = (len(session.events), len(session.requests), ended is not None)
            before = self._seen.get(session, (0, 0, False))
            if now != before:
                self._seen[session] = now
                self._tell(session, before)
                self._check(session)

    def _check_streams(
        self, session: ObservedSession, streams: int, ended: SessionEnded | None
    ) -> None:
        if streams > 1:
            raise InvariantBroken(1, f"{streams} streams of one session are open")
        # What crashes, or is not closed in time, may leave its stream behind for a moment.
        has_failed = ended is None or ended.status is SessionStatus.FAILED
        if not has_failed and not self._is_lost(session.handle.session_id):
            raise InvariantBroken(1, f"{ended}, and its stream is open")

    def end(self) -> None:
        """Everybody has an outcome: look at the whole."""
        for session in self._world.sessions:
            if not session.gaps:
                check_shown_is_watched(session.events, self._rules)

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
            was_stopped=session.was_stopped,
        )
        for request in session.requests[self._checked.get(session, 0) :]:
            check_reminded_once(request, self._once)
        self._checked[session] = len(session.requests)


def _characters_beyond(heard: str, said: str) -> Counter[str]:
    """The characters of `said` that are not among those of `heard`: deltas of two blocks may come
    in turns. Most of the time the one text is in the other, and nothing has to be counted."""
    return Counter() if said in heard else Counter(said) - Counter(heard)


def _check_context_is_kept(asked: Sequence[AnyItem], kept: Sequence[AnyItem], format: str) -> None:
    sent, stored = settle_history(asked, format), settle_history(kept, format)
    if sent != stored[: len(sent)]:
        raise InvariantBroken(10, f"the model was asked with {sent}, and {stored} is kept")
