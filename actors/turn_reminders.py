"""Which violations a turn tells the model of, and in which words.

A violation for which the stream is not cut is kept in mind by the attempt: its reminder
comes behind the whole answer (deferred) or with the result of its call (folded). What is
kept in mind is lost with the attempt (spec/ttsr.md 0.8).
"""

from collections.abc import Sequence

from midstream.actors.turn_state import TurnState
from midstream.messages.accumulate import PartialTranscript
from midstream.messages.conversation import ReminderItem
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.rules.reminder import render


def keep_in_mind(turn: TurnState, verdict: Verdict) -> None:
    """Remember a verdict for which the stream is not cut."""
    attempt = turn.attempt
    if verdict.interrupts and verdict.call_id and turn.settings.runs_tools:
        # The stream is not cut for it (any more), but such a call never runs.
        attempt.refused.setdefault(verdict.call_id, []).append(verdict.rule)
        if verdict.action is VerdictAction.EXHAUSTED:
            attempt.folded.append(verdict)
        return
    match verdict.action:
        case VerdictAction.DEFER:
            attempt.deferred.append(verdict)
        case VerdictAction.FOLD:
            attempt.folded.append(verdict)
        case VerdictAction.EXHAUSTED:
            turn.exhausted = f"{verdict.rule}: {verdict.reason}"
        case _:
            pass


def defer_folded(turn: TurnState, partial: PartialTranscript) -> None:
    """A call that the provider has run itself has no result here to fold a reminder
    into; it comes behind the whole answer."""
    attempt, ours = turn.attempt, {call.call_id for call in partial.calls}
    attempt.deferred += [each for each in attempt.folded if each.call_id not in ours]
    attempt.folded = [each for each in attempt.folded if each.call_id in ours]


def reminder(
    turn: TurnState, verdicts: Sequence[Verdict], *, interrupted: bool, call_id: str | None = None
) -> ReminderItem:
    """One reminder of all these violations. `interrupted` says that the stream was cut for
    them; with a `call_id` it goes with the result of that call."""
    text = render(verdicts, cwd=turn.settings.cwd, home=turn.settings.home)
    rules = tuple(dict.fromkeys(verdict.rule for verdict in verdicts))
    return ReminderItem(text, rules, interrupted, call_id)


def deferred_reminder(turn: TurnState) -> tuple[ReminderItem, ...]:
    """The reminder that comes behind the whole answer, if there is one."""
    deferred = turn.attempt.deferred
    return (reminder(turn, deferred, interrupted=False),) if deferred else ()
