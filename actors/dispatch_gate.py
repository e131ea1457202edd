"""DispatchGate: what a session that runs has to pass before each request to its provider.

A session is admitted once, and may ask its provider many times: for a retry, with the results
of its calls, after a recovery. None of these may go out while the shared pause holds its
window open (architecture.md invariant 8), so its StreamMonitor passes here in the moment in which
it would ask. The session is not ended by the pause (spec/animator.md 6): it waits. What it
asks when the window is over probes the quota, and is counted as that.
"""

from collections.abc import Awaitable, Callable

import msgspec
import trio

from midstream.actors.address import Address
from midstream.actors.backoff_machine import AskDispatch, BackoffMessage, DispatchView
from midstream.actors.clock import Clock
from midstream.actors.errors import AskFailed
from midstream.messages.dispatch import (
    DispatchState,
    Refused,
    is_dispatchable,
    is_probe,
    refusal,
)
from midstream.messages.timestamps import parse_timestamp

ASK_DEADLINE_S = 30.0

LOOK_AGAIN_S = 15.0
"""Seconds after which whoever waits looks again, whatever was announced: a machine that
slept, or a wall clock that was set, must keep nobody waiting."""


class DispatchGate(msgspec.Struct, frozen=True):
    """The gate of one session, which was admitted at the timestamp `started_at`."""

    session_id: str
    started_at: str
    view: DispatchView
    machine: Address[BackoffMessage]
    clock: Clock

    @property
    def is_open(self) -> bool:
        """Whether the session may ask its provider in this moment, as far as this host
        knows: nobody is paused, or the session is one of those that probe."""
        status = self.view.status
        if status.state is DispatchState.RUNNING:
            return True
        return is_probe(status, self.session_id, self.started_at, self.clock.now_ms())

    async def wait(self, held: Callable[[Refused], Awaitable[None]]) -> None:
        """Return in the moment in which the gate is open. Each reason why it is not, by the
        newest status of all hosts, is given to `held` once. Cancel it to give up."""
        last: Refused | None = None
        while not self.is_open:
            changed = self.view.changed
            refused = await self._ask()
            if refused is None:
                continue
            if refused != last:
                last = refused
                await held(refused)
            with trio.move_on_after(self._wait_s()):
                await changed.wait()

    async def _ask(self) -> Refused | None:
        try:
            return await self.machine.ask(
                lambda reply: AskDispatch(self.session_id, reply, has_begun=True), ASK_DEADLINE_S
            )
        except AskFailed:
            return Refused(session_id=self.session_id, reason=refusal(self.view.status))

    def _wait_s(self) -> float:
        status, now_ms = self.view.status, self.clock.now_ms()
        until_ms = parse_timestamp(status.paused_until)
        if until_ms is None or is_dispatchable(status, now_ms):
            return LOOK_AGAIN_S
        return min(LOOK_AGAIN_S, (until_ms - now_ms) / 1000)
