"""The actor: one task that takes its mail one by one, and alone changes its state.

Subclasses of `Actor` say what an actor does; `ActorRun` runs one incarnation of one, from
`started` to `stopped`. Supervisors make the runs (`midstream.supervisors`). Guaranteed:
hooks never run at the same time; the message in hand at a crash goes to the dead letters
and is not handled again; `stopped` runs once for each `started` that returned, shielded
from cancellation and within bounded time; no task of an actor outlives it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar, TypeVarTuple

import msgspec
import trio

from midstream.actors.address import Address
from midstream.actors.cell import Cell
from midstream.actors.crash import crash_of, exit_of
from midstream.messages.lifecycle import (
    AnyExit,
    Crashed,
    Down,
    EndedNormally,
    LetterReason,
    ShutDown,
)

M = TypeVar("M", bound=msgspec.Struct)
M_contra = TypeVar("M_contra", bound=msgspec.Struct, contravariant=True)
Ts = TypeVarTuple("Ts")

DEFAULT_CLEANUP_S = 5.0
"""Seconds that `stopped` may take."""


class Actor(Generic[M_contra]):
    """Base of all actors. `M_contra` is the union of the messages that it takes.

    Override `handle` or `handle_batch`, not both. An instance is one incarnation: a
    restart makes a new one, so nothing of the state that led to a crash is kept.
    """

    drains: ClassVar[bool] = False
    """Whether it handles the mail that waits before it is stopped for good, as one that writes
    down what others have said. Within `shutdown_s`, as ever."""

    _run: "ActorRun[Any] | None" = None

    async def started(self) -> None:
        """Prepare. The actor counts as started, and mail is handled, when this returns.

        An exception here is a failed start. `stopped` is then not called, so what was
        opened has to be closed here.
        """

    async def handle(self, message: M_contra) -> None:
        """React to one message. An exception crashes the actor."""
        raise NotImplementedError(f"{type(self).__name__} handles no messages")

    async def handle_batch(self, messages: tuple[M_contra, ...]) -> None:
        """React to all that waited, in order; never empty, at most a mailbox full.

        For actors whose mail comes in bursts: a burst costs one task switch. The batch is
        in hand as a whole: if this raises, all of it goes to the dead letters.
        """
        raise NotImplementedError(f"{type(self).__name__} handles no messages")

    def lost(self, messages: tuple[M_contra, ...]) -> None:
        """These were in hand at a crash, and are dead letters now. Runs before `stopped`, for
        what outlives the incarnation and has to know of it."""

    async def stopped(self, reason: AnyExit) -> None:
        """Clean up. Tasks of the actor are over by now, and it takes no more mail.

        Runs after a crash and under cancellation too, then shielded. What exceeds the
        actor's `cleanup_s` is cancelled, and counts as a crash.
        """

    @property
    def address(self) -> Address[M_contra]:
        """The actor's own address."""
        return Address(self._running.cell)

    def spawn(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run `function(*args)` beside the handling of mail, between `started` and `stopped`.

        It may read the actor's state and should change it through messages to itself. Its
        crash is the actor's crash; when the actor ends it is cancelled.
        """
        self._running.spawn(function, *args)

    def end(self) -> None:
        """End normally, as soon as what is being handled is finished. No more mail is read."""
        self._running.leave(EndedNormally())

    def watch(self: "Actor[Down]", address: Address[Any]) -> None:
        """Get a `Down` at each exit of that actor, restarted or not; at once if it has ended.

        It comes after all mail that the actor had sent here. A watch ends with the
        incarnation that began it. Watching twice is watching once.
        """
        address.watched_by(self._running.cell)

    def unwatch(self, address: Address[Any]) -> None:
        """End a watch. A `Down` that already waits in the mailbox is still handled."""
        address.unwatched_by(self._running.cell)

    def attach(self, run: "ActorRun[Any] | None") -> None:
        """For the kernel: give the actor its run, and take it away when that is over."""
        self._run = run

    @property
    def _running(self) -> "ActorRun[Any]":
        if self._run is None:
            raise RuntimeError(f"{type(self).__name__} does not run: it has no address yet")
        return self._run


class ActorRun(Generic[M]):
    """One incarnation of one actor."""

    def __init__(
        self,
        actor: Actor[M],
        cell: Cell[M],
        *,
        incarnation: int = 1,
        cleanup_s: float = DEFAULT_CLEANUP_S,
    ) -> None:
        self.cell = cell
        self.for_good = False
        """Whether no incarnation will follow: then the address ends together with this one."""
        self._incarnation = incarnation
        self._actor = actor
        self._cleanup_s = cleanup_s
        self._nursery: trio.Nursery | None = None
        self._leaving: EndedNormally | ShutDown | None = None
        self._in_hand: tuple[M, ...] = ()
        self._lost: tuple[M, ...] = ()
        self._owes_cleanup = False

    def request_stop(self) -> None:
        """Stop after what is being handled; mail that is not read stays in the mailbox, unless
        the actor `drains`."""
        self.leave(ShutDown())

    def leave(self, reason: EndedNormally | ShutDown) -> None:
        """Read no more mail. The first reason counts."""
        if self._leaving is None:
            self._leaving = reason
            self.cell.mailbox.wake()

    def spawn(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run `function(*args)` in the actor's nursery."""
        if self._nursery is None:
            raise RuntimeError(f"{self.cell.who} does not run: it cannot spawn")
        self._nursery.start_soon(self._guarded, function, args)

    async def run(self, on_started: Callable[[], None]) -> EndedNormally | ShutDown:
        """Live. Calls `on_started` when `started` has returned.

        Returns why the actor left; a crash raises what it crashed with.
        """
        self.cell.begin(self._incarnation)
        self._actor.attach(self)
        try:
            return await self._live_and_tell(on_started)
        finally:
            # They refer to each other. Parted, both go at once, with all that they hold;
            # otherwise they would wait for the garbage collector, and that makes others wait.
            self._actor.attach(None)
            if self.for_good:
                self.cell.retire()

    async def _live_and_tell(self, on_started: Callable[[], None]) -> EndedNormally | ShutDown:
        try:
            reason = await self._live(on_started)
            await self._clean_up(reason)
        except BaseException as error:
            verdict = exit_of(error)
            self._bury_in_hand(verdict)
            self.cell.go_down(verdict)
            if self._owes_cleanup:
                await self._clean_up_after(verdict, error)
            raise
        self.cell.go_down(reason)
        return reason

    async def _live(self, on_started: Callable[[], None]) -> EndedNormally | ShutDown:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._guarded(self._start_and_serve, (on_started,))
            nursery.cancel_scope.cancel()
        assert self._leaving is not None
        return self._leaving

    async def _start_and_serve(self, on_started: Callable[[], None]) -> None:
        await self._actor.started()
        self._owes_cleanup = True
        on_started()
        if type(self._actor).handle_batch is not Actor[Any].handle_batch:
            await self._serve_batches()
        else:
            await self._serve()

    def _drains(self) -> bool:
        """Whether there is mail to handle although the actor is leaving."""
        is_last = self.for_good and isinstance(self._leaving, ShutDown)
        return self._actor.drains and is_last and self.cell.mailbox.depth > 0

    async def _serve(self) -> None:
        cell, handle = self.cell, self._actor.handle
        while self._leaving is None or self._drains():
            message = await cell.take()
            if message is None:
                continue
            self._in_hand = (message,)
            await handle(message)
            self._in_hand = ()
            cell.handled += 1

    async def _serve_batches(self) -> None:
        cell, handle_batch = self.cell, self._actor.handle_batch
        while self._leaving is None or self._drains():
            batch = await cell.take_batch()
            if not batch:
                continue
            self._in_hand = batch
            await handle_batch(batch)
            self._in_hand = ()
            cell.handled += len(batch)

    async def _guarded(
        self, function: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts]
    ) -> None:
        # Askers and watchers learn of a crash here, at once: the nursery may still wait
        # for the clean-up of other tasks.
        try:
            await function(*args)
        except Exception as error:
            self.cell.go_down(crash_of(error))
            raise

    async def _clean_up(self, reason: AnyExit) -> None:
        self._owes_cleanup = False
        if not self._lost and type(self._actor).stopped is Actor[Any].stopped:
            return
        with trio.fail_after(self._cleanup_s) as scope:
            scope.shield = True
            try:
                if self._lost:
                    self._actor.lost(self._lost)
            finally:
                await self._actor.stopped(reason)

    async def _clean_up_after(self, reason: AnyExit, error: BaseException) -> None:
        try:
            await self._clean_up(reason)
        except Exception as second:  # noqa: BLE001 - raised again, in a group
            message = f"{self.cell.who} failed, and so did its clean-up"
            raise BaseExceptionGroup(message, [error, second]) from None

    def _bury_in_hand(self, reason: AnyExit) -> None:
        crash = reason if isinstance(reason, Crashed) else None
        why = LetterReason.CRASHED if crash else LetterReason.CUT
        self.cell.bury(self._in_hand, why, crash)
        self._lost = self._in_hand if crash else ()
        self._in_hand = ()
