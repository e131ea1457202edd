"""What a supervisor promises; where it is a promise of OTP's, in OTP's terms."""

import random
from collections import defaultdict
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.messages.lifecycle import (
    AnyExit,
    AnyLifecycleEvent,
    ChildCrashed,
    ChildRestarting,
    ChildStarted,
    ChildStopped,
    Crashed,
    DeadLetter,
    Down,
    EndedNormally,
    LetterReason,
    ShutDown,
    SupervisorEscalated,
)
from midstream.supervisors.child_spec import ActorSpec, ChildSpec, Surroundings
from midstream.supervisors.errors import (
    ChildSpecError,
    ChildStartFailed,
    RestartIntensityExceeded,
)
from midstream.supervisors.introspection import Phase
from midstream.supervisors.restart import Backoff, Intensity, Restart, Strategy
from midstream.supervisors.supervisor import Supervisor, open_supervisor

AT_ONCE = Backoff(base_s=0, cap_s=0)
OFTEN = Intensity(max_restarts=100, within_s=5)


class Say(msgspec.Struct, frozen=True):
    text: str


class Crash(msgspec.Struct, frozen=True):
    pass


class End(msgspec.Struct, frozen=True):
    pass


class Watch(msgspec.Struct, frozen=True):
    address: Address[Any]


Line = Say | Crash | End | Watch | Down


class Stage:
    """Where players write down what they do, and read how they should behave."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events: list[AnyLifecycleEvent] = []
        self.surroundings = Surroundings(random.Random(7), self.events.append)
        self.failing_starts: dict[str, int] = defaultdict(int)
        self.start_s: dict[str, float] = defaultdict(float)
        self.stop_s: dict[str, float] = defaultdict(float)
        self.say_s: dict[str, float] = defaultdict(float)

    def player(self, name: str, **options: Any) -> ActorSpec[Line]:
        return ActorSpec(name, lambda: Player(self, name), **options)

    def players(self, names: str, **options: Any) -> list[ActorSpec[Line]]:
        return [self.player(name, **options) for name in names]

    def clear(self) -> list[str]:
        log, self.log = self.log, []
        return log

    def letters(self) -> list[tuple[str, object, LetterReason]]:
        letters = self.surroundings.dead_letters.recent()
        return [(letter.who, letter.message, letter.reason) for letter in letters]


class Player(Actor[Line]):
    def __init__(self, stage: Stage, name: str) -> None:
        self._stage, self._name = stage, name

    async def started(self) -> None:
        await trio.sleep(self._stage.start_s[self._name])
        if self._stage.failing_starts[self._name] > 0:
            self._stage.failing_starts[self._name] -= 1
            raise OSError(f"{self._name} cannot start")
        self._note("+")

    async def handle(self, message: Line) -> None:
        match message:
            case Say(text):
                await trio.sleep(self._stage.say_s[self._name])
                self._note(f":{text}")
            case Crash():
                self._note("!")
                raise ValueError(f"{self._name} crashes")
            case End():
                self.end()
            case Watch(address):
                self.watch(address)
            case Down(who, reason):
                self._note(f" sees {who} {type(reason).__name__}")

    async def stopped(self, reason: AnyExit) -> None:
        await trio.sleep(self._stage.stop_s[self._name])
        self._note("-")

    def _note(self, what: str) -> None:
        self._stage.log.append(f"{self._name}{what}")


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def settle() -> None:
    """Let everything happen that needs no time."""
    await wait_all_tasks_blocked()


# Starting and stopping


async def test_children_start_in_order_each_when_the_one_before_has_started(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    stage.start_s.update(a=3, b=0, c=1)
    async with open_supervisor(Supervisor("root", stage.players("abc")), stage.surroundings):
        assert trio.current_time() == 4
        assert stage.clear() == ["a+", "b+", "c+"]


async def test_children_stop_in_reverse_order_each_when_the_one_after_it_is_over(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    stage.stop_s.update(a=0, b=3, c=1)
    async with open_supervisor(Supervisor("root", stage.players("abc")), stage.surroundings):
        stage.clear()
    assert trio.current_time() == 4
    assert stage.log == ["c-", "b-", "a-"]


async def test_a_child_finishes_what_it_handles_before_it_stops(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.say_s["a"] = 2
    (a,) = stage.players("a")
    async with open_supervisor(Supervisor("root", [a]), stage.surroundings):
        await a.address.tell(Say("in hand"))
        await a.address.tell(Say("unread"))
        await settle()
    assert stage.log == ["a+", "a:in hand", "a-"]
    assert stage.letters() == [("root/a", Say("unread"), LetterReason.UNREAD)]


async def test_a_child_that_exceeds_its_shutdown_time_is_cancelled(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.say_s["b"] = 100
    a, b = stage.player("a"), stage.player("b", shutdown_s=4)
    async with open_supervisor(Supervisor("root", [a, b]), stage.surroundings):
        await b.address.tell(Say("too long"))
        await settle()
        stage.clear()
    assert trio.current_time() == 4
    assert stage.log == ["b-", "a-"]
    assert stage.letters() == [("root/b", Say("too long"), LetterReason.CUT)]
    assert ChildStopped("root/b", 1, ShutDown(cut=True)) in stage.events


async def test_a_shutdown_time_of_0_cancels_at_once(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.say_s["a"] = 100
    a = stage.player("a", shutdown_s=0)
    async with open_supervisor(Supervisor("root", [a]), stage.surroundings):
        await a.address.tell(Say("too long"))
        await settle()
    assert trio.current_time() == 0
    assert stage.log == ["a+", "a-"]


async def test_cancellation_stops_children_in_reverse_order_too(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.stop_s.update(a=1, b=1, c=1)
    inner = Supervisor("inner", stage.players("bc"))
    with trio.move_on_after(10) as scope:
        async with open_supervisor(
            Supervisor("root", [stage.player("a"), inner]), stage.surroundings
        ):
            stage.clear()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert stage.log == ["c-", "b-", "a-"]
    assert trio.current_time() == 13
    assert ChildStopped("root/a", 1, ShutDown(cut=True)) in stage.events


async def test_cancellation_cuts_a_stop_short_that_is_under_way(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.say_s["b"] = 100
    a, b = stage.players("ab", shutdown_s=60)
    with trio.move_on_after(3) as scope:
        async with open_supervisor(Supervisor("root", [a, b]), stage.surroundings):
            await b.address.tell(Say("too long"))
            await settle()
    assert scope.cancelled_caught
    assert trio.current_time() == 3
    assert stage.log == ["a+", "b+", "b-", "a-"]


async def test_an_error_in_the_block_stops_the_tree_and_comes_out(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.say_s["a"] = 2
    (a,) = stage.players("a")
    with pytest.RaisesGroup(LookupError, flatten_subgroups=True):
        async with open_supervisor(Supervisor("root", [a]), stage.surroundings):
            await a.address.tell(Say("in hand"))
            await settle()
            raise LookupError
    assert stage.log == ["a+", "a:in hand", "a-"]


async def test_if_a_first_start_fails_those_before_it_stop_in_reverse_and_the_start_fails(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    stage.failing_starts["c"] = 1
    specs = stage.players("abcd")
    with pytest.raises(ChildStartFailed, match="root/c could not be started") as caught:
        async with open_supervisor(Supervisor("root", specs), stage.surroundings):
            pytest.fail("the block must not begin")
    assert stage.log == ["a+", "b+", "b-", "a-"]
    assert isinstance(caught.value.__cause__, OSError)
    await specs[0].address.tell(Say("too late"))
    assert stage.letters() == [("root/a", Say("too late"), LetterReason.ENDED)]
    assert not any(isinstance(event, ChildRestarting) for event in stage.events)


async def test_a_start_that_hangs_can_be_cancelled(autojump_clock: MockClock, stage: Stage) -> None:
    stage.start_s["b"] = 100
    with trio.move_on_after(2) as scope:
        async with open_supervisor(Supervisor("root", stage.players("ab")), stage.surroundings):
            pytest.fail("the block must not begin")
    assert scope.cancelled_caught
    assert trio.current_time() == 2
    assert stage.log == ["a+", "a-"]


async def test_an_actor_that_cannot_be_made_is_a_failed_start(
    autojump_clock: MockClock, stage: Stage
) -> None:
    def make() -> Player:
        raise LookupError("no such player")

    with pytest.raises(ChildStartFailed) as caught:
        async with open_supervisor(Supervisor("root", [ActorSpec("a", make)]), stage.surroundings):
            pytest.fail("the block must not begin")
    assert isinstance(caught.value.__cause__, LookupError)


# Restarting


async def test_one_for_one_restarts_only_the_child_that_crashed(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b, c = stage.players("abc")
    async with open_supervisor(Supervisor("root", [a, b, c], backoff=AT_ONCE), stage.surroundings):
        stage.clear()
        await b.address.tell(Crash())
        await settle()
        assert stage.clear() == ["b!", "b-", "b+"]


async def test_one_for_all_stops_the_others_in_reverse_and_starts_all_in_order(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    a, b, c = stage.players("abc")
    root = Supervisor("root", [a, b, c], strategy=Strategy.ONE_FOR_ALL, backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        stage.clear()
        await b.address.tell(Crash())
        await settle()
        assert stage.clear() == ["b!", "b-", "c-", "a-", "a+", "b+", "c+"]


async def test_rest_for_one_restarts_the_child_and_those_after_it(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b, c, d = stage.players("abcd")
    root = Supervisor("root", [a, b, c, d], strategy=Strategy.REST_FOR_ONE, backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        stage.clear()
        await b.address.tell(Crash())
        await settle()
        assert stage.clear() == ["b!", "b-", "d-", "c-", "b+", "c+", "d+"]


@pytest.mark.parametrize(
    ("kind", "end", "comes_back"),
    [
        (Restart.PERMANENT, Crash(), True),
        (Restart.PERMANENT, End(), True),
        (Restart.TRANSIENT, Crash(), True),
        (Restart.TRANSIENT, End(), False),
        (Restart.TEMPORARY, Crash(), False),
        (Restart.TEMPORARY, End(), False),
    ],
)
async def test_the_kind_of_a_child_says_whether_it_comes_back(
    autojump_clock: MockClock, stage: Stage, kind: Restart, end: Crash | End, comes_back: bool
) -> None:
    a = stage.player("a", restart=kind)
    root = Supervisor("root", [a, stage.player("b")], backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        await a.address.tell(end)
        await settle()
        assert ("a" in [child.spec.id for child in root.children()]) is comes_back
        await a.address.tell(Say("hello"))
        await settle()
        assert ("a:hello" in stage.log) is comes_back
        ended = ("root/a", Say("hello"), LetterReason.ENDED)
        assert (ended in stage.letters()) is not comes_back
        assert a.statistics().ended is not comes_back


async def test_a_temporary_child_is_not_restarted_with_its_siblings(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.player("a"), stage.player("b", restart=Restart.TEMPORARY)
    root = Supervisor("root", [a, b], strategy=Strategy.ONE_FOR_ALL, backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        await a.address.tell(Crash())
        await settle()
        assert stage.clear() == ["a+", "b+", "a!", "a-", "b-", "a+"]
        assert b.statistics().ended


async def test_address_and_unread_mail_survive_and_what_was_in_hand_is_not_handled_again(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    a = stage.player("a")
    async with open_supervisor(Supervisor("root", [a]), stage.surroundings):
        for message in (Say("before"), Crash(), Say("after"), Say("later")):
            a.address.tell_nowait(message)
        await trio.sleep(1)
        assert stage.clear() == ["a+", "a:before", "a!", "a-", "a+", "a:after", "a:later"]
    (letter,) = stage.surroundings.dead_letters.recent()
    assert (letter.message, letter.reason) == (Crash(), LetterReason.CRASHED)
    assert (letter.who, letter.incarnation) == ("root/a", 1)
    assert letter.traceback.endswith("ValueError: a crashes\n")


async def test_each_incarnation_is_a_new_instance(autojump_clock: MockClock, stage: Stage) -> None:
    made: list[Player] = []

    def make() -> Player:
        made.append(Player(stage, "a"))
        return made[-1]

    a = ActorSpec("a", make)
    async with open_supervisor(Supervisor("root", [a], backoff=AT_ONCE), stage.surroundings):
        await a.address.tell(Crash())
        await settle()
    assert len(made) == 2


async def test_mail_may_be_sent_before_the_first_start(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a = stage.player("a")
    await a.address.tell(Say("early"))
    async with open_supervisor(Supervisor("root", [a]), stage.surroundings):
        await settle()
    assert stage.log == ["a+", "a:early", "a-"]


async def test_a_restart_waits_longer_each_time_with_jitter_from_the_seed(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    def delays_of(stage: Stage) -> list[float]:
        return [e.delay_s for e in stage.events if isinstance(e, ChildRestarting)]

    async def crash_five_times(stage: Stage) -> None:
        a = stage.player("a")
        backoff = Backoff(base_s=1, cap_s=6)
        root = Supervisor("root", [a], intensity=Intensity(100, 1000), backoff=backoff)
        async with open_supervisor(root, stage.surroundings):
            for delay_s in (1, 2, 4, 6, 6):
                crashed_at = trio.current_time()
                await a.address.tell(Crash())
                await trio.sleep(delay_s + 0.01)
                restarted_after = delays_of(stage)[-1]
                assert delay_s / 2 <= restarted_after <= delay_s
                assert a.statistics().alive
                assert trio.current_time() - crashed_at >= restarted_after

    await crash_five_times(stage)
    again = Stage()
    await crash_five_times(again)
    assert delays_of(again) == delays_of(stage)
    assert len(set(delays_of(stage))) == 5


async def test_a_failed_start_in_a_restart_counts_and_is_tried_again(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.players("ab")
    stage.failing_starts["a"] = 0
    root = Supervisor("root", [a, b], intensity=Intensity(3, 5), backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        stage.failing_starts["a"] = 2
        await a.address.tell(Crash())
        await a.address.tell(Say("hello"))
        await settle()
        assert stage.clear() == ["a+", "b+", "a!", "a-", "a+", "a:hello"]
        assert root.statistics().restarts == 3
        assert [e.starting for e in stage.events if isinstance(e, ChildCrashed)] == [
            False,
            True,
            True,
        ]


async def test_a_failed_start_in_a_group_is_tried_again_with_those_after_it(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    a, b, c, d = stage.players("abcd")
    root = Supervisor(
        "root", [a, b, c, d], strategy=Strategy.REST_FOR_ONE, intensity=OFTEN, backoff=AT_ONCE
    )
    async with open_supervisor(root, stage.surroundings):
        stage.failing_starts["c"] = 1
        stage.clear()
        await b.address.tell(Crash())
        await settle()
        assert stage.clear() == ["b!", "b-", "d-", "c-", "b+", "c+", "d+"]
        assert [spec.statistics().restarts for spec in (a, b, c, d)] == [0, 1, 2, 2]


# Giving up


async def test_one_restart_too_many_stops_the_children_in_reverse_and_fails_the_supervisor(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    a, b, c = stage.players("abc")
    root = Supervisor("root", [a, b, c], intensity=Intensity(2, 10), backoff=AT_ONCE)
    with pytest.RaisesGroup(
        pytest.RaisesExc(RestartIntensityExceeded, match=r"root gives up: root/b needs a restart"),
        flatten_subgroups=True,
    ) as caught:
        async with open_supervisor(root, stage.surroundings):
            for _ in range(3):
                await trio.sleep(1)
                stage.clear()
                await b.address.tell(Crash())
            await trio.sleep_forever()
    assert stage.log == ["b!", "b-", "c-", "a-"]
    (error,) = caught.value.exceptions
    assert str(error.__cause__) == "b crashes"
    assert SupervisorEscalated("root", "root/b", 3, 10) in stage.events
    assert a.statistics().ended


async def test_crashes_further_apart_than_the_window_go_on_for_ever(
    autojump_clock: MockClock, stage: Stage
) -> None:
    (a,) = stage.players("a")
    root = Supervisor("root", [a], intensity=Intensity(1, 10), backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        for _ in range(20):
            await a.address.tell(Crash())
            await trio.sleep(10.5)
        assert a.statistics().incarnation == 21


async def test_the_intensity_counts_all_children_of_a_supervisor_together(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    a, b = stage.players("ab")
    root = Supervisor("root", [a, b], backoff=AT_ONCE)
    with pytest.RaisesGroup(RestartIntensityExceeded, flatten_subgroups=True):
        async with open_supervisor(root, stage.surroundings):
            await a.address.tell(Crash())
            await settle()
            await b.address.tell(Crash())
            await trio.sleep_forever()


async def test_a_supervisor_that_gives_up_is_a_crashed_child_of_its_parent(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    a, b, c = stage.players("abc")
    inner = Supervisor("inner", [a, b], intensity=Intensity(0, 5))
    root = Supervisor("root", [inner, c], backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        stage.clear()
        await a.address.tell(Crash())
        await a.address.tell(Say("unread at the crash"))
        await settle()
        log = stage.clear()
        assert [line for line in log if ":" not in line] == ["a!", "a-", "b-", "a+", "b+"]
        assert log.count("a:unread at the crash") == 1
        assert inner.incarnation == 2
        assert a.statistics().incarnation == 2
        crashes = [e.who for e in stage.events if isinstance(e, ChildCrashed)]
        assert crashes == ["root/inner/a", "root/inner"]


async def test_escalation_goes_up_until_someone_may_still_restart(
    autojump_clock: MockClock, stage: Stage
) -> None:
    (a,) = stage.players("a")
    inner = Supervisor("inner", [a], intensity=Intensity(0, 5))
    middle = Supervisor("middle", [inner], intensity=Intensity(1, 5), backoff=AT_ONCE)
    root = Supervisor("root", [middle], intensity=Intensity(1, 5), backoff=AT_ONCE)
    with pytest.RaisesGroup(RestartIntensityExceeded, flatten_subgroups=True):
        async with open_supervisor(root, stage.surroundings):
            for incarnation in (2, 3, 4):
                await a.address.tell(Crash())
                await settle()
                assert a.statistics().incarnation == incarnation
            assert (inner.incarnation, middle.incarnation) == (4, 2)
            await a.address.tell(Crash())
            await trio.sleep_forever()


async def test_a_temporary_supervisor_that_gives_up_is_gone_for_good(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.players("ab")
    inner = Supervisor("inner", [a], intensity=Intensity(0, 5), restart=Restart.TEMPORARY)
    root = Supervisor("root", [inner, b])
    async with open_supervisor(root, stage.surroundings):
        await a.address.tell(Crash())
        await settle()
        assert [child.spec.id for child in root.children()] == ["b"]
        exit = await a.address.wait_ended()
        assert isinstance(exit, Crashed)


async def test_children_that_had_ended_begin_anew_with_their_supervisor(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.player("a", restart=Restart.TEMPORARY), stage.player("b")
    inner = Supervisor("inner", [a, b], intensity=Intensity(0, 5))
    async with open_supervisor(Supervisor("root", [inner], backoff=AT_ONCE), stage.surroundings):
        await a.address.tell(End())
        await settle()
        assert a.statistics().ended
        await b.address.tell(Crash())
        await settle()
        await a.address.tell(Say("again"))
        await settle()
        assert stage.log[-3:] == ["a+", "b+", "a:again"]


# Significant children


async def test_the_normal_end_of_a_significant_child_ends_the_whole_subtree(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    session = stage.player("session", restart=Restart.TRANSIENT, significant=True)
    matcher, monitor, other = (stage.player(name) for name in ("matcher", "monitor", "other"))
    tree = Supervisor(
        "ses-1",
        [session, matcher, monitor],
        strategy=Strategy.REST_FOR_ONE,
        restart=Restart.TEMPORARY,
        backoff=AT_ONCE,
    )
    root = Supervisor("root", [tree, other])
    async with open_supervisor(root, stage.surroundings):
        await session.address.tell(Crash())
        await settle()
        assert session.statistics().alive, "a crash restarts it"
        stage.clear()
        await session.address.tell(End())
        await settle()
        assert stage.clear() == ["session-", "monitor-", "matcher-"]
        assert [child.spec.id for child in root.children()] == ["other"]
        assert monitor.statistics().ended
        assert ChildStopped("root/ses-1", 1, EndedNormally()) in stage.events


async def test_when_the_root_ends_by_itself_the_block_goes_on(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a = stage.player("a", restart=Restart.TEMPORARY, significant=True)
    b = stage.player("b")
    async with open_supervisor(Supervisor("root", [a, b]), stage.surroundings) as root:
        await a.address.tell(End())
        assert await b.address.wait_ended() == ShutDown()
        await trio.sleep(1)
        assert root.children() == ()


# Watching, introspection, events


async def test_a_watcher_sees_every_crash_of_an_actor_that_is_restarted(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.players("ab")
    root = Supervisor("root", [a, b], intensity=OFTEN, backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        await a.address.tell(Watch(b.address))
        for message in (Crash(), Crash(), End()):
            await settle()
            await b.address.tell(message)
        await settle()
        seen = [line for line in stage.log if line.startswith("a sees")]
    assert seen == [
        "a sees root/b Crashed",
        "a sees root/b Crashed",
        "a sees root/b EndedNormally",
    ]


async def test_a_watch_ends_with_the_incarnation_that_began_it(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.players("ab")
    root = Supervisor("root", [a, b], intensity=OFTEN, backoff=AT_ONCE)
    async with open_supervisor(root, stage.surroundings):
        await a.address.tell(Watch(b.address))
        await a.address.tell(Crash())
        await settle()
        await b.address.tell(Crash())
        await settle()
        assert not [line for line in stage.log if line.startswith("a sees")]


async def test_children_and_statistics_tell_what_is_going_on(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.players("ab")
    inner = Supervisor("inner", [b])
    root = Supervisor("root", [a, inner], backoff=Backoff(base_s=1, cap_s=1))
    assert root.children() == ()
    async with open_supervisor(root, stage.surroundings):
        await a.address.tell(Crash())
        await settle()
        assert [(child.spec, child.phase, child.incarnation) for child in root.children()] == [
            (a, Phase.WAITING, 1),
            (inner, Phase.RUNNING, 1),
        ]
        now = root.statistics()
        assert (now.children, now.running, now.waiting, now.supervisors) == (2, 1, 1, 1)
        assert (now.restarts, now.intensity) == (1, Intensity(1, 5))
        assert [child.spec.who for child in inner.children()] == ["root/inner/b"]
        await trio.sleep(1)
        assert [child.phase for child in root.children()] == [Phase.RUNNING, Phase.RUNNING]
    assert root.children() == ()


async def test_events_tell_the_whole_story_in_order(
    autojump_clock: MockClock, stage: Stage
) -> None:
    a, b = stage.players("ab")
    root = Supervisor("root", [a, b], backoff=AT_ONCE, intensity=Intensity(1, 5))
    with pytest.RaisesGroup(RestartIntensityExceeded, flatten_subgroups=True):
        async with open_supervisor(root, stage.surroundings):
            await a.address.tell(Crash())
            await settle()
            await a.address.tell(Crash())
            await trio.sleep_forever()
    story = [
        msgspec.structs.replace(event, reason=Crashed("x"))
        if isinstance(event, ChildCrashed)
        else msgspec.structs.replace(event, traceback="")
        if isinstance(event, DeadLetter)
        else event
        for event in stage.events
    ]
    boom = "ValueError: a crashes"
    assert story == [
        ChildStarted("root/a", 1),
        ChildStarted("root/b", 1),
        ChildStarted("root", 1),
        DeadLetter("root/a", 1, 1, Crash(), LetterReason.CRASHED, boom),
        ChildCrashed("root/a", 1, Crashed("x")),
        ChildRestarting("root/a", 0, 1),
        ChildStarted("root/a", 2),
        DeadLetter("root/a", 2, 2, Crash(), LetterReason.CRASHED, boom),
        ChildCrashed("root/a", 2, Crashed("x")),
        SupervisorEscalated("root", "root/a", 2, 5),
        ChildStopped("root/b", 1, ShutDown()),
        ChildCrashed("root", 1, Crashed("x")),
    ]


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
async def test_leaving_the_program_is_never_restarted_and_still_cleans_up_in_order(
    autojump_clock: MockClock, stage: Stage, leaving: type[BaseException]
) -> None:
    class Leaver(Player):
        async def handle(self, message: Line) -> None:
            raise leaving

    b = ActorSpec("b", lambda: Leaver(stage, "b"))
    inner = Supervisor("inner", [stage.player("a"), b, stage.player("c")])
    root = Supervisor("root", [stage.player("z"), inner], intensity=OFTEN, backoff=AT_ONCE)
    with pytest.RaisesGroup(leaving, flatten_subgroups=True):
        async with open_supervisor(root, stage.surroundings):
            stage.clear()
            await b.address.tell(Say("leave"))
            await trio.sleep_forever()
    assert stage.log == ["b-", "c-", "a-", "z-"]
    assert not any(isinstance(event, ChildRestarting) for event in stage.events)


async def test_a_sink_that_raises_ends_the_tree_and_leaves_no_child_behind(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    def sink(event: AnyLifecycleEvent) -> None:
        if isinstance(event, ChildCrashed):
            raise ConnectionError("the sink is broken")

    a, b = stage.players("ab")
    surroundings = Surroundings(random.Random(1), sink)
    # Once for the crash of a, once for the crash of the supervisor that follows from it.
    with pytest.RaisesGroup(ConnectionError, ConnectionError, flatten_subgroups=True):
        async with open_supervisor(Supervisor("root", [a, b], backoff=AT_ONCE), surroundings):
            await a.address.tell(Crash())
            await trio.sleep_forever()
    assert stage.log == ["a+", "b+", "a!", "a-", "b-"]


# What is refused


def duplicate_ids(stage: Stage) -> ChildSpec:
    return Supervisor("root", [*stage.players("aba")])


def permanent_and_significant(stage: Stage) -> ChildSpec:
    return stage.player("a", significant=True)


def negative_shutdown(stage: Stage) -> ChildSpec:
    return stage.player("a", shutdown_s=-1)


def no_name(stage: Stage) -> ChildSpec:
    return stage.player("")


def a_path_as_name(stage: Stage) -> ChildSpec:
    return stage.player("a/b")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (duplicate_ids, "root: two children cannot have the same id: a"),
        (permanent_and_significant, "a: a permanent child never ends"),
        (negative_shutdown, "a: shutdown_s must not be negative, not -1"),
        (no_name, "must be a name without '/'"),
        (a_path_as_name, "must be a name without '/', not 'a/b'"),
    ],
)
async def test_a_senseless_spec_is_refused_where_it_is_written(
    autojump_clock: MockClock, stage: Stage, build: Any, says: str
) -> None:
    with pytest.raises(ChildSpecError, match=says):
        build(stage)


async def test_one_spec_cannot_be_two_children(autojump_clock: MockClock, stage: Stage) -> None:
    (a,) = stage.players("a")
    root = Supervisor("root", [Supervisor("x", [a]), Supervisor("y", [a])])
    with pytest.raises(ChildStartFailed) as caught:
        async with open_supervisor(root, stage.surroundings):
            pytest.fail("the block must not begin")
    cause = caught.value.__cause__
    assert isinstance(cause, ChildStartFailed)
    assert "one address has one actor" in str(cause.__cause__)
