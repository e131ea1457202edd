"""Calls into a thread in which trio runs, from tasks of asyncio and from plain threads.

A call that is cancelled, or takes too long, is cancelled in trio, and whoever made it goes on
only when it has cleaned up there: nothing is left running that nobody waits for. Errors come
back as they are. The way out, from trio into a loop of asyncio: `asyncio_functions.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Generic, TypeVar, TypeVarTuple, cast

import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from midstream.messages.errors import RuntimeStopped

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Call(Generic[T]):
    """An async function that runs in the thread of trio, from now on."""

    def __init__(
        self, portal: BlockingPortal, function: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> None:
        self._portal = portal
        self._scope = trio.CancelScope()
        self._value: T | None = None
        try:
            self._future: Future[None] = portal.start_task_soon(self._run, function, args)
        except RuntimeError as error:
            raise RuntimeStopped("the runtime has stopped") from error

    async def _run(self, function: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> None:
        with self._scope:
            self._value = await function(*args)

    def cancel(self) -> None:
        """Cancel it. It is not over yet."""
        with suppress(RuntimeError):  # trio is over, and so is the call
            self._portal.start_task_soon(self._scope.cancel)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._future.done()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when it has ended, in any thread."""
        self._future.add_done_callback(lambda _: callback())

    async def in_asyncio(self) -> T:
        """Wait for it in a task of asyncio. Cancelling the task cancels the call."""
        waiter = asyncio.wrap_future(self._future)
        cancelled: asyncio.CancelledError | None = None
        while not waiter.done():
            try:
                await asyncio.wait({waiter})
            except asyncio.CancelledError as error:
                cancelled = error
                self.cancel()
        if not waiter.cancelled():
            waiter.exception()  # asyncio complains of an error that nobody has looked at
        if cancelled is not None:
            raise cancelled
        return self._result()

    def in_thread(self, timeout_s: float | None = None) -> T:
        """Wait for it in a plain thread. Raises TimeoutError, then it is cancelled and over."""
        try:
            wait([self._future], timeout_s)
        finally:  # for a KeyboardInterrupt too
            timed_out = not self._future.done()
            if timed_out:
                self.cancel()
                wait([self._future])
        if timed_out:
            raise TimeoutError(f"it took more than {timeout_s:g} seconds")
        return self._result()

    def _result(self) -> T:
        try:
            self._future.result()
        except FutureCancelled:
            raise RuntimeStopped("the runtime has stopped") from None
        return cast("T", self._value)


class Hosted(Generic[T]):
    """An async context manager that is entered and left in one task of trio.

    `value` is what entering has given. The block there ends with `leave`, or by itself, with an
    error.
    """

    def __init__(self, portal: BlockingPortal, opening: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._opening = opening
        self._entered: Future[T] = Future()
        self._leaving: trio.Event | None = None
        self.call: Call[None] = Call(portal, self._stay)
        self.call.on_end(self._on_end)

    async def _stay(self) -> None:
        self._leaving = trio.Event()
        async with self._opening as value:
            self._entered.set_result(value)
            await self._leaving.wait()

    def _on_end(self) -> None:
        if not self._entered.done():
            self._entered.set_exception(RuntimeStopped("it has ended before it was entered"))

    async def enter_in_asyncio(self) -> T:
        """Wait until it is entered. Raises what entering raises."""
        entered = asyncio.wrap_future(self._entered)
        try:
            await asyncio.wait({entered})
        except asyncio.CancelledError:
            self.call.cancel()
            await self.call.in_asyncio()
            raise
        if entered.exception() is not None:
            await self.call.in_asyncio()  # which says why
        return entered.result()

    def enter_in_thread(self) -> T:
        """The same for a plain thread."""
        try:
            wait([self._entered])
        finally:
            if not self._entered.done():
                self.call.cancel()
        if self._entered.exception() is not None:
            self.call.in_thread()  # which says why
        return self._entered.result()

    def leave(self) -> None:
        """Let the block end. It is not over yet."""
        assert self._leaving is not None
        with suppress(RuntimeError):  # trio is over, and so is the block
            self._portal.start_task_soon(self._leaving.set)


@contextmanager
def trio_thread() -> Generator[BlockingPortal]:
    """A thread in which trio runs, for as long as the block lasts."""
    with start_blocking_portal("trio", name="midstream") as portal:
        yield portal
