"""AttemptWatch: what the actors of sessions say to each other, held against the design.

It hears what is put into mailboxes and what is taken out of them. So it knows the order in which a
session has decided things, which the outside often cannot tell from bad luck:

- what the matcher knows of reminders is what the model is asked with, and a rule is passed over
  only if its reminder is there or on its way (invariant 5);
- what is asked again by itself, and each round of calls, is within the budget (invariant 7); a
  retry waits for its own delay;
- once a session has taken a stop, it starts no attempt, shows nothing more of the live one, and is
  over soon (invariants 2 and 3);
- a session that fails with its stream has heard that this stream, and not an earlier one, is over
  (invariant 2).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from midstream.actors.announcer import Announce
from midstream.config import BudgetConfig
from midstream.messages.conversation import ToolResultItem
from midstream.messages.events import (
    AttemptLost,
    AttemptStarted,
    RetryScheduled,
    SessionEnded,
    Text,
    Thinking,
    ToolUse,
)
from midstream.messages.lifecycle import Down
from midstream.messages.stream import UsageReported
from midstream.messages.verdict import VerdictAction
from midstream.messages.work import (
    AttemptHeld,
    AttemptOverdue,
    Cancel,
    Interrupt,
    RetryDue,
    RunTools,
    StartAttempt,
    StreamClosed,
    WatchAttempt,
    WatchedBatch,
    WatchedEnd,
)
from midstream.testing.invariants import REMINDING, InvariantBroken, reminded_of
from midstream.testing.trace import session_of

ROUNDING_S = 1e-6

STOPPED_S = 60.0
"""Seconds within which a session that was stopped is over: its stream has 10 to close, a tool of
its 5 to stop, and the store may take its time."""


class _Moment(NamedTuple):
    """When a session heard of something: behind how many messages that had been put anywhere, which
    is an order, and the time in seconds."""

    place: int
    at_s: float


@dataclass
class _Course:
    """The attempts of one owner of a session. `restarts` counts those that it began by itself."""

    restarts: int = 0
    rounds: int = 0
    """Of calls that were run."""
    output_tokens: dict[int, int] = field(default_factory=dict[int, int])
    """By attempt, as far as the session has heard."""
    began_s: float = math.inf
    closed_s: dict[int, float] = field(default_factory=dict[int, float])
    """When the session first heard that attempts have ended, or may have,"""
    due: dict[int, _Moment] = field(default_factory=dict[int, _Moment])
    """and that the delays behind them have passed."""
    overdue: set[int] = field(default_factory=set[int])
    """Follow-ups that have taken too long, and are given up."""
    has_waited: bool = False
    """For calls, or for the end of a pause, which takes nothing of its time."""
    newest: int = 0
    """The attempt that was begun last."""
    results: int = 0
    """Of calls, in the newest request."""
    reminded: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    recorded: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    reserved: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    """The rules whose reminder an attempt has ordered."""
    is_lost: bool = False
    """Somebody has crashed, or was stopped with it, since the newest attempt began."""
    not_before_s: float = 0.0
    """When the next attempt may begin."""
    stopped: _Moment | None = None
    """When the session took a stop."""
    delayed: set[int] = field(default_factory=set[int])
    """The attempts behind which there is a delay."""
    begun: int = 0
    """The attempt that the session has told of last."""
    over: set[int] = field(default_factory=set[int])
    """The attempts whose end the session has heard of, or lost with a crash."""


class AttemptWatch:
    """See the module. `budget` is what midstream may start by itself for one prompt,
    `recoveries` says how often a session was taken over without new output; a retry waits for
    `retry_delay_s` after the cut."""

    def __init__(
        self, budget: BudgetConfig, retry_delay_s: float, recoveries: Callable[[str], int]
    ) -> None:
        self._budget = budget
        self._retry_delay_s = retry_delay_s
        self._recoveries = recoveries
        self._courses: dict[str, _Course] = {}
        self._put = 0
        self._starts: list[tuple[StartAttempt, int, float]] = []
        """Those that wait in mailboxes, with their place in the order of all and their time."""

    def is_lost(self, session_id: str) -> bool:
        """Whether somebody has crashed since the newest attempt of the session began."""
        course = self._courses.get(session_id)
        return course is not None and course.is_lost

    def put(self, message: object, now_s: float) -> None:
        """Somebody puts this into a mailbox. Raises `InvariantBroken`."""
        self._put += 1
        if isinstance(message, StartAttempt):
            self._starts.append((message, self._put, now_s))
        elif isinstance(message, Announce):
            self._note_delays(message)
            self._check_silence(message)
            self._check_failure(message)
            self._check_end_of_stop(message, now_s)

    def take(self, who: str, message: object, now_s: float) -> None:
        """The actor at the path `who` takes this out of its mailbox. Raises `InvariantBroken`."""
        match message:
            case StartAttempt() | WatchAttempt():
                self._on_attempt(session_of(who), message)
            case Interrupt() | Cancel() if who.endswith("/session"):
                course = self._course(session_of(who))
                course.stopped = course.stopped or _Moment(self._put, now_s)
            case Down() if who.endswith("/session"):
                course = self._course(session_of(who))
                course.is_lost = True
                course.over.add(course.begun)
                course.closed_s.setdefault(course.newest, now_s)
            case WatchedEnd(attempt) | StreamClosed(attempt):
                course = self._course(session_of(who))
                course.over.add(attempt)
                course.closed_s.setdefault(attempt, now_s)
            case AttemptOverdue(attempt):
                self._course(session_of(who)).overdue.add(attempt)
            case RetryDue(attempt):
                course = self._course(session_of(who))
                course.due.setdefault(attempt, _Moment(self._put, now_s))
            case WatchedBatch():
                self._on_batch(session_of(who), message)
            case AttemptHeld():
                self._course(session_of(who)).has_waited = True
            case RunTools():
                self._on_calls(session_of(who))
            case _:
                pass

    def _course(self, session_id: str) -> _Course:
        course = self._courses.get(session_id)
        if course is None:
            course = self._courses[session_id] = _Course(self._recoveries(session_id))
        return course

    def _on_attempt(self, session_id: str, message: StartAttempt | WatchAttempt) -> None:
        course = self._course(session_id)
        if message.attempt == 1 and _is_known(course, message):  # it was taken over
            course = self._courses[session_id] = _Course(self._recoveries(session_id))
        if isinstance(message, WatchAttempt):
            course.recorded[message.attempt] = frozenset(message.recorded)
        else:
            put_at_s = self._check_start(session_id, course, message)
            self._count(session_id, course, message, put_at_s)
            course.reminded[message.attempt] = frozenset(reminded_of(message.request.items))
        _compare(session_id, course, message.attempt)

    def _on_batch(self, session_id: str, batch: WatchedBatch) -> None:
        course = self._course(session_id)
        is_live = batch.attempt == course.newest and not course.is_lost
        if is_live:
            for usage in (each.usage for each in batch.messages if isinstance(each, UsageReported)):
                course.output_tokens[batch.attempt] = usage.output_tokens or 0
        is_given_up = not is_live or batch.attempt in course.overdue
        if batch.aborted_at is not None and not is_given_up:
            course.not_before_s = batch.aborted_at + self._retry_delay_s
        reserved = course.reserved.setdefault(batch.attempt, set())
        known = course.recorded.get(batch.attempt, frozenset())
        for verdict in batch.verdicts:
            if verdict.action in REMINDING:
                reserved.add(verdict.rule)
            elif (
                verdict.action is VerdictAction.SUPPRESSED and verdict.rule not in reserved | known
            ):
                name = f"attempt {batch.attempt} of {session_id}"
                raise InvariantBroken(5, f"{name} keeps silent about {verdict.rule}: {verdict}")

    def _on_calls(self, session_id: str) -> None:
        course = self._course(session_id)
        course.has_waited = True
        course.rounds += 1
        most = self._budget.max_tool_rounds
        if course.rounds > most:
            raise InvariantBroken(7, f"{session_id} has run {course.rounds} rounds, of {most}")

    def _check_start(self, session_id: str, course: _Course, start: StartAttempt) -> float:
        """When the order to start was given."""
        at = next(n for n, (each, _, _) in enumerate(self._starts) if each is start)
        _, place, put_at_s = self._starts.pop(at)
        course.is_lost = False
        course.newest = start.attempt
        name = f"attempt {start.attempt} of {session_id}"
        if course.stopped is not None and place > course.stopped.place:
            raise InvariantBroken(3, f"{name} was started behind a stop")
        if put_at_s < course.not_before_s - ROUNDING_S:
            early_s = course.not_before_s - put_at_s
            raise InvariantBroken(1, f"{name} was started {early_s:g} s before it was due")

        before = start.attempt - 1
        due = course.due.get(before)
        if before in course.delayed and (due is None or due.place > place):
            raise InvariantBroken(1, f"{name} was started without the delay behind {before}")
        return put_at_s

    def _note_delays(self, said: Announce) -> None:
        course = self._courses.get(said.session_id)
        if course is None:
            return
        for event in said.events:
            match event:
                case AttemptLost(attempt):
                    course.delayed.add(attempt)
                case RetryScheduled(attempt, delay_s) if delay_s > 0:
                    course.delayed.add(attempt)
                case _:
                    pass

    def _check_silence(self, said: Announce) -> None:
        course = self._courses.get(said.session_id)
        if course is None or course.stopped is None:
            return
        shown = [each for each in said.events if isinstance(each, Text | Thinking | ToolUse)]
        if shown:
            raise InvariantBroken(2, f"{said.session_id} was stopped, and then said {shown}")

    def _check_end_of_stop(self, said: Announce, now_s: float) -> None:
        course = self._courses.get(said.session_id)
        if course is None or course.stopped is None:
            return
        took_s = now_s - course.stopped.at_s
        if took_s > STOPPED_S and any(isinstance(event, SessionEnded) for event in said.events):
            raise InvariantBroken(3, f"{said.session_id} has ended {took_s:g} s behind a stop")

    def _check_failure(self, said: Announce) -> None:
        if self._recoveries(said.session_id):
            return  # its owners count their attempts each from 1
        course = self._course(said.session_id)
        for event in said.events:
            if isinstance(event, AttemptStarted):
                course.begun = event.attempt
            elif (
                isinstance(event, SessionEnded)
                and event.failure is not None
                and course.begun not in course.over
            ):
                name = f"attempt {course.begun} of {said.session_id}"
                raise InvariantBroken(2, f"{name} has not ended, and failed: {event.failure}")

    def _count(
        self, session_id: str, course: _Course, start: StartAttempt, put_at_s: float
    ) -> None:
        results = sum(isinstance(item, ToolResultItem) for item in start.request.items)
        asked_for = start.attempt == 1 or results > course.results
        course.results = results
        course.began_s = min(course.began_s, put_at_s)
        if asked_for:
            return
        course.restarts += 1
        if spent := self._spent(course, start.attempt - 1):
            raise InvariantBroken(7, f"{session_id} was asked again by itself, {spent}")

    def _spent(self, course: _Course, before: int) -> str | None:
        """Why nothing should have begun behind the attempt `before`."""
        closed_s, due = course.closed_s.get(before, 0.0), course.due.get(before)
        decided_s = closed_s if due is None else max(closed_s, due.at_s)
        budget, took_s = self._budget, decided_s - course.began_s
        tokens = sum(course.output_tokens.values())
        if course.restarts > budget.max_restarts:
            return f"{course.restarts} times of {budget.max_restarts}"
        if budget.max_output_tokens is not None and tokens >= budget.max_output_tokens:
            return f"with {tokens} tokens of {budget.max_output_tokens} spent"
        if took_s >= budget.max_s and not course.has_waited:
            return f"after {took_s:g} s of {budget.max_s:g}"
        return None


def _is_known(course: _Course, message: StartAttempt | WatchAttempt) -> bool:
    heard = course.recorded if isinstance(message, WatchAttempt) else course.reminded
    return 1 in heard


def _compare(session_id: str, course: _Course, attempt: int) -> None:
    recorded, reminded = course.recorded.get(attempt), course.reminded.get(attempt)
    if recorded is None or reminded is None or recorded == reminded:
        return
    raise InvariantBroken(
        5,
        f"attempt {attempt} of {session_id}: its context reminds of {sorted(reminded)}, "
        f"and {sorted(recorded)} count as reminded of",
    )
