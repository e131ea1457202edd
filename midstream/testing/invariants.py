"""Checkers for the invariants of docs/architecture.md: what happened, held against them.

Each is a pure function of what the outside could see (events, requests, the store), so a
host can use them on its own runs. They raise `InvariantBroken`, which names the invariant.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random  # noqa: TID251 - the type; the instance is the caller's

from midstream.messages.conversation import AnyItem, ModelRequest, ReminderItem, UserItem
from midstream.messages.events import (
    AttemptLost,
    AttemptStarted,
    ContinuationDecided,
    ReminderInjected,
    Retracted,
    RuleTriggered,
    SessionEnded,
    SessionEvent,
    Text,
    Thinking,
    ToolUse,
)
from midstream.messages.record import SessionStatus
from midstream.messages.verdict import VerdictAction
from midstream.rules.finding import Match
from midstream.rules.passage import PassageKey
from midstream.rules.passage_watch import Limits, PassageWatch
from midstream.rules.rule import Rule, Source
from midstream.rules.rule_set import RuleSet
from midstream.stores.conversation_load import load_conversation
from midstream.stores.store import Store
from midstream.testing.transcript_rules import violations


class InvariantBroken(AssertionError):
    """An invariant of the design does not hold; `number` is its number there."""

    def __init__(self, number: int, what: str) -> None:
        self.number = number
        super().__init__(f"invariant {number}: {what}")


def check_session(
    events: Sequence[SessionEvent],
    *,
    ended: SessionEnded | None,
    requests: Sequence[ModelRequest],
    requests_at_stop: int | None,
    continued_at_detach: int | None,
    format: str,
    has_gaps: bool = False,
    was_stopped: bool = False,
) -> None:
    """Invariants 1 to 7 as far as one session's events and the requests can tell. With gaps in
    the events, only what does not depend on those that are missing."""
    check_sequence(events)
    if not has_gaps:
        check_attempts(events)
        check_reminders(events)
        check_continuations(events, requests, continued_at_detach)
    check_nothing_after_the_abort(events)
    check_one_outcome(events, ended)
    if ended is not None:
        check_whole_answer(ended)
    if ended is not None and continued_at_detach is not None and not was_stopped:
        check_leaving_is_not_stopping(ended)
    check_stop_is_an_epoch(events, requests, requests_at_stop)
    for request in requests:
        check_context(request, format)


def check_sequence(events: Sequence[SessionEvent]) -> None:
    """Events are numbered without gap; joined deltas carry the last of their numbers."""
    numbers = [event.sequence for event in events]
    if numbers != sorted(set(numbers)):
        raise InvariantBroken(11, f"sequence numbers are not ascending: {numbers}")


def check_attempts(events: Sequence[SessionEvent]) -> None:
    """Invariant 1: attempts are numbered 1, 2, 3 and begin one after the other."""
    attempts = [e.event.attempt for e in events if isinstance(e.event, AttemptStarted)]
    if attempts != list(range(1, len(attempts) + 1)):
        raise InvariantBroken(1, f"attempts began in the order {attempts}")
    retracted = [e.event.attempt for e in events if isinstance(e.event, Retracted)]
    if len(set(retracted)) < len(retracted):
        raise InvariantBroken(2, f"attempts were retracted more than once: {retracted}")
    _check_cut_is_retracted(events, frozenset(retracted))


def _check_cut_is_retracted(events: Sequence[SessionEvent], retracted: frozenset[int]) -> None:
    """Before anything follows an attempt that was cut, the attempt was taken back."""
    cut: set[int] = set()
    for event in (event.event for event in events):
        match event:
            case AttemptLost(attempt):
                cut.add(attempt)
            case RuleTriggered(attempt, verdict) if verdict.action is VerdictAction.INTERRUPT:
                cut.add(attempt)
            case AttemptStarted() | SessionEnded():
                if shown := cut - retracted:
                    raise InvariantBroken(2, f"{event} follows attempts {shown}, which still show")
            case _:
                pass


def check_reminders(events: Sequence[SessionEvent]) -> None:
    """Invariant 5: before the next attempt the model is reminded of what the last one has been
    found to break, and of nothing else."""
    due: set[str] = set()
    for event in (event.event for event in events):
        match event:
            case AttemptStarted(attempt):
                if due:
                    raise InvariantBroken(5, f"attempt {attempt} begins without a word of {due}")
            case RuleTriggered(_, verdict) if verdict.action in REMINDING:
                due.add(verdict.rule)
            case Retracted(attempt):
                due &= _cut_for(events, attempt)
            case ReminderInjected(rules):
                if early := set(rules) - due - _exhausted(events):
                    raise InvariantBroken(5, f"{early} is reminded of, and was not broken")
                due -= set(rules)
            case _:
                pass


REMINDING = frozenset(
    {VerdictAction.INTERRUPT, VerdictAction.RIDE_ALONG, VerdictAction.DEFER, VerdictAction.FOLD}
)
"""What is decided of a match whose reminder the model is to get."""


def _cut_for(events: Sequence[SessionEvent], attempt: int) -> set[str]:
    """The rules that an attempt was cut for. What it was to be reminded of besides goes with it."""
    actions = (VerdictAction.INTERRUPT, VerdictAction.RIDE_ALONG)
    verdicts = (
        event.event.verdict
        for event in events
        if isinstance(event.event, RuleTriggered) and event.event.attempt == attempt
    )
    return {verdict.rule for verdict in verdicts if verdict.action in actions}


def _exhausted(events: Sequence[SessionEvent]) -> set[str]:
    """Rules whose calls are refused from some time on, with a word to the model each."""
    verdicts = (e.event.verdict for e in events if isinstance(e.event, RuleTriggered))
    return {verdict.rule for verdict in verdicts if verdict.action is VerdictAction.EXHAUSTED}


def check_shown_is_watched(events: Sequence[SessionEvent], rules: Iterable[Rule]) -> None:
    """Invariant 2, of a session that is over: prose that breaks a rule was seen to break it, and
    was not shown if the stream was cut for it. It looks for conditions that are plain words, in
    single deltas."""
    triggered = {
        (event.event.attempt, event.event.verdict.rule, event.event.verdict.action)
        for event in events
        if isinstance(event.event, RuleTriggered)
    }
    seen = {(attempt, rule) for attempt, rule, _ in triggered}
    retracted = {event.event.attempt for event in events if isinstance(event.event, Retracted)}
    words = [
        (rule.name, condition)
        for rule in rules
        if any(token.source is Source.TEXT for token in rule.scope)
        for condition in rule.conditions
        if condition.isalnum()
    ]
    shown = [event.event for event in events if isinstance(event.event, Text)]
    for text in shown:
        for rule, word in words:
            if word not in text.text:
                continue
            if (text.attempt, rule) not in seen and text.attempt not in retracted:
                raise InvariantBroken(2, f"{text} was shown, and nobody watched for {rule}")
            if (text.attempt, rule, VerdictAction.INTERRUPT) in triggered:
                raise InvariantBroken(2, f"{text} was shown, and was cut for {rule}")


def check_nothing_after_the_abort(events: Sequence[SessionEvent]) -> None:
    """Invariant 2: nothing of an attempt is published after its abort was decided."""
    over: set[int] = set()
    for event in (event.event for event in events):
        match event:
            case Text(attempt) | Thinking(attempt) | ToolUse(attempt) if attempt in over:
                raise InvariantBroken(2, f"{event} came after attempt {attempt} was cut")
            case AttemptStarted(attempt):
                over.update(range(attempt))
            case Retracted(attempt):
                over.add(attempt)
            case RuleTriggered(attempt, verdict) if verdict.action is VerdictAction.INTERRUPT:
                over.add(attempt)
            case _:
                pass


def check_one_outcome(events: Sequence[SessionEvent], ended: SessionEnded | None) -> None:
    """Invariant 4: one terminal event, the last one, equal to the outcome of the handle."""
    ends = [event.event for event in events if isinstance(event.event, SessionEnded)]
    if len(ends) > 1:
        raise InvariantBroken(4, f"{len(ends)} terminal events")
    if ends and not isinstance(events[-1].event, SessionEnded):
        raise InvariantBroken(4, f"{events[-1].event} came after the terminal event")
    if ends and ends[0] != ended:
        raise InvariantBroken(4, f"announced {ends[0]}, but the outcome is {ended}")


def check_whole_answer(ended: SessionEnded) -> None:
    """Invariant 4: what has completed has the end that a model has given it."""
    if ended.status is SessionStatus.COMPLETED and ended.attempts and ended.stop_reason is None:
        raise InvariantBroken(4, f"it has completed without a whole answer: {ended}")


def check_leaving_is_not_stopping(ended: SessionEnded) -> None:
    """Who leaves does not stop the session: the answer to his prompt is finished. Of a session
    that nobody has stopped."""
    if ended.status is SessionStatus.CANCELLED:
        raise InvariantBroken(4, f"the client has left, and the session was cancelled: {ended}")


def check_stop_is_an_epoch(
    events: Sequence[SessionEvent],
    requests: Sequence[ModelRequest],
    requests_at_stop: int | None,
) -> None:
    """Invariant 3: after a stop was accepted the session starts no request."""
    if requests_at_stop is not None and len(requests) > requests_at_stop:
        last = events[-1].event if events else None
        raise InvariantBroken(3, f"a request was started after the stop; then came {last}")


def check_continuations(
    events: Sequence[SessionEvent],
    requests: Sequence[ModelRequest],
    continued_at_detach: int | None,
) -> None:
    """Invariant 7: never more than N, none that was not decided, none after a disconnect."""
    decided = 0
    for event in (event.event for event in events):
        if isinstance(event, ContinuationDecided) and event.record.decision == "continue":
            decided += 1
            if event.record.used >= event.record.max_repeats:
                raise InvariantBroken(7, f"continued beyond N: {event}")
    continued = count_continuations(requests)
    ended = any(isinstance(event.event, SessionEnded) for event in events)
    if ended and continued > decided:
        raise InvariantBroken(7, f"{continued} continuations were sent, {decided} decided")
    if continued_at_detach is not None and continued > continued_at_detach:
        raise InvariantBroken(7, "a continuation was sent after the client had gone")


def count_continuations(requests: Sequence[ModelRequest]) -> int:
    """How many different continuations were asked for; retries are no others."""
    said = [sum(is_automatic(item) for item in request.items) for request in requests]
    return len(set(said) - {said[0]}) if said else 0


def is_automatic(item: AnyItem) -> bool:
    """Whether it is a continuation that midstream has asked for by itself."""
    return isinstance(item, UserItem) and item.automatic


def reminded_of(items: Iterable[AnyItem]) -> list[str]:
    """The rules of all reminders among the items, in order; one as often as it is reminded of."""
    return [rule for item in items if isinstance(item, ReminderItem) for rule in item.rules]


def check_reminded_once(request: ModelRequest, once: Iterable[str]) -> None:
    """Invariant 5: a context reminds of each of the rules `once` at most once."""
    rules = reminded_of(request.items)
    for rule in once:
        if rules.count(rule) > 1:
            raise InvariantBroken(5, f"the context reminds of {rule} {rules.count(rule)} times")


def check_context(request: ModelRequest, format: str) -> None:
    """Invariant 6: what is sent to a provider is valid for it."""
    problems = violations(request.items, format)
    if problems:
        raise InvariantBroken(6, "; ".join(problems))


async def check_store(store: Store, conversation_id: str, format: str) -> None:
    """Invariants 4, 5 and 6 of what is kept: records, reminders, the conversation."""
    conversation = await load_conversation(store, conversation_id)
    reminded = reminded_of(conversation.items)
    recorded = [record.rule for record in conversation.injections]
    if sorted(reminded) != sorted(recorded):
        raise InvariantBroken(5, f"reminded of {reminded}, but on record are {recorded}")
    session = conversation.session
    if session is not None and session.record.is_terminal and session.record.ended_at is None:
        raise InvariantBroken(4, f"{session.record.id} is terminal and has no end")


def check_cut_independence(rule: Rule, text: str, random: Random, cuts: int = 20) -> None:
    """Invariant 9: the rule's verdict on a text does not depend on how it is cut.

    Prose rules are watched as prose, tool rules as a passage of their first tool.
    """
    rule_set = RuleSet([rule])
    whole = _matches(rule_set, rule, [text])
    for _ in range(cuts):
        pieces = _pieces(random, text)
        if _matches(rule_set, rule, pieces) != whole:
            raise InvariantBroken(9, f"{rule.name} matches {text!r}: {whole}, but not as {pieces}")


def _matches(rule_set: RuleSet, rule: Rule, pieces: Sequence[str]) -> bool:
    token = rule.scope[0]
    tool = (token.tool or "write") if token.source is Source.TOOL else None
    lineup = rule_set.lineup(token.source, tool)
    watch = PassageWatch(rule_set, lineup, PassageKey(token.source), Limits(), tool)
    findings = [finding for piece in pieces for finding in watch.feed(piece)]
    findings += watch.end()
    return any(isinstance(finding, Match) for finding in findings)


def _pieces(random: Random, text: str) -> list[str]:
    places = sorted(random.randint(0, len(text)) for _ in range(random.randint(0, 6)))
    edges = [0, *places, len(text)]
    return [text[a:b] for a, b in pairwise(edges)]
