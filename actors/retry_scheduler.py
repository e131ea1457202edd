"""RetryScheduler: the timers of one session.

The Session asks for a retry; after the delay it is told `RetryDue`, and at the deadline
`SettleOverdue`, each with the attempt that they belong to. It may also limit an attempt,
and is then told `AttemptOverdue`. `ForgetTimers` ends them all.
A timer that had already spoken may still wait in the Session's mailbox, which is why the
Session checks the attempt.
"""

import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.messages.work import (
    AttemptOverdue,
    ForgetTimers,
    LimitAttempt,
    RetryDue,
    SettleOverdue,
    StartTimers,
)

SchedulerMessage = StartTimers | LimitAttempt | ForgetTimers


class RetryScheduler(Actor[SchedulerMessage]):
    """See the module. The cancel scope around the running timers is all its state."""

    def __init__(self, session: Address[RetryDue | SettleOverdue | AttemptOverdue]) -> None:
        self._session = session
        self._timers = trio.CancelScope()

    async def handle(self, message: SchedulerMessage) -> None:
        self._timers.cancel()
        self._timers = trio.CancelScope()
        match message:
            case StartTimers():
                self.spawn(self._count_down, message, self._timers)
            case LimitAttempt():
                self.spawn(self._limit, message, self._timers)
            case ForgetTimers():
                pass

    async def _count_down(self, wanted: StartTimers, timers: trio.CancelScope) -> None:
        overdue_at = trio.current_time() + wanted.deadline_s
        with timers:
            if wanted.retry_after_s is not None:
                await trio.sleep(wanted.retry_after_s)
                await self._session.tell(RetryDue(wanted.attempt))
            await trio.sleep_until(overdue_at)
            await self._session.tell(SettleOverdue(wanted.attempt))

    async def _limit(self, wanted: LimitAttempt, timers: trio.CancelScope) -> None:
        with timers:
            await trio.sleep(wanted.limit_s)
            await self._session.tell(AttemptOverdue(wanted.attempt))
