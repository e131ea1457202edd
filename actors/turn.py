"""The course of one session as a pure state machine: messages in, effects out.

A session is one accepted prompt. `Turn` decides everything about it: when a stream
starts, that it is cut, what the model is told, when it is tried again, how the session
ends. It does no I/O and has no clock; `Session` feeds it and carries out what it answers.

The abort path, from top to bottom: `_on_batch` sees an interrupting verdict, `_cut`
answers with `Abort` before anything else and moves to `Settling`; `_when_settled` goes on
when the delay has passed *and* the stream is closed; `_retry` writes the reminder, and
`_start_attempt` runs once that is on record.

    Submitting ──▶ Recording ──▶ Streaming ──▶ Settling ──▶ Recording ──▶ Streaming ...
                                  │    │           │            │
                                  │    └───────────┴────────────┴──▶ Recording(Finish) ──▶ Over
                                  └──▶ a finished reply: its calls are run, or it is continued
                                       (`_after_reply`), and the next attempt streams

A prompt that is refused, or stopped while it is made ready, ends without a record.

Calls run only when their message is complete, clean and on record. A call that breaks an
interrupting rule never runs, also when the rule does not cut any more because it has spent
its retries or has been reminded of: the call is refused, and the model is told.

Stop is an epoch (design.md invariant 3): once a stop was asked for, no phase leads back
to `Streaming`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from midstream.actors.turn_budget import Spending
from midstream.actors.turn_calls import (
    answers,
    message_alone,
    refusal,
    shown,
    unanswered,
    with_reminders,
)
from midstream.actors.turn_continuation import (
    Continuing,
    after_bad_follow_up,
    conclusion_after_bad,
    conclusion_after_stop,
    continue_or_stop,
    decision_events,
    resumed,
    said_on_behalf,
)
from midstream.actors.turn_effects import (
    Abort,
    AskForWork,
    DropTimers,
    Effect,
    Leave,
    LimitTo,
    Publish,
    Record,
    RunCalls,
    SetTimers,
    Start,
    StopCalls,
)
from midstream.actors.turn_events import said
from midstream.actors.turn_phases import (
    AnswerNow,
    AskingWork,
    Conclusion,
    EndNow,
    FinishedReply,
    FollowUpFailed,
    Over,
    Phase,
    Retry,
    RunNext,
    RunningCalls,
    Settling,
    StartNext,
    Streaming,
    Submitting,
    Wait,
    Writing,
    status_of,
)
from midstream.actors.turn_settings import ContextMode, OnExhausted, TurnSettings
from midstream.messages.accumulate import Accumulator, PartialTranscript, StreamState
from midstream.messages.bd_stage import Answer, BdMode, work_state
from midstream.messages.continuation import Continue
from midstream.messages.conversation import (
    AnyItem,
    ReminderItem,
    ToolCallPart,
)
from midstream.messages.enrolment import as_recorded
from midstream.messages.events import (
    AlertRaised,
    AnyEvent,
    AttemptDiscarded,
    AttemptLost,
    AttemptPaused,
    AttemptStarted,
    LocalAnswer,
    PassageCapped,
    ReminderInjected,
    Retracted,
    RetryScheduled,
    RuleSuspended,
    RuleTriggered,
    SessionEnded,
    SessionStarted,
    StopMessageChanged,
    ToolWanted,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.follow_up_outcome import Action
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.settle import (
    Ending,
    Outcome,
    ToolOutcome,
    ToolState,
    open_calls,
    settle,
    settle_history,
)
from midstream.messages.stop_message import BdWorkState, StopMessageState
from midstream.messages.stream import StopReason
from midstream.messages.submit_work import PromptReady, PromptRefused
from midstream.messages.usage import Usage
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.work import (
    AcceptPrompt,
    ActorLost,
    AppendItems,
    AttemptHeld,
    AttemptOverdue,
    AttemptReleased,
    Cancel,
    ConditionSuspended,
    Detach,
    FinishSession,
    Interrupt,
    PassageOverflowed,
    Recorded,
    RecordFailed,
    Recording,
    RetryDue,
    SettleOverdue,
    ToolSettled,
    ToolsLost,
    WatchedBatch,
    WatchedEnd,
    WorkKnown,
)
from midstream.rules.reminder import render

Message = (
    PromptReady
    | PromptRefused
    | WatchedBatch
    | WatchedEnd
    | RetryDue
    | SettleOverdue
    | AttemptOverdue
    | AttemptHeld
    | AttemptReleased
    | WorkKnown
    | Interrupt
    | Cancel
    | Detach
    | Recorded
    | RecordFailed
    | ToolSettled
    | ToolsLost
    | ActorLost
    | ConditionSuspended
    | PassageOverflowed
)


@dataclass(slots=True)
class _Attempt:
    """What the live attempt owns; it ends with it on every exit (spec/ttsr.md 0.8)."""

    heard: Accumulator
    deferred: list[Verdict] = field(default_factory=list[Verdict])
    folded: list[Verdict] = field(default_factory=list[Verdict])
    is_void: bool = False
    """It was retracted: whatever happens, nothing of it stays (design.md invariant 2)."""
    refused: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The calls that must not be run, by id, with the rules that they break."""


class Turn:
    """One session's course.

    `context` are the items that the conversation already holds, as they are kept, `recorded` the
    rules whose reminders are among them, `turn` how many messages the model has written there,
    `now` the time in seconds at which the prompt was handed in, `now_ms` the same on the
    clock on the wall; `continuing` what is known of the conversation's stopMessage.
    """

    def __init__(
        self,
        settings: TurnSettings,
        context: Sequence[AnyItem],
        recorded: dict[str, int],
        turn: int,
        now: float,
        now_ms: int = 0,
        continuing: Continuing | None = None,
    ) -> None:
        self._settings = settings
        self._context: tuple[AnyItem, ...] = tuple(context)
        self._recorded = dict(recorded)
        self._turn = turn
        self._began_at = now
        self._began_ms = now_ms
        self._now = now
        self._number = 0
        self._spending = Spending(settings.budget, now)
        self._continuing = continuing or Continuing()
        self._step = 0
        self._attempt = _Attempt(Accumulator(settings.format))
        self._usage: Usage | None = None
        self._output = ""
        self._provider_session_id: str | None = None
        self._stop_reason: StopReason | None = None
        self._exhausted: str | None = None
        self.phase: Phase = Submitting()

    def begin(self, prompt: Sequence[AnyItem]) -> list[Effect]:
        """Accept the prompt; nothing starts before it is on record."""
        return self._write(AcceptPrompt(tuple(prompt)), StartNext(tuple(prompt)))

    def resume(self, recoveries: int) -> list[Effect]:
        """Go on where a session was lost that had accepted its prompt. Its recoveries draw
        on what midstream may start by itself for the prompt (design.md invariant 7)."""
        self._spending.restarts = recoveries
        self._context = settle_history(self._context, self._settings.format)
        self._continuing, self._output = resumed(self._continuing, self._context, self._now)
        return [Publish((self._started(),)), *self._start_attempt()]

    def receive(self, message: Message, now: float) -> list[Effect]:
        """What to do about `message`, which came at `now`. Stale messages have no effect."""
        self._now = now
        match message, self.phase:
            case PromptReady(), Submitting():
                return self._on_ready(message)
            case PromptRefused(status, reason, alerts), Submitting():
                raised = Publish(tuple(AlertRaised(alert) for alert in alerts))
                return [raised, *self._leave_unrecorded(Conclusion(status, reason))]
            case WatchedBatch(attempt=attempt), Streaming(live) if attempt == live:
                return self._on_batch(message)
            case WatchedEnd(attempt), Streaming(live) if attempt == live:
                return self._on_stream_end()
            case WatchedEnd(attempt), Settling(live) if attempt == live:
                return self._when_settled(Wait.SETTLED)
            case RetryDue(attempt), Settling(live) if attempt == live:
                return self._when_settled(Wait.DELAY)
            case SettleOverdue(attempt), Settling(live, waits) if (
                attempt == live and Wait.SETTLED in waits
            ):
                return self._on_overdue()
            case AttemptOverdue(attempt), Streaming(live) if (
                attempt == live and self._continuing.follow_up is not None
            ):
                return self._on_follow_up_overdue(attempt)
            case AttemptHeld(attempt, reason), Streaming(live) if attempt == live:
                return self._on_held(attempt, reason)
            case AttemptReleased(attempt), Streaming(live) if attempt == live:
                self._spending.release(now)
                return []
            case WorkKnown(attempt, answers, has_project), AskingWork(live, reply) if (
                attempt == live
            ):
                return self._continue_or_end(reply, self._work_state(answers, has_project))
            case ActorLost(), _:
                return self._on_lost(message)
            case Detach(), _:
                return self._on_detached()
            case ((Interrupt() | Cancel()), _):
                return self._on_stop(message)
            case Recorded(step, record), Writing(expected) if step == expected:
                return self._on_recorded(record)
            case RecordFailed(step, error), Writing(expected) if step == expected:
                return self._on_record_failed(error)
            case ToolSettled(attempt=attempt), RunningCalls(live) if attempt == live:
                return self._on_tool_settled(message)
            case ToolsLost(), RunningCalls():
                return self._on_tools_lost()
            case ConditionSuspended(_, rule, condition, reason), _:
                return [Publish((RuleSuspended(rule, condition, reason),))]
            case PassageOverflowed(attempt, source, limit_chars), Streaming():
                return [Publish((PassageCapped(attempt, source, limit_chars),))]
            case _:
                return []

    # --- the prompt

    def _on_ready(self, ready: PromptReady) -> list[Effect]:
        self._continuing = replace(
            self._continuing,
            state=ready.state,
            templates=ready.templates,
            is_compaction=ready.is_compaction,
        )
        events: list[AnyEvent] = [AlertRaised(alert) for alert in ready.alerts]
        if ready.is_new and ready.state is not None:
            events.append(StopMessageChanged(ready.state))
        told: list[Effect] = [Publish(tuple(events))] if events else []
        to_keep = None if ready.is_kept else ready.state
        accept = AcceptPrompt(ready.items, to_keep, ready.version)
        if ready.local_answer is None:
            return told + self._write(accept, StartNext(ready.items))
        return told + self._write(accept, AnswerNow(ready.local_answer))

    def _answer_locally(self, text: str) -> list[Effect]:
        self._output = text
        events = (self._started(), LocalAnswer(text))
        return [Publish(events), *self._finish(Conclusion(SessionStatus.COMPLETED), ())]

    def _leave_unrecorded(self, conclusion: Conclusion) -> list[Effect]:
        """End before the prompt was accepted: nothing of it is on record, nor will be."""
        self.phase = Over()
        return [Publish((self._ended(conclusion),)), Leave()]

    # --- the stream

    def _start_attempt(self) -> list[Effect]:
        self._number += 1
        self._turn += 1
        self._spending.release(self._now)
        self._attempt = _Attempt(Accumulator(self._settings.format))
        self._continuing = self._continuing.asked()
        self.phase = Streaming(self._number)
        request = self._settings.request(self._context, is_chained=self._continuing.is_chained)
        effects: list[Effect] = [
            Publish((AttemptStarted(self._number),)),
            Start(self._number, self._turn, dict(self._recorded), request),
        ]
        limit_s = self._settings.continuation.follow_up_deadline_s
        if self._continuing.follow_up is not None and limit_s is not None:
            effects.append(LimitTo(self._number, limit_s))
        return effects

    def _on_batch(self, batch: WatchedBatch) -> list[Effect]:
        self._attempt.heard.feed(batch.messages)
        self._continuing = self._continuing.heard(batch.messages)
        violations = self._interrupting(batch.verdicts)
        if violations:
            latency_us = round((self._now - batch.arrived_at) * 1e6)
            return self._cut(batch.attempt, batch.verdicts, violations, latency_us)
        for verdict in batch.verdicts:
            self._keep_in_mind(verdict)
        events: list[AnyEvent] = list(said(batch.attempt, batch.messages))
        events += [RuleTriggered(batch.attempt, verdict) for verdict in batch.verdicts]
        return [Publish(tuple(events))] if events else []

    def _on_held(self, attempt: int, reason: str) -> list[Effect]:
        """Everybody is paused: the prompt waits for its answer. What was begun by itself does
        not, as when its own quota is spent (spec/stop_message.md 9)."""
        self._spending.hold(self._now)
        if self._continuing.follow_up is None:
            return [Publish((AttemptPaused(attempt, reason),))]
        self._continuing = self._continuing.unasked()
        notice = f"auto-continue ended: {reason}"
        return self._stop(
            Conclusion(SessionStatus.COMPLETED, notice, stop_reason=self._stop_reason)
        )

    def _interrupting(self, verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
        """The verdicts for which the stream is cut, with those that ride along."""
        actions = {VerdictAction.INTERRUPT}
        if self._settings.on_exhausted is OnExhausted.FAIL:
            actions.add(VerdictAction.EXHAUSTED)
        if not any(verdict.action in actions for verdict in verdicts):
            return ()
        actions.add(VerdictAction.RIDE_ALONG)
        return tuple(verdict for verdict in verdicts if verdict.action in actions)

    def _keep_in_mind(self, verdict: Verdict) -> None:
        if verdict.interrupts and verdict.call_id and self._settings.runs_tools:
            # The stream is not cut for it (any more), but such a call never runs.
            self._attempt.refused.setdefault(verdict.call_id, []).append(verdict.rule)
            if verdict.action is VerdictAction.EXHAUSTED:
                self._attempt.folded.append(verdict)
            return
        match verdict.action:
            case VerdictAction.DEFER:
                self._attempt.deferred.append(verdict)
            case VerdictAction.FOLD:
                self._attempt.folded.append(verdict)
            case VerdictAction.EXHAUSTED:
                self._exhausted = f"{verdict.rule}: {verdict.reason}"
            case _:
                pass

    def _cut(
        self,
        attempt: int,
        verdicts: tuple[Verdict, ...],
        violations: tuple[Verdict, ...],
        latency_us: int,
    ) -> list[Effect]:
        """Abort now; tell everybody afterwards."""
        spent = next((v for v in violations if v.action is VerdictAction.EXHAUSTED), None)
        then = Retry(violations)
        if spent is not None:
            then = Conclusion(SessionStatus.CAPPED, f"{spent.rule}: {spent.reason}")
        self.phase = Settling(attempt, frozenset(Wait), then)
        self._attempt.is_void = True
        names = ", ".join(dict.fromkeys(verdict.rule for verdict in violations))
        events: list[AnyEvent] = [
            RuleTriggered(attempt, verdict, latency_us if verdict in violations else None)
            for verdict in verdicts
        ]
        events.append(Retracted(attempt, names))
        events.append(RetryScheduled(attempt, self._settings.retry_delay_s))
        return [
            Abort(attempt),
            self._timers(attempt, self._settings.retry_delay_s),
            Publish(tuple(events)),
        ]

    def _timers(self, attempt: int, retry_after_s: float | None = None) -> SetTimers:
        return SetTimers(attempt, self._settings.settle_deadline_s, retry_after_s)

    def _when_settled(self, done: Wait) -> list[Effect]:
        assert isinstance(self.phase, Settling)
        phase = self.phase
        waits = phase.waits - {done}
        self.phase = Settling(phase.attempt, waits, phase.then)
        if waits:
            return []
        return [DropTimers(), *self._after_settling(phase.then)]

    def _after_settling(self, then: Retry | FollowUpFailed | Conclusion) -> list[Effect]:
        partial = self._attempt.heard.snapshot()
        self._count(partial)
        if isinstance(then, Conclusion):
            stopped = then.status is SessionStatus.CANCELLED
            ending = Ending.INTERRUPTED if stopped else Ending.FAILED
            return self._finish(then, self._broken_off(partial, ending))
        if isinstance(then, FollowUpFailed):
            return self._after_bad_follow_up(then.failure, partial)
        discarded = AttemptDiscarded(self._number, partial.usage)
        return [Publish((discarded,)), *self._retry(then, partial)]

    def _retry(self, then: Retry, partial: PartialTranscript) -> list[Effect]:
        if (spent := self._draw_on_budget()) is not None:
            return self._finish(
                Conclusion(SessionStatus.CAPPED, spent), self._broken_off(partial, Ending.FAILED)
            )
        if not then.violations:
            return self._start_attempt()
        kept: tuple[AnyItem, ...] = ()
        if self._settings.context_mode is ContextMode.KEEP:
            kept = self._settled(partial, Ending.STEERED)
        reminder = self._reminder(then.violations, interrupted=True)
        return self._append((*kept, reminder))

    def _on_overdue(self) -> list[Effect]:
        assert isinstance(self.phase, Settling)
        reason = "the stream was told to close and did not"
        self._count(self._attempt.heard.snapshot())
        return self._finish(Conclusion(SessionStatus.FAILED, reason), ())

    def _on_stream_end(self) -> list[Effect]:
        partial = self._attempt.heard.snapshot()
        self._count(partial)
        if partial.state is StreamState.FINISHED:
            return self._complete(partial)
        failure = partial.failure or ProviderFailure(
            FailureKind.PROTOCOL, "the stream ended without its terminal event"
        )
        if self._continuing.follow_up is not None:
            return self._after_bad_follow_up(failure, partial)
        return self._finish(
            Conclusion(status_of(failure), failure.message, failure),
            self._broken_off(partial, Ending.FAILED),
        )

    def _complete(self, partial: PartialTranscript) -> list[Effect]:
        """The model has said what it wanted to say: run its calls, remind, go on, or end."""
        items = self._settled(partial, Ending.FINISHED)
        if partial.text.strip():
            self._output, self._stop_reason = partial.last_words, partial.stop_reason
        calls = open_calls(items)
        self._defer_folded(partial)
        if calls and self._settings.runs_tools:
            return self._begin_tool_round(items, calls)
        if not calls and (self._attempt.deferred or self._waits_in_vain(partial)):
            if (spent := self._draw_on_budget()) is not None:
                return self._finish(Conclusion(SessionStatus.CAPPED, spent), items)
            return self._append((*items, *self._deferred_reminder()))
        return self._after_reply(items, partial)

    def _defer_folded(self, partial: PartialTranscript) -> None:
        """A call that the provider has run itself has no result here to fold a reminder
        into; it comes behind the whole answer."""
        attempt, ours = self._attempt, {call.call_id for call in partial.calls}
        attempt.deferred += [each for each in attempt.folded if each.call_id not in ours]
        attempt.folded = [each for each in attempt.folded if each.call_id in ours]

    # --- auto-continue (decisions in turn_continuation.py)

    def _after_reply(self, items: tuple[AnyItem, ...], partial: PartialTranscript) -> list[Effect]:
        """A whole reply that leaves nothing to do: it may be continued by itself."""
        reply = FinishedReply(self._context, items, partial.stop_reason, self._now, self._now_ms)
        if self._continuing.follow_up is not None and reply.is_empty:
            return self._after_bad_follow_up(None, partial)
        if not (reply.is_natural_stop and self._continuing.needs_work_state):
            return self._continue_or_end(reply, BdWorkState.UNKNOWN)
        if self._settings.continuation.bd_mode is BdMode.HEURISTIC:
            return self._continue_or_end(reply, self._work_state((), has_project=True))
        self.phase = AskingWork(self._number, reply)
        return [AskForWork(self._number)]

    def _work_state(self, answers: Sequence[Answer], has_project: bool) -> BdWorkState:
        mode = self._settings.continuation.bd_mode
        return work_state(answers, mode, self._context, has_project=has_project)

    def _continue_or_end(self, reply: FinishedReply, work: BdWorkState) -> list[Effect]:
        before, spent = self._continuing, self._exhausted or self._spent()
        self._continuing, decision = continue_or_stop(
            before,
            self._settings.continuation,
            reply,
            work=work,
            is_budget_spent=spent is not None,
        )
        events = decision_events(self._number, before, reply, decision)
        told: list[Effect] = [Publish(events)] if events else []
        if isinstance(decision, Continue):
            self._spending.restarts += 1
            items = (*reply.items, *said_on_behalf(decision))
            return told + self._append(items, stop_message=self._continuing.state)
        conclusion = conclusion_after_stop(
            decision, reply.stop_reason, exhausted=self._exhausted, spent=spent
        )
        return told + self._finish(conclusion, reply.items)

    def _after_bad_follow_up(
        self, failure: ProviderFailure | None, partial: PartialTranscript
    ) -> list[Effect]:
        """A follow-up has failed, or is empty: again, or the end with the last good reply."""
        self._continuing, verdict = after_bad_follow_up(
            self._continuing, failure, now_ms=self._now_ms
        )
        ending = Ending.FINISHED if failure is None else Ending.FAILED
        kept = self._settled(partial, ending)
        if verdict.action is Action.RETRY:
            if (spent := self._draw_on_budget()) is not None:
                return self._finish(Conclusion(SessionStatus.CAPPED, spent), kept)
            why = "nothing was said" if failure is None else failure.message
            discarded = AttemptDiscarded(self._number, partial.usage)
            events = (Retracted(self._number, why), discarded, RetryScheduled(self._number, 0.0))
            return [Publish(events), *self._start_attempt()]
        return self._finish(conclusion_after_bad(verdict, self._stop_reason), kept)

    def _on_follow_up_overdue(self, attempt: int) -> list[Effect]:
        limit_s = self._settings.continuation.follow_up_deadline_s or 0.0
        failure = ProviderFailure(
            FailureKind.TIMEOUT, f"the follow-up has taken {limit_s:g} seconds"
        )
        self.phase = Settling(attempt, frozenset({Wait.SETTLED}), FollowUpFailed(failure))
        return [Abort(attempt), self._timers(attempt)]

    def _on_detached(self) -> list[Effect]:
        """Nobody waits for what was begun by itself; the answer to the prompt is finished."""
        self._continuing = replace(self._continuing, is_connected=False)
        if self._continuing.follow_up is None:
            return []
        reason = "the client has gone"
        return self._stop(
            Conclusion(SessionStatus.COMPLETED, reason, stop_reason=self._stop_reason)
        )

    # --- tools

    def _waits_in_vain(self, partial: PartialTranscript) -> bool:
        """Whether the model waits for results of calls none of which was valid. The marker
        among the message's items tells it so (spec/lessons.md E 8)."""
        asked = partial.calls and partial.stop_reason is StopReason.TOOL_USE
        return bool(asked) and self._settings.runs_tools

    def _begin_tool_round(
        self, items: tuple[AnyItem, ...], calls: tuple[ToolCallPart, ...]
    ) -> list[Effect]:
        """Put the message on record; its calls are run when it is."""
        message = message_alone(items)
        if (spent := self._spent_on_calls(calls)) is not None:
            return self._finish_unrun(Conclusion(SessionStatus.CAPPED, spent), calls, message)
        self._spending.tool_rounds += 1
        return self._append(message, calls)

    def _spent_on_calls(self, calls: tuple[ToolCallPart, ...]) -> str | None:
        """Why the model gets no results for these calls any more, or None if it does."""
        if (spent := self._spending.spent_on_tools()) is not None:
            return spent
        if any(call.call_id in self._attempt.refused for call in calls):
            # To refuse is our doing, so a model that insists draws on our budget.
            return self._draw_on_budget()
        return None

    def _run_calls(self, calls: tuple[ToolCallPart, ...]) -> list[Effect]:
        refused = [call for call in calls if call.call_id in self._attempt.refused]
        outcomes = {call.call_id: refusal(self._attempt.refused[call.call_id]) for call in refused}
        self.phase = RunningCalls(self._number, calls, outcomes, self._now)
        to_run = unanswered(calls, outcomes)
        events: list[AnyEvent] = [
            ToolWanted(self._number, call.call_id, call.name, call.arguments)
            for call in to_run
            if call.name in self._settings.host_tools
        ]
        events += shown(refused, outcomes, self._settings.format)
        effects: list[Effect] = [RunCalls(self._number, to_run)] if to_run else []
        if events:
            # Behind the calls, so that an answer which comes at once finds its call waiting.
            effects.append(Publish(tuple(events)))
        return effects if to_run else effects + self._when_answered()

    def _on_tool_settled(self, settled: ToolSettled) -> list[Effect]:
        assert isinstance(self.phase, RunningCalls)
        waiting = self._unanswered(self.phase)
        about = tuple(call for call in waiting if call.call_id == settled.call_id)
        return self._settle_calls(about, settled.outcome) if about else []

    def _on_tools_lost(self) -> list[Effect]:
        """What ran may have had effects, and nobody knows any more: say so, and go on."""
        assert isinstance(self.phase, RunningCalls)
        phase = self.phase
        # To go on is a recovery, and draws on what midstream may start by itself.
        if phase.stop is None and (spent := self._draw_on_budget()) is not None:
            self.phase = replace(phase, stop=Conclusion(SessionStatus.CAPPED, spent))
        lost = self._settle_calls(self._unanswered(phase), ToolOutcome(ToolState.UNKNOWN))
        # A runner that is restarted finds these calls in its mailbox, if it had not read them.
        return [StopCalls(phase.attempt), *lost]

    def _settle_calls(self, calls: tuple[ToolCallPart, ...], outcome: ToolOutcome) -> list[Effect]:
        assert isinstance(self.phase, RunningCalls)
        known = {call.call_id: outcome for call in calls}
        self.phase = replace(self.phase, outcomes={**self.phase.outcomes, **known})
        effects: list[Effect] = [Publish(shown(calls, known, self._settings.format))]
        return effects if self._unanswered(self.phase) else effects + self._when_answered()

    def _when_answered(self) -> list[Effect]:
        """The results go on record with the reminders that belong to them, and the model
        goes on; or the session ends, if a stop was asked for meanwhile."""
        assert isinstance(self.phase, RunningCalls)
        phase = self.phase
        self._spending.tools_ran_s += self._now - phase.since
        if phase.stop is not None:
            return self._finish(phase.stop, self._last_answers(phase.outcomes, phase.stop))
        items = self._answers(phase.outcomes, Ending.FINISHED)
        reminded = with_reminders(items, self._attempt.folded, self._reminder_in_result)
        return self._append((*reminded, *self._deferred_reminder()))

    def _answers(self, outcomes: Mapping[str, ToolOutcome], ending: Ending) -> tuple[AnyItem, ...]:
        partial = self._attempt.heard.snapshot()
        return answers(partial, outcomes, ending, self._settings.format)

    def _last_answers(
        self, outcomes: Mapping[str, ToolOutcome], conclusion: Conclusion
    ) -> tuple[AnyItem, ...]:
        """Results for a session that ends here. Only a call that has returned brings its
        reminder; that of any other is released (spec/ttsr.md 0.6)."""
        items = self._answers(outcomes, _ending(conclusion))
        returned = [
            verdict
            for verdict in self._attempt.folded
            if (outcome := outcomes.get(verdict.call_id or ""))
            and outcome.state is ToolState.RETURNED
        ]
        return with_reminders(items, returned, self._reminder_in_result)

    def _finish_unrun(
        self,
        conclusion: Conclusion,
        calls: tuple[ToolCallPart, ...],
        before: tuple[AnyItem, ...] = (),
    ) -> list[Effect]:
        """End the session with calls that were never started."""
        outcomes = {call.call_id: ToolOutcome(ToolState.NOT_STARTED) for call in calls}
        items = (*before, *self._answers(outcomes, _ending(conclusion)))
        events = shown(calls, outcomes, self._settings.format)
        return [Publish(events), *self._finish(conclusion, items)]

    @staticmethod
    def _unanswered(phase: RunningCalls) -> tuple[ToolCallPart, ...]:
        return unanswered(phase.calls, phase.outcomes)

    # --- stopping, and what goes wrong

    def _on_stop(self, message: Interrupt | Cancel) -> list[Effect]:
        reason = "interrupted by the user" if isinstance(message, Interrupt) else message.reason
        return self._stop(Conclusion(SessionStatus.CANCELLED, reason))

    def _stop(self, conclusion: Conclusion) -> list[Effect]:
        match self.phase:
            case Submitting():
                return self._leave_unrecorded(conclusion)
            case Streaming(attempt):
                self.phase = Settling(attempt, frozenset({Wait.SETTLED}), conclusion)
                return [Abort(attempt), self._timers(attempt)]
            case Settling(attempt, waits, Retry() | FollowUpFailed()):
                self.phase = Settling(attempt, waits, conclusion)
                return self._when_settled(Wait.DELAY)
            case AskingWork(_, reply):
                return self._finish(conclusion, reply.items)
            case Writing(step, recording, StartNext() | RunNext() | AnswerNow() as then, None):
                self.phase = Writing(step, recording, then, conclusion)
                return []
            case RunningCalls(attempt, stop=None) as phase:
                # What returns meanwhile counts as returned (spec/lessons.md E 7).
                self.phase = replace(phase, stop=conclusion)
                return [StopCalls(attempt)]
            case _:
                return []

    def _on_lost(self, lost: ActorLost) -> list[Effect]:
        """A crash costs the attempt, never the watch: unwatched output is not delivered."""
        match self.phase:
            case Streaming(attempt) if lost.crashed:
                self.phase = Settling(attempt, frozenset(Wait), Retry(()))
                self._attempt.is_void = True
                events = (AttemptLost(attempt, lost.reason), Retracted(attempt, lost.reason))
                effects: list[Effect] = [
                    Abort(attempt),
                    self._timers(attempt, self._settings.retry_delay_s),
                    Publish(events),
                ]
                return effects + (self._when_settled(Wait.SETTLED) if lost.stream_closed else [])
            case Settling() if lost.stream_closed:
                return self._when_settled(Wait.SETTLED)
            case _:
                return []

    def _draw_on_budget(self) -> str | None:
        """Take one start from the budget; or say why there is none left for this prompt."""
        if (spent := self._spent()) is None:
            self._spending.restarts += 1
        return spent

    def _spent(self) -> str | None:
        return self._spending.spent(self._now, self._number, self._usage)

    def abandon(self, reason: str, now: float, *, crashed: bool) -> Record | SessionEnded | None:
        """The last write when the session's actor goes before the session is over.

        None if it was over; only the end to announce if nothing of it is on record. A
        terminal write that was under way is repeated as it was.
        """
        self._now = now
        status = SessionStatus.FAILED if crashed else SessionStatus.CANCELLED
        match self.phase:
            case Over():
                return None
            case Submitting():
                self.phase = Over()
                return self._ended(Conclusion(status, reason))
            case Writing(step, FinishSession() as recording):
                return Record(step, recording)
            case Settling(then=Retry(())):
                status = SessionStatus.FAILED
            case _:
                pass
        items: tuple[AnyItem, ...] = ()
        if isinstance(self.phase, Streaming | Settling):
            items = self._broken_off(self._attempt.heard.snapshot(), Ending.FAILED)
        elif isinstance(self.phase, RunningCalls):
            lost = dict.fromkeys(
                (call.call_id for call in self._unanswered(self.phase)),
                ToolOutcome(ToolState.UNKNOWN),
            )
            items = self._answers({**self.phase.outcomes, **lost}, Ending.FAILED)
        elif isinstance(self.phase, AskingWork):
            items = tuple(self.phase.reply.items)
        self._finish(Conclusion(status, reason), items)
        assert isinstance(self.phase, Writing)
        return Record(self.phase.step, self.phase.recording)

    # --- the record

    def _append(
        self,
        items: tuple[AnyItem, ...],
        calls: tuple[ToolCallPart, ...] = (),
        stop_message: StopMessageState | None = None,
    ) -> list[Effect]:
        then = RunNext(items, calls) if calls else StartNext(items)
        return self._write(AppendItems(items, self._turn, self._number, stop_message), then)

    def _finish(self, conclusion: Conclusion, items: Sequence[AnyItem]) -> list[Effect]:
        ended = self._ended(conclusion)
        state = self._continuing.last_state
        return self._write(FinishSession(tuple(items), self._turn, ended, state), EndNow(ended))

    def _ended(self, conclusion: Conclusion) -> SessionEnded:
        return SessionEnded(
            status=conclusion.status,
            output=self._output,
            stop_reason=conclusion.stop_reason,
            reason=conclusion.reason,
            failure=conclusion.failure,
            usage=self._usage or Usage(),
            attempts=self._number,
            duration_ms=max(0, round((self._now - self._began_at) * 1000)),
            provider_session_id=self._provider_session_id,
        )

    def _write(
        self, recording: Recording, then: StartNext | RunNext | AnswerNow | EndNow
    ) -> list[Effect]:
        self._step += 1
        self.phase = Writing(self._step, recording, then)
        return [Record(self._step, recording)]

    def _on_recorded(self, record: SessionRecord | None) -> list[Effect]:
        assert isinstance(self.phase, Writing)
        then, stop = self.phase.then, self.phase.stop
        if isinstance(then, EndNow):
            self.phase = Over()
            ended = then.ended if record is None else as_recorded(then.ended, record)
            return [Publish((ended,)), Leave()]
        if isinstance(then, AnswerNow):
            return self._answer_locally(then.text)
        effects = self._take_into_context(then.items)
        if isinstance(then, RunNext) and stop is not None:
            return effects + self._finish_unrun(stop, then.calls)
        if stop is not None:
            return effects + self._finish(stop, ())
        if isinstance(then, RunNext):
            return effects + self._run_calls(then.calls)
        return effects + self._start_attempt()

    def _on_record_failed(self, error: str) -> list[Effect]:
        assert isinstance(self.phase, Writing)
        then = self.phase.then
        if isinstance(then, EndNow):
            self.phase = Over()
            ended = msgspec.structs.replace(
                then.ended, status=SessionStatus.FAILED, reason=f"not recorded: {error}"
            )
            return [Publish((ended,)), Leave()]
        return self._finish(Conclusion(SessionStatus.FAILED, f"not recorded: {error}"), ())

    def _take_into_context(self, items: tuple[AnyItem, ...]) -> list[Effect]:
        first = not self._context and not self._number
        self._context += items
        if not self._number:
            # With the prompt, which may bring the results that the last message waits for.
            self._context = settle_history(self._context, self._settings.format)
        events: list[AnyEvent] = []
        if not self._number:
            events.append(self._started())
        for item in items:
            if isinstance(item, ReminderItem):
                self._recorded.update(dict.fromkeys(item.rules, self._turn))
                events.append(ReminderInjected(item.rules, item.text))
        return [Publish(tuple(events))] if events or first else []

    def _started(self) -> SessionStarted:
        settings = self._settings
        return SessionStarted(settings.conversation_id, settings.provider, settings.model)

    # --- pieces

    @property
    def _now_ms(self) -> int:
        return self._began_ms + round((self._now - self._began_at) * 1000)

    def _settled(self, partial: PartialTranscript, ending: Ending) -> tuple[AnyItem, ...]:
        return settle(partial, Outcome(ending), self._settings.format)

    def _broken_off(self, partial: PartialTranscript, ending: Ending) -> tuple[AnyItem, ...]:
        """What stays of an attempt that has no end, and what the session has said by it; a
        follow-up takes no good reply away."""
        if self._attempt.is_void:
            return ()
        if partial.text.strip() and self._continuing.follow_up is None:
            self._output = partial.last_words
        return self._settled(partial, ending)

    def _reminder(
        self, verdicts: Sequence[Verdict], *, interrupted: bool, call_id: str | None = None
    ) -> ReminderItem:
        text = render(verdicts, cwd=self._settings.cwd, home=self._settings.home)
        rules = tuple(dict.fromkeys(verdict.rule for verdict in verdicts))
        return ReminderItem(text, rules, interrupted, call_id)

    def _reminder_in_result(self, verdicts: Sequence[Verdict], call_id: str) -> ReminderItem:
        return self._reminder(verdicts, interrupted=False, call_id=call_id)

    def _deferred_reminder(self) -> tuple[ReminderItem, ...]:
        deferred = self._attempt.deferred
        return (self._reminder(deferred, interrupted=False),) if deferred else ()

    def _count(self, partial: PartialTranscript) -> None:
        self._usage = partial.usage if self._usage is None else self._usage.plus(partial.usage)
        self._provider_session_id = partial.session_id or self._provider_session_id


def _ending(conclusion: Conclusion) -> Ending:
    """How the attempt ended whose calls are settled for this conclusion."""
    stopped = conclusion.status is SessionStatus.CANCELLED
    return Ending.INTERRUPTED if stopped else Ending.FINISHED
