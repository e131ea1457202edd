"""StreamMonitor: holds the one live stream of a session.

It opens a stream when the Session says so, hands what comes to the RuleMatcher in batches
stamped with the attempt, and closes the connection the moment it is told to abort. While
everybody is paused it holds the attempt back, and tells the Session so. An order
to start that was aborted before it was read, or that was given before the session was
stopped, asks nobody. The last it says of an attempt is `StreamSettled`, when the connection
is closed: nothing of that attempt comes behind it.
"""

import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.dispatch_gate import DispatchGate
from midstream.actors.stop_latch import StopLatch
from midstream.messages.dispatch import Refused
from midstream.messages.work import (
    AbortAttempt,
    AttemptHeld,
    AttemptReleased,
    StartAttempt,
    StreamBatch,
    StreamSettled,
)
from midstream.providers.provider import Provider

MonitorMessage = StartAttempt | AbortAttempt


class StreamMonitor(Actor[MonitorMessage]):
    """See the module. The cancel scope of the live attempt is nearly all its state."""

    def __init__(
        self,
        provider: Provider,
        matcher: Address[StreamBatch | StreamSettled],
        session: Address[AttemptHeld | AttemptReleased],
        gate: DispatchGate,
        stop: StopLatch,
    ) -> None:
        self._provider = provider
        self._matcher = matcher
        self._session = session
        self._gate = gate
        self._stop = stop
        self._attempt = 0
        self._aborted = 0
        """The newest attempt that was aborted; those before it are over as well."""
        self._scope = trio.CancelScope()

    async def handle_batch(self, messages: tuple[MonitorMessage, ...]) -> None:
        for message in messages:
            if isinstance(message, AbortAttempt):
                self._aborted = max(self._aborted, message.attempt)
        if self._attempt <= self._aborted:
            self._scope.cancel()
        for message in messages:
            if isinstance(message, StartAttempt):
                self._attempt = message.attempt
                self._scope = trio.CancelScope()
                self.spawn(self._pump, message, self._scope)

    async def _pump(self, start: StartAttempt, scope: trio.CancelScope) -> None:
        with scope:
            if self._is_wanted(start.attempt):
                await self._pass_gate(start.attempt)
            if self._is_wanted(start.attempt):
                await self._hand_on(start)
        await self._matcher.tell(StreamSettled(start.attempt))

    def _is_wanted(self, attempt: int) -> bool:
        return attempt > self._aborted and not self._stop.is_set

    async def _pass_gate(self, attempt: int) -> None:
        """Nothing may be awaited between the gate and the request."""
        is_held = False

        async def held(refused: Refused) -> None:
            nonlocal is_held
            is_held = True
            await self._session.tell(AttemptHeld(attempt, refused.reason))

        while not self._gate.is_open:
            await self._gate.wait(held)
            if is_held:
                is_held = False
                await self._session.tell(AttemptReleased(attempt))

    async def _hand_on(self, start: StartAttempt) -> None:
        async with self._provider.open(start.request) as batches:
            async for batch in batches:
                arrived = StreamBatch(start.attempt, tuple(batch), trio.current_time())
                await self._matcher.pass_on(arrived)
