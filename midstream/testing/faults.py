"""What may go wrong in an explored run, and when: all of it decided by the run's choices.

`Faults` says which kinds a scenario allows. `faulty_kernel` makes actors crash at their n-th
message, slow and yielding, and their mailboxes small; `FaultyStore` fails, is slow, or
commits and then fails; `JumpingClock` is a wall clock that jumps. Faulty streams are scripts
(`faulty_script`). The tamest choice is always that nothing happens.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec
import trio

from midstream.actors.actor import Actor, ActorRun
from midstream.actors.clock import TrioClock
from midstream.actors.mailbox import Mailbox
from midstream.messages.errors import StoreError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import (
    BlockStarted,
    StreamStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
)
from midstream.providers.scripted import Hang, Leave, Pause, Raise, SlowClose, SlowStart, Step
from midstream.stores.memory import MemoryStore
from midstream.stores.store import (
    MAX_LIMIT,
    Append,
    Book,
    Log,
    Operation,
    Page,
    Put,
    Query,
    Receipt,
    Stored,
)
from midstream.testing.choices import Choices
from midstream.testing.trace import Trace

YIELD = "yield"
CRASH = "crash"
SLOW = "slow"
STORE = "store"
LOST = "lost"
LATE = "late"
FULL = "full"
PROVIDER = "provider"
WALL = "wall clock"
MAILBOX = "mailbox"
LAGGARD = "laggard"
BUG = "bug"

LAGGARDS = (
    "session",
    "rule_matcher",
    "stream_monitor",
    "retry_scheduler",
    "tool_runner",
    "ledger",
    "announcer",
)
"""Actors one or two of which may be slower than all others throughout a run: what overtakes what
is then another than in most runs, again and again."""


ROUTINE = frozenset({"Refresh", "DrainQueue", "KeepState", "WriteLogs", "RecordEvents"})
"""Messages that a trace leaves out, since they come all the time and decide nothing."""


class InjectedCrash(RuntimeError):
    """An actor was made to crash."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What may go wrong in a scenario besides the order of things."""

    crashing: tuple[str, ...] = ()
    """Last places of the paths of actors one of which may crash, such as `rule_matcher`."""
    most_crashes: int = 1
    slow_actors: bool = True
    """Whether a message may be handled late."""
    laggards: tuple[str, ...] = LAGGARDS
    """Who may be slower than all others throughout a run, if actors may be slow. Who is named more
    often than once is so in more of the runs."""
    store: bool = False
    store_has_bugs: bool = False
    """Whether calls of the store may raise what no store should."""
    wall_clock: bool = False
    small_mailboxes: bool = True


class Witness(Protocol):
    """Who sees all messages. It must not raise."""

    def on_put(self, message: object) -> None:
        """Somebody puts this into a mailbox."""
        ...

    def on_taken(self, who: str, message: object) -> None:
        """The actor at the path `who` takes this out of its mailbox."""
        ...


class _Kernel:
    """Stands before and behind the handling of each message."""

    def __init__(self, choices: Choices, trace: Trace, faults: Faults, witness: "Witness") -> None:
        self._choices = choices
        self._trace = trace
        self._faults = faults
        self._witness = witness
        laggards = ("", "", "", *faults.laggards) if faults.slow_actors else ("",)
        self._laggards = [choices.one_of(LAGGARD, laggards) for _ in range(2)]
        self._handled: dict[str, int] = {}
        self._crashes = dict(self._plan()) if faults.crashing else {}

    def _plan(self) -> Generator[tuple[tuple[str, int], bool]]:
        """Who crashes at which of its messages, and whether when it was handled."""
        for _ in range(self._choices.pick(CRASH, self._faults.most_crashes + 1)):
            victim = self._choices.one_of(CRASH, self._faults.crashing)
            number = 1 + self._choices.pick(CRASH, 12)
            yield (victim, number), bool(self._choices.pick(CRASH, 2))

    def wrap(self, actor: Actor[Any], who: str) -> None:
        """Put this before and behind the hook of `actor` that handles mail.

        The pauses are behind it: between taking a message and handling it no actor waits.
        """
        target = cast(Any, actor)
        started = actor.started

        name = who.rsplit("/", 1)[-1]

        async def late_started() -> None:
            await started()
            await self.pause(name)

        target.started = late_started
        if type(actor).handle_batch is not Actor[Any].handle_batch:
            handle_batch = actor.handle_batch

            async def batch(messages: tuple[Any, ...]) -> None:
                await self._around(who, messages, lambda: handle_batch(messages))

            target.handle_batch = batch
            return
        handle = actor.handle

        async def one(message: Any) -> None:
            await self._around(who, (message,), lambda: handle(message))

        target.handle = one

    async def _around(
        self, who: str, messages: tuple[Any, ...], handle: Callable[[], Awaitable[None]]
    ) -> None:
        name = who.rsplit("/", 1)[-1]
        due: set[bool] = set()
        for message in messages:
            if type(message).__name__ not in ROUTINE:
                self._trace.note(trio.current_time(), who, message)
            self._witness.on_taken(who, message)
            number = self._handled[name] = self._handled.get(name, 0) + 1
            if (late := self._crashes.pop((name, number), None)) is not None:
                due.add(late)
        if False in due:
            self._crash(who, "before it handled that")
        await handle()
        if True in due:
            self._crash(who, "when it had handled that")
        await self.pause(name)

    def _crash(self, who: str, when: str) -> None:
        self._trace.note(trio.current_time(), who, f"!! crashes, {when}")
        raise InjectedCrash(f"injected, {when}")

    async def pause(self, name: str) -> None:
        """Let others go first, sometimes for long; the laggards of the run most of the time."""
        choices = self._choices
        if name in self._laggards:
            await trio.sleep(choices.one_of(LAGGARD, (0.0, 0.0, 0.01, 0.06, 0.15)))
            return
        for _ in range(choices.one_of(YIELD, (0, 0, 0, 0, 0, 1, 1, 3))):
            await trio.lowlevel.checkpoint()
        if self._faults.slow_actors and choices.once_in(SLOW, 60):
            await trio.sleep(choices.one_of(SLOW, (0.0, 0.001, 0.05, 0.1, 1.0)))


@contextmanager
def faulty_kernel(
    choices: Choices, trace: Trace, faults: Faults, witness: Witness
) -> Generator[None]:
    """While this lasts, actors and mailboxes of this process do what `choices` say, and the
    `witness` sees each message go into a mailbox and out of it.

    The kernel has no hooks for this, so its methods are replaced, here and nowhere else.
    """
    kernel = _Kernel(choices, trace, faults, witness)
    run, box = cast(Any, ActorRun).run, cast(Any, Mailbox)
    put, put_nowait, make = box.put, box.put_nowait, box.__init__

    async def watched_run(self: Any, on_started: Callable[[], None]) -> Any:
        kernel.wrap(self._actor, self.cell.who)
        return await run(self, on_started)

    async def yielding_put(self: Any, item: Any) -> None:
        for _ in range(choices.one_of(YIELD, (0, 0, 0, 0, 1, 2))):
            await trio.lowlevel.checkpoint()
        witness.on_put(item)
        await put(self, item)

    def witnessed_put_nowait(self: Any, item: Any) -> None:
        put_nowait(self, item)
        witness.on_put(item)

    def small_mailbox(self: Any, capacity: int) -> None:
        if faults.small_mailboxes:
            capacity = choices.one_of(MAILBOX, (capacity, capacity, capacity, min(capacity, 8)))
        make(self, capacity)

    replaced: Mapping[tuple[Any, str], Any] = {
        (ActorRun, "run"): (run, watched_run),
        (Mailbox, "put"): (put, yielding_put),
        (Mailbox, "put_nowait"): (put_nowait, witnessed_put_nowait),
        (Mailbox, "__init__"): (make, small_mailbox),
    }
    for (owner, name), (_, new) in replaced.items():
        setattr(owner, name, new)
    try:
        yield
    finally:
        for (owner, name), (old, _) in replaced.items():
            setattr(owner, name, old)


STEPS = frozenset({Book.SESSIONS, Book.CONVERSATIONS})
"""Books that are written with the steps of sessions, where a failure has to be made good."""


MOST_BUGS = 2
"""That a store has in a run: one fewer than a question is asked, so that none has to fail."""

MOST_STEPS = 8
"""A session of one answer writes two, one with a reminder three, and a call takes two more."""


def bugs_of_a_store(choices: Choices) -> dict[int, bool]:
    """Which of its next calls meet a bug; whether when they are done."""
    number = choices.pick(BUG, MOST_BUGS + 1)
    return {1 + choices.pick(BUG, 40): bool(choices.pick(BUG, 2)) for _ in range(number)}


MOST_BLOCKS = 4
"""Of events, one of which finds the logs full."""


class FaultyStore(MemoryStore):
    """A store that is sometimes slow, away, or commits and then says that it failed.

    It begins to be faulty when `choices` are given, so that a test can look at it in peace.
    `watch` is called with each commit that was made.
    """

    def __init__(self, contents: Any = None) -> None:
        super().__init__(contents)
        self.choices: Choices | None = None
        self.trace: Trace | None = None
        self.watch: Callable[[Sequence[Operation]], None] | None = None
        self._away_until = 0.0
        self._steps: int | None = None
        """Steps until the store is away for a while."""
        self._loses_answers: bool | None = None
        self._is_late: bool | None = None
        self._blocks: int | None = None
        """Blocks of events until the logs are full for a while."""
        self._full_until = 0.0
        self.bugs: dict[int, bool] = {}
        """Calls, counted from the next one, that meet a bug; whether when they are done."""

    def reopen(self) -> "FaultyStore":
        return FaultyStore(self._contents)

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        matters = any(isinstance(each, Put) and each.book in STEPS for each in operations)
        if any(isinstance(each, Append) and each.log is Log.EVENTS for each in operations):
            await self._trouble_with_a_log()
        fails_late = await self._trouble(can_fail_late=True, matters=matters)
        with self._perhaps_a_bug():
            receipt = await super().commit(operations, key=key, durable=durable)
            if self.watch is not None and not receipt.replayed:
                self.watch(operations)
        if fails_late:
            raise StoreError("injected: it was committed, and the answer was lost")
        return receipt

    async def get(self, book: Book, id: str) -> Stored | None:
        await self._trouble(can_fail_late=False)
        with self._perhaps_a_bug():
            return await super().get(book, id)

    async def find(self, book: Book, query: Query) -> Page:
        await self._trouble(can_fail_late=False)
        with self._perhaps_a_bug():
            return await super().find(book, query)

    async def read(
        self, log: Log, key: str, start: int = 0, limit: int = MAX_LIMIT
    ) -> Sequence[msgspec.Raw]:
        await self._trouble(can_fail_late=False)
        with self._perhaps_a_bug():
            return await super().read(log, key, start, limit)

    async def _trouble(self, *, can_fail_late: bool, matters: bool = False) -> bool:
        """What goes wrong with a call before it is done. Whether its answer is to be lost then."""
        choices = self.choices
        if choices is None:
            return False
        await self._be_away(choices, matters=matters)
        loses_the_answer = can_fail_late and (
            await self._be_late(choices, matters=matters)
            or (not matters and self._loses_this_answer(choices))
        )
        if loses_the_answer or await self._fail(
            choices, can_fail_late=can_fail_late, matters=matters
        ):
            self._note("!! the store commits, and fails")
            return True
        return False

    async def _be_away(self, choices: Choices, *, matters: bool) -> None:
        is_away = trio.current_time() < self._away_until
        if not is_away and matters and self._goes_away_now(choices):
            away_s = choices.one_of(STORE, (0.5, 3.0, 20.0))
            self._away_until = trio.current_time() + away_s
            self._note(f"!! the store is away for {away_s} s")
            is_away = True
        if is_away:
            await trio.lowlevel.checkpoint()
            raise StoreError("injected: the store is away")

    async def _be_late(self, choices: Choices, *, matters: bool) -> bool:
        """In one run of eight, with all that is no step, so that two of them overlap; and one
        step of four is not told what became of it. Whether it is this one."""
        if self._is_late is None:
            self._is_late = choices.once_in(LATE, 8)
        if self._is_late and matters:
            return choices.once_in(LATE, 4)
        if self._is_late:
            await trio.sleep(choices.one_of(LATE, (0.0, 0.4, 1.0, 1.5)))
        return False

    async def _fail(self, choices: Choices, *, can_fail_late: bool, matters: bool) -> bool:
        """Now and then: be slow, fail, or, if it can, do it and lose the answer."""
        options = 32 if matters else 64
        from_the_end = options - choices.pick(STORE, options)
        if from_the_end > 10:
            return False
        if from_the_end > 3:
            await trio.sleep(choices.one_of(STORE, (0.0, 0.001, 0.05, 0.5, 4.0)))
            return False
        if from_the_end == 1 and can_fail_late:
            return True
        self._note("!! the store fails")
        await trio.lowlevel.checkpoint()
        raise StoreError("injected: the store is down")

    @contextmanager
    def _perhaps_a_bug(self) -> Generator[None]:
        self.bugs = {calls - 1: late for calls, late in self.bugs.items() if calls}
        late = self.bugs.get(0)
        if late is not None:
            self._note("!! the store has a bug")
        if late is False:
            raise InjectedCrash("injected: a bug, before it was done")
        yield
        if late:
            raise InjectedCrash("injected: a bug, when it was done")

    def _goes_away_now(self, choices: Choices) -> bool:
        """Once in a run, or never: at any of its first steps alike, so that what is written last
        is met as often as what is written first."""
        if self._steps is None:
            self._steps = choices.pick(STORE, MOST_STEPS)
        self._steps -= 1
        return self._steps == 0

    async def _trouble_with_a_log(self) -> None:
        """In one run of eight no events are kept for a while, and everything else is: what was
        said is then older than whoever remembers it."""
        choices = self.choices
        if choices is None:
            return
        if self._blocks is None:
            is_full = choices.once_in(FULL, 8)
            self._blocks = 1 + choices.pick(FULL, MOST_BLOCKS) if is_full else 0
        self._blocks -= 1
        if self._blocks == 0:
            full_s = choices.one_of(FULL, (1.0, 5.0, 40.0))
            self._full_until = trio.current_time() + full_s
            self._note(f"!! the logs are full for {full_s} s")
        if trio.current_time() < self._full_until:
            await trio.lowlevel.checkpoint()
            raise StoreError("injected: the log is full")

    def _loses_this_answer(self, choices: Choices) -> bool:
        """In one run of eight, every other time: who writes what is no step (that something was
        told, a beat, a block of events) tries again, and finds that it is there."""
        if self._loses_answers is None:
            self._loses_answers = choices.once_in(LOST, 8)
        return self._loses_answers and choices.once_in(LOST, 2)

    def _note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.note(trio.current_time(), "store", what)


class JumpingClock(TrioClock):
    """A wall clock that may be set at any moment, hours forward or back."""

    def __init__(self, start_ms: int) -> None:
        super().__init__(start_ms)
        self._offset_ms = 0

    def jump(self, seconds: float) -> None:
        """Set the clock."""
        self._offset_ms += round(seconds * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._offset_ms


GARBAGE: tuple[Sequence[Step], ...] = (
    (TextDelta(7, "text of a block that never began"),),
    (ToolArgumentsDelta(3, '{"half'),),
    (ToolCallFinished(2, "call_9", "write", '{"half'),),
    (BlockStarted(0, "a kind that nobody knows"), TextDelta(0, "\ud83d half a character")),
    (StreamStarted("msg_1", "again"),),
)
"""What no provider should send."""

SENT_AFTER_THE_END: Sequence[Step] = (TextDelta(0, " foo after the end"), Hang())


def faulty_script(choices: Choices, steps: Sequence[Step], most_s: float = 0.1) -> list[Step]:
    """A script, paced, and with whatever a provider may do to it."""
    script: list[Step] = []
    if choices.once_in(PROVIDER, 6):
        script.append(SlowStart(choices.seconds(PROVIDER, most_s)))
    for step in steps:
        script.append(step)
        if choices.once_in(PROVIDER, 4):
            script.append(Pause(choices.seconds(PROVIDER, most_s)))
    fault = choices.pick(PROVIDER, 16)
    at = 1 + choices.pick(PROVIDER, max(1, len(script)))
    match fault:
        case 9:
            script[at:] = [Hang()]
        case 10:
            script[at:] = [ProviderFailure(FailureKind.NETWORK, "injected: reset by peer")]
        case 11:
            script[at:at] = choices.one_of(PROVIDER, GARBAGE)
        case 12:
            script.extend(SENT_AFTER_THE_END)
        case 13:
            del script[at:]
        case 14:
            script[at:] = [Leave()]
        case 15:
            script[at:] = [Raise(InjectedCrash("injected: the provider's own code fails"))]
        case _:
            pass
    if choices.once_in(PROVIDER, 4):
        script.append(SlowClose(choices.seconds(PROVIDER, 2 * most_s)))
    return script
