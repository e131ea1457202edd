"""Functions of the host that are written for asyncio, made fit for a runtime on trio.

They run in the loop of the host, each as a task. When the runtime cancels one, because its
session was stopped or its deadline has passed, the task is cancelled, and the runtime waits
until it has ended. Tools and hooks go through `crossing`; for providers there is
`asyncio_provider.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Generic, TypeVar

import trio

from midstream.messages.errors import MidstreamError

T = TypeVar("T")

LOOP_DEADLINE_S = 10.0
"""Seconds that a cancelled function of asyncio has to end."""

AsyncFunction = Callable[..., Coroutine[Any, Any, T]]


class LoopGone(MidstreamError):
    """The loop of asyncio, in which a function of the host should run, is closed, or has
    cancelled it."""


def crossing(loop: asyncio.AbstractEventLoop, function: AsyncFunction[T]) -> AsyncFunction[T]:
    """The same function for trio."""

    @wraps(function)
    async def cross(*args: Any, **named: Any) -> T:
        return await call_asyncio(loop, partial(function, *args, **named))

    return cross


async def call_asyncio(
    loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Run a function of asyncio in its loop, from a task of trio, and wait for it.

    Raises what the function raises, and `LoopGone`.
    """
    run = InLoop(loop, function)
    try:
        await run.over.wait()
    except trio.Cancelled:
        await run.stop()
        raise
    return run.result()


class InLoop(Generic[T]):
    """A function that runs as a task in a loop of asyncio, from now on. Belongs to trio."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], Coroutine[Any, Any, T]],
    ) -> None:
        self.over = trio.Event()
        self._loop = loop
        self._function = function
        self._trio = trio.lowlevel.current_trio_token()
        self._task: asyncio.Task[T] | None = None

        try:
            loop.call_soon_threadsafe(self._start)
        except RuntimeError as error:
            raise LoopGone("the loop of asyncio is closed") from error

    async def stop(self) -> None:
        """Cancel it, and wait until it has ended, at most ten seconds."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return  # the loop is closed, and nothing runs in it
        with trio.move_on_after(LOOP_DEADLINE_S) as patience:
            patience.shield = True
            await self.over.wait()

    def result(self) -> T:
        """What it has returned. Raises what it has raised."""
        assert self._task is not None
        if self._task.cancelled():
            raise LoopGone("the function was cancelled in its loop")
        return self._task.result()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._function())
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio complains of an error that nobody has looked at
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(self.over.set)
