"""Supervisors as one declares them: a tree that can be read in one place.

A `Supervisor` is a spec like that of an actor, and the handle on its incarnations as an
`Address` is on an actor's. `open_supervisor` brings a tree to life. The semantics are
those of Erlang/OTP's `supervisor` (stdlib reference manual). Differences: restarts are
delayed (`Backoff`); addresses and unread mail survive them; a transient child that has
ended normally stays ended when its siblings are restarted; and a child that is cancelled
still runs its own clean-up, shielded and bounded, where OTP's `kill` would not.
"""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from midstream.messages.lifecycle import AnyExit
from midstream.supervisors.child_spec import ChildSpec, Surroundings
from midstream.supervisors.errors import ChildSpecError
from midstream.supervisors.introspection import ChildInfo, Phase, SupervisorStatistics
from midstream.supervisors.restart import (
    DEFAULT_BACKOFF,
    DEFAULT_INTENSITY,
    Backoff,
    Intensity,
    Restart,
    Strategy,
    SupervisionState,
)
from midstream.supervisors.running_child import RunningChild
from midstream.supervisors.supervision import Supervision


class AnySupervisor(ChildSpec):
    """What `Supervisor` and `DynamicSupervisor` have in common."""

    def __init__(
        self,
        id: str,
        policy: SupervisionState,
        *,
        restart: Restart,
        significant: bool,
        shutdown_s: float,
    ) -> None:
        super().__init__(id, restart=restart, significant=significant, shutdown_s=shutdown_s)
        self._policy = policy
        self._life: Supervision | None = None
        self._surroundings: Surroundings | None = None

    def adopt(self, parent: str, surroundings: Surroundings) -> None:
        super().adopt(parent, surroundings)
        self._surroundings = surroundings

    def children(self) -> tuple[ChildInfo, ...]:
        """The children that have not ended, in start order; none while it does not run."""
        return self._life.children() if self._life else ()

    def statistics(self) -> SupervisorStatistics:
        """Figures of this moment."""
        children = self.children()
        return SupervisorStatistics(
            who=self.who,
            children=len(children),
            running=sum(child.phase is Phase.RUNNING for child in children),
            waiting=sum(child.phase is Phase.WAITING for child in children),
            supervisors=sum(isinstance(child.spec, AnySupervisor) for child in children),
            restarts=self._life.restarts if self._life else 0,
            intensity=self._policy.intensity,
        )

    def _begin_life(self, children: Sequence[ChildSpec], *, dynamic: bool) -> Supervision:
        if self._surroundings is None:
            raise ChildSpecError(f"{self.who} belongs to no tree; see open_supervisor")
        self._life = Supervision(
            self.who, self._policy, self._surroundings, children, dynamic=dynamic
        )
        return self._life


class Supervisor(AnySupervisor):
    """Keeps a fixed list of children alive.

    They are started in order, each when `started` of the one before has returned, and
    stopped in reverse. If a first start fails, those before it are stopped and the
    supervisor's own start fails. When the intensity is exceeded it stops its children and
    crashes, which is for its own parent to decide about.

    >>> ledger = ActorSpec("ledger", lambda: Ledger(store))
    >>> sessions = DynamicSupervisor("sessions")
    >>> runtime = Supervisor("runtime", [ledger, sessions], intensity=Intensity(3, within_s=10))
    """

    def __init__(
        self,
        id: str,
        children: Sequence[ChildSpec],
        *,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: Intensity = DEFAULT_INTENSITY,
        backoff: Backoff = DEFAULT_BACKOFF,
        restart: Restart = Restart.PERMANENT,
        significant: bool = False,
        shutdown_s: float = math.inf,
    ) -> None:
        policy = SupervisionState(strategy, intensity, backoff)
        super().__init__(
            id, policy, restart=restart, significant=significant, shutdown_s=shutdown_s
        )
        ids = [child.id for child in children]
        twice = sorted({child_id for child_id in ids if ids.count(child_id) > 1})
        if twice:
            raise ChildSpecError(f"{id}: two children cannot have the same id: {', '.join(twice)}")
        self._specs = tuple(children)

    def incarnate(self) -> Supervision:
        return self._begin_life(self._specs, dynamic=False)

    def retire(self) -> None:
        for spec in self._specs:
            spec.retire()


S = TypeVar("S", bound=AnySupervisor)


@asynccontextmanager
async def open_supervisor(supervisor: S, surroundings: Surroundings) -> AsyncGenerator[S]:
    """Run a tree for as long as the block lasts.

    The block begins when all children have started; if one fails to, `ChildStartFailed` is
    raised. At the end of the block the tree is stopped in order, each child within its
    `shutdown_s`; if the block is left by cancellation, each is cancelled, in order too.

    If the supervisor gives up meanwhile, the block is cancelled and raises
    `RestartIntensityExceeded`; as with a nursery, errors come in an exception group. If it
    ends normally (a significant child has), the block goes on.
    """
    supervisor.adopt("", surroundings)
    supervisor.incarnation += 1
    root = RunningChild(supervisor, surroundings, _no_parent)
    try:
        async with trio.open_nursery() as nursery:
            if await root.start(nursery):
                nursery.start_soon(_await_end, root)
                try:
                    yield supervisor
                finally:
                    await _stop(root)
    finally:
        supervisor.retire()
    if root.error is not None:  # the start failed: after it, `_await_end` raises
        raise root.error


def _no_parent(root: RunningChild, exit: AnyExit) -> None:
    """Nobody decides about a root; `open_supervisor` looks at it itself."""


async def _await_end(root: RunningChild) -> None:
    await root.wait_over()
    if root.error is not None:
        raise root.error
    root.spec.retire()


async def _stop(root: RunningChild) -> None:
    try:
        await root.stop(for_good=True)
    finally:
        await root.cut(for_good=True)
