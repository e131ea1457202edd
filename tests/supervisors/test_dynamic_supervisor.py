"""Children that come and go: what the sessions of a runtime rely on."""

import random
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.messages.lifecycle import (
    AnyExit,
    AnyLifecycleEvent,
    ChildRestarting,
    EndedNormally,
    LetterReason,
)
from midstream.supervisors.child_spec import ActorSpec, Surroundings
from midstream.supervisors.dynamic_supervisor import DynamicSupervisor
from midstream.supervisors.errors import (
    ChildNotFound,
    ChildSpecError,
    ChildStartFailed,
    SupervisorNotRunning,
)
from midstream.supervisors.restart import Backoff, Intensity, Restart, Strategy
from midstream.supervisors.supervisor import Supervisor, open_supervisor

AT_ONCE = Backoff(base_s=0, cap_s=0)


class Do(msgspec.Struct, frozen=True):
    """`crash`, `end`, or a number of seconds to be busy."""

    what: str | float


class Guest(Actor[Do]):
    def __init__(
        self,
        log: list[str],
        name: str,
        *,
        start_s: float = 0,
        stop_s: float = 0,
        fails: bool = False,
        stop_fails: bool = False,
    ) -> None:
        self._stop_fails = stop_fails
        self._log, self._name = log, name
        self._start_s, self._stop_s, self._fails = start_s, stop_s, fails

    async def started(self) -> None:
        await trio.sleep(self._start_s)
        if self._fails:
            raise OSError("no room")
        self._log.append(f"{self._name}+")

    async def handle(self, message: Do) -> None:
        match message.what:
            case "crash":
                raise ValueError("told to")
            case "end":
                self.end()
            case seconds:
                await trio.sleep(float(seconds))

    async def stopped(self, reason: AnyExit) -> None:
        await trio.sleep(self._stop_s)
        self._log.append(f"{self._name}-")
        if self._stop_fails:
            raise OSError("cannot leave properly")


class House:
    """A runtime with one dynamic supervisor, `sessions`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events: list[AnyLifecycleEvent] = []
        self.surroundings = Surroundings(random.Random(7), self.events.append)
        self.sessions = DynamicSupervisor("sessions", backoff=AT_ONCE)
        self.root = Supervisor(
            "runtime", [self.sessions], intensity=Intensity(5, 5), backoff=AT_ONCE
        )

    def guest(self, name: str, restart: Restart = Restart.TEMPORARY, **how: Any) -> ActorSpec[Do]:
        return ActorSpec(name, lambda: Guest(self.log, name, **how), restart=restart)

    def children(self) -> list[str]:
        return [child.spec.who for child in self.sessions.children()]


@pytest.fixture
def house() -> House:
    return House()


async def test_a_child_that_is_started_at_run_time_has_started_when_the_call_returns(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        await house.sessions.start_child(house.guest("a", start_s=2))
        assert trio.current_time() == 2
        assert house.log == ["a+"]
        assert house.children() == ["runtime/sessions/a"]


async def test_a_child_that_ends_or_crashes_is_gone_and_the_others_do_not_notice(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        a, b, c = (house.guest(name) for name in "abc")
        for guest in (a, b, c):
            await house.sessions.start_child(guest)
        await a.address.tell(Do("end"))
        await b.address.tell(Do("crash"))
        await wait_all_tasks_blocked()
        assert house.children() == ["runtime/sessions/c"]
        assert house.log == ["a+", "b+", "c+", "a-", "b-"]
        assert await a.address.wait_ended() == EndedNormally()
        await house.sessions.start_child(house.guest("a"))
        assert house.children() == ["runtime/sessions/c", "runtime/sessions/a"]


async def test_a_transient_child_is_restarted_after_a_crash(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        guest = house.guest("a", Restart.TRANSIENT)
        await house.sessions.start_child(guest)
        await guest.address.tell(Do("crash"))
        await wait_all_tasks_blocked()
        assert guest.statistics().incarnation == 2
        assert house.children() == ["runtime/sessions/a"]


@pytest.mark.parametrize("restart", list(Restart))
async def test_a_child_that_cannot_start_is_told_to_the_caller_and_is_no_restart(
    autojump_clock: MockClock, house: House, restart: Restart
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        guest = house.guest("a", restart, fails=True)
        with pytest.raises(ChildStartFailed, match="runtime/sessions/a") as caught:
            await house.sessions.start_child(guest)
        assert isinstance(caught.value.__cause__, OSError)
        await wait_all_tasks_blocked()
        assert house.children() == []
        assert guest.statistics().ended
        assert house.sessions.statistics().restarts == 0
        assert not any(isinstance(event, ChildRestarting) for event in house.events)
        await house.sessions.start_child(house.guest("a"))


async def test_two_children_cannot_have_the_same_id_at_the_same_time(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        await house.sessions.start_child(house.guest("a"))
        with pytest.raises(ChildSpecError, match="has a child 'a' already"):
            await house.sessions.start_child(house.guest("a"))
        assert house.log == ["a+"]


async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        with trio.move_on_after(1) as scope:
            await house.sessions.start_child(house.guest("a", start_s=100))
        assert scope.cancelled_caught
        assert house.children() == []
        assert trio.current_time() == 1


async def test_a_slow_start_does_not_hold_up_others(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings), trio.open_nursery() as nursery:
        nursery.start_soon(house.sessions.start_child, house.guest("slow", start_s=50))
        await wait_all_tasks_blocked()
        await house.sessions.start_child(house.guest("quick"))
        assert trio.current_time() == 0
        assert [str(child.phase) for child in house.sessions.children()] == ["starting", "running"]
    assert house.log[:2] == ["quick+", "slow+"]


async def test_stop_child_lets_it_finish_and_returns_when_it_is_over(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        guest = house.guest("a", Restart.PERMANENT, stop_s=1)
        await house.sessions.start_child(guest)
        await guest.address.tell(Do(2))
        await guest.address.tell(Do("crash"))
        await wait_all_tasks_blocked()
        await house.sessions.stop_child("a")
        assert trio.current_time() == 3
        assert house.log == ["a+", "a-"]
        assert house.children() == []
    letters = house.surroundings.dead_letters.recent()
    assert [(letter.message, letter.reason) for letter in letters] == [
        (Do("crash"), LetterReason.UNREAD)
    ]


async def test_a_child_that_crashes_while_it_is_being_stopped_is_not_restarted(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        await house.sessions.start_child(house.guest("a", Restart.PERMANENT, stop_fails=True))
        await house.sessions.stop_child("a")
        await trio.sleep(1)
        assert house.log == ["a+", "a-"]
        assert not any(isinstance(event, ChildRestarting) for event in house.events)


async def test_a_stop_that_is_cancelled_cancels_the_child(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        guest = house.guest("a")
        await house.sessions.start_child(guest)
        await guest.address.tell(Do(4))
        await wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await house.sessions.stop_child("a")
        assert trio.current_time() == 1
        assert house.children() == []
        assert house.log == ["a+", "a-"]


async def test_a_child_that_waits_for_its_restart_can_be_stopped(
    autojump_clock: MockClock, house: House
) -> None:
    sessions = DynamicSupervisor("sessions", backoff=Backoff(base_s=5, cap_s=5))
    async with open_supervisor(sessions, house.surroundings):
        guest = house.guest("a", Restart.PERMANENT)
        await sessions.start_child(guest)
        await guest.address.tell(Do("crash"))
        await wait_all_tasks_blocked()
        await sessions.stop_child("a")
        assert sessions.children() == ()
        await trio.sleep(20)
        assert house.log == ["a+", "a-"]


async def test_stopping_a_child_that_is_not_there_says_so(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        with pytest.raises(ChildNotFound, match="runtime/sessions has no child 'a'"):
            await house.sessions.stop_child("a")


async def test_an_id_can_be_taken_again_while_a_second_stop_of_the_old_child_returns(
    autojump_clock: MockClock, house: House
) -> None:
    async def replace(spec: ActorSpec[Do]) -> None:
        await house.sessions.stop_child("a")
        try:
            await house.sessions.start_child(spec)
        except ChildSpecError:
            house.log.append("taken")

    async with open_supervisor(house.root, house.surroundings):
        old = house.guest("a", stop_s=2)
        await house.sessions.start_child(old)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace, old)
            nursery.start_soon(replace, old)
        assert house.log == ["a+", "a-", "a+", "taken"] or house.log == ["a+", "a-", "taken", "a+"]
        assert house.children() == ["runtime/sessions/a"]
        assert not old.statistics().ended
    assert house.log[-1] == "a-"


async def test_children_are_stopped_all_at_the_same_time(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        for name in "abcd":
            await house.sessions.start_child(house.guest(name, stop_s=3))
    assert trio.current_time() == 3
    assert sorted(house.log) == ["a+", "a-", "b+", "b-", "c+", "c-", "d+", "d-"]


async def test_cancellation_reaches_all_children_at_the_same_time(
    autojump_clock: MockClock, house: House
) -> None:
    with trio.move_on_after(1):
        async with open_supervisor(house.root, house.surroundings):
            for name in "abcd":
                await house.sessions.start_child(house.guest(name, stop_s=3))
            await trio.sleep_forever()
    assert trio.current_time() == 4
    assert len(house.log) == 8


async def test_children_end_for_good_with_their_supervisor_and_the_next_one_begins_empty(
    autojump_clock: MockClock, house: House
) -> None:
    async with open_supervisor(house.root, house.surroundings):
        stable, crashing = house.guest("a"), house.guest("b", Restart.PERMANENT)
        await house.sessions.start_child(stable)
        await house.sessions.start_child(crashing)
        await crashing.address.tell(Do("crash"))
        await wait_all_tasks_blocked()
        await crashing.address.tell(Do("crash"))
        await wait_all_tasks_blocked()
        assert house.sessions.incarnation == 2
        assert house.children() == []
        assert stable.statistics().ended
        assert crashing.statistics().ended
        await house.sessions.start_child(house.guest("a"))


async def test_a_supervisor_that_does_not_run_takes_no_children(
    autojump_clock: MockClock, house: House
) -> None:
    with pytest.raises(SupervisorNotRunning, match="sessions is not running"):
        await house.sessions.start_child(house.guest("a"))
    async with open_supervisor(house.root, house.surroundings):
        pass
    with pytest.raises(SupervisorNotRunning):
        await house.sessions.start_child(house.guest("a"))
    with pytest.raises(SupervisorNotRunning):
        await house.sessions.stop_child("a")


async def test_no_child_is_added_while_the_supervisor_stops(
    autojump_clock: MockClock, house: House
) -> None:
    refused: list[float] = []

    async def come_late() -> None:
        await trio.sleep(1)
        with pytest.raises(SupervisorNotRunning):
            await house.sessions.start_child(house.guest("late"))
        refused.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        async with open_supervisor(house.root, house.surroundings):
            await house.sessions.start_child(house.guest("a", stop_s=3))
            nursery.start_soon(come_late)
        assert trio.current_time() == 3
    assert refused == [1]
    assert house.log == ["a+", "a-"]


async def test_no_child_is_added_while_a_supervisor_that_gave_up_stops_the_others(
    autojump_clock: MockClock, house: House
) -> None:
    sessions = DynamicSupervisor("sessions", intensity=Intensity(0, 5))
    root = Supervisor("runtime", [sessions], backoff=AT_ONCE)
    async with open_supervisor(root, house.surroundings):
        crashing = house.guest("a", Restart.PERMANENT)
        await sessions.start_child(crashing)
        await sessions.start_child(house.guest("b", stop_s=3))
        await crashing.address.tell(Do("crash"))
        await trio.sleep(1)
        with pytest.raises(SupervisorNotRunning):
            await sessions.start_child(house.guest("late"))
        await trio.sleep(5)
        await sessions.start_child(house.guest("in time for the next incarnation"))


async def test_a_start_that_is_under_way_when_the_supervisor_stops_is_over_in_bounded_time(
    autojump_clock: MockClock, house: House
) -> None:
    failed: list[float] = []

    async def start_slowly() -> None:
        with pytest.raises(ChildStartFailed):
            await house.sessions.start_child(house.guest("slow", start_s=1000))
        failed.append(trio.current_time())

    async with trio.open_nursery() as nursery, open_supervisor(house.root, house.surroundings):
        nursery.start_soon(start_slowly)
        await wait_all_tasks_blocked()
    assert failed == [5]
    assert house.log == []


async def test_a_session_subtree_is_gone_when_its_session_ends(
    autojump_clock: MockClock, house: House
) -> None:
    session = ActorSpec(
        "session",
        lambda: Guest(house.log, "session"),
        restart=Restart.TEMPORARY,
        significant=True,
    )
    monitor = house.guest("monitor", Restart.PERMANENT)
    tree = Supervisor(
        "ses-1",
        [session, monitor],
        strategy=Strategy.REST_FOR_ONE,
        restart=Restart.TEMPORARY,
    )
    async with open_supervisor(house.root, house.surroundings):
        await house.sessions.start_child(tree)
        assert session.address.who == "runtime/sessions/ses-1/session"
        await session.address.tell(Do("end"))
        await wait_all_tasks_blocked()
        assert house.children() == []
        assert monitor.statistics().ended
    assert house.log == ["session+", "monitor+", "session-", "monitor-"]
