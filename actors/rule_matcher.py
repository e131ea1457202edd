"""RuleMatcher: listens to one session's streams and says what its rules make of them.

It gets every batch from the StreamMonitor, feeds it to the watch, and passes it on to the
Session together with the verdicts that it caused. It is the only writer of the passages
and of the repeat policy of its session. A verdict that interrupts closes the stream at once,
before the Session hears of it and decides what follows. The attempt is over here with that:
what else arrives of it is dropped, unwatched output never goes on.
"""

from collections.abc import Iterable

import trio

from midstream.actors.abort_latch import AbortLatch
from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.messages.verdict import VerdictAction
from midstream.messages.work import (
    ConditionSuspended,
    PassageOverflowed,
    StreamBatch,
    StreamSettled,
    WatchAttempt,
    WatchedBatch,
    WatchedEnd,
)
from midstream.rules.finding import Finding, Malformed, Match, Overflowed, Suspended
from midstream.rules.policy import PolicySettings, PolicyState, decide, next_attempt
from midstream.rules.watch import Watch

MatcherMessage = WatchAttempt | StreamBatch | StreamSettled
MatcherReport = WatchedBatch | WatchedEnd | ConditionSuspended | PassageOverflowed


class RuleMatcher(Actor[MatcherMessage]):
    """See the module. A restarted matcher knows nothing and waits for the next attempt."""

    def __init__(
        self,
        watch: Watch,
        settings: PolicySettings,
        session: Address[MatcherReport],
        aborts: AbortLatch,
    ) -> None:
        self._watch = watch
        self._settings = settings
        self._session = session
        self._aborts = aborts
        self._policy = PolicyState()
        self._attempt = 0
        self._turn = 0

    async def handle_batch(self, messages: tuple[MatcherMessage, ...]) -> None:
        for message in messages:
            match message:
                case StreamBatch(attempt) if attempt == self._attempt:
                    await self._watch_batch(message)
                case StreamBatch():
                    pass
                case StreamSettled(attempt):
                    await self._session.tell(WatchedEnd(attempt))
                case WatchAttempt(attempt, turn, recorded):
                    self._attempt, self._turn = attempt, turn
                    self._policy = next_attempt(self._policy, recorded)
                    self._watch.begin()

    async def _watch_batch(self, batch: StreamBatch) -> None:
        findings = self._watch.feed(batch.messages)
        matches = [finding for finding in findings if isinstance(finding, Match)]
        self._policy, verdicts = decide(self._policy, self._settings, matches, self._turn)
        aborted_at = None
        if any(verdict.action is VerdictAction.INTERRUPT for verdict in verdicts):
            self._aborts.abort(batch.attempt)
            aborted_at = trio.current_time()
            self._attempt = 0
        await self._session.pass_on(
            WatchedBatch(batch.attempt, batch.messages, verdicts, batch.arrived_at, aborted_at)
        )
        for report in _reports(batch.attempt, findings):
            await self._session.tell(report)


def _reports(
    attempt: int, findings: Iterable[Finding]
) -> Iterable[ConditionSuspended | PassageOverflowed]:
    for finding in findings:
        match finding:
            case Suspended(rules, condition, reason):
                for rule in rules:
                    yield ConditionSuspended(attempt, rule, condition, reason)
            case Overflowed(source, limit_chars):
                yield PassageOverflowed(attempt, source.value, limit_chars)
            case Malformed() | Match():
                pass
