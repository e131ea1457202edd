"""The restart decision: as a table, and as properties that hold for every history."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.lifecycle import Crashed, EndedNormally, OwnExit
from midstream.supervisors.restart import (
    Action,
    AwaitRestart,
    Backoff,
    ChildExited,
    ChildState,
    EndAll,
    Event,
    GiveUp,
    Intensity,
    Restart,
    RestartDue,
    Restarted,
    RetireChildren,
    StartChildren,
    StopChildren,
    Strategy,
    SupervisionState,
    decide,
)

CRASH = Crashed("ValueError: x")
NORMAL = EndedNormally()
BACKOFF = Backoff(base_s=1, cap_s=8)
P, T, X = Restart.PERMANENT, Restart.TRANSIENT, Restart.TEMPORARY
ONE, ALL, REST = Strategy.ONE_FOR_ONE, Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE


def state(
    strategy: Strategy, *kinds: Restart, max_restarts: int = 10, significant: str = ""
) -> SupervisionState:
    """Children a, b, c, ... of these kinds, all running as incarnation 1."""
    children = tuple(
        ChildState(name, kind, significant=name in significant)
        for name, kind in zip("abcdef", kinds, strict=False)
    )
    return SupervisionState(strategy, Intensity(max_restarts, 5), BACKOFF, children)


def wait(child: str) -> AwaitRestart:
    return AwaitRestart(ticket=1, child=child, nominal_s=1, restarts=1)


Row = tuple[Strategy, tuple[Restart, ...], str, OwnExit, list[Action], tuple[str, ...]]
# strategy, kinds of a b c .., who exits and how, what is done, what is started again
TABLE: list[Row] = [
    # Who is restarted at all (OTP: restart type).
    (ONE, (P,), "a", CRASH, [wait("a")], ("a",)),
    (ONE, (P,), "a", NORMAL, [wait("a")], ("a",)),
    (ONE, (T,), "a", CRASH, [wait("a")], ("a",)),
    (ONE, (T,), "a", NORMAL, [RetireChildren(("a",))], ()),
    (ONE, (X,), "a", CRASH, [RetireChildren(("a",))], ()),
    (ONE, (X,), "a", NORMAL, [RetireChildren(("a",))], ()),
    # Who goes along (OTP: strategy).
    (ONE, (P, P, P), "b", CRASH, [wait("b")], ("b",)),
    (ALL, (P, P, P), "b", CRASH, [StopChildren(("c", "a")), wait("b")], ("a", "b", "c")),
    (REST, (P, P, P), "b", CRASH, [StopChildren(("c",)), wait("b")], ("b", "c")),
    (REST, (P, P, P), "a", CRASH, [StopChildren(("c", "b")), wait("a")], ("a", "b", "c")),
    (REST, (P, P, P), "c", CRASH, [wait("c")], ("c",)),
    # A child that is not restarted takes nobody along.
    (ALL, (T, P, P), "a", NORMAL, [RetireChildren(("a",))], ()),
    (REST, (X, P, P), "a", CRASH, [RetireChildren(("a",))], ()),
    # A temporary child is never restarted, not even when its siblings are.
    (
        ALL,
        (P, X, T),
        "a",
        CRASH,
        [StopChildren(("c", "b")), RetireChildren(("b",)), wait("a")],
        ("a", "c"),
    ),
    (
        REST,
        (P, T, X),
        "b",
        CRASH,
        [StopChildren(("c",)), RetireChildren(("c",)), wait("b")],
        ("b",),
    ),
]


@pytest.mark.parametrize(("strategy", "kinds", "who", "exit", "actions", "started"), TABLE)
def test_what_follows_when_a_child_exits(
    strategy: Strategy,
    kinds: tuple[Restart, ...],
    who: str,
    exit: OwnExit,
    actions: list[Action],
    started: tuple[str, ...],
) -> None:
    after, taken = decide(state(strategy, *kinds), ChildExited(who, 1, exit), now_s=100)
    assert list(taken) == actions
    _, then = decide(after, RestartDue(1), now_s=101)
    assert then == ((StartChildren(started),) if started else ())


@pytest.mark.parametrize(
    ("kind", "exit", "ends"),
    [(T, NORMAL, True), (T, CRASH, False), (X, NORMAL, True), (X, CRASH, True)],
)
def test_the_end_of_a_significant_child_ends_its_supervisor(
    kind: Restart, exit: OwnExit, ends: bool
) -> None:
    before = state(REST, kind, P, significant="a")
    _, actions = decide(before, ChildExited("a", 1, exit), now_s=0)
    assert (EndAll("a") in actions) is ends


def test_a_significant_child_that_a_restart_of_siblings_stops_does_not_end_its_supervisor() -> None:
    before = state(ALL, P, X, significant="b")
    _, actions = decide(before, ChildExited("a", 1, CRASH), now_s=0)
    assert actions == (StopChildren(("b",)), RetireChildren(("b",)), wait("a"))


def test_one_restart_too_many_within_the_window_gives_up() -> None:
    before = state(ONE, P, P, max_restarts=2)
    before, _ = decide(before, ChildExited("a", 1, CRASH), now_s=0)
    before, _ = decide(before, ChildExited("b", 1, NORMAL), now_s=5)
    before, _ = decide(before, RestartDue(1), now_s=5)
    _, actions = decide(before, ChildExited("a", 2, CRASH), now_s=5)
    assert actions == (GiveUp("a", 3),)


def test_a_restart_that_has_left_the_window_counts_no_more() -> None:
    before = state(ONE, P, max_restarts=1)
    before, _ = decide(before, ChildExited("a", 1, CRASH), now_s=0)
    before, _ = decide(before, RestartDue(1), now_s=1)
    after, actions = decide(before, ChildExited("a", 2, CRASH), now_s=5.001)
    assert actions == (AwaitRestart(2, "a", 1, 1),)
    assert after.restarts == (Restarted(5.001, "a"),)


def test_no_restarts_at_all_when_none_are_allowed() -> None:
    _, actions = decide(state(ONE, P, max_restarts=0), ChildExited("a", 1, CRASH), now_s=0)
    assert actions == (GiveUp("a", 1),)


def test_the_default_intensity_is_that_of_otp() -> None:
    assert SupervisionState().intensity == Intensity(max_restarts=1, within_s=5)


def test_the_wait_doubles_with_each_restart_of_the_same_child_up_to_the_cap() -> None:
    before = state(ONE, P, P, max_restarts=100)
    waits: list[float] = []
    for number in range(1, 7):
        before, actions = decide(before, ChildExited("a", number, CRASH), now_s=number / 100)
        (action,) = actions
        assert isinstance(action, AwaitRestart)
        waits.append(action.nominal_s)
        before, _ = decide(before, RestartDue(action.ticket), now_s=number / 100)
    assert waits == [1, 2, 4, 8, 8, 8]
    _, actions = decide(before, ChildExited("b", 1, CRASH), now_s=0.1)
    assert isinstance(actions[0], AwaitRestart)
    assert actions[0].nominal_s == 1, "another child begins anew"


def test_a_report_about_an_earlier_incarnation_has_no_effect() -> None:
    before = state(ONE, P)
    before, _ = decide(before, ChildExited("a", 1, CRASH), now_s=0)
    before, _ = decide(before, RestartDue(1), now_s=1)
    assert decide(before, ChildExited("a", 1, CRASH), now_s=2) == (before, ())
    assert decide(before, RestartDue(1), now_s=2) == (before, ())
    assert decide(before, ChildExited("z", 1, CRASH), now_s=2) == (before, ())


def test_the_crash_of_an_earlier_child_takes_over_a_restart_that_waits() -> None:
    before = state(REST, P, P, P)
    before, _ = decide(before, ChildExited("c", 1, CRASH), now_s=0)
    before, actions = decide(before, ChildExited("a", 1, CRASH), now_s=0.5)
    assert actions == (StopChildren(("b",)), AwaitRestart(2, "a", 1, 2))
    assert decide(before, RestartDue(1), now_s=1) == (before, ())
    _, actions = decide(before, RestartDue(2), now_s=1.5)
    assert actions == (StartChildren(("a", "b", "c")),)


def test_a_start_that_fails_in_a_group_is_tried_again_with_those_after_it() -> None:
    before = state(REST, P, P, P)
    before, _ = decide(before, ChildExited("a", 1, CRASH), now_s=0)
    before, _ = decide(before, RestartDue(1), now_s=1)
    before, actions = decide(before, ChildExited("b", 2, CRASH), now_s=1)
    assert actions == (StopChildren(("c",)), AwaitRestart(2, "b", 1, 2))
    _, actions = decide(before, RestartDue(2), now_s=2)
    assert actions == (StartChildren(("b", "c")),)


def test_a_child_that_had_ended_before_its_siblings_took_it_along_stays_ended() -> None:
    before = state(ALL, P, T, significant="b")
    before, _ = decide(before, ChildExited("a", 1, CRASH), now_s=0)
    before, actions = decide(before, ChildExited("b", 1, NORMAL), now_s=0)
    assert actions == (RetireChildren(("b",)), EndAll("b"))
    _, actions = decide(before, RestartDue(1), now_s=1)
    assert actions == (StartChildren(("a",)),)


@pytest.mark.parametrize("bad", [{"max_restarts": -1}, {"within_s": 0}])
def test_a_senseless_intensity_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="max_restarts must not be negative"):
        Intensity(**bad)


@pytest.mark.parametrize("bad", [(-1, 1), (2, 1), (float("nan"), 1)])
def test_a_senseless_backoff_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="base_s <= cap_s"):
        Backoff(*bad)


@dataclass
class World:
    """Carries actions out as a supervisor would, and checks what must hold on the way."""

    state: SupervisionState
    running: dict[str, int] = field(default_factory=dict[str, int])
    retired: set[str] = field(default_factory=set[str])
    tickets: list[int] = field(default_factory=list[int])
    restarts: list[float] = field(default_factory=list[float])
    over: bool = False

    def handle(self, event: Event, now_s: float, failing: str | None) -> None:
        order = [child.id for child in self.state.children]
        self.state, actions = decide(self.state, event, now_s)
        for action in actions:
            match action:
                case StopChildren(ids):
                    assert list(ids) == sorted(ids, key=order.index, reverse=True)
                    assert set(ids) <= set(self.running)
                    for child in ids:
                        del self.running[child]
                case RetireChildren(ids):
                    assert not set(ids) & set(self.running)
                    self.retired.update(ids)
                case AwaitRestart(ticket, _, _, restarts):
                    self.tickets.append(ticket)
                    self.restarts.append(now_s)
                    within = [at for at in self.restarts if now_s - at <= 5]
                    assert len(within) == restarts <= self.state.intensity.max_restarts
                case StartChildren(ids):
                    self.start(ids, order, now_s, failing)
                case GiveUp(_, restarts):
                    within = [at for at in self.restarts if now_s - at <= 5]
                    assert restarts == len(within) + 1 == self.state.intensity.max_restarts + 1
                    self.over = True
                case EndAll():
                    self.over = True

    def start(
        self, ids: tuple[str, ...], order: list[str], now_s: float, failing: str | None
    ) -> None:
        assert list(ids) == sorted(ids, key=order.index)
        assert not set(ids) & (self.retired | set(self.running))
        for child in ids:
            found = self.state.find(child)
            assert found is not None
            if child == failing:
                # As the real one: what comes after it in the group is not started, and
                # the failure is an exit like another. Nothing of it runs.
                unstarted = ids[ids.index(child) :]
                self.running.update(dict.fromkeys(unstarted, 0))
                del self.running[child]
                exited = ChildExited(child, found.incarnation, CRASH)
                self.handle(exited, now_s, None)
                return
            self.running[child] = found.incarnation


@given(
    strategy=st.sampled_from(Strategy),
    kinds=st.lists(st.sampled_from(Restart), min_size=1, max_size=5),
    max_restarts=st.integers(0, 4),
    steps=st.lists(
        st.tuples(
            st.integers(0, 4),  # whose turn
            st.sampled_from(["crash", "end", "due", "late report", "due, but it fails"]),
            st.floats(0, 2),  # seconds in between
        ),
        max_size=40,
    ),
)
@settings(deadline=None, max_examples=300)
def test_in_every_history_the_promises_hold(
    strategy: Strategy,
    kinds: list[Restart],
    max_restarts: int,
    steps: list[tuple[int, str, float]],
) -> None:
    start = state(strategy, *kinds, max_restarts=max_restarts)
    world = World(start, running={child.id: 1 for child in start.children})
    now_s = 0.0
    for turn, what, pause_s in steps:
        now_s += pause_s
        child = "abcde"[turn]
        if what.startswith("due"):
            if world.tickets:
                ticket = world.tickets.pop(turn % len(world.tickets))
                world.handle(RestartDue(ticket), now_s, child if "fails" in what else None)
        elif what == "late report":
            known = world.state.find(child)
            if known is not None and known.incarnation > 1:
                late = ChildExited(child, known.incarnation - 1, CRASH)
                before = world.state
                world.handle(late, now_s, None)
                assert world.state == before
        elif child in world.running:
            incarnation = world.running.pop(child)
            exit = CRASH if what == "crash" else NORMAL
            world.handle(ChildExited(child, incarnation, exit), now_s, None)
        if world.over:
            return
        waiting = {c.id for c in world.state.children if c.ticket is not None}
        assert set(world.running) == {c.id for c in world.state.children} - waiting
        assert world.retired.isdisjoint(c.id for c in world.state.children)
        for each in world.state.children:
            if each.ticket is not None:
                assert each.restart is not X, "a temporary child waits for no restart"
                assert each.ticket in world.tickets, "every wait has an end"
        assert len(world.state.restarts) <= max_restarts


@given(
    strategy=st.sampled_from(Strategy),
    size=st.integers(1, 6),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_a_strategy_restarts_exactly_its_group_in_order(
    strategy: Strategy, size: int, data: st.DataObject
) -> None:
    before = state(strategy, *[P] * size)
    names = [child.id for child in before.children]
    index = data.draw(st.integers(0, size - 1))
    group = {ONE: names[index : index + 1], ALL: names, REST: names[index:]}[strategy]
    after, actions = decide(before, ChildExited(names[index], 1, CRASH), now_s=0)
    stopped = [
        name for action in actions if isinstance(action, StopChildren) for name in action.ids
    ]
    assert stopped == [name for name in reversed(group) if name != names[index]]
    _, actions = decide(after, RestartDue(1), now_s=1)
    assert actions == (StartChildren(tuple(group)),)
