"""Each call is reported on exactly once, whatever happens to it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.open_actor import open_actor
from midstream.actors.open_calls import (
    Acknowledge,
    Begin,
    CallEnded,
    Cut,
    Effect,
    Key,
    Message,
    OpenCalls,
    Report,
    SetTimer,
    Stage,
    TimeUp,
    ToolLimits,
    bounded,
)
from midstream.actors.tool_runner import ToolRunner
from midstream.messages.conversation import ToolCallPart
from midstream.messages.settle import ToolOutcome, ToolState
from midstream.messages.work import CancelTools, FindTools, RunTools, ToolAnswer, ToolSettled

HOST_TOOLS = frozenset({"ask"})
DONE = ToolOutcome(ToolState.RETURNED, "done")
UNKNOWN = ToolOutcome(ToolState.UNKNOWN)
NOT_STARTED = ToolOutcome(ToolState.NOT_STARTED)


class Answered:
    """A reply that keeps what it was told."""

    def __init__(self) -> None:
        self.taken: bool | None = None

    def send(self, value: bool) -> bool:
        self.taken = value
        return True

    def fail(self, error: Exception) -> bool:
        raise error


def run(attempt: int, *names: str) -> RunTools:
    parts = [ToolCallPart(f"c{number}", name, "{}") for number, name in enumerate(names, 1)]
    return RunTools(attempt, tuple(parts))


def open_calls(parallel: int = 8) -> OpenCalls:
    limits = ToolLimits(parallel=parallel, deadline_s=10, host_deadline_s=60, grace_s=5)
    return OpenCalls({"work": 10.0}, HOST_TOOLS, limits)


def reports(effects: list[Effect]) -> dict[Key, ToolOutcome]:
    return {effect.key: effect.outcome for effect in effects if isinstance(effect, Report)}


def begun(effects: list[Effect]) -> list[Key]:
    return [effect.key for effect in effects if isinstance(effect, Begin)]


# --- the decision


def test_calls_wait_for_a_free_place_in_their_order() -> None:
    calls = open_calls(parallel=2)
    assert begun(calls.receive([run(1, "work", "work", "work")])) == [(1, "c1"), (1, "c2")]
    assert begun(calls.receive([CallEnded(1, "c2", DONE)])) == [(1, "c3")]


def test_a_call_for_the_host_takes_no_place() -> None:
    calls = open_calls(parallel=1)
    assert begun(calls.receive([run(1, "ask", "work")])) == [(1, "c2")]


def test_a_call_that_is_stopped_before_the_runner_looked_is_never_begun() -> None:
    calls = open_calls()
    effects = calls.receive([run(1, "work", "ask"), CancelTools(1)])
    assert not begun(effects)
    assert reports(effects) == {(1, "c1"): NOT_STARTED, (1, "c2"): NOT_STARTED}


def test_a_stop_of_another_attempt_stops_nothing() -> None:
    assert begun(open_calls().receive([CancelTools(1), run(2, "work")])) == [(2, "c1")]


def test_a_stop_reports_at_once_what_does_not_run() -> None:
    calls = open_calls(parallel=1)
    calls.receive([run(1, "work", "work", "ask")])
    effects = calls.receive([CancelTools(1)])
    assert reports(effects) == {(1, "c2"): NOT_STARTED, (1, "c3"): UNKNOWN}
    assert Cut((1, "c1")) in effects


def test_calls_that_went_with_an_earlier_runner_are_unknown_and_others_go_on() -> None:
    calls = open_calls(parallel=2)
    calls.receive([run(1, "work", "work", "work", "ask"), CallEnded(1, "c1", DONE)])
    effects = calls.receive([FindTools(1, ("c1", "c2", "c3", "c4", "c5"))])
    assert effects == [Report((1, "c5"), UNKNOWN)]
    assert not calls.receive([FindTools(1, ("c5",))])


def test_calls_that_a_runner_finds_in_its_mailbox_were_not_lost() -> None:
    effects = open_calls().receive([run(2, "work"), FindTools(2, ("c1",))])
    assert begun(effects) == [(2, "c1")]
    assert not reports(effects)


def test_calls_that_were_stopped_before_the_runner_looked_were_not_lost() -> None:
    effects = open_calls().receive([run(1, "work"), FindTools(1, ("c1",)), CancelTools(1)])
    assert effects == [Report((1, "c1"), NOT_STARTED)]


def test_what_returns_behind_a_stop_has_returned() -> None:
    calls = open_calls()
    calls.receive([run(1, "work")])
    calls.receive([CancelTools(1)])
    assert reports(calls.receive([CallEnded(1, "c1", DONE)])) == {(1, "c1"): DONE}


def test_a_deadline_that_passes_behind_a_stop_is_not_the_end_of_the_grace() -> None:
    calls = open_calls()
    calls.receive([run(1, "work")])
    calls.receive([CancelTools(1)])
    assert not calls.receive([TimeUp(1, "c1", Stage.RUNNING)])
    assert reports(calls.receive([TimeUp(1, "c1", Stage.STOPPED)])) == {(1, "c1"): UNKNOWN}


def test_a_call_that_was_given_up_gives_its_place_to_the_next() -> None:
    calls = open_calls(parallel=1)
    calls.receive([run(1, "work", "work")])
    calls.receive([TimeUp(1, "c1", Stage.RUNNING)])
    effects = calls.receive([TimeUp(1, "c1", Stage.OVERDUE)])
    assert begun(effects) == [(1, "c2")]
    assert not calls.receive([CallEnded(1, "c1", DONE)])


@given(st.text(max_size=60), st.integers(1, 50))
def test_a_bounded_result_keeps_both_ends(content: str, limit: int) -> None:
    cut = bounded(content, limit)
    if len(content) <= limit:
        assert cut == content
    else:
        start, end = limit - limit // 2, limit // 2
        assert cut.startswith(content[:start])
        assert cut.endswith(content[len(content) - end :])
        assert f"{len(content) - limit} of {len(content)} characters" in cut


@dataclass
class Surroundings:
    """What the actor would do about the effects, and what may happen next."""

    calls: OpenCalls
    parallel: int
    running: dict[Key, bool] = field(default_factory=dict[Key, bool])
    """Tasks, and whether they were cut."""
    timers: dict[Key, Stage] = field(default_factory=dict[Key, Stage])
    reported: list[Key] = field(default_factory=list[Key])
    stopped: set[int] = field(default_factory=set[int])

    def receive(self, *messages: Message) -> None:
        self.stopped |= {m.attempt for m in messages if isinstance(m, CancelTools)}
        for effect in self.calls.receive(messages):
            match effect:
                case Begin(key):
                    self.running[key] = False
                case Cut(key):
                    self.running[key] = True
                case SetTimer(key, stage):
                    self.timers[key] = stage
                case Report(key):
                    self.reported.append(key)
                    self.timers.pop(key, None)
                case Acknowledge():
                    pass
        live = [key for key in self.running if key not in self.reported]
        assert len(live) <= self.parallel

    def possible(self) -> list[Message]:
        ends = [
            CallEnded(*key, outcome)
            for key, cut in self.running.items()
            for outcome in ([DONE, None] if cut else [DONE])
        ]
        return [*ends, *(TimeUp(*key, stage) for key, stage in self.timers.items())]

    def happen(self, message: Message) -> None:
        if isinstance(message, CallEnded):
            self.running.pop((message.attempt, message.call_id))
        self.receive(message)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 3))
def test_every_call_is_reported_on_exactly_once(data: st.DataObject, parallel: int) -> None:
    world = Surroundings(open_calls(parallel), parallel)
    names = st.lists(st.sampled_from(["work", "ask", "unknown"]), min_size=1, max_size=5)
    wanted: set[Key] = set()
    for attempt in range(1, data.draw(st.integers(1, 3)) + 1):
        batch = run(attempt, *data.draw(names))
        wanted |= {(attempt, part.call_id) for part in batch.calls}
        world.receive(batch, *([CancelTools(attempt)] if data.draw(st.booleans()) else []))
        for _ in range(data.draw(st.integers(0, 8))):
            others: list[Message] = [
                ToolAnswer("c1", "granted", False, None, Answered()),
                CancelTools(attempt),
                FindTools(attempt, tuple(part.call_id for part in batch.calls)),
            ]
            message = data.draw(st.sampled_from([*world.possible(), *others]))
            world.happen(message)
    while messages := world.possible():
        world.happen(messages[0])
    assert sorted(world.reported) == sorted(wanted)


# --- the actor


class Listener(Actor[ToolSettled]):
    """A session that hears reports, one a second if it is `slow`."""

    def __init__(self, *, slow: bool = False) -> None:
        self.heard: list[ToolSettled] = []
        self._slow = slow

    async def handle(self, message: ToolSettled) -> None:
        if self._slow:
            await trio.sleep(1)
        self.heard.append(message)


class Work:
    """A tool that does `what`."""

    deadline_s = None

    def __init__(self, what: Callable[[], Awaitable[str]]) -> None:
        self._what = what

    async def run(self, arguments: str) -> str:
        return await self._what()


async def at_once() -> str:
    return "done"


def runner(session: Address[ToolSettled], tools: Mapping[str, Work]) -> ToolRunner:
    return ToolRunner(tools, HOST_TOOLS, ToolLimits(), session)


async def test_a_stop_that_comes_with_the_calls_keeps_them_from_beginning(
    autojump_clock: MockClock,
) -> None:
    ran: list[str] = []

    async def work() -> str:
        ran.append("work")
        return "done"

    listener = Listener()
    async with (
        open_actor(listener) as session,
        open_actor(runner(session, {"work": Work(work)})) as address,
    ):
        address.tell_nowait(run(1, "work"))
        address.tell_nowait(CancelTools(1))
        await trio.sleep(1)
    assert not ran
    assert listener.heard == [ToolSettled(1, "c1", NOT_STARTED)]


async def test_a_call_that_is_begun_and_stopped_in_one_breath_was_not_started(
    autojump_clock: MockClock,
) -> None:
    ran: list[str] = []

    async def work() -> str:
        ran.append("work")
        await trio.sleep(1)
        return "done"

    listener = Listener()
    async with open_actor(listener) as session:
        tools = {"work": Work(work)}
        one_by_one = ToolRunner(tools, HOST_TOOLS, ToolLimits(parallel=1), session)
        async with open_actor(one_by_one) as address:
            await address.tell(run(1, "work", "work"))
            await trio.sleep(0.5)
            one_by_one.address.tell_nowait(CallEnded(1, "c1", DONE))
            one_by_one.address.tell_nowait(CancelTools(1))
            await trio.sleep(0.1)
    assert ran == ["work"]
    assert listener.heard == [ToolSettled(1, "c1", DONE), ToolSettled(1, "c2", NOT_STARTED)]


async def test_a_session_that_is_slow_to_listen_does_not_hold_up_the_runner(
    autojump_clock: MockClock,
) -> None:
    listener = Listener(slow=True)
    async with (
        open_actor(listener, mailbox_capacity=1) as session,
        open_actor(runner(session, {"work": Work(at_once)})) as address,
    ):
        await address.tell(run(1, *["work"] * 20, "ask"))
        await trio.sleep(0.5)
        began_at = trio.current_time()
        taken: bool = await address.ask(
            lambda reply: ToolAnswer("c21", "granted", False, None, reply), 10.0
        )
        assert taken
        assert trio.current_time() == began_at
        await trio.sleep(100)
    assert sorted(report.call_id for report in listener.heard) == sorted(
        f"c{number}" for number in range(1, 22)
    )


async def test_a_result_that_is_no_sound_text_is_made_one(autojump_clock: MockClock) -> None:
    async def work() -> str:
        await trio.lowlevel.checkpoint()
        return "half \ud83d"

    listener = Listener()
    async with (
        open_actor(listener) as session,
        open_actor(runner(session, {"work": Work(work)})) as address,
    ):
        await address.tell(run(1, "work"))
        await trio.sleep(1)
    assert listener.heard[0].outcome.content == "half \ufffd"


async def test_nothing_of_a_call_is_left_when_it_is_over(autojump_clock: MockClock) -> None:
    listener = Listener()
    async with (
        open_actor(listener) as session,
        open_actor(runner(session, {"work": Work(at_once)})) as address,
    ):
        await wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        for attempt in range(1, 20):
            await address.tell(run(attempt, "work", "work"))
            await trio.sleep(0.1)
        assert len(listener.heard) == 38
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks


@pytest.mark.parametrize("seed", range(20))
async def test_calls_are_reported_on_in_time_whatever_they_do(
    autojump_clock: MockClock, seed: int
) -> None:
    random = Random(seed)

    async def work() -> str:
        with trio.CancelScope(shield=random.random() < 0.3):
            await trio.sleep(random.choice([0, 1, 50]))
        if random.random() < 0.3:
            raise OSError("disk full")
        return "done"

    listener = Listener()
    async with (
        open_actor(listener) as session,
        open_actor(runner(session, {"work": Work(work)})) as address,
    ):
        names = random.choices(["work", "ask", "what"], k=12)
        await address.tell(run(1, *names))
        await trio.sleep(random.choice([0, 1, 2]))
        await address.tell(CancelTools(1))
        await trio.sleep(ToolLimits().grace_s + 0.1)
        assert sorted(r.call_id for r in listener.heard) == sorted(
            f"c{number}" for number in range(1, 13)
        )
