"""One subscriber's view of a session's events: bounded, and never in the stream's way.

The Announcer pushes, one consumer iterates. A consumer that falls behind costs bounded
memory: first adjacent deltas are joined, and when that is not enough, the subscription is
closed with `Lagged`, which says from where to resume (architecture.md, the way of a token).
"""

from collections import deque
from collections.abc import Iterable

import trio

from midstream.messages.errors import MidstreamError
from midstream.messages.event_log import joined
from midstream.messages.events import (
    LocalAnswer,
    ReminderInjected,
    SessionEnded,
    SessionEvent,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    ToolWanted,
)

DEFAULT_LIMIT_BYTES = 1_048_576
"""What one subscription may hold."""

_EVENT_OVERHEAD_BYTES = 200
"""What an event without text takes, roughly."""


class Lagged(MidstreamError):
    """The subscriber was too slow; resume after sequence number `after`."""

    def __init__(self, after: int) -> None:
        self.after = after
        super().__init__(f"too slow for this session's events; resume after number {after}")


class Subscription:
    """An async iterator over a session's events; it ends behind `SessionEnded`.

    Raises `Lagged` when events had to be dropped. One task may iterate at a time. `epoch` is
    that of the session's events (`event_log.Position`).
    """

    def __init__(
        self, after: int = 0, limit_bytes: int = DEFAULT_LIMIT_BYTES, epoch: int = 1
    ) -> None:
        self.epoch = epoch
        self._limit_bytes = limit_bytes
        self._compact_above_bytes = limit_bytes // 2
        self._waiting: deque[SessionEvent] = deque()
        self._bytes = 0
        self._seen = after
        self._lagged = False
        self._closed = False
        self._arrival = trio.Event()

    def push(self, events: Iterable[SessionEvent]) -> None:
        """Take events, in order. For the Announcer; never blocks."""
        for event in events:
            if self._closed or self._lagged:
                return
            self._take(event)
        self._arrival.set()

    def close(self) -> None:
        """No event will come any more; what waits is still delivered."""
        self._closed = True
        self._arrival.set()

    @property
    def is_closed(self) -> bool:
        """Whether pushing to it is of no use any more."""
        return self._closed or self._lagged

    @property
    def waiting_bytes(self) -> int:
        """What waits, in bytes."""
        return self._bytes

    def _take(self, event: SessionEvent) -> None:
        self._waiting.append(event)
        self._bytes += event_bytes(event)
        if self._bytes > self._compact_above_bytes:
            self._compact()
        if self._bytes > self._limit_bytes:
            self._lagged = True
            self._waiting.clear()
        elif isinstance(event.event, SessionEnded):
            self._closed = True

    def _compact(self) -> None:
        """Join what can be joined. It costs as much as waits, so the next time is a good deal
        later, however slow the consumer is."""
        self._waiting = deque(joined(self._waiting))
        self._bytes = sum(map(event_bytes, self._waiting))
        later = max(self._limit_bytes // 2, self._bytes + self._limit_bytes // 8)
        self._compact_above_bytes = min(self._limit_bytes, later)

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> SessionEvent:
        if not await self.ready():
            raise StopAsyncIteration
        event = self._waiting.popleft()
        self._bytes -= event_bytes(event)
        self._seen = event.sequence
        return event

    async def take(self) -> list[SessionEvent]:
        """All that waits; waits for the first. Empty at the end. Raises `Lagged`."""
        if not await self.ready():
            return []
        events = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        self._seen = events[-1].sequence
        return events

    async def ready(self) -> bool:
        """Wait until something waits; False at the end. Raises `Lagged`."""
        while not self._waiting:
            if self._lagged:
                raise Lagged(self._seen)
            if self._closed:
                return False
            self._arrival = trio.Event()
            await self._arrival.wait()
        return True


def event_bytes(event: SessionEvent) -> int:
    """What an event takes, in bytes, roughly and quickly."""
    match event.event:
        case Text(text=said) | Thinking(text=said):
            return _EVENT_OVERHEAD_BYTES + _text_bytes(said)
        case ToolUse(arguments=said) | ToolWanted(arguments=said) | ToolResult(content=said):
            return _EVENT_OVERHEAD_BYTES + _text_bytes(said)
        case SessionEnded(output=said) | ReminderInjected(text=said) | LocalAnswer(text=said):
            return _EVENT_OVERHEAD_BYTES * 4 + _text_bytes(said)
        case _:
            return _EVENT_OVERHEAD_BYTES * 4


def _text_bytes(text: str) -> int:
    """What CPython takes, at most: one byte a character if all are ASCII."""
    return len(text) if text.isascii() else len(text) * 4
