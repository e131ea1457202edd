"""What a turn does while calls run, as a pure function: every race is an order of inputs."""

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from midstream.actors.turn import Message, Turn
from midstream.actors.turn_effects import (
    Effect,
    FindCalls,
    Publish,
    Record,
    RunCalls,
    Start,
    StopCalls,
)
from midstream.actors.turn_phases import Over, RunningCalls, Writing
from midstream.actors.turn_settings import PromptBudget, TurnSettings
from midstream.actors.turn_stop import LastWord
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ReminderItem,
    SystemItem,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.events import AnyEvent, SessionEnded, ToolResult, ToolWanted
from midstream.messages.record import SessionStatus
from midstream.messages.settle import (
    NOT_STARTED,
    OUTCOME_UNKNOWN,
    ToolOutcome,
    ToolState,
    settle_history,
)
from midstream.messages.stream import (
    BlockFinished,
    BlockStarted,
    StopReason,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.messages.submit_work import PromptReady
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.work import (
    Cancel,
    Interrupt,
    Recorded,
    RecordFailed,
    ToolSettled,
    ToolsLost,
    WatchedBatch,
    WatchedEnd,
)

SETTINGS = TurnSettings(
    conversation_id="con",
    provider="p",
    format="anthropic",
    model="m",
    runs_tools=True,
    host_tools=frozenset({"ask"}),
)
STOPS = [Interrupt(), Cancel("enough")]
MARKER = SystemItem("[interrupted] The user interrupted this answer.", "interrupted")


def verdict(
    action: VerdictAction, call_id: str | None, rule: str = "no-foo", *, interrupts: bool = False
) -> Verdict:
    return Verdict(
        rule=rule,
        action=action,
        source="tool" if call_id else "text",
        call_id=call_id,
        reminder=f"Do not {rule}.",
        interrupts=interrupts or action is VerdictAction.EXHAUSTED,
    )


def message(attempt: int, *names: str, verdicts: tuple[Verdict, ...] = ()) -> list[Message]:
    """A stream that calls these tools, c1, c2, ..."""
    called = [
        part
        for number, name in enumerate(names, 1)
        for part in (
            ToolCallStarted(number, f"c{number}", name),
            ToolCallFinished(number, f"c{number}", name, "{}"),
        )
    ]
    batch = (
        StreamStarted(),
        BlockStarted(0, "text"),
        TextDelta(0, "Hm."),
        BlockFinished(0),
        *called,
        StreamFinished(StopReason.TOOL_USE if names else StopReason.END_TURN),
    )
    return [WatchedBatch(attempt, batch, verdicts, 0.0), WatchedEnd(attempt)]


def returned(call_id: str, attempt: int = 1) -> ToolSettled:
    return ToolSettled(attempt, call_id, ToolOutcome(ToolState.RETURNED, f"result of {call_id}"))


@dataclass
class Course:
    """A turn whose writes wait for `record`; `items` are those that were taken."""

    settings: TurnSettings = SETTINGS
    effects: list[Effect] = field(default_factory=list[Effect])
    items: list[AnyItem] = field(default_factory=list[AnyItem])

    def __post_init__(self) -> None:
        self.turn = Turn(self.settings, (), {}, 0, 0.0)
        self.receive(PromptReady(items=(UserItem("hello"),)))
        self.record()

    def receive(self, *messages: Message) -> list[Effect]:
        new = [effect for message in messages for effect in self.turn.receive(message, 0.0)]
        self.effects += new
        return new

    def record(self) -> list[Effect]:
        """The store has taken what was asked for last; nothing if it had before."""
        if not isinstance(self.turn.phase, Writing):
            return []
        last = self.records[-1]
        self.items += last.recording.items
        return self.receive(Recorded(last.step))

    @property
    def records(self) -> list[Record]:
        return [effect for effect in self.effects if isinstance(effect, Record)]

    @property
    def events(self) -> list[AnyEvent]:
        return [e for effect in self.effects if isinstance(effect, Publish) for e in effect.events]

    @property
    def shown(self) -> dict[str, str]:
        return {e.call_id: e.content for e in self.events if isinstance(e, ToolResult)}

    @property
    def contents(self) -> list[str]:
        return [item.content for item in self.items if isinstance(item, ToolResultItem)]

    @property
    def ended(self) -> SessionEnded:
        (ended,) = [event for event in self.events if isinstance(event, SessionEnded)]
        return ended


def running(*names: str, verdicts: tuple[Verdict, ...] = ()) -> Course:
    """A turn whose first message calls these tools, and is on record."""
    course = Course()
    course.receive(*message(1, *names, verdicts=verdicts))
    course.record()
    return course


def items_of(last: LastWord) -> list[AnyItem]:
    return [item for record in last.records for item in record.recording.items]


def assert_paired(items: list[AnyItem]) -> None:
    waiting: list[str] = []
    for item in items:
        if isinstance(item, ToolResultItem):
            assert item.call_id == waiting.pop(0)
            continue
        assert not waiting
        if isinstance(item, AssistantItem):
            waiting = [part.call_id for part in item.parts if isinstance(part, ToolCallPart)]
    assert not waiting
    assert settle_history(items, "anthropic") == tuple(items)


def test_calls_run_only_when_their_message_is_on_record() -> None:
    course = Course()
    course.receive(*message(1, "work"))
    assert not [effect for effect in course.effects if isinstance(effect, RunCalls)]
    (effect,) = course.record()
    assert isinstance(effect, RunCalls)
    assert [call.call_id for call in effect.calls] == ["c1"]


def test_the_host_is_asked_behind_the_calls_so_that_its_answer_finds_them() -> None:
    course = running("work", "ask")
    first, second = course.effects[-2:]
    assert isinstance(first, RunCalls)
    assert second == Publish((ToolWanted(1, "c2", "ask", "{}"),))


def test_the_next_attempt_starts_when_all_results_are_on_record() -> None:
    course = running("work", "work")
    assert not course.receive(returned("c2"))[1:]
    course.receive(returned("c1"))
    starts = [effect for effect in course.effects if isinstance(effect, Start)]
    assert len(starts) == 1
    assert isinstance(course.record()[-1], Start)
    assert course.contents == ["result of c1", "result of c2"]


def test_a_result_counts_once_and_one_of_another_attempt_never() -> None:
    course = running("work", "work")
    course.receive(returned("c1"))
    assert not course.receive(returned("c1"), returned("c2", attempt=7))
    assert isinstance(course.turn.phase, RunningCalls)


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_while_the_message_is_being_written_starts_no_call(stop: Message) -> None:
    course = Course()
    course.receive(*message(1, "work", "ask"))
    course.receive(stop)
    course.record()
    course.record()
    assert not [effect for effect in course.effects if isinstance(effect, RunCalls)]
    assert course.contents == [NOT_STARTED, NOT_STARTED]
    assert course.shown == {"c1": NOT_STARTED, "c2": NOT_STARTED}
    assert course.items[-1] == MARKER
    assert course.ended.status is SessionStatus.CANCELLED


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_while_calls_run_waits_for_what_became_of_them(stop: Message) -> None:
    course = running("work", "work", "work")
    course.receive(returned("c1"))
    assert course.receive(stop) == [StopCalls(1)]
    assert not course.receive(stop)
    course.receive(returned("c2"), ToolSettled(1, "c3", ToolOutcome(ToolState.UNKNOWN)))
    course.record()
    assert course.contents == ["result of c1", "result of c2", OUTCOME_UNKNOWN]
    assert course.items[-1] == MARKER
    assert course.ended.status is SessionStatus.CANCELLED


def test_the_next_runner_is_asked_what_has_gone_with_the_last_one() -> None:
    course = running("work", "work", "ask")
    course.receive(returned("c2"))
    assert course.receive(ToolsLost("crashed")) == [FindCalls(1, ("c1", "c3"))]
    unknown = ToolOutcome(ToolState.UNKNOWN)
    course.receive(ToolSettled(1, "c1", unknown), returned("c3"), ToolSettled(1, "c3", unknown))
    course.record()
    assert course.contents == [OUTCOME_UNKNOWN, "result of c2", "result of c3"]


@pytest.mark.parametrize("stop", STOPS)
def test_the_next_runner_is_told_of_a_stop_that_the_last_one_was_told(stop: Message) -> None:
    course = running("work")
    course.receive(stop)
    assert course.receive(ToolsLost("crashed")) == [FindCalls(1, ("c1",)), StopCalls(1)]


def test_calls_are_stopped_when_runners_crash_beyond_the_budget() -> None:
    course = Course(msgspec.structs.replace(SETTINGS, budget=PromptBudget(max_restarts=1)))
    course.receive(*message(1, "work"))
    course.record()
    assert course.receive(ToolsLost("crashed")) == [FindCalls(1, ("c1",))]
    assert course.receive(ToolsLost("crashed")) == [FindCalls(1, ("c1",)), StopCalls(1)]
    course.receive(ToolSettled(1, "c1", ToolOutcome(ToolState.UNKNOWN)))
    course.record()
    assert course.ended.status is SessionStatus.CAPPED


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_while_results_are_being_written_starts_no_attempt(stop: Message) -> None:
    course = running("work")
    course.receive(returned("c1"), stop)
    course.record()
    course.record()
    assert len([effect for effect in course.effects if isinstance(effect, Start)]) == 1
    assert course.ended.status is SessionStatus.CANCELLED
    assert_paired(course.items)


def test_a_session_that_goes_while_calls_run_says_what_is_known_of_them() -> None:
    course = running("work", "work")
    course.receive(returned("c2"))
    last = course.turn.abandon("stopped", 0.0, crashed=False)
    assert last is not None
    results = [item for item in items_of(last) if isinstance(item, ToolResultItem)]
    assert [result.content for result in results] == [OUTCOME_UNKNOWN, "result of c2"]
    assert_paired([*course.items, *items_of(last)])


@pytest.mark.parametrize("crashed", [False, True])
def test_a_session_that_goes_while_a_message_is_written_writes_it_and_that_no_call_ran(
    crashed: bool,
) -> None:
    """Whether the write has reached the store is not known, so it is repeated under its step."""
    course = Course()
    course.receive(*message(1, "work", "ask"))
    under_way = course.records[-1]
    last = course.turn.abandon("stopped", 0.0, crashed=crashed)
    assert last is not None
    assert last.records[0] == under_way
    assert last.records[1].step == under_way.step + 1
    results = [item for item in items_of(last) if isinstance(item, ToolResultItem)]
    assert [result.content for result in results] == [NOT_STARTED, NOT_STARTED]
    assert_paired([*course.items, *items_of(last)])


REFUSED = "[refused] This call was not run, because it breaks a rule of the user: no-foo."
NOT_CUT_FOR = [VerdictAction.EXHAUSTED, VerdictAction.SUPPRESSED]


@pytest.mark.parametrize("action", NOT_CUT_FOR)
def test_a_call_that_breaks_an_interrupting_rule_is_refused_when_nothing_is_cut(
    action: VerdictAction,
) -> None:
    course = running("work", "work", verdicts=(verdict(action, "c1", interrupts=True),))
    (effect,) = [effect for effect in course.effects if isinstance(effect, RunCalls)]
    assert [call.call_id for call in effect.calls] == ["c2"]
    course.receive(returned("c2"))
    course.record()
    assert course.contents == [REFUSED, "result of c2"]


def test_a_rule_that_would_not_interrupt_refuses_nothing() -> None:
    quiet = verdict(VerdictAction.SUPPRESSED, "c1")
    (effect,) = [e for e in running("work", verdicts=(quiet,)).effects if isinstance(e, RunCalls)]
    assert [call.call_id for call in effect.calls] == ["c1"]


def test_a_rule_that_was_reminded_of_is_named_and_not_injected_again() -> None:
    again = verdict(VerdictAction.SUPPRESSED, "c1", interrupts=True)
    course = running("work", verdicts=(again,))
    course.record()
    assert course.contents == [REFUSED]
    assert not [item for item in course.items if isinstance(item, ReminderItem)]


def test_a_model_that_insists_on_refused_calls_is_capped() -> None:
    course = Course(msgspec.structs.replace(SETTINGS, budget=PromptBudget(max_restarts=2)))
    for attempt in (1, 2, 3):
        insists = verdict(VerdictAction.SUPPRESSED, "c1", interrupts=True)
        course.receive(*message(attempt, "work", verdicts=(insists,)))
        course.record()
        course.record()
    assert course.ended.status is SessionStatus.CAPPED
    assert course.contents == [REFUSED, REFUSED, NOT_STARTED]


def test_a_message_of_refused_calls_alone_goes_on_at_once() -> None:
    course = running("work", verdicts=(verdict(VerdictAction.EXHAUSTED, "c1"),))
    assert not [effect for effect in course.effects if isinstance(effect, RunCalls)]
    assert isinstance(course.record()[-1], Start)


def test_without_tools_a_spent_violation_in_a_call_is_delivered_and_capped() -> None:
    course = Course(msgspec.structs.replace(SETTINGS, runs_tools=False))
    spent = verdict(VerdictAction.EXHAUSTED, "c1")
    course.receive(*message(1, "work", verdicts=(spent,)))
    course.record()
    assert course.ended.status is SessionStatus.CAPPED


def test_a_reminder_is_written_with_the_results_and_recorded_with_them() -> None:
    folded = verdict(VerdictAction.FOLD, "c2", "no-foo")
    deferred = verdict(VerdictAction.DEFER, None, "no-bar")
    course = running("work", "work", verdicts=(folded, deferred))
    course.receive(returned("c1"), returned("c2"))
    start = course.record()[-1]
    assert isinstance(start, Start)
    assert start.recorded == {"no-foo": 1, "no-bar": 1}
    reminders = [item for item in course.items if isinstance(item, ReminderItem)]
    assert [(item.rules, item.call_id) for item in reminders] == [
        (("no-foo",), "c2"),
        (("no-bar",), None),
    ]


def test_results_that_could_not_be_written_start_no_attempt() -> None:
    course = running("work")
    course.receive(returned("c1"))
    course.receive(RecordFailed(course.records[-1].step, "the store is down"))
    course.record()
    assert course.ended.status is SessionStatus.FAILED
    assert len([effect for effect in course.effects if isinstance(effect, Start)]) == 1


def happen(course: Course, random: Random) -> None:
    """Let one thing happen that might: a stream ends, the store answers, a call settles, the
    runner crashes, a stop comes."""
    attempt = max(effect.attempt for effect in course.effects if isinstance(effect, Start))
    calls = [f"c{number}" for number in range(1, random.randint(0, 4) + 1)]
    match random.choices(["stream", "store", "call", "crash", "stop"], [4, 4, 8, 1, 0.5])[0]:
        case "stream":
            harmless = [a for a in VerdictAction if a is not VerdictAction.INTERRUPT]
            about = [call_id for call_id in calls if random.random() < 0.5]
            verdicts = tuple(
                verdict(random.choice(harmless), c, f"rule-{c}", interrupts=random.random() < 0.2)
                for c in about
            )
            names = random.choices(["work", "ask"], k=len(calls))
            course.receive(*message(attempt, *names, verdicts=verdicts))
        case "store":
            course.record()
        case "call":
            outcome = ToolOutcome(random.choice(list(ToolState)), "text")
            course.receive(ToolSettled(attempt, f"c{random.randint(1, 4)}", outcome))
        case "crash":
            course.receive(ToolsLost("crashed"))
        case _:
            course.receive(random.choice(STOPS))


@pytest.mark.parametrize("seed", range(200))
def test_whatever_comes_in_whatever_order_the_conversation_is_valid(seed: int) -> None:
    random = Random(seed)
    course = Course()
    for _ in range(random.randint(1, 80)):
        happen(course, random)
    assert sum(isinstance(event, SessionEnded) for event in course.events) <= 1
    if isinstance(course.turn.phase, Over):
        assert_paired(course.items)
        return
    last = course.turn.abandon("stopped", 0.0, crashed=False)
    assert last is not None
    assert_paired([*course.items, *items_of(last)])
