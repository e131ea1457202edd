"""A stream of a runtime, fetched in the thread of trio into a buffer that others read.

A fetch takes all that is there, so that a burst costs one crossing. One whose waiter has left
meanwhile, because it was cancelled or ran out of time, loses nothing: the next finds it here.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Fetched(Generic[T]):
    """See the module. `take` gives what is there, and waits for the first; nothing at the end."""

    def __init__(
        self, take: Callable[[], Awaitable[Sequence[T]]], close: Callable[[], Awaitable[None]]
    ) -> None:
        self.ready: deque[T] = deque()
        """A deque is safe between threads."""
        self.close = close
        """Leaves the stream; in the thread of trio."""
        self._take = take

    async def fetch(self) -> bool:
        """In the thread of trio: wait for more. Returns whether there was any."""
        more = await self._take()
        self.ready.extend(more)
        return bool(more)
