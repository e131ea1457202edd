"""Who is restarted when a child exits: the decision of a supervisor, as a pure function.

`decide` takes what a supervisor knows, one thing that happened and the time, and answers
with what it knows then and what it does about it. `Supervision` carries that out and
knows nothing of strategies. The semantics are those of Erlang/OTP's `supervisor` (stdlib
reference manual); what is added is the delay before a restart, which OTP does not have.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from midstream.messages.lifecycle import Crashed, OwnExit


class Strategy(StrEnum):
    """Which children a restart takes along."""

    ONE_FOR_ONE = "one_for_one"
    """Only the child that exited."""
    ONE_FOR_ALL = "one_for_all"
    """All of them."""
    REST_FOR_ONE = "rest_for_one"
    """It, and those that were started after it."""


class Restart(StrEnum):
    """Whether a child that exited by itself is started again."""

    PERMANENT = "permanent"
    """Always, after a normal end too."""
    TRANSIENT = "transient"
    """Only after a crash."""
    TEMPORARY = "temporary"
    """Never; not even when a restart of its siblings has stopped it."""

    def follows(self, exit: OwnExit) -> bool:
        """Whether a child of this kind is started again after `exit`."""
        match self:
            case Restart.PERMANENT:
                return True
            case Restart.TRANSIENT:
                return isinstance(exit, Crashed)
            case Restart.TEMPORARY:
                return False


class Intensity(msgspec.Struct, frozen=True):
    """How many restarts a supervisor accepts within a window before it gives up itself.

    The defaults are OTP's: 1 within 5 seconds. 0 restarts nothing.
    """

    max_restarts: int = 1
    within_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.within_s <= 0:
            raise ValueError(f"max_restarts must not be negative and within_s positive: {self}")


class Backoff(msgspec.Struct, frozen=True):
    """How long a supervisor waits before a restart.

    The first restart of a child within the window waits `base_s` seconds, each further one
    twice as long, at most `cap_s`. The wait counts into the window: where `cap_s` times
    `max_restarts` exceeds `within_s`, a child may crash for ever without escalation.
    """

    base_s: float = 0.05
    cap_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.base_s <= self.cap_s:
            raise ValueError(f"0 <= base_s <= cap_s must hold: {self}")

    def nominal_s(self, nth: int) -> float:
        """The wait before the `nth` restart in a row, counted from 1, without jitter."""
        doublings = min(nth - 1, 60)
        return min(self.cap_s, self.base_s * 2**doublings)


DEFAULT_INTENSITY = Intensity()
DEFAULT_BACKOFF = Backoff()


class ChildState(msgspec.Struct, frozen=True):
    """What a supervisor knows of one child."""

    id: str
    restart: Restart = Restart.PERMANENT
    significant: bool = False
    """Whether the supervisor ends when it has ended by itself and is not restarted."""
    incarnation: int = 1
    """The number of the incarnation that runs, or that ran last."""
    ticket: int | None = None
    """Which restart it waits for. None while it runs."""


class Restarted(msgspec.Struct, frozen=True):
    """One restart that was decided: when (trio's time, seconds), and because of whom."""

    at_s: float
    child: str


class SupervisionState(msgspec.Struct, frozen=True):
    """What a supervisor knows. `children` are in start order; who has ended is not in it."""

    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: Intensity = DEFAULT_INTENSITY
    backoff: Backoff = DEFAULT_BACKOFF
    children: tuple[ChildState, ...] = ()
    restarts: tuple[Restarted, ...] = ()
    """Those within the window, oldest first; so never more than `max_restarts`."""
    tickets: int = 0
    """How many tickets were given out."""

    def find(self, child_id: str) -> ChildState | None:
        """The child of that id, if it has not ended."""
        return next((child for child in self.children if child.id == child_id), None)

    def with_child(self, child: ChildState) -> "SupervisionState":
        """One more child, as the last in start order."""
        return replace(self, children=(*self.children, child))

    def without(self, ids: Iterable[str]) -> "SupervisionState":
        """The same without these children."""
        gone = frozenset(ids)
        return replace(self, children=tuple(c for c in self.children if c.id not in gone))


class ChildExited(msgspec.Struct, frozen=True):
    """An incarnation is over, and not because its supervisor stopped it.

    A start that failed is a crash of the incarnation that it was to be.
    """

    child: str
    incarnation: int
    exit: OwnExit


class RestartDue(msgspec.Struct, frozen=True):
    """The wait for a restart is over."""

    ticket: int


Event = ChildExited | RestartDue


class StopChildren(msgspec.Struct, frozen=True):
    """Stop them one after another, in this order. They may be started again."""

    ids: tuple[str, ...]


class RetireChildren(msgspec.Struct, frozen=True):
    """They will not be started again."""

    ids: tuple[str, ...]


class AwaitRestart(msgspec.Struct, frozen=True):
    """Report `RestartDue(ticket)` in about `nominal_s` seconds; `restarts` of the window."""

    ticket: int
    child: str
    nominal_s: float
    restarts: int


class StartChildren(msgspec.Struct, frozen=True):
    """Start them one after another, in this order, until one fails."""

    ids: tuple[str, ...]


class GiveUp(msgspec.Struct, frozen=True):
    """Stop everything and fail: a restart for `child` would exceed the intensity."""

    child: str
    restarts: int


class EndAll(msgspec.Struct, frozen=True):
    """Stop everything and end normally: the significant `child` has ended."""

    child: str


Action = StopChildren | RetireChildren | AwaitRestart | StartChildren | GiveUp | EndAll


def decide(
    state: SupervisionState, event: Event, now_s: float
) -> tuple[SupervisionState, tuple[Action, ...]]:
    """What follows from `event`.

    Events of incarnations and tickets that are over have no effect: reports may arrive
    late, when the decision that they call for has been taken for another reason.
    """
    match event:
        case ChildExited(child_id, incarnation, exit):
            child = state.find(child_id)
            if child is None or child.incarnation != incarnation:
                return state, ()
            if not child.restart.follows(exit):
                return _let_go(state, child)
            if child.ticket is not None:
                return state, ()
            return _restart(state, child, now_s)
        case RestartDue(ticket):
            return _start(state, ticket)


def _let_go(
    state: SupervisionState, child: ChildState
) -> tuple[SupervisionState, tuple[Action, ...]]:
    rest = state.without((child.id,))
    retire = RetireChildren((child.id,))
    if child.significant:
        return rest, (retire, EndAll(child.id))
    return rest, (retire,)


def _restart(
    state: SupervisionState, child: ChildState, now_s: float
) -> tuple[SupervisionState, tuple[Action, ...]]:
    # OTP keeps restarts that are exactly `within_s` old in the window.
    oldest_s = now_s - state.intensity.within_s
    recent = tuple(each for each in state.restarts if each.at_s >= oldest_s)
    restarts = (*recent, Restarted(now_s, child.id))
    if len(restarts) > state.intensity.max_restarts:
        return replace(state, restarts=recent), (GiveUp(child.id, len(restarts)),)

    affected = _affected(state, child)
    running = tuple(c.id for c in reversed(affected) if c.ticket is None and c is not child)
    ended = tuple(c.id for c in affected if c.restart is Restart.TEMPORARY)
    ticket = state.tickets + 1
    waiting = frozenset(c.id for c in affected)
    after = replace(
        state,
        children=tuple(replace(c, ticket=ticket) if c.id in waiting else c for c in state.children),
        restarts=restarts,
        tickets=ticket,
    ).without(ended)

    nth = sum(each.child == child.id for each in restarts)
    actions: list[Action] = []
    if running:
        actions.append(StopChildren(running))
    if ended:
        actions.append(RetireChildren(ended))
    actions.append(AwaitRestart(ticket, child.id, state.backoff.nominal_s(nth), len(restarts)))
    return after, tuple(actions)


def _affected(state: SupervisionState, child: ChildState) -> tuple[ChildState, ...]:
    match state.strategy:
        case Strategy.ONE_FOR_ONE:
            return (child,)
        case Strategy.ONE_FOR_ALL:
            return state.children
        case Strategy.REST_FOR_ONE:
            return state.children[state.children.index(child) :]


def _start(state: SupervisionState, ticket: int) -> tuple[SupervisionState, tuple[Action, ...]]:
    due = tuple(child.id for child in state.children if child.ticket == ticket)
    if not due:
        return state, ()
    children = tuple(
        replace(child, ticket=None, incarnation=child.incarnation + 1)
        if child.ticket == ticket
        else child
        for child in state.children
    )
    return replace(state, children=children), (StartChildren(due),)
