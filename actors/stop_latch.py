"""StopLatch: whether a session was told to stop, known at once to who opens its streams.

A stop is a message to the Session, and what the Session makes of it is one more to the
StreamMonitor. An order to start may lie before that one, unread. So whoever stops a session
sets the latch as well, behind the message, and the StreamMonitor looks at it in the moment in
which it would ask the provider (architecture.md invariant 3). It is never taken back.
"""


class StopLatch:
    """See the module. Set by those who stop a session, read by its StreamMonitor."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """The session has been told to stop."""
        self._is_set = True
