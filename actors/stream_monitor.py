"""StreamMonitor: holds the one live stream of a session.

It opens a stream when the Session says so, hands what comes to the RuleMatcher in batches
stamped with the attempt, and closes the connection in the moment in which the attempt is
aborted (`abort_latch.py`). While everybody is paused it holds the attempt back, and tells the
Session so. An order to start that was aborted before it was read, or that was given before the
session was stopped, asks nobody; nor does one for a follow-up whose client has gone. The last
it says of an attempt is `StreamSettled`, when the connection is closed: nothing of that attempt
comes behind it.
"""

import trio

from midstream.actors.abort_latch import AbortLatch
from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.dispatch_gate import DispatchGate
from midstream.actors.stop_latch import StopLatch
from midstream.messages.dispatch import Refused
from midstream.messages.work import (
    AttemptHeld,
    AttemptReleased,
    StartAttempt,
    StreamBatch,
    StreamSettled,
)
from midstream.providers.provider import Provider

MonitorMessage = StartAttempt


class StreamMonitor(Actor[MonitorMessage]):
    """See the module. It has no state but the stream that it holds."""

    def __init__(
        self,
        provider: Provider,
        matcher: Address[StreamBatch | StreamSettled],
        session: Address[AttemptHeld | AttemptReleased],
        gate: DispatchGate,
        aborts: AbortLatch,
        stop: StopLatch,
    ) -> None:
        self._provider = provider
        self._matcher = matcher
        self._session = session
        self._gate = gate
        self._aborts = aborts
        self._stop = stop

    async def handle(self, message: MonitorMessage) -> None:
        self.spawn(self._pump, message)

    async def _pump(self, start: StartAttempt) -> None:
        with self._aborts.begin(start.attempt):
            if self._is_wanted(start):
                await self._pass_gate(start.attempt)
            if self._is_wanted(start):
                await self._hand_on(start)
        await self._matcher.tell(StreamSettled(start.attempt))

    def _is_wanted(self, start: StartAttempt) -> bool:
        is_forbidden = self._stop.forbids(is_follow_up=start.is_follow_up)
        return not (is_forbidden or self._aborts.is_aborted(start.attempt))

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
