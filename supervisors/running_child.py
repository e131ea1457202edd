"""One incarnation of one child, as a task of its supervisor.

The supervisor's run makes it, starts it and stops it. Cancellation of the supervisor does
not reach the child by itself, since the child's task is shielded: only the supervisor
cancels it, and so keeps the order in which children go, in every case. The events
`ChildStarted`, `ChildStopped` and `ChildCrashed` come from here.
"""

from collections.abc import Callable

import trio

from midstream.actors.crash import crash_of, sole_error
from midstream.messages.lifecycle import (
    AnyExit,
    ChildCrashed,
    ChildStarted,
    ChildStopped,
    Crashed,
    ShutDown,
)
from midstream.supervisors.child_spec import ChildSpec, Life, Surroundings


class RunningChild:
    """The incarnation `spec.incarnation`; `again` if it is a restart.

    `on_exit` is called once, when it is over, unless the program is being left.
    """

    def __init__(
        self,
        spec: ChildSpec,
        surroundings: Surroundings,
        on_exit: "Callable[[RunningChild, AnyExit], None]",
        *,
        again: bool = False,
    ) -> None:
        self.spec = spec
        self.incarnation = spec.incarnation
        self.again = again
        self.started = False
        self.error: Exception | None = None
        """What it crashed with."""
        self._surroundings = surroundings
        self._on_exit = on_exit
        self._scope = trio.CancelScope(shield=True)
        self._life: Life | None = None
        self._ready = trio.Event()
        self._over = trio.Event()

    async def start(self, nursery: trio.Nursery) -> bool:
        """Start it, and return whether it has started. If cancelled, it is cancelled too."""
        nursery.start_soon(self._run, name=self.spec.who)
        try:
            await self._ready.wait()
        except trio.Cancelled:
            await self.cut(for_good=False)
            raise
        return self.started

    async def stop(self, *, for_good: bool) -> None:
        """Ask it to stop; cancel it when `shutdown_s` have passed. Returns when it is over.

        `for_good`: its addresses end. If this is cancelled, the child may still be
        stopping; what remains to do then is `cut`.
        """
        if self._life is not None:
            self._life.for_good = self._life.for_good or for_good
            self._life.request_stop()
            with trio.move_on_after(self.spec.shutdown_s):
                await self._over.wait()
        await self.cut(for_good=for_good)

    async def cut(self, *, for_good: bool) -> None:
        """Cancel it and wait until it is over, which its own clean-up may delay.

        Not cancellable itself: a supervisor never leaves a child behind.
        """
        if self._life is not None:
            self._life.for_good = self._life.for_good or for_good
        if not self._over.is_set():
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._over.wait()
        if for_good and self.spec.incarnation == self.incarnation:
            self.spec.retire()

    async def wait_over(self) -> None:
        """Wait until it is over, for whatever reason."""
        await self._over.wait()

    async def _run(self) -> None:
        try:
            exit = await self._live()
            self._tell(exit)
        finally:
            self._over.set()
            self._ready.set()
        self._on_exit(self, exit)

    async def _live(self) -> AnyExit:
        try:
            with self._scope:
                self._life = self.spec.incarnate()
                return await self._life.run(self._mark_started)
        except Exception as error:  # noqa: BLE001 - a crash is data here: its supervisor decides
            self.error = sole_error(error)
            return crash_of(error)
        return ShutDown(cut=True)

    def _mark_started(self) -> None:
        self.started = True
        self._ready.set()
        self._surroundings.emit(ChildStarted(self.spec.who, self.incarnation))

    def _tell(self, exit: AnyExit) -> None:
        who, emit = self.spec.who, self._surroundings.emit
        if isinstance(exit, Crashed):
            emit(ChildCrashed(who, self.incarnation, exit, starting=not self.started))
        elif self.started:
            emit(ChildStopped(who, self.incarnation, exit))
