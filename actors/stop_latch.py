"""StopLatch: whether a session was told to stop, or that its client has gone, known at once to
who opens its streams.

A stop is a message to the Session, and what the Session makes of it is one more to the
StreamMonitor. An order to start may lie before that one, unread. So whoever stops a session
sets the latch as well, behind the message, and the StreamMonitor looks at it in the moment in
which it would ask the provider (architecture.md invariant 3). It is the same with a client that
goes: what was begun by itself is not asked for any more (invariant 7). Neither is ever taken back.
"""


class StopLatch:
    """See the module. Set by those who stop a session or leave it, read by its StreamMonitor."""

    __slots__ = ("_is_left", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._is_left = False

    def set(self) -> None:
        """The session has been told to stop."""
        self._is_set = True

    def leave(self) -> None:
        """The session has been told that its client has gone."""
        self._is_left = True

    def forbids(self, *, is_follow_up: bool) -> bool:
        """Whether nothing may be asked for any more, or no follow-up."""
        return self._is_set or (is_follow_up and self._is_left)
