"""Sessions that are over and still remembered: since when, and what they take.

Used by the Announcer alone. Pure. They are forgotten in the order in which they ended: after
some time, or when they take too much together. Who asks later is answered from the event log
(`replay.py`).
"""

from collections.abc import Iterator
from itertools import takewhile

KEPT_AFTER_END_S = 30.0
"""Seconds after its end for which a session can still be subscribed to
(spec/animator.md 5.1), unless there are too many."""

ENDED_LIMIT_BYTES = 2_097_152
"""What the sessions that are over may take together: eight whole rings, or some thousand short
requests of a gateway, which would be kept by the ten thousand otherwise."""

SESSION_BYTES = 1_024
"""What a session takes besides its events, roughly: its channel and its place in some tables."""


class EndedSessions:
    """See the module."""

    def __init__(
        self, kept_s: float = KEPT_AFTER_END_S, limit_bytes: int = ENDED_LIMIT_BYTES
    ) -> None:
        self._kept_s = kept_s
        self._limit_bytes = limit_bytes
        self._until_s: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._until_s)

    @property
    def first_due_s(self) -> float:
        """When the first of them is to be forgotten. There has to be one."""
        return next(iter(self._until_s.values()))

    def put(self, session_id: str, ring_bytes: int, now_s: float) -> None:
        """The session is over, or has said something since; it takes so much now."""
        self._until_s.setdefault(session_id, now_s + self._kept_s)
        self._size_bytes -= self._sizes.get(session_id, 0)
        self._sizes[session_id] = size = ring_bytes + SESSION_BYTES
        self._size_bytes += size

    def remove(self, session_id: str) -> None:
        """It is forgotten, or goes on."""
        self._until_s.pop(session_id, None)
        self._size_bytes -= self._sizes.pop(session_id, 0)

    def due(self, now_s: float) -> list[str]:
        """Those whose time has come."""
        times = takewhile(lambda each: each[1] <= now_s, self._until_s.items())
        return [name for name, _ in times]

    def crowded_out(self) -> Iterator[str]:
        """Those that there is no room for; each has to be removed before the next is asked
        for. The last one stays, whatever it takes."""
        while self._size_bytes > self._limit_bytes and len(self._until_s) > 1:
            yield next(iter(self._until_s))
