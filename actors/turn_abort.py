"""The abort path of a turn, from top to bottom.

    on_batch       a verdict comes with the batch that caused it
      _cut         `Abort` before anything else; then everybody is told    ──▶ Settling
    when_settled   goes on when 50 ms have passed *and* the stream is closed
      _retry       the reminder goes on record                             ──▶ Writing
    start_attempt  once that is on record (turn_attempt.py)                ──▶ Streaming

Three other things close a stream in the same way: a crash of whoever reads or watches it
(`on_lost`), a follow-up that takes too long, and a stop (`turn_stop.py`).
"""

from collections.abc import Iterable

from midstream.actors.turn_attempt import start_attempt
from midstream.actors.turn_effects import Abort, DropTimers, Effect, Publish, SetTimers
from midstream.actors.turn_events import said
from midstream.actors.turn_follow_up import on_bad_follow_up
from midstream.actors.turn_phases import (
    Conclusion,
    FollowUpFailed,
    Retry,
    Settling,
    Streaming,
    Wait,
)
from midstream.actors.turn_record import append, finish
from midstream.actors.turn_reminders import keep_in_mind, reminder
from midstream.actors.turn_settings import ContextMode, OnExhausted
from midstream.actors.turn_state import TurnState
from midstream.messages.accumulate import PartialTranscript
from midstream.messages.conversation import AnyItem
from midstream.messages.events import (
    AnyEvent,
    AttemptDiscarded,
    AttemptLost,
    Retracted,
    RetryScheduled,
    RuleTriggered,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.settle import Ending
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.work import ActorLost, TimersLost, WatchedBatch


def on_batch(turn: TurnState, batch: WatchedBatch) -> list[Effect]:
    """Pass on what was said, unless it breaks a rule for which the stream is cut."""
    turn.attempt.heard.feed(batch.messages)
    turn.continuing = turn.continuing.heard(batch.messages)
    violations = _interrupting(batch.verdicts, turn.settings.on_exhausted)
    if violations:
        return _cut(turn, batch, violations)
    for verdict in batch.verdicts:
        keep_in_mind(turn, verdict)
    events: list[AnyEvent] = list(said(batch.attempt, batch.messages))
    events += [RuleTriggered(batch.attempt, verdict) for verdict in batch.verdicts]
    return [Publish(tuple(events))] if events else []


def _interrupting(verdicts: Iterable[Verdict], on_exhausted: OnExhausted) -> tuple[Verdict, ...]:
    """The verdicts for which the stream is cut, with those that ride along."""
    actions = {VerdictAction.INTERRUPT}
    if on_exhausted is OnExhausted.FAIL:
        actions.add(VerdictAction.EXHAUSTED)
    if not any(verdict.action in actions for verdict in verdicts):
        return ()
    actions.add(VerdictAction.RIDE_ALONG)
    return tuple(verdict for verdict in verdicts if verdict.action in actions)


def _cut(turn: TurnState, batch: WatchedBatch, violations: tuple[Verdict, ...]) -> list[Effect]:
    """Abort now; tell everybody afterwards."""
    attempt, delay_s = batch.attempt, turn.settings.retry_delay_s
    turn.phase = Settling(attempt, frozenset(Wait), _after_cut(violations))
    turn.attempt.is_void = True
    aborted_at = turn.now if batch.aborted_at is None else batch.aborted_at
    latency_us = round((aborted_at - batch.arrived_at) * 1e6)
    events: list[AnyEvent] = [
        RuleTriggered(attempt, verdict, latency_us if verdict in violations else None)
        for verdict in batch.verdicts
    ]
    events.append(Retracted(attempt, ", ".join(dict.fromkeys(v.rule for v in violations))))
    events.append(RetryScheduled(attempt, delay_s))
    return [
        Abort(attempt),
        _timers(turn, attempt, delay_s),
        Publish(tuple(events)),
    ]


def _after_cut(violations: tuple[Verdict, ...]) -> Retry | Conclusion:
    spent = next((v for v in violations if v.action is VerdictAction.EXHAUSTED), None)
    if spent is None:
        return Retry(violations)
    return Conclusion(SessionStatus.CAPPED, f"{spent.rule}: {spent.reason}")


def when_settled(turn: TurnState, phase: Settling, done: Wait) -> list[Effect]:
    """One of the things that a cut attempt waits for is there. With the last of them it is
    over: the model is told, or the session ends."""
    waits = phase.waits - {done}
    turn.phase = Settling(phase.attempt, waits, phase.then)
    if waits:
        return []
    return [DropTimers(), *_after_settling(turn, phase.then)]


def _after_settling(turn: TurnState, then: Retry | FollowUpFailed | Conclusion) -> list[Effect]:
    partial = turn.attempt.heard.snapshot()
    turn.count(partial)
    match then:
        case Retry():
            discarded = AttemptDiscarded(turn.attempt.number, partial.usage)
            return [Publish((discarded,)), *_retry(turn, then, partial)]
        case FollowUpFailed(failure):
            return on_bad_follow_up(turn, failure, partial)
        case Conclusion(status):
            stopped = status is SessionStatus.CANCELLED
            ending = Ending.INTERRUPTED if stopped else Ending.FAILED
            return finish(turn, then, turn.broken_off(partial, ending))


def _retry(turn: TurnState, then: Retry, partial: PartialTranscript) -> list[Effect]:
    """Write the reminder, and what the model is to see of what was cut; then try again."""
    if (spent := turn.draw_on_budget()) is not None:
        items = turn.broken_off(partial, Ending.FAILED)
        return finish(turn, Conclusion(SessionStatus.CAPPED, spent), items)
    if not then.violations:
        return start_attempt(turn)
    kept: tuple[AnyItem, ...] = ()
    if turn.settings.context_mode is ContextMode.KEEP:
        kept = turn.settled(partial, Ending.STEERED)
    return append(turn, (*kept, reminder(turn, then.violations, interrupted=True)))


# --- what else closes a stream


def close_stream(turn: TurnState, attempt: int, then: FollowUpFailed | Conclusion) -> list[Effect]:
    """Abort for another reason than a rule; go on as soon as the stream is closed."""
    turn.phase = Settling(attempt, frozenset({Wait.SETTLED}), then)
    return [Abort(attempt), _timers(turn, attempt)]


def on_follow_up_overdue(turn: TurnState, attempt: int) -> list[Effect]:
    """A follow-up takes too long; whether it is repeated is decided once it is closed."""
    limit_s = turn.settings.continuation.follow_up_deadline_s or 0.0
    failure = ProviderFailure(FailureKind.TIMEOUT, f"the follow-up has taken {limit_s:g} seconds")
    return close_stream(turn, attempt, FollowUpFailed(failure))


def on_lost(turn: TurnState, lost: ActorLost) -> list[Effect]:
    """A crash costs the attempt, never the watch: unwatched output is not delivered. So does the
    restart that follows from a crash, which may end a stream that began after it."""
    is_restart = turn.is_restarting and lost.held_stream
    turn.is_restarting = (turn.is_restarting or lost.crashed) and not lost.held_stream
    match turn.phase:
        case Streaming(attempt) if lost.crashed or is_restart:
            settling = Settling(attempt, frozenset(Wait), Retry(()))
            turn.phase = settling
            turn.attempt.is_void = True
            events = (AttemptLost(attempt, lost.reason), Retracted(attempt, lost.reason))
            effects: list[Effect] = [
                Abort(attempt),
                _timers(turn, attempt, turn.settings.retry_delay_s),
                Publish(events),
            ]
            closed = when_settled(turn, settling, Wait.SETTLED) if lost.has_closed(attempt) else []
            return effects + closed
        case Settling(attempt) as settling if lost.has_closed(attempt):
            return when_settled(turn, settling, Wait.SETTLED)
        case _:
            return []


def on_timers_lost(turn: TurnState, lost: TimersLost) -> list[Effect]:
    """Who reads and watches is restarted with the timers, so a stream is lost; what waits for a
    timer gets it again."""
    effects: list[Effect] = []
    if isinstance(turn.phase, Settling):
        retry_after_s = turn.settings.retry_delay_s if Wait.DELAY in turn.phase.waits else None
        effects.append(_timers(turn, turn.phase.attempt, retry_after_s))
    return effects + on_lost(turn, ActorLost(lost.reason, held_stream=False, crashed=True))


def on_settle_overdue(turn: TurnState) -> list[Effect]:
    """Without knowing that the stream is closed there is no retry (architecture.md invariant 1)."""
    turn.count(turn.attempt.heard.snapshot())
    reason = "the stream was told to close and did not"
    return finish(turn, Conclusion(SessionStatus.FAILED, reason), ())


def _timers(turn: TurnState, attempt: int, retry_after_s: float | None = None) -> SetTimers:
    return SetTimers(attempt, turn.settings.settle_deadline_s, retry_after_s)
