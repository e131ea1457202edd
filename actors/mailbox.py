"""Where an actor's mail waits: a bounded trio memory channel, and a way around the bound.

One per address; it outlives the incarnations of its actor. Everybody puts, only the
actor's task takes. Order is the order of arrival. Signals (`Down`) must neither wait nor
be lost when the mailbox is full: what finds no room is kept aside, at most one for each
sender, and is taken when everything that lay before it has been taken.
"""

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A FIFO queue for one reader that holds `capacity` items. It is never closed."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._put, self._take = trio.open_memory_channel[T | None](capacity)
        self._taken = 0
        self._aside: dict[str, tuple[int, T]] = {}

    @property
    def depth(self) -> int:
        """How many items wait to be taken."""
        return self._take.statistics().current_buffer_used + len(self._aside)

    @property
    def senders_waiting(self) -> int:
        """How many tasks wait in `put` for room."""
        return self._take.statistics().tasks_waiting_send

    async def put(self, item: T) -> None:
        """Append `item`; waits while the mailbox is full. If cancelled, nothing was put."""
        await self._put.send(item)

    def put_nowait(self, item: T) -> None:
        """Append `item`, or raise `trio.WouldBlock` if the mailbox is full."""
        self._put.send_nowait(item)

    def put_signal(self, sender: str, signal: T) -> None:
        """Append `signal` whether or not there is room.

        While one of `sender` is kept aside, a newer one takes its place: the reader is
        that far behind, and the newest is what counts.
        """
        self._aside.pop(sender, None)
        try:
            self._put.send_nowait(signal)
        except trio.WouldBlock:
            self._aside[sender] = (self._taken + self.capacity, signal)

    def wake(self) -> None:
        """Make a `take` that waits return None. No effect if none waits."""
        if self._take.statistics().tasks_waiting_receive:
            self._put.send_nowait(None)

    async def take(self) -> T | None:
        """The next item; waits for one. None if it was woken. If cancelled, nothing was taken."""
        if self._aside_is_due():
            await trio.lowlevel.checkpoint()
            return self._pop_aside()
        item = await self._take.receive()
        self._taken += 1
        return item

    def take_nowait(self) -> T | None:
        """The next item, or None if there is none."""
        if self._aside_is_due():
            return self._pop_aside()
        try:
            item = self._take.receive_nowait()
        except trio.WouldBlock:
            return None
        self._taken += 1
        return item

    def _aside_is_due(self) -> bool:
        if not self._aside:
            return False
        due, _ = next(iter(self._aside.values()))
        return due <= self._taken

    def _pop_aside(self) -> T:
        _, signal = self._aside.pop(next(iter(self._aside)))
        return signal
