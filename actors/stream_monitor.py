"""StreamMonitor: holds the one live stream of a session.

It opens a stream when the Session says so, hands what comes to the RuleMatcher in batches
stamped with the attempt, and closes the connection the moment it is told to abort. The
last it says of an attempt is `StreamSettled`, when the connection is closed: nothing of
that attempt comes behind it.
"""

import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.messages.work import AbortAttempt, StartAttempt, StreamBatch, StreamSettled
from midstream.providers.provider import Provider

MonitorMessage = StartAttempt | AbortAttempt


class StreamMonitor(Actor[MonitorMessage]):
    """See the module. The cancel scope of the live attempt is all its state."""

    def __init__(self, provider: Provider, matcher: Address[StreamBatch | StreamSettled]) -> None:
        self._provider = provider
        self._matcher = matcher
        self._attempt = 0
        self._scope = trio.CancelScope()

    async def handle(self, message: MonitorMessage) -> None:
        match message:
            case AbortAttempt(attempt) if attempt == self._attempt:
                self._scope.cancel()
            case AbortAttempt():
                pass
            case StartAttempt(attempt):
                self._attempt = attempt
                self._scope = trio.CancelScope()
                self.spawn(self._pump, message, self._scope)

    async def _pump(self, start: StartAttempt, scope: trio.CancelScope) -> None:
        with scope:
            async with self._provider.open(start.request) as batches:
                async for batch in batches:
                    arrived = StreamBatch(start.attempt, tuple(batch), trio.current_time())
                    await self._matcher.pass_on(arrived)
        await self._matcher.tell(StreamSettled(start.attempt))
