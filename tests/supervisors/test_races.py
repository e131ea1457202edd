"""What happens at the same time: messages, questions, crashes, restarts and stops.

Everything runs in virtual time. Under hypothesis trio's scheduling is part of what
hypothesis varies and repeats, so a failing schedule is found again.
"""

import random
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.actors.address import ASKS, Address
from midstream.actors.errors import ActorDied, ActorEnded, AskTimeout, MailboxFull
from midstream.messages.lifecycle import (
    AnyExit,
    AnyLifecycleEvent,
    ChildCrashed,
    ChildStarted,
    DeadLetter,
    LetterReason,
)
from midstream.messages.reply import Reply
from midstream.supervisors.child_spec import ActorSpec, Surroundings
from midstream.supervisors.errors import RestartIntensityExceeded
from midstream.supervisors.restart import Backoff, Intensity, Restart, Strategy
from midstream.supervisors.supervisor import Supervisor, open_supervisor

SLOWLY = Backoff(base_s=10, cap_s=10)  # a restart comes after 5 to 10 s
OFTEN = Intensity(max_restarts=1000, within_s=1)


class Item(msgspec.Struct, frozen=True):
    number: int
    takes_s: float = 0


class Crash(msgspec.Struct, frozen=True):
    number: int = -1
    after_s: float = 0


class Question(msgspec.Struct, frozen=True):
    reply: Reply[int]
    takes_s: float = 0


class Forward(msgspec.Struct, frozen=True):
    to: Address[Any]
    item: Item


Mail = Item | Crash | Question | Forward


class Worker(Actor[Mail]):
    def __init__(self, world: "World", name: str) -> None:
        self._world, self._name = world, name

    async def started(self) -> None:
        self._world.log.append(f"{self._name}+")
        await trio.sleep(self._world.start_s)

    async def handle(self, message: Mail) -> None:
        match message:
            case Item(number, takes_s):
                await trio.sleep(takes_s)
                self._world.handled.append(number)
            case Crash(_, after_s):
                await trio.sleep(after_s)
                raise ValueError("told to")
            case Question(reply, takes_s):
                await trio.sleep(takes_s)
                self._world.questions += 1
                if self._world.questions <= self._world.crashes:
                    raise ValueError("asked too much")
                reply.send(1)
            case Forward(to, item):
                await to.tell(item)

    async def stopped(self, reason: AnyExit) -> None:
        self._world.log.append(f"{self._name}-")
        if self._world.crash_in_stopped:
            raise OSError("cannot stop properly")


class World:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.handled: list[int] = []
        self.events: list[AnyLifecycleEvent] = []
        self.surroundings = Surroundings(random.Random(7), self.events.append)
        self.crash_in_stopped = False
        self.start_s = 0.0
        self.questions = 0
        self.crashes = 0
        """The first so many questions crash the worker."""

    def worker(self, name: str, **options: Any) -> ActorSpec[Mail]:
        return ActorSpec(name, lambda: Worker(self, name), **options)

    def letters(self, *reasons: LetterReason) -> list[Any]:
        letters = [event for event in self.events if isinstance(event, DeadLetter)]
        return [each.message for each in letters if not reasons or each.reason in reasons]

    def starts(self) -> int:
        return sum(isinstance(event, ChildStarted) for event in self.events)


@pytest.fixture
def world() -> World:
    return World()


# While an actor waits for its restart


async def test_tells_during_a_restart_are_handled_by_the_next_incarnation_in_order(
    autojump_clock: MockClock, world: World
) -> None:
    a = world.worker("a")
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        await a.address.tell(Crash())
        await wait_all_tasks_blocked()
        for number in range(5):
            await a.address.tell(Item(number))
        assert world.handled == []
        await trio.sleep(10)
        assert world.handled == [0, 1, 2, 3, 4]


async def test_a_mailbox_that_is_full_during_a_restart_makes_tells_wait(
    autojump_clock: MockClock, world: World
) -> None:
    a = world.worker("a", mailbox_capacity=2)
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        await a.address.tell(Crash())
        await wait_all_tasks_blocked()
        await a.address.tell(Item(0))
        await a.address.tell(Item(1))
        with pytest.raises(MailboxFull):
            a.address.tell_nowait(Item(99))
        await a.address.tell(Item(2))
        assert 5 <= trio.current_time() <= 10
        await wait_all_tasks_blocked()
        assert world.handled == [0, 1, 2]


async def test_an_ask_during_a_restart_is_answered_by_the_next_incarnation(
    autojump_clock: MockClock, world: World
) -> None:
    a = world.worker("a")
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        await a.address.tell(Crash())
        await wait_all_tasks_blocked()
        with pytest.raises(AskTimeout):
            await a.address.ask(Question, 1)
        assert await a.address.ask(Question, 60) == 1


async def test_askers_in_the_mailbox_of_a_crashing_actor_are_told_and_not_answered_later(
    autojump_clock: MockClock, world: World
) -> None:
    a = world.worker("a")
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        await a.address.tell(Crash(after_s=3))
        with pytest.raises(ActorDied) as caught:
            await a.address.ask(Question, 60)
        assert trio.current_time() == 3
        assert not isinstance(caught.value, ActorEnded)
        assert not caught.value.picked_up
        await trio.sleep(10)
        assert a.statistics().handled == 0
        assert len(world.letters(LetterReason.ASKER_GONE)) == 1


@pytest.mark.parametrize("crashes", range(ASKS))
async def test_a_question_that_may_be_handled_twice_is_asked_again(
    autojump_clock: MockClock, world: World, crashes: int
) -> None:
    a, world.crashes = world.worker("a"), crashes
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        assert await a.address.ask_through_crashes(Question, 60) == 1
        assert world.questions == crashes + 1


async def test_a_question_that_always_crashes_is_asked_so_often_and_no_more(
    autojump_clock: MockClock, world: World
) -> None:
    a, world.crashes = world.worker("a"), 1_000
    root = Supervisor("root", [a], backoff=SLOWLY, intensity=OFTEN)
    async with open_supervisor(root, world.surroundings):
        with pytest.raises(ActorDied, match="asked too much; it had begun"):
            await a.address.ask_through_crashes(Question, 60)
        await trio.sleep(60)
        assert world.questions == ASKS


async def test_a_question_behind_one_that_crashes_the_actor_is_asked_again(
    autojump_clock: MockClock, world: World
) -> None:
    a = world.worker("a")
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        await a.address.tell(Crash(after_s=3))
        assert await a.address.ask_through_crashes(Question, 60) == 1
        assert 8 <= trio.current_time() <= 13


async def test_the_deadline_covers_all_times_that_a_question_is_asked(
    autojump_clock: MockClock, world: World
) -> None:
    a, world.crashes = world.worker("a"), 1
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        with pytest.raises(AskTimeout, match="had not read it"):
            await a.address.ask_through_crashes(lambda reply: Question(reply, 1), 4)
        assert trio.current_time() == 4
        await trio.sleep(60)
        assert world.questions == 1


async def test_an_actor_that_has_crashed_for_good_is_not_waited_for(
    autojump_clock: MockClock, world: World
) -> None:
    a, world.crashes = world.worker("a", restart=Restart.TEMPORARY), 1
    async with open_supervisor(Supervisor("root", [a], backoff=SLOWLY), world.surroundings):
        with pytest.raises(ActorEnded, match="asked too much"):
            await a.address.ask_through_crashes(Question, 60)
        assert trio.current_time() == 0


async def test_a_stop_during_the_wait_for_a_restart_starts_nothing_any_more(
    autojump_clock: MockClock, world: World
) -> None:
    a = world.worker("a", mailbox_capacity=1)
    released: list[float] = []

    async def tell_two() -> None:
        await a.address.tell(Item(0))
        await a.address.tell(Item(1))
        released.append(trio.current_time())

    async def ask() -> None:
        with pytest.raises(ActorEnded):
            await a.address.ask(Question, 60)
        released.append(trio.current_time())

    root = Supervisor("root", [a], backoff=SLOWLY)
    async with trio.open_nursery() as nursery, open_supervisor(root, world.surroundings):
        await a.address.tell(Crash())
        await wait_all_tasks_blocked()
        nursery.start_soon(tell_two)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask)
        await trio.sleep(1)
    assert trio.current_time() == 1
    assert released == [1, 1]
    assert world.log == ["a+", "a-"]
    assert world.letters(LetterReason.UNREAD) == [Item(0), Item(1)]


async def test_a_stop_breaks_off_a_restart_whose_start_hangs(
    autojump_clock: MockClock, world: World
) -> None:
    a, b = world.worker("a"), world.worker("b")
    backoff = Backoff(base_s=0, cap_s=0)
    async with open_supervisor(Supervisor("root", [a, b], backoff=backoff), world.surroundings):
        world.start_s = 1000
        await b.address.tell(Crash())
        await trio.sleep(1)
    assert trio.current_time() == 1
    assert world.log == ["a+", "b+", "b-", "b+", "a-"], "the start that failed needs no stop"


# Crashes that meet something else


async def test_a_crash_during_the_stop_is_told_and_does_not_stop_the_stop(
    autojump_clock: MockClock, world: World
) -> None:
    a, b = world.worker("a"), world.worker("b")
    async with open_supervisor(Supervisor("root", [a, b]), world.surroundings):
        world.crash_in_stopped = True
    assert world.log == ["a+", "b+", "b-", "a-"]
    crashes = [event.who for event in world.events if isinstance(event, ChildCrashed)]
    assert crashes == ["root/b", "root/a"]
    assert world.starts() == 3


async def test_a_child_that_crashes_while_it_is_being_stopped_is_not_restarted(
    autojump_clock: MockClock, world: World
) -> None:
    a = world.worker("a")
    async with open_supervisor(Supervisor("root", [a]), world.surroundings):
        await a.address.tell(Crash(after_s=2))
        await wait_all_tasks_blocked()
    assert trio.current_time() == 2
    assert world.log == ["a+", "a-"]


async def test_two_crashes_at_the_same_moment_are_one_restart_of_the_group(
    autojump_clock: MockClock, world: World
) -> None:
    a, b, c = (world.worker(name) for name in "abc")
    root = Supervisor("root", [a, b, c], strategy=Strategy.ONE_FOR_ALL, backoff=SLOWLY)
    async with open_supervisor(root, world.surroundings):
        a.address.tell_nowait(Crash())
        c.address.tell_nowait(Crash())
        await trio.sleep(10)
        assert root.statistics().restarts == 1
        assert world.log[-3:] == ["a+", "b+", "c+"]
        assert [spec.statistics().incarnation for spec in (a, b, c)] == [2, 2, 2]


async def test_two_crashes_at_the_same_moment_are_two_restarts_one_for_one(
    autojump_clock: MockClock, world: World
) -> None:
    a, b = world.worker("a"), world.worker("b")
    root = Supervisor("root", [a, b], backoff=SLOWLY)
    with pytest.RaisesGroup(RestartIntensityExceeded, flatten_subgroups=True):
        async with open_supervisor(root, world.surroundings):
            a.address.tell_nowait(Crash())
            b.address.tell_nowait(Crash())
            await trio.sleep_forever()


async def test_the_crash_of_an_earlier_child_takes_over_a_restart_that_waits(
    autojump_clock: MockClock, world: World
) -> None:
    a, b, c = (world.worker(name) for name in "abc")
    root = Supervisor(
        "root", [a, b, c], strategy=Strategy.REST_FOR_ONE, intensity=OFTEN, backoff=SLOWLY
    )
    async with open_supervisor(root, world.surroundings):
        await c.address.tell(Crash())
        await trio.sleep(4)
        world.log.clear()
        await a.address.tell(Crash())
        await trio.sleep(20)
        assert world.log == ["a-", "b-", "a+", "b+", "c+"]


async def test_a_sibling_that_is_stopped_for_a_restart_finishes_what_it_handles(
    autojump_clock: MockClock, world: World
) -> None:
    a, b = world.worker("a"), world.worker("b")
    root = Supervisor("root", [a, b], strategy=Strategy.ONE_FOR_ALL, backoff=SLOWLY)
    async with open_supervisor(root, world.surroundings):
        await b.address.tell(Item(1, takes_s=3))
        await b.address.tell(Item(2))
        await wait_all_tasks_blocked()
        await a.address.tell(Crash())
        await trio.sleep(4)
        assert world.handled == [1]
        await trio.sleep(20)
        assert world.handled == [1, 2]
        assert world.letters() == [Crash()]


async def test_a_neighbour_that_waits_for_room_does_not_hold_up_a_stop_for_good(
    autojump_clock: MockClock, world: World
) -> None:
    front, back = world.worker("front"), world.worker("back", mailbox_capacity=1)
    async with open_supervisor(Supervisor("root", [front, back]), world.surroundings):
        await back.address.tell(Item(0, takes_s=2))
        await wait_all_tasks_blocked()
        await back.address.tell(Item(1))
        await front.address.tell(Forward(back.address, Item(2)))
        await wait_all_tasks_blocked()
    assert trio.current_time() == 2
    assert world.letters(LetterReason.UNREAD) == [Item(1), Item(2)]
    assert world.letters(LetterReason.CUT) == []


async def test_a_neighbour_that_waits_for_its_restart_does_not_hold_up_a_stop_for_good(
    autojump_clock: MockClock, world: World
) -> None:
    front, back = world.worker("front"), world.worker("back", mailbox_capacity=1)
    root = Supervisor("root", [front, back], backoff=SLOWLY)
    async with open_supervisor(root, world.surroundings):
        await back.address.tell(Crash())
        await wait_all_tasks_blocked()
        await back.address.tell(Item(1))
        await front.address.tell(Forward(back.address, Item(2)))
        await wait_all_tasks_blocked()
    assert trio.current_time() == 0
    assert world.letters(LetterReason.UNREAD) == [Item(1), Item(2)]


async def test_a_clean_up_that_tells_a_neighbour_that_is_gone_does_not_wait(
    autojump_clock: MockClock, world: World
) -> None:
    class LastWords(Worker):
        async def stopped(self, reason: AnyExit) -> None:
            await back.address.tell(Item(7))

    front = ActorSpec("front", lambda: LastWords(world, "front"))
    back = world.worker("back", mailbox_capacity=1)
    inner = Supervisor("inner", [front, back])
    with trio.move_on_after(1):
        async with open_supervisor(Supervisor("root", [inner]), world.surroundings):
            await back.address.tell(Item(0, takes_s=60))
            await wait_all_tasks_blocked()
            await back.address.tell(Item(1))
            await trio.sleep_forever()
    assert trio.current_time() == 1
    assert world.letters(LetterReason.CUT) == [Item(0, takes_s=60)]
    assert world.letters(LetterReason.UNREAD) == [Item(1)]
    assert world.letters(LetterReason.ENDED) == [Item(7)]


# Everything at once

Step = tuple[str, int, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["tell", "tell", "tell", "crash", "ask", "pause"]),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.0]),
    ),
    max_size=40,
)


@given(
    strategy=st.sampled_from(Strategy),
    kinds=st.tuples(*[st.sampled_from(Restart)] * 3),
    capacity=st.integers(1, 3),
    max_restarts=st.sampled_from([0, 2, 1000]),
    steps=STEPS,
    cut=st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_no_message_vanishes_or_is_handled_twice_and_every_ask_ends(
    strategy: Strategy,
    kinds: tuple[Restart, ...],
    capacity: int,
    max_restarts: int,
    steps: list[Step],
    cut: bool,
) -> None:
    world = World()
    accepted: list[int] = []
    waits_s: list[float] = []

    async def tell(address: Address[Mail], message: Item | Crash) -> None:
        await address.tell(message)
        accepted.append(message.number)

    async def ask(address: Address[Mail], takes_s: float) -> None:
        asked_at = trio.current_time()
        try:
            assert await address.ask(lambda reply: Question(reply, takes_s), 2) == 1
        except (ActorDied, AskTimeout):
            pass
        finally:
            waits_s.append(trio.current_time() - asked_at)

    async def play() -> None:
        specs = [
            world.worker(name, restart=kind, mailbox_capacity=capacity, shutdown_s=2)
            for name, kind in zip("abc", kinds, strict=True)
        ]
        root = Supervisor(
            "root",
            specs,
            strategy=strategy,
            intensity=Intensity(max_restarts, 5),
            backoff=Backoff(base_s=0.1, cap_s=1),
        )
        async with trio.open_nursery() as senders:
            with trio.move_on_after(60 if cut else 1000):
                async with open_supervisor(root, world.surroundings):
                    for number, (what, whom, seconds) in enumerate(steps):
                        address = specs[whom].address
                        match what:
                            case "tell":
                                senders.start_soon(tell, address, Item(number, seconds))
                            case "crash":
                                senders.start_soon(tell, address, Crash(number, seconds))
                            case "ask":
                                senders.start_soon(ask, address, seconds)
                            case _:
                                await trio.sleep(seconds)
                    if cut:
                        await trio.sleep_forever()

    try:
        trio.run(play, clock=MockClock(autojump_threshold=0))
    except* RestartIntensityExceeded:
        pass

    buried = [message.number for message in world.letters() if not isinstance(message, Question)]
    assert sorted(world.handled + buried) == sorted(accepted)
    assert all(wait_s <= 2.001 for wait_s in waits_s)
