"""One session's events as the Announcer remembers them, and those who listen to it.

The last events are kept in a ring, bounded in bytes. Used by the Announcer alone. No I/O.
"""

from collections import deque
from collections.abc import Iterable

from midstream.actors.subscription import Subscription, event_bytes
from midstream.messages.errors import MidstreamError
from midstream.messages.event_log import Position
from midstream.messages.events import AnyEvent, SessionEnded, SessionEvent


class GapError(MidstreamError):
    """The events after the number asked for are not remembered any more, or were never said.

    `after` is the number behind which there are events, `newest` the place behind the last
    one, as far as they are known.
    """

    def __init__(
        self, message: str, after: int | None = None, newest: Position | None = None
    ) -> None:
        self.after = after
        self.newest = newest
        super().__init__(message)


class Channel:
    """See the module. Numbers go on behind `start`."""

    def __init__(self, session_id: str, start: Position, ring_limit_bytes: int) -> None:
        self.epoch = start.epoch
        self.last = start.sequence
        self.ended = False
        self._session_id = session_id
        self._ring: deque[SessionEvent] = deque()
        self._ring_bytes = 0
        self._ring_limit_bytes = ring_limit_bytes
        self._subscribers: list[Subscription] = []

    @property
    def position(self) -> Position:
        """The place behind the last event."""
        return Position(self.epoch, self.last)

    @property
    def ring_bytes(self) -> int:
        """What the remembered events take."""
        return self._ring_bytes

    def announce(self, events: Iterable[AnyEvent]) -> tuple[SessionEvent, ...]:
        """Number the events, remember them, tell whoever listens; the events with numbers."""
        numbered = tuple(
            SessionEvent(self._session_id, number, event, self.epoch)
            for number, event in enumerate(events, self.last + 1)
        )
        self.last += len(numbered)
        self._remember(numbered)
        for subscriber in self._subscribers:
            subscriber.push(numbered)
        self._subscribers = [one for one in self._subscribers if not one.is_closed]
        self.ended = self.ended or any(isinstance(e.event, SessionEnded) for e in numbered)
        return numbered

    def subscribe(self, after: int, epoch: int | None, limit_bytes: int) -> Subscription:
        """Follow from behind number `after`. Raises `GapError` where the ring does not reach."""
        first = self._ring[0].sequence if self._ring else self.last + 1
        known = first - 1 <= after <= self.last and epoch in (None, self.epoch)
        if not known:
            problem = f"events of {self._session_id} are remembered from number {first} on"
            raise GapError(problem, after=first - 1, newest=self.position)
        subscription = Subscription(after, limit_bytes, self.epoch)
        subscription.push(event for event in self._ring if event.sequence > after)
        if not self.ended:
            self._subscribers.append(subscription)
        return subscription

    def close(self) -> None:
        """Nobody shall wait here any more."""
        for subscriber in self._subscribers:
            subscriber.close()
        self._subscribers.clear()

    def _remember(self, events: tuple[SessionEvent, ...]) -> None:
        self._ring.extend(events)
        self._ring_bytes += sum(map(event_bytes, events))
        while self._ring_bytes > self._ring_limit_bytes and len(self._ring) > 1:
            self._ring_bytes -= event_bytes(self._ring.popleft())
