"""The course of a session as a pure state machine: every race is an order of its inputs."""

from random import Random
from typing import Any

import msgspec
import pytest

from midstream.actors.turn import Message, Turn
from midstream.actors.turn_effects import Abort, Effect, Leave, Publish, Record, SetTimers, Start
from midstream.actors.turn_phases import Over, Settling, Streaming
from midstream.actors.turn_settings import (
    ContextMode,
    OnExhausted,
    PromptBudget,
    TurnSettings,
)
from midstream.messages.conversation import AssistantItem, ReminderItem, SystemItem, UserItem
from midstream.messages.events import AnyEvent, Retracted, RuleTriggered, SessionEnded, Text
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.stream import (
    BlockFinished,
    BlockStarted,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    UsageReported,
)
from midstream.messages.submit_work import PromptReady
from midstream.messages.usage import Usage
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.work import (
    ActorLost,
    AppendItems,
    Cancel,
    FinishSession,
    Interrupt,
    Recorded,
    RecordFailed,
    RetryDue,
    SettleOverdue,
    StreamClosed,
    TimersLost,
    WatchedBatch,
    WatchedEnd,
)

SETTINGS = TurnSettings(
    conversation_id="con", provider="p", format="anthropic", model="m", cwd="/w", home="/home/u"
)
STOPS = [Interrupt(), Cancel("enough")]


def verdict(rule: str = "no-foo", action: VerdictAction = VerdictAction.INTERRUPT) -> Verdict:
    return Verdict(rule=rule, action=action, source="text", reminder=f"Do not {rule}.")


def said(attempt: int, text: str, *verdicts: Verdict) -> WatchedBatch:
    opening = (StreamStarted(), BlockStarted(0, "text"))
    return WatchedBatch(attempt, (*opening, TextDelta(0, text)), verdicts, 1.0)


def finished(attempt: int) -> WatchedBatch:
    return WatchedBatch(attempt, (BlockFinished(0), StreamFinished(StopReason.END_TURN)), (), 1.0)


class Course:
    """A turn, with everything that it asked for so far."""

    def __init__(self, settings: TurnSettings = SETTINGS) -> None:
        self.turn = Turn(settings, (), {}, 0, 0.0)
        self.now = 0.0
        ready = PromptReady(items=(UserItem("hello"),))
        self.effects: list[Effect] = self.turn.receive(ready, self.now)

    def receive(self, *messages: Message) -> list[Effect]:
        new = [effect for message in messages for effect in self.turn.receive(message, self.now)]
        self.effects += new
        return new

    def record(self) -> list[Effect]:
        """The store has taken what was asked for last."""
        return self.receive(Recorded(self.records[-1].step))

    @property
    def records(self) -> list[Record]:
        return [effect for effect in self.effects if isinstance(effect, Record)]

    @property
    def starts(self) -> list[Start]:
        return [effect for effect in self.effects if isinstance(effect, Start)]

    @property
    def events(self) -> list[AnyEvent]:
        return [e for effect in self.effects if isinstance(effect, Publish) for e in effect.events]

    @property
    def ends(self) -> list[SessionEnded]:
        return [event for event in self.events if isinstance(event, SessionEnded)]


def streaming(settings: TurnSettings = SETTINGS) -> Course:
    course = Course(settings)
    course.record()
    return course


def cut(settings: TurnSettings = SETTINGS) -> Course:
    course = streaming(settings)
    course.receive(said(1, "foo", verdict()))
    return course


def reminders(course: Course) -> list[ReminderItem]:
    return [
        item
        for record in course.records
        if isinstance(record.recording, AppendItems)
        for item in record.recording.items
        if isinstance(item, ReminderItem)
    ]


# --- the main job


def test_nothing_starts_before_the_prompt_is_on_record() -> None:
    course = Course()
    assert not course.starts
    course.record()
    assert [start.attempt for start in course.starts] == [1]


def test_an_interrupting_verdict_aborts_before_anything_else() -> None:
    effects = cut().effects
    assert Abort(1) in effects
    behind = effects[effects.index(Abort(1)) + 1 :]
    assert any(isinstance(effect, SetTimers) for effect in behind)
    assert not any(
        isinstance(event, RuleTriggered)
        for effect in effects[: effects.index(Abort(1))]
        if isinstance(effect, Publish)
        for event in effect.events
    )


def test_the_batch_that_breaks_a_rule_is_not_shown() -> None:
    course = cut()
    assert not [event for event in course.events if isinstance(event, Text)]
    assert [event.attempt for event in course.events if isinstance(event, Retracted)] == [1]


@pytest.mark.parametrize(
    "order", [[RetryDue(1), WatchedEnd(1)], [WatchedEnd(1), RetryDue(1)]], ids=["late", "early"]
)
def test_the_retry_waits_for_the_delay_and_for_the_stream_to_settle(order: list[Message]) -> None:
    course = cut()
    course.receive(order[0])
    assert not reminders(course)
    course.receive(order[1])
    assert [item.rules for item in reminders(course)] == [("no-foo",)]
    assert len(course.starts) == 1, "the reminder is not on record yet"
    course.record()
    assert [start.attempt for start in course.starts] == [1, 2]


def test_the_retry_sees_the_reminder_and_not_the_output_that_was_cut() -> None:
    course = cut()
    course.receive(RetryDue(1), WatchedEnd(1))
    course.record()
    user, reminder = course.starts[-1].request.items
    assert user == UserItem("hello")
    assert isinstance(reminder, ReminderItem)
    assert "Do not no-foo." in reminder.text
    assert course.starts[-1].recorded == {"no-foo": 1}


def test_with_keep_the_retry_sees_the_output_that_was_cut() -> None:
    course = cut(replace_settings(context_mode=ContextMode.KEEP))
    course.receive(RetryDue(1), WatchedEnd(1))
    course.record()
    kinds = [type(item) for item in course.starts[-1].request.items]
    assert kinds == [UserItem, AssistantItem, ReminderItem]


def test_several_rules_of_one_batch_give_one_injection_with_a_block_for_each() -> None:
    course = streaming()
    ride = verdict("no-bar", VerdictAction.RIDE_ALONG)
    course.receive(said(1, "foo", verdict(), ride), RetryDue(1), WatchedEnd(1))
    [reminder] = reminders(course)
    assert reminder.rules == ("no-foo", "no-bar")
    assert reminder.text.count('rule="no-') == 2


# --- races


def test_a_second_verdict_before_the_abort_has_landed_changes_nothing() -> None:
    course = cut()
    before = len(course.effects)
    course.receive(said(1, "bar", verdict("no-bar")), finished(1))
    assert len(course.effects) == before
    course.receive(RetryDue(1), WatchedEnd(1))
    assert [item.rules for item in reminders(course)] == [("no-foo",)]


def test_a_provider_error_in_the_window_changes_nothing() -> None:
    course = cut()
    failure = StreamFailed(ProviderFailure(FailureKind.NETWORK, "reset"))
    course.receive(WatchedBatch(1, (failure,), (), 1.0), WatchedEnd(1), RetryDue(1))
    assert reminders(course)
    assert not course.ends


@pytest.mark.parametrize("stop", STOPS, ids=["interrupt", "cancel"])
@pytest.mark.parametrize("before", [[], [RetryDue(1)], [WatchedEnd(1)]], ids=["", "due", "settled"])
def test_a_stop_in_the_retry_window_leaves_nothing_behind(
    stop: Interrupt | Cancel, before: list[Message]
) -> None:
    course = cut()
    course.receive(*before, stop, RetryDue(1), WatchedEnd(1), SettleOverdue(1))
    course.record()
    assert len(course.starts) == 1
    assert not reminders(course)
    assert_nothing_stays(course)
    assert [end.status for end in course.ends] == [SessionStatus.CANCELLED]


def assert_nothing_stays(course: Course) -> None:
    """What was retracted is neither in the conversation nor what the session has said."""
    [last] = [
        record.recording for record in course.records if isinstance(record.recording, FinishSession)
    ]
    assert isinstance(last, FinishSession)
    assert last.items == ()
    assert last.ended.output == ""


def test_what_was_retracted_does_not_stay_when_the_budget_ends_the_prompt() -> None:
    course = cut(replace_settings(budget=PromptBudget(max_restarts=0)))
    course.receive(RetryDue(1), WatchedEnd(1))
    assert_nothing_stays(course)
    course.record()
    assert [end.status for end in course.ends] == [SessionStatus.CAPPED]


def test_what_was_retracted_does_not_stay_when_the_host_goes() -> None:
    course = cut()
    last = course.turn.abandon("stopped by its supervisor", 1.0, crashed=False)
    assert last is not None
    course.effects += last.records
    assert_nothing_stays(course)


@pytest.mark.parametrize("stop", STOPS, ids=["interrupt", "cancel"])
def test_a_stop_while_the_reminder_is_written_starts_nothing(stop: Interrupt | Cancel) -> None:
    course = cut()
    course.receive(RetryDue(1), WatchedEnd(1), stop)
    course.record()
    course.record()
    assert len(course.starts) == 1
    assert [end.status for end in course.ends] == [SessionStatus.CANCELLED]


def test_a_stop_before_the_prompt_is_on_record_starts_nothing() -> None:
    course = Course()
    course.receive(Interrupt())
    course.record()
    course.record()
    assert not course.starts
    assert len(course.ends) == 1


def test_an_interrupt_keeps_what_was_said_and_tells_the_model() -> None:
    course = streaming()
    course.receive(said(1, "half an ans"), Interrupt())
    assert Abort(1) in course.effects
    course.receive(WatchedEnd(1))
    recording = course.records[-1].recording
    assert isinstance(recording, FinishSession)
    assert [type(item) for item in recording.items] == [AssistantItem, SystemItem]


def test_a_stream_that_never_settles_ends_the_session_and_starts_nothing() -> None:
    course = cut()
    course.receive(RetryDue(1), SettleOverdue(1))
    course.record()
    assert len(course.starts) == 1
    assert [end.status for end in course.ends] == [SessionStatus.FAILED]


def test_a_crash_loses_the_attempt_and_repeats_it_without_a_reminder() -> None:
    course = streaming()
    course.receive(said(1, "half"), ActorLost("matcher: boom", held_stream=False))
    assert Abort(1) in course.effects
    course.receive(RetryDue(1), ActorLost("monitor: stopped", held_stream=True))
    assert [start.attempt for start in course.starts] == [1, 2]
    assert not reminders(course)


def test_timers_that_are_lost_are_set_again_for_what_is_still_awaited() -> None:
    course = cut()
    course.receive(TimersLost("scheduler: boom"))
    first, again = (effect for effect in course.effects if isinstance(effect, SetTimers))
    assert again == first
    course.receive(RetryDue(1), TimersLost("scheduler: boom"))
    last = course.effects[-1]
    assert last == SetTimers(1, first.deadline_s, None)


def test_a_stream_is_lost_with_the_timers_that_its_reader_is_restarted_with() -> None:
    course = streaming()
    course.receive(said(1, "half"), TimersLost("scheduler: boom"))
    assert Abort(1) in course.effects
    course.receive(ActorLost("monitor: stopped", held_stream=True), RetryDue(1))
    assert [start.attempt for start in course.starts] == [1, 2]


def test_a_stream_that_begins_between_a_crash_and_the_restart_is_lost_with_its_reader() -> None:
    course = cut()
    course.receive(WatchedEnd(1), ActorLost("matcher: boom", held_stream=False), RetryDue(1))
    course.record()
    assert [start.attempt for start in course.starts] == [1, 2]
    stopped = ActorLost("monitor: stopped", held_stream=True, crashed=False)
    course.receive(stopped, RetryDue(2))
    assert [start.attempt for start in course.starts] == [1, 2, 3]


def test_a_stream_that_the_next_reader_holds_is_not_closed_by_the_end_of_the_last_one() -> None:
    """The session hears late of a restart that is over: the stream that it has asked for meanwhile
    is open, and is lost, but it has to be closed before the next one begins."""
    course = cut()
    course.receive(WatchedEnd(1), ActorLost("scheduler: boom", held_stream=False), RetryDue(1))
    course.record()
    late = ActorLost("monitor: stopped", held_stream=True, crashed=False, live_attempt=2)
    course.receive(late, RetryDue(2), StreamClosed(1))
    assert Abort(2) in course.effects
    assert [start.attempt for start in course.starts] == [1, 2]
    course.receive(StreamClosed(2))
    assert [start.attempt for start in course.starts] == [1, 2, 3]


def test_a_stream_that_is_told_to_close_is_not_closed_by_the_end_of_an_earlier_reader() -> None:
    course = cut()
    late = ActorLost("monitor: stopped", held_stream=True, crashed=False, live_attempt=1)
    course.receive(RetryDue(1), late)
    assert [start.attempt for start in course.starts] == [1]


def test_a_reader_that_is_stopped_for_good_retracts_nothing() -> None:
    course = streaming()
    stopped = ActorLost("monitor: stopped", held_stream=True, crashed=False)
    course.receive(said(1, "half"), stopped)
    assert not any(isinstance(event, Retracted) for event in course.events)


# --- ends


def test_a_finished_stream_ends_the_session_once_it_is_on_record() -> None:
    course = streaming()
    course.receive(said(1, "an answer"), finished(1), WatchedEnd(1))
    assert not course.ends
    effects = course.record()
    assert isinstance(effects[-1], Leave)
    assert [(end.status, end.output) for end in course.ends] == [
        (SessionStatus.COMPLETED, "an answer")
    ]


def test_a_stream_without_its_terminal_event_is_a_failure() -> None:
    course = streaming()
    course.receive(said(1, "an ans"), WatchedEnd(1))
    course.record()
    [end] = course.ends
    assert end.status is SessionStatus.FAILED
    assert end.failure is not None
    assert end.failure.kind is FailureKind.PROTOCOL


def test_a_failure_of_the_store_ends_the_session_as_failed() -> None:
    course = Course()
    course.receive(RecordFailed(1, "disk full"))
    course.receive(RecordFailed(2, "disk full"))
    [end] = course.ends
    assert end.status is SessionStatus.FAILED
    assert "disk full" in (end.reason or "")


def test_an_exhausted_rule_lets_the_output_through_and_the_session_is_capped() -> None:
    course = streaming()
    spent = verdict(action=VerdictAction.EXHAUSTED)
    course.receive(said(1, "foo", spent), finished(1), WatchedEnd(1))
    course.record()
    assert [(end.status, end.output) for end in course.ends] == [(SessionStatus.CAPPED, "foo")]


def test_an_exhausted_rule_can_end_the_session_instead() -> None:
    course = streaming(replace_settings(on_exhausted=OnExhausted.FAIL))
    course.receive(said(1, "foo", verdict(action=VerdictAction.EXHAUSTED)))
    assert Abort(1) in course.effects
    course.receive(WatchedEnd(1), RetryDue(1))
    course.record()
    assert [end.status for end in course.ends] == [SessionStatus.CAPPED]


@pytest.mark.parametrize(
    ("budget", "now"),
    [
        (PromptBudget(max_restarts=0), 1.0),
        (PromptBudget(max_s=10.0), 10.0),
        (PromptBudget(max_output_tokens=7), 1.0),
    ],
    ids=["count", "time", "tokens"],
)
def test_what_ends_by_budget_is_reported_as_capped(budget: PromptBudget, now: float) -> None:
    course = streaming(replace_settings(budget=budget))
    course.receive(WatchedBatch(1, (UsageReported(Usage(output_tokens=7)),), (), 1.0))
    course.receive(said(1, "foo", verdict()))
    course.now = now
    course.receive(RetryDue(1), WatchedEnd(1))
    course.record()
    assert len(course.starts) == 1
    assert [end.status for end in course.ends] == [SessionStatus.CAPPED]


def test_the_last_token_of_the_budget_is_still_the_prompts() -> None:
    course = streaming(replace_settings(budget=PromptBudget(max_output_tokens=8)))
    course.receive(WatchedBatch(1, (UsageReported(Usage(output_tokens=7)),), (), 1.0))
    course.receive(said(1, "foo", verdict()), RetryDue(1), WatchedEnd(1))
    course.record()
    assert len(course.starts) == 2


@pytest.mark.parametrize(("recoveries", "starts"), [(1, 1), (2, 0)])
def test_recoveries_draw_on_the_budget_of_the_prompt(recoveries: int, starts: int) -> None:
    settings = replace_settings(budget=PromptBudget(max_restarts=2))
    turn = Turn(settings, (UserItem("hello"),), {}, 1, 0.0)
    turn.resume(recoveries)
    cut = [said(1, "foo", verdict()), RetryDue(1), WatchedEnd(1), Recorded(1)]
    effects = [effect for message in cut for effect in turn.receive(message, 1.0)]
    assert sum(isinstance(effect, Start) for effect in effects) == starts
    published = [e for effect in effects if isinstance(effect, Publish) for e in effect.events]
    ends = [event.status for event in published if isinstance(event, SessionEnded)]
    assert ends == ([] if starts else [SessionStatus.CAPPED])


def test_an_end_that_somebody_else_has_recorded_is_the_one_that_is_announced() -> None:
    course = streaming()
    course.receive(said(1, "fine"), finished(1), WatchedEnd(1))
    record = SessionRecord(
        id="ses-1",
        status=SessionStatus.CANCELLED,
        started_at="2026-01-01T00:00:00.000Z",
        provider="p",
        error="cancelled elsewhere",
    )
    course.receive(Recorded(course.records[-1].step, record))
    assert [(end.status, end.reason) for end in course.ends] == [
        (SessionStatus.CANCELLED, "cancelled elsewhere")
    ]


# --- whatever the order


def test_whatever_the_order_the_invariants_hold() -> None:
    for seed in range(2_000):
        wander(Random(seed), f"seed {seed}")


def wander(random: Random, label: str) -> None:
    """Feed a turn with messages in random order and check architecture.md's invariants 1 to 4."""
    course = Course()
    live: int | None = None
    stopped_at: int | None = None
    for _ in range(random.randint(5, 60)):
        attempt = max(1, len(course.starts) - random.choice((0, 0, 0, 1)))
        message = random.choice(any_message(attempt, course))
        seen = len(course.effects)
        course.receive(message)
        if isinstance(message, WatchedEnd) and message.attempt == live:
            live = None
        for effect in course.effects[seen:]:
            if isinstance(effect, Start):
                assert live is None, f"{label}: two live streams"
                assert stopped_at is None, f"{label}: a start after a stop"
                live = effect.attempt
        if isinstance(message, Interrupt | Cancel):
            stopped_at = seen
    assert len(course.ends) <= 1, f"{label}: two terminal outcomes"
    assert bool(course.ends) == isinstance(course.turn.phase, Over), label
    assert len(course.starts) == len({start.attempt for start in course.starts}), label


def any_message(attempt: int, course: Course) -> list[Message]:
    step = course.records[-1].step
    streams = [said(attempt, "x"), said(attempt, "foo", verdict()), finished(attempt)]
    timers = [RetryDue(attempt), SettleOverdue(attempt)]
    steps = [Recorded(step), Recorded(step), Recorded(step), Recorded(step - 1)]
    rare = [Interrupt(), Cancel(), RecordFailed(step, "no")]
    common: list[Message] = [*streams, *timers[:1], *steps, WatchedEnd(attempt)]
    return [*common, *common, *common, *common, *timers, *rare]


def replace_settings(**changes: Any) -> TurnSettings:
    return msgspec.structs.replace(SETTINGS, **changes)


def test_the_phases_are_what_they_are_called() -> None:
    course = streaming()
    assert course.turn.phase == Streaming(1)
    course.receive(said(1, "foo", verdict()))
    assert isinstance(course.turn.phase, Settling)
