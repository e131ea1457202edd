"""Where the events of one subscription wait for whoever follows: bounded, as everywhere."""

from midstream.actors.subscription import Subscription
from midstream.messages.errors import MidstreamError
from midstream.messages.events import SessionEvent


class Sink:
    """Filled by the link, emptied by one consumer."""

    def __init__(self, after: int) -> None:
        self._events = Subscription(after)
        self._failure: MidstreamError | None = None

    def push(self, event: SessionEvent) -> None:
        """Take an event."""
        self._events.push([event])

    def close(self, failure: MidstreamError | None = None) -> None:
        """Nothing will come any more, and perhaps why."""
        self._failure = failure
        self._events.close()

    async def take(self) -> list[SessionEvent]:
        """What is there; waits for the first. Empty when nothing comes any more.

        Raises why, if it is known, and `Lagged` if the consumer was too slow.
        """
        events = await self._events.take()
        if not events and self._failure is not None:
            raise self._failure
        return events
