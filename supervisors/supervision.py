"""One incarnation of a supervisor: it starts children, hears of their exits, and acts.

Used by `Supervisor` and `DynamicSupervisor` alike. Everything it decides, it decides with
`restart.decide`; here is only what is done about it. Guaranteed: children run inside its
nursery and none outlives it; they are stopped in reverse start order, whether it ends,
gives up, is stopped or is cancelled; a crash of one is never a crash of another.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from midstream.messages.errors import MidstreamError
from midstream.messages.lifecycle import (
    AnyExit,
    ChildRestarting,
    EndedNormally,
    ShutDown,
    SupervisorEscalated,
)
from midstream.supervisors.child_spec import ChildSpec, Surroundings
from midstream.supervisors.errors import (
    ChildNotFound,
    ChildSpecError,
    ChildStartFailed,
    RestartIntensityExceeded,
    SupervisorNotRunning,
)
from midstream.supervisors.introspection import ChildInfo, Phase
from midstream.supervisors.restart import (
    Action,
    AwaitRestart,
    ChildExited,
    ChildState,
    EndAll,
    Event,
    GiveUp,
    RestartDue,
    RetireChildren,
    StartChildren,
    StopChildren,
    SupervisionState,
    decide,
)
from midstream.supervisors.running_child import RunningChild


class Supervision:
    """Runs `children`, and those that are added later.

    Children are stopped one by one, the last first. If it is `dynamic`, they know nothing
    of each other: they are stopped all at the same time, and a next incarnation of the
    supervisor does not start them again.
    """

    def __init__(
        self,
        who: str,
        state: SupervisionState,
        surroundings: Surroundings,
        children: Sequence[ChildSpec] = (),
        *,
        dynamic: bool = False,
    ) -> None:
        self.who = who
        self._state = state
        self._surroundings = surroundings
        self._specs: dict[str, ChildSpec] = {}
        self._running: dict[str, RunningChild] = {}
        self._dynamic = dynamic
        self.for_good = dynamic
        """Whether the children will not be started again by a next incarnation."""
        # Holds at most one exit for each incarnation and one entry for each ticket.
        self._report, self._events = trio.open_memory_channel[Event](math.inf)
        self._serving = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._failure: MidstreamError | None = None
        self._exit: EndedNormally | ShutDown = ShutDown()
        for spec in children:
            self._take_in(spec)

    @property
    def restarts(self) -> int:
        """Restarts within the window of the last decision."""
        return len(self._state.restarts)

    def children(self) -> tuple[ChildInfo, ...]:
        """The children that have not ended, in start order; none before and after `run`."""
        if self._nursery is None:
            return ()
        return tuple(
            ChildInfo(spec, self._phase_of(spec.id), spec.incarnation)
            for spec in self._specs.values()
        )

    def request_stop(self) -> None:
        """Stop the children, then end. Breaks off whatever start or restart is under way."""
        self._serving.cancel()

    async def run(self, on_started: Callable[[], None]) -> EndedNormally | ShutDown:
        """Start the children, keep them alive, stop them.

        Raises `ChildStartFailed` or `RestartIntensityExceeded`, after they are stopped.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                with self._serving:
                    if await self._start_first():
                        on_started()
                        await self._serve()
                self._serving.cancel()  # whatever the reason: no child is added any more
                await self._stop_all()
            finally:
                await self._cut_all()
                self._running.clear()  # each of them refers back to this
                self._nursery = None
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return self._exit

    async def add(self, spec: ChildSpec) -> None:
        """Start one more child. Returns when it has started; if cancelled, it is cancelled."""
        nursery = self._open_nursery()
        if spec.id in self._specs:
            raise ChildSpecError(f"{self.who} has a child {spec.id!r} already")
        self._take_in(spec)
        child = self._register(spec)
        started = False
        try:
            started = await child.start(nursery)
            if not started:
                raise ChildStartFailed(spec.who) from child.error
        finally:
            if not started:
                self._let_go_of(child)

    async def remove(self, child_id: str) -> None:
        """Stop one child for good. If cancelled, it is cancelled."""
        self._open_nursery()
        child = self._running.get(child_id)
        if child is None:
            raise ChildNotFound(self.who, child_id)
        self._state = self._state.without((child_id,))
        try:
            await child.stop(for_good=True)
        finally:
            await child.cut(for_good=True)
            self._let_go_of(child)

    def _open_nursery(self) -> trio.Nursery:
        if self._nursery is None or self._serving.cancel_called:
            raise SupervisorNotRunning(self.who)
        return self._nursery

    async def _start_first(self) -> bool:
        for spec in tuple(self._specs.values()):
            if not await self._start(spec):
                self._failure = ChildStartFailed(spec.who)
                self._failure.__cause__ = self._error_of(spec.id)
                return False
        return True

    async def _serve(self) -> None:
        async for event in self._events:
            self._state, actions = decide(self._state, event, trio.current_time())
            for action in actions:
                if not await self._carry_out(action):
                    return

    async def _carry_out(self, action: Action) -> bool:
        """Returns False when nothing is left to do but to stop."""
        match action:
            case StopChildren(ids):
                for child_id in ids:
                    await self._running[child_id].stop(for_good=False)
            case RetireChildren(ids):
                self._let_go(ids)
            case AwaitRestart():
                self._await_restart(action)
            case StartChildren(ids):
                await self._restart(ids)
            case GiveUp(child_id, restarts):
                self._give_up(child_id, restarts)
                return False
            case EndAll():
                self._exit = EndedNormally()
                return False
        return True

    async def _start(self, spec: ChildSpec, *, again: bool = False) -> bool:
        assert self._nursery is not None
        return await self._register(spec, again=again).start(self._nursery)

    def _register(self, spec: ChildSpec, *, again: bool = False) -> RunningChild:
        child = RunningChild(spec, self._surroundings, self._on_exit, again=again)
        self._running[spec.id] = child
        return child

    async def _restart(self, ids: Sequence[str]) -> None:
        # The first failure breaks off: it is an exit, and decides anew about the others.
        for child_id in ids:
            child = self._state.find(child_id)
            if child is None:
                continue
            spec = self._specs[child_id]
            spec.incarnation = child.incarnation
            if not await self._start(spec, again=True):
                return

    def _on_exit(self, child: RunningChild, exit: AnyExit) -> None:
        if isinstance(exit, ShutDown):
            return
        if not child.started and not child.again:
            return  # whoever wanted the first start hears of it directly
        self._report.send_nowait(ChildExited(child.spec.id, child.incarnation, exit))

    def _await_restart(self, action: AwaitRestart) -> None:
        assert self._nursery is not None
        # Between half and all of the nominal wait, so that those who crashed together do
        # not come back together.
        delay_s = action.nominal_s * (0.5 + 0.5 * self._surroundings.random.random())
        who = self._specs[action.child].who
        self._surroundings.emit(ChildRestarting(who, delay_s, action.restarts))
        self._nursery.start_soon(self._report_due, delay_s, action.ticket)

    async def _report_due(self, delay_s: float, ticket: int) -> None:
        await trio.sleep(delay_s)
        self._report.send_nowait(RestartDue(ticket))

    def _give_up(self, child_id: str, restarts: int) -> None:
        child, within_s = self._specs[child_id].who, self._state.intensity.within_s
        self._surroundings.emit(SupervisorEscalated(self.who, child, restarts, within_s))
        self._failure = RestartIntensityExceeded(self.who, child, restarts, within_s)
        self._failure.__cause__ = self._error_of(child_id)

    async def _stop_all(self) -> None:
        async def stop(child: RunningChild) -> None:
            await child.stop(for_good=self.for_good)

        await self._for_each_child(stop)

    async def _cut_all(self) -> None:
        async def cut(child: RunningChild) -> None:
            await child.cut(for_good=self.for_good)

        with trio.CancelScope(shield=True):
            await self._for_each_child(cut)

    async def _for_each_child(self, end: Callable[[RunningChild], Awaitable[None]]) -> None:
        children = tuple(reversed(self._running.values()))
        if not self._dynamic:
            for child in children:
                await end(child)
            return
        async with trio.open_nursery() as nursery:
            for child in children:
                nursery.start_soon(end, child)

    def _take_in(self, spec: ChildSpec) -> None:
        spec.adopt(self.who, self._surroundings)
        spec.incarnation += 1
        self._specs[spec.id] = spec
        self._state = self._state.with_child(
            ChildState(spec.id, spec.restart, spec.significant, spec.incarnation)
        )

    def _let_go(self, ids: Iterable[str]) -> None:
        self._state = self._state.without(ids)
        for child_id in ids:
            self._running.pop(child_id, None)
            spec = self._specs.pop(child_id, None)
            if spec is not None:
                spec.retire()

    def _let_go_of(self, child: RunningChild) -> None:
        # While it was being stopped, another call may have let go of it, and a new child
        # may have taken its id.
        if self._running.get(child.spec.id) is child:
            self._let_go((child.spec.id,))

    def _phase_of(self, child_id: str) -> Phase:
        state, child = self._state.find(child_id), self._running.get(child_id)
        if state is not None and state.ticket is not None:
            return Phase.WAITING
        return Phase.RUNNING if child is not None and child.started else Phase.STARTING

    def _error_of(self, child_id: str) -> Exception | None:
        child = self._running.get(child_id)
        return child.error if child else None
