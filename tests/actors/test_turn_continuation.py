"""Auto-continue in a turn: what follows each reply, as orders of the inputs of a function."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.actors.turn import Message, Turn
from midstream.actors.turn_continuation import Continuing, is_compacting, resumed
from midstream.actors.turn_effects import (
    Abort,
    AskForWork,
    Effect,
    Leave,
    LimitTo,
    Publish,
    Record,
    Start,
)
from midstream.actors.turn_phases import Over, Streaming, Writing
from midstream.actors.turn_settings import ContinuationSettings, PromptBudget, TurnSettings
from midstream.messages.bd_stage import TEMPLATE_PATHS, BdMode, BdTask
from midstream.messages.continuation import WhyNot
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ReminderItem,
    SystemItem,
    TextPart,
    UserItem,
)
from midstream.messages.directive import StageMode
from midstream.messages.events import (
    AnyEvent,
    ContinuationDecided,
    LocalAnswer,
    Retracted,
    SessionEnded,
    SessionStarted,
    StopMessageChanged,
    WorkBlocked,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.loop_guard import REPETITION_WARNING, GuardLimits
from midstream.messages.record import SessionStatus
from midstream.messages.stop_message import Stage, StopMessageState, set_mode, set_text
from midstream.messages.stream import (
    BlockFinished,
    BlockStarted,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.messages.submit_work import PromptReady, PromptRefused
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.work import (
    ActorLost,
    AppendItems,
    AttemptOverdue,
    Cancel,
    Detach,
    FinishSession,
    Interrupt,
    Recorded,
    RecordFailed,
    RetryDue,
    WatchedBatch,
    WatchedEnd,
    WorkKnown,
)

SETTINGS = TurnSettings(conversation_id="con", provider="p", format="anthropic", model="m")
START_MS = 1_000_000
ARMED = set_text(StopMessageState(), "go on", 3, now_ms=START_MS)
QUOTA = ProviderFailure(FailureKind.RATE_LIMITED, "come back later", status=429)
BROKEN = ProviderFailure(FailureKind.SERVER, "upstream 500", status=500)
REFUSED = ProviderFailure(FailureKind.NETWORK, "connection refused")
TEMPLATES = {stage: f"{stage}: {{{{BASE_STOP_MESSAGE}}}}" for stage in TEMPLATE_PATHS}


class Course:
    """A turn that is driven by hand, with all that it asked for."""

    def __init__(
        self,
        state: StopMessageState | None = ARMED,
        turn_settings: TurnSettings = SETTINGS,
        **ready: Any,
    ) -> None:
        self.turn = Turn(turn_settings, (), {}, 0, 0.0, START_MS)
        self.now = 0.0
        self.effects: list[Effect] = []
        facts: dict[str, Any] = {"items": (UserItem("hello"),), "state": state}
        self.receive(PromptReady(**(facts | ready)))

    def receive(self, *messages: Message) -> list[Effect]:
        new = [effect for message in messages for effect in self.turn.receive(message, self.now)]
        self.effects += new
        return new

    def record(self) -> list[Effect]:
        return self.receive(Recorded(self.records[-1].step))

    def reply(self, *texts: str, reason: StopReason = StopReason.END_TURN) -> list[Effect]:
        """The live attempt says this, one batch for each text, and ends."""
        attempt = self.starts[-1].attempt
        said = [TextDelta(0, text) for text in texts]
        batch = (
            StreamStarted(),
            BlockStarted(0, "text"),
            *said,
            BlockFinished(0),
            StreamFinished(reason),
        )
        return self.receive(WatchedBatch(attempt, batch, (), 0.0), WatchedEnd(attempt))

    def fail(self, failure: ProviderFailure, text: str = "") -> list[Effect]:
        attempt = self.starts[-1].attempt
        begun = (StreamStarted(), BlockStarted(0, "text"), TextDelta(0, text)) if text else ()
        batch = (*begun, StreamFailed(failure))
        return self.receive(WatchedBatch(attempt, batch, (), 0.0), WatchedEnd(attempt))

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def records(self) -> list[Record]:
        return self.of(Record)

    @property
    def starts(self) -> list[Start]:
        return self.of(Start)

    @property
    def events(self) -> list[AnyEvent]:
        return [e for effect in self.effects if isinstance(effect, Publish) for e in effect.events]

    @property
    def decisions(self) -> list[ContinuationDecided]:
        return [event for event in self.events if isinstance(event, ContinuationDecided)]

    @property
    def reasons(self) -> list[str]:
        return [event.record.reason or event.record.decision for event in self.decisions]

    @property
    def last(self) -> FinishSession:
        """The terminal write."""
        recording = self.records[-1].recording
        assert isinstance(recording, FinishSession)
        return recording

    @property
    def kept(self) -> StopMessageState:
        """The state that the session leaves behind."""
        assert self.last.stop_message is not None
        return self.last.stop_message

    @property
    def ended(self) -> SessionEnded:
        self.record()
        [ended] = [event for event in self.events if isinstance(event, SessionEnded)]
        assert isinstance(self.turn.phase, Over)
        return ended


def started(state: StopMessageState | None = ARMED, **settings_of_turn: Any) -> Course:
    """The first attempt runs."""
    course = Course(state, msgspec.structs.replace(SETTINGS, **settings_of_turn))
    course.record()
    return course


def in_follow_up(state: StopMessageState = ARMED, **settings_of_turn: Any) -> Course:
    """The first reply was good, and its follow-up runs."""
    course = started(state, **settings_of_turn)
    course.reply("first")
    course.record()
    assert len(course.starts) == 2
    return course


def assistant(text: str) -> AssistantItem:
    return AssistantItem((TextPart(text),), "anthropic")


# --- the chain


def test_reply_and_text_go_on_record_together_with_the_count_before_anything_is_sent() -> None:
    course = started()
    course.reply("first")
    append = course.records[-1].recording
    assert isinstance(append, AppendItems)
    assert append.items == (assistant("first"), UserItem("go on", automatic=True))
    assert append.stop_message is not None
    assert append.stop_message.used == 1
    assert len(course.starts) == 1
    course.record()
    assert course.starts[1].request.items == (UserItem("hello"), *append.items)


def test_it_goes_on_until_n_and_the_outcome_is_the_last_reply() -> None:
    course = started()
    for number in range(3):
        course.reply(f"reply {number}")
        course.record()
    course.reply("the last")
    assert course.reasons == ["continue"] * 3 + [WhyNot.EXHAUSTED]
    ended = course.ended
    assert (ended.status, ended.output, ended.attempts) == (
        SessionStatus.COMPLETED,
        "the last",
        4,
    )
    assert ended.stop_reason is StopReason.END_TURN
    assert (course.kept.used, course.kept.text) == (3, "go on")


def test_without_a_stop_message_nothing_is_decided_and_nothing_is_said() -> None:
    course = started(None)
    course.reply("first")
    assert course.ended.status is SessionStatus.COMPLETED
    assert not course.decisions
    assert course.last.stop_message is None


@pytest.mark.parametrize(
    "reason", sorted(set(StopReason) - {StopReason.END_TURN, StopReason.STOP_SEQUENCE})
)
def test_g8_only_natural_stops_are_continued(reason: StopReason) -> None:
    course = started()
    course.reply("first", reason=reason)
    assert course.reasons == [WhyNot.NOT_A_NATURAL_STOP]
    assert course.kept.used == 0


def test_a_stop_sequence_is_natural() -> None:
    course = started()
    course.reply("first", reason=StopReason.STOP_SEQUENCE)
    assert course.reasons == ["continue"]


def test_a_reply_that_calls_a_tool_of_the_client_ends_the_chain_and_keeps_the_count() -> None:
    course = in_follow_up()
    call = (
        ToolCallStarted(0, "c1", "look"),
        ToolCallFinished(0, "c1", "look", "{}"),
        StreamFinished(StopReason.TOOL_USE),
    )
    course.receive(WatchedBatch(2, (StreamStarted(), *call), (), 0.0), WatchedEnd(2))
    assert course.reasons[-1] == WhyNot.NOT_A_NATURAL_STOP
    assert (course.ended.status, course.kept.used) == (SessionStatus.COMPLETED, 1)


def test_single_hop_continues_once() -> None:
    course = in_follow_up(continuation=ContinuationSettings(single_hop=True))
    course.reply("second")
    assert course.reasons == ["continue", WhyNot.SINGLE_HOP]
    assert course.kept.remaining == 2


def test_a_session_that_must_not_continue_does_not() -> None:
    course = started(continuation=ContinuationSettings(is_allowed=False))
    course.reply("first")
    assert course.reasons == [WhyNot.NO_REENTRY]


def test_a_compaction_is_never_continued() -> None:
    course = Course(is_compaction=True)
    course.record()
    course.reply("a summary for a machine")
    assert course.reasons == [WhyNot.COMPACTION]


def test_what_we_said_ourselves_is_no_compaction() -> None:
    items: list[AnyItem] = [UserItem("hello"), UserItem("Checkpoint compaction", automatic=True)]
    assert not is_compacting(None, items, ContinuationSettings())
    assert is_compacting(None, [UserItem("Checkpoint compaction")], ContinuationSettings())
    assert is_compacting("Context checkpoint compaction: be brief", items, ContinuationSettings())


def test_a_forced_tool_is_not_forced_again() -> None:
    course = in_follow_up(options={"tool_choice": "any", "temperature": 0.5})
    first, second = (start.request.options for start in course.starts)
    assert first == {"tool_choice": "any", "temperature": 0.5}
    assert second == {"temperature": 0.5}


# --- guards


def test_identical_replies_are_warned_about_at_five_and_end_it_at_ten() -> None:
    course = started(set_text(StopMessageState(), "go on", 50, now_ms=START_MS))
    for _ in range(6):
        course.reply("same")
        course.record()
    warned = [start.request.items[-2] for start in course.starts[1:]]
    assert [item for item in warned if isinstance(item, SystemItem)] == [
        SystemItem(REPETITION_WARNING, "auto_continue")
    ]
    assert warned[5] == SystemItem(REPETITION_WARNING, "auto_continue"), "the first asked hello"
    for _ in range(5):
        course.reply("same")
        if course.reasons[-1] == "continue":
            course.record()
    assert course.reasons[-1] == WhyNot.REPEATING
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.CAPPED, "same")
    assert ended.reason == "auto-continue ended: the replies repeat themselves"


def test_a_chain_that_takes_too_long_ends_as_capped_with_its_last_reply() -> None:
    limits = GuardLimits(stop_after_s=100.0)
    course = in_follow_up(continuation=ContinuationSettings(limits=limits))
    course.now = 100.0
    course.reply("second")
    assert course.reasons[-1] == WhyNot.OVERDUE
    assert (course.ended.status, course.ended.output) == (SessionStatus.CAPPED, "second")


def test_the_chain_draws_on_the_budget_of_the_prompt() -> None:
    course = in_follow_up(budget=PromptBudget(max_restarts=1))
    course.reply("second")
    assert course.reasons[-1] == WhyNot.BUDGET_SPENT
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.CAPPED, "second")
    assert ended.reason is not None
    assert "2 attempts were made" in ended.reason


# --- follow-ups that go wrong


def test_an_empty_follow_up_is_tried_again_on_the_same_reservation() -> None:
    course = in_follow_up()
    course.reply(" ")
    assert len(course.starts) == 3
    assert course.starts[2].request.items == course.starts[1].request.items
    course.reply("second")
    assert course.reasons == ["continue", "continue"]
    assert [d.record.used for d in course.decisions] == [0, 1]


def test_two_empty_follow_ups_return_the_good_reply_and_clear_the_setting() -> None:
    course = in_follow_up()
    course.reply()
    course.reply()
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "first")
    assert ended.reason == "auto-continue ended: the model had nothing more to say"
    assert not course.kept.is_armed
    assert course.kept.updated_at_ms is not None


def test_with_the_first_reply_empty_too_the_error_is_explicit() -> None:
    course = started()
    course.reply()
    course.record()
    course.reply()
    course.reply()
    ended = course.ended
    assert ended.status is SessionStatus.FAILED
    assert ended.failure is not None
    assert ended.failure.code == "SERVERTOOL_EMPTY_FOLLOWUP"
    assert not course.kept.is_armed


def test_g13_a_follow_up_that_fails_twice_leaves_the_good_reply() -> None:
    course = in_follow_up()
    course.fail(BROKEN, "half an ans")
    assert len(course.starts) == 3
    assert [e for e in course.events if isinstance(e, Retracted)] == [Retracted(2, "upstream 500")]
    course.fail(BROKEN)
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "first")
    assert ended.failure == BROKEN
    assert not course.kept.is_armed


def test_a_follow_up_that_failed_once_and_then_replies_goes_on() -> None:
    course = in_follow_up()
    course.fail(REFUSED)
    course.reply("second")
    course.record()
    course.reply("third")
    assert [d.record.used for d in course.decisions] == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "half an ans"], ids=["at once", "midway"])
def test_a_spent_quota_in_the_chain_is_told_and_costs_nothing(text: str) -> None:
    course = in_follow_up()
    course.fail(QUOTA, text)
    assert len(course.starts) == 2, "trying again would only hit it once more"
    ended = course.ended
    assert (ended.status, ended.output, ended.failure) == (
        SessionStatus.RATE_LIMITED,
        "first",
        QUOTA,
    )
    assert (course.kept.used, course.kept.remaining) == (0, 3)


def test_a_follow_up_that_takes_too_long_is_cut_and_tried_again() -> None:
    course = in_follow_up(continuation=ContinuationSettings(follow_up_deadline_s=500.0))
    assert course.of(LimitTo) == [LimitTo(2, 500.0)]
    course.receive(AttemptOverdue(1))
    assert isinstance(course.turn.phase, Streaming), "that attempt is over"
    assert Abort(2) in course.receive(AttemptOverdue(2))
    course.receive(WatchedEnd(2))
    assert len(course.starts) == 3
    course.receive(AttemptOverdue(3), WatchedEnd(3))
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "first")
    assert ended.failure is not None
    assert ended.failure.kind is FailureKind.TIMEOUT


def test_the_users_own_prompt_has_no_such_limit() -> None:
    assert not started().of(LimitTo)


def test_a_retry_of_a_follow_up_draws_on_the_budget() -> None:
    course = in_follow_up(budget=PromptBudget(max_restarts=1))
    course.fail(REFUSED)
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.CAPPED, "first")
    assert course.kept.used == 0, "nothing has reached the provider"


NOT_A_WORD = ProviderFailure(FailureKind.PROTOCOL, "this is no event stream", status=200)
OVERDUE = ProviderFailure(FailureKind.TIMEOUT, "nothing came for 60 s")


@pytest.mark.parametrize(
    ("failure", "used"),
    [(REFUSED, 0), (BROKEN, 0), (QUOTA, 0), (NOT_A_WORD, 1), (OVERDUE, 1)],
    ids=lambda each: each.kind if isinstance(each, ProviderFailure) else "",
)
def test_a_follow_up_that_was_answered_or_may_have_been_is_not_given_back(
    failure: ProviderFailure, used: int
) -> None:
    course = in_follow_up(budget=PromptBudget(max_restarts=1))
    course.fail(failure)
    assert course.kept.used == used


def test_a_follow_up_whose_stream_is_empty_has_been_answered_all_the_same() -> None:
    course = in_follow_up(budget=PromptBudget(max_restarts=1))
    course.receive(WatchedEnd(2))
    assert course.ended.status is SessionStatus.CAPPED
    assert course.kept.used == 1


# --- rules and crashes within the chain


def violation() -> Verdict:
    return Verdict(
        rule="no-foo", action=VerdictAction.INTERRUPT, source="text", reminder="Do not foo."
    )


def cut(course: Course) -> None:
    attempt = course.starts[-1].attempt
    said = (StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "foo"))
    course.receive(WatchedBatch(attempt, said, (violation(),), 0.0))


def test_a_rule_may_cut_and_retry_a_follow_up_without_spending_n_twice() -> None:
    course = in_follow_up()
    cut(course)
    course.receive(RetryDue(2), WatchedEnd(2))
    course.record()
    assert isinstance(course.starts[2].request.items[-1], ReminderItem)
    course.reply("second")
    assert [d.record.used for d in course.decisions] == [0, 1]


def test_a_lost_follow_up_is_repeated_without_spending_n_twice() -> None:
    course = in_follow_up()
    course.receive(ActorLost("matcher", held_stream=False), RetryDue(2), WatchedEnd(2))
    assert len(course.starts) == 3
    course.reply("second")
    assert [d.record.used for d in course.decisions] == [0, 1]


def test_what_an_earlier_attempt_may_have_sent_is_not_given_back() -> None:
    course = in_follow_up()
    course.receive(ActorLost("matcher", held_stream=False), RetryDue(2), WatchedEnd(2))
    course.receive(Interrupt(), WatchedEnd(3))
    assert course.kept.used == 1


def test_a_reply_that_breaks_a_rule_for_good_is_capped_and_not_continued() -> None:
    course = started()
    exhausted = Verdict(
        rule="no-foo", action=VerdictAction.EXHAUSTED, source="text", reminder="", reason="spent"
    )
    said = (StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "foo"))
    course.receive(WatchedBatch(1, said, (exhausted,), 0.0))
    course.receive(
        WatchedBatch(1, (BlockFinished(0), StreamFinished(StopReason.END_TURN)), (), 0.0),
        WatchedEnd(1),
    )
    assert course.reasons == [WhyNot.BUDGET_SPENT]
    assert course.ended.status is SessionStatus.CAPPED
    assert course.kept.used == 0


# --- stops and disconnects


@pytest.mark.parametrize("stop", [Interrupt(), Cancel("enough")], ids=["interrupt", "cancel"])
def test_a_stop_while_the_continuation_is_written_starts_nothing_and_gives_n_back(
    stop: Interrupt | Cancel,
) -> None:
    course = started()
    course.reply("first")
    course.receive(stop)
    course.record()
    assert len(course.starts) == 1
    assert course.kept.used == 0
    assert (course.ended.status, course.ended.output) == (SessionStatus.CANCELLED, "first")


def test_a_stop_in_a_follow_up_keeps_what_was_said_and_the_count() -> None:
    course = in_follow_up()
    course.receive(WatchedBatch(2, (StreamStarted(), TextDelta(0, "half")), (), 0.0))
    assert Abort(2) in course.receive(Interrupt())
    course.receive(WatchedEnd(2))
    assert course.kept.used == 1
    assert (course.ended.status, course.ended.output) == (SessionStatus.CANCELLED, "first")
    assert isinstance(course.last.items[0], AssistantItem)


def test_a_request_of_which_nothing_is_known_counts_as_sent() -> None:
    course = in_follow_up()
    course.receive(Interrupt(), WatchedEnd(2))
    assert course.kept.used == 1


def test_after_a_disconnect_the_answer_is_finished_and_not_continued() -> None:
    course = started()
    course.receive(Detach())
    course.reply("first")
    assert course.reasons == [WhyNot.DISCONNECTED]
    assert (course.ended.status, course.kept.used) == (SessionStatus.COMPLETED, 0)


def test_a_rule_may_still_retry_the_answer_of_a_client_that_has_gone() -> None:
    course = started()
    course.receive(Detach())
    cut(course)
    course.receive(RetryDue(1), WatchedEnd(1))
    course.record()
    assert len(course.starts) == 2


def test_a_disconnect_in_a_follow_up_returns_the_good_reply() -> None:
    course = in_follow_up()
    course.receive(WatchedBatch(2, (StreamStarted(), TextDelta(0, "half")), (), 0.0))
    assert Abort(2) in course.receive(Detach())
    course.receive(WatchedEnd(2))
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "first")
    assert ended.stop_reason is StopReason.END_TURN
    assert (course.kept.used, course.kept.is_armed) == (1, True)


def test_a_disconnect_before_the_follow_up_was_sent_gives_n_back() -> None:
    course = started()
    course.reply("first")
    course.receive(Detach())
    course.record()
    assert len(course.starts) == 1
    assert (course.ended.status, course.kept.used) == (SessionStatus.COMPLETED, 0)


def test_a_disconnect_in_the_retry_window_of_a_follow_up_starts_nothing() -> None:
    course = in_follow_up()
    cut(course)
    course.receive(Detach(), WatchedEnd(2), RetryDue(2))
    assert len(course.starts) == 2
    assert course.ended.output == "first"


def test_a_session_that_is_abandoned_in_a_follow_up_leaves_the_right_count() -> None:
    before, during = started(), in_follow_up()
    before.reply("first")
    for course, used in ((before, 0), (during, 1)):
        last = course.turn.abandon("the host goes", 1.0, crashed=False)
        assert last is not None
        recording = last.records[-1].recording
        assert isinstance(recording, FinishSession)
        assert recording.stop_message is not None
        assert recording.stop_message.used == used


def test_a_continuation_that_cannot_be_recorded_is_not_sent() -> None:
    course = started()
    course.reply("first")
    course.receive(RecordFailed(course.records[-1].step, "disk full"))
    assert len(course.starts) == 1
    assert course.kept.used == 0
    assert course.ended.status is SessionStatus.FAILED


# --- stages


STAGED = set_mode(ARMED, StageMode.ON, 5, now_ms=START_MS)


def staged(state: StopMessageState = STAGED, **changes: Any) -> Course:
    course = Course(state, msgspec.structs.replace(SETTINGS, **changes), templates=TEMPLATES)
    course.record()
    return course


def test_the_task_list_is_asked_before_a_stage_is_chosen() -> None:
    course = staged()
    assert AskForWork(1) in course.reply("first")
    task = (BdTask("a-1"),)
    course.receive(WorkKnown(1, (task,), True))
    course.record()
    assert course.starts[1].request.items[-1] == UserItem("status_probe: go on", automatic=True)
    course.reply("second")
    course.receive(WorkKnown(1, (task,), True))
    assert isinstance(course.turn.phase, Writing) is False, "that was asked after attempt 1"
    course.receive(WorkKnown(2, (task,), True))
    course.record()
    assert course.starts[2].request.items[-1] == UserItem("active_continue: go on", automatic=True)
    assert course.records[-1].recording.stop_message is not None
    assert course.records[-1].recording.stop_message.stage is Stage.ACTIVE_CONTINUE


def test_an_idle_project_is_summed_up_once_and_then_it_is_over() -> None:
    course = staged()
    idle = ((), (), (), ())
    course.reply("first")
    course.receive(WorkKnown(1, idle, True))
    course.record()
    course.reply("a summary")
    course.receive(WorkKnown(2, idle, True))
    assert course.reasons == ["continue", WhyNot.STAGES_OVER]
    assert course.ended.output == "a summary"


def test_unchanged_work_is_checked_once_and_then_ends_it() -> None:
    course = staged()
    task = (BdTask("a-1"),)
    for attempt in (1, 2, 3):
        course.reply("same")
        course.receive(WorkKnown(attempt, (task,), True))
        if course.reasons[-1] == "continue":
            course.record()
    assert [start.request.items[-1].text for start in course.starts[1:]] == [  # type: ignore[union-attr]
        "status_probe: go on",
        "loop_self_check: go on",
    ]
    assert course.reasons[-1] == WhyNot.STAGES_OVER


def test_heuristic_mode_asks_nobody() -> None:
    course = staged(continuation=ContinuationSettings(bd_mode=BdMode.HEURISTIC))
    course.reply("first")
    assert not course.of(AskForWork)
    assert course.reasons == ["continue"]


def test_mode_auto_without_templates_says_the_plain_text_and_asks_nobody() -> None:
    course = Course(set_mode(ARMED, StageMode.AUTO, 5, now_ms=START_MS))
    course.record()
    course.reply("first")
    assert not course.of(AskForWork)
    assert course.decisions[-1].text == "go on"


def test_templates_that_have_gone_end_the_chain_and_not_the_session() -> None:
    course = Course(STAGED)
    course.record()
    course.reply("first")
    assert course.reasons == [WhyNot.NOTHING_TO_SEND]
    assert course.ended.status is SessionStatus.COMPLETED


def test_a_stop_while_the_task_list_is_asked_keeps_the_reply_and_starts_nothing() -> None:
    course = staged()
    course.reply("first")
    course.receive(Interrupt())
    assert course.last.items == (assistant("first"),)
    course.receive(WorkKnown(1, ((BdTask("a-1"),),), True))
    assert (course.ended.status, len(course.starts)) == (SessionStatus.CANCELLED, 1)


def test_a_disconnect_while_the_task_list_is_asked_continues_nothing() -> None:
    course = staged()
    course.reply("first")
    course.receive(Detach(), WorkKnown(1, ((BdTask("a-1"),),), True))
    assert course.reasons == [WhyNot.DISCONNECTED]


def test_a_blocked_report_is_shown() -> None:
    course = started()
    course.reply('I am stuck: {"type": "blocked", "blocker": "no key"}')
    [blocked] = [event for event in course.events if isinstance(event, WorkBlocked)]
    assert blocked.report.blocker == "no key"


# --- before the prompt is accepted


def test_a_refused_prompt_leaves_nothing_on_record() -> None:
    turn = Turn(SETTINGS, (), {}, 0, 0.0)
    effects = turn.receive(PromptRefused(SessionStatus.CANCELLED, "not today"), 1.0)
    assert not [effect for effect in effects if isinstance(effect, Record)]
    assert isinstance(effects[-1], Leave)
    published = [e for effect in effects if isinstance(effect, Publish) for e in effect.events]
    [ended] = published
    assert isinstance(ended, SessionEnded)
    assert (ended.status, ended.reason) == (SessionStatus.CANCELLED, "not today")


def test_a_stop_before_the_prompt_is_ready_ends_it_at_once() -> None:
    turn = Turn(SETTINGS, (), {}, 0, 0.0)
    effects = turn.receive(Interrupt(), 1.0)
    assert isinstance(effects[-1], Leave)
    assert turn.receive(PromptReady(items=(UserItem("late"),)), 2.0) == []


def test_a_disconnect_before_the_prompt_is_ready_answers_and_continues_nothing() -> None:
    turn = Turn(SETTINGS, (), {}, 0, 0.0)
    turn.receive(Detach(), 0.0)
    turn.receive(PromptReady(items=(UserItem("hello"),), state=ARMED), 0.0)
    turn.receive(Recorded(1), 0.0)
    effects = turn.receive(
        WatchedBatch(1, (TextDelta(0, "x"), StreamFinished(StopReason.END_TURN)), (), 0.0), 0.0
    )
    effects += turn.receive(WatchedEnd(1), 0.0)
    decided = [e for effect in effects if isinstance(effect, Publish) for e in effect.events]
    assert [e.record.reason for e in decided if isinstance(e, ContinuationDecided)] == [
        WhyNot.DISCONNECTED
    ]


def test_an_actor_that_goes_before_that_announces_an_end_without_a_record() -> None:
    turn = Turn(SETTINGS, (), {}, 0, 0.0)
    last = turn.abandon("a defect", 1.0, crashed=True)
    assert last is not None
    assert not last.records
    assert (last.ended.status, last.ended.reason) == (SessionStatus.FAILED, "a defect")


def test_a_prompt_of_directives_alone_is_answered_without_a_model() -> None:
    course = Course(
        ARMED, items=(), is_new=True, is_kept=False, local_answer="Auto-continue is on."
    )
    accepted = course.records[0].recording
    assert (accepted.items, accepted.stop_message) == ((), ARMED)
    course.record()
    ended = course.ended
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "Auto-continue is on.")
    assert not course.starts
    kinds = [type(event) for event in course.events]
    assert kinds == [StopMessageChanged, SessionStarted, LocalAnswer, SessionEnded]


# --- a session that was taken over


def test_a_follow_up_goes_on_where_its_host_was_lost_without_a_second_count() -> None:
    counted = msgspec.structs.replace(ARMED, used=2, last_used_at_ms=START_MS + 5)
    context = (UserItem("hello"), assistant("first"), UserItem("go on", automatic=True))
    continuing = Continuing(counted)
    under_way, output = resumed(continuing, context, 7.0)
    assert (output, under_way.has_good_reply) == ("first", True)
    turn = Turn(SETTINGS, context, {}, 1, 0.0, START_MS, continuing)
    turn.resume(1)
    reply = (TextDelta(0, "second"), StreamFinished(StopReason.END_TURN))
    turn.receive(WatchedBatch(1, reply, (), 0.0), 0.0)
    [told, record] = turn.receive(WatchedEnd(1), 0.0)
    assert isinstance(told, Publish)
    assert isinstance(record, Record)
    assert record.recording.stop_message is not None
    assert record.recording.stop_message.used == 3


@pytest.mark.parametrize(("recoveries", "goes_on"), [(1, True), (2, True), (3, False)])
def test_a_recovery_draws_on_the_budget_like_all_that_starts_by_itself(
    recoveries: int, goes_on: bool
) -> None:
    settings = msgspec.structs.replace(SETTINGS, budget=PromptBudget(max_restarts=2))
    turn = Turn(settings, (UserItem("hello"),), {}, 1, 0.0, START_MS)
    *_, last = turn.resume(recoveries)
    if goes_on:
        assert isinstance(last, Start)
        return
    assert isinstance(last, Record)
    assert isinstance(last.recording, FinishSession)
    assert last.recording.ended.status is SessionStatus.CAPPED
    assert last.recording.ended.reason == "taken over 3 times, and nothing more may start by itself"


def test_a_prompt_that_was_lost_is_no_follow_up() -> None:
    context = (UserItem("hello"),)
    assert resumed(Continuing(ARMED), context, 7.0) == (Continuing(ARMED), "")


# --- any order


class Play:
    """One random course; remembers what invariants 3 and 7 need to know."""

    def __init__(self, n: int) -> None:
        self.course = Course(set_text(StopMessageState(), "go on", n, now_ms=START_MS))
        self.n = n
        self.stopped_at: int | None = None
        self.gone_at: int | None = None

    def step(self, action: str) -> None:
        course = self.course
        streaming = isinstance(course.turn.phase, Streaming)
        if action == "record" and isinstance(course.turn.phase, Writing):
            course.record()
        elif action == "reply" and streaming:
            course.reply("something new")
        elif action == "empty" and streaming:
            course.reply()
        elif action == "quota" and streaming:
            course.fail(QUOTA)
        elif action == "broken" and streaming:
            course.fail(BROKEN, "half")
        elif action == "refused" and streaming:
            course.fail(REFUSED)
        elif action == "cut" and streaming:
            cut(course)
        elif action == "settle" and course.starts:
            attempt = course.starts[-1].attempt
            course.receive(RetryDue(attempt), WatchedEnd(attempt))
        elif action == "overdue" and course.starts:
            course.receive(AttemptOverdue(course.starts[-1].attempt))
        elif action == "stop":
            course.receive(Interrupt())
            self.stopped_at = len(course.starts) if self.stopped_at is None else self.stopped_at
        elif action == "gone":
            course.receive(Detach())
            self.gone_at = self.hops if self.gone_at is None else self.gone_at

    @property
    def hops(self) -> int:
        """Follow-ups whose stream was asked for."""
        own = [start.request.items for start in self.course.starts]
        return len({sum(_automatic(item) for item in items) for items in own} - {0})

    def check(self) -> None:
        course = self.course
        assert self.hops <= self.n
        if self.stopped_at is not None:
            assert len(course.starts) == self.stopped_at, "invariant 3"
        if self.gone_at is not None:
            assert self.hops == self.gone_at, "invariant 7"
        for record in course.records:
            state = record.recording.stop_message
            assert state is None or 0 <= state.used <= self.n


def _automatic(item: AnyItem) -> bool:
    return isinstance(item, UserItem) and item.automatic


ACTIONS = (
    *("record", "record", "record", "reply", "reply", "empty", "quota", "broken", "refused"),
    *("cut", "settle", "settle", "overdue", "stop", "gone"),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.lists(st.sampled_from(ACTIONS), max_size=40))
def test_whatever_the_order_n_holds_and_nothing_starts_after_a_stop_or_a_disconnect(
    n: int, actions: Sequence[str]
) -> None:
    play = Play(n)
    for action in actions:
        play.step(action)
        play.check()
    ends = [event for event in play.course.events if isinstance(event, SessionEnded)]
    assert len(ends) <= 1, "invariant 4"
