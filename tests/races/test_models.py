"""The pure deciders against small models that are written independently of them.

hypothesis makes up sequences of what can happen, and shrinks those after which decider and
model disagree. A model knows only what the design demands.
"""

from datetime import UTC, datetime

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from midstream.actors.turn import Message, Turn
from midstream.actors.turn_effects import Abort, Effect, Leave, Publish, Record, RunCalls, Start
from midstream.actors.turn_settings import PromptBudget, TurnSettings
from midstream.messages.backoff import BackoffSettings
from midstream.messages.continuation import Continue, Situation, WhyNot, decide_continuation
from midstream.messages.conversation import UserItem
from midstream.messages.dispatch import (
    NEVER_PAUSED,
    Admitted,
    Booted,
    DispatchAsked,
    DispatchState,
    OtherEnd,
    QuotaSpent,
    decide,
)
from midstream.messages.errors import FenceLost, RecordError
from midstream.messages.events import SessionEnded, Text
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.loop_guard import Chain, GuardLimits
from midstream.messages.record import Fence, SessionRecord, SessionStatus
from midstream.messages.reducer import reduce
from midstream.messages.stop_message import StopMessageState, clear, refund, reserve, set_text
from midstream.messages.stream import (
    BlockStarted,
    StopReason,
    StreamFailed,
    StreamFinished,
    TextDelta,
)
from midstream.messages.submit_work import PromptReady
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import (
    AttachRunning,
    Cancel,
    HeartbeatTouch,
    OrphanFailed,
    Outcome,
    Recover,
    Revive,
    Terminal,
)
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.work import (
    ActorLost,
    AppendItems,
    Detach,
    Interrupt,
    Recorded,
    RecordFailed,
    RetryDue,
    SettleOverdue,
    WatchedBatch,
    WatchedEnd,
)
from midstream.messages.work import Cancel as CancelSession

BASE_MS = 1_767_225_600_000
MODEL = settings(max_examples=60, stateful_step_count=40, deadline=None)
MAX_RESTARTS = 4


def at(ms: int) -> str:
    return format_timestamp(ms)


class TurnMachine(RuleBasedStateMachine):
    """The environment of a turn: a store, streams that close when they are told to, late mail.

    The model is what the design lets the turn do: one stream at a time, nothing behind a
    stop, one write at a time, one end, a budget.
    """

    def __init__(self) -> None:
        super().__init__()
        budget = PromptBudget(max_restarts=MAX_RESTARTS)
        session = TurnSettings(conversation_id="con-1", provider="p", format="anthropic", model="m")
        self.turn = Turn(msgspec.structs.replace(session, budget=budget), (), {}, 0, 0.0)
        self.open_stream: int | None = None
        self.newest: int = 0
        self.cut: set[int] = set()
        self.writing: Record | None = None
        self.stopped = False
        self.ended: SessionEnded | None = None
        self.left = False
        self.closing = False
        self.tell(PromptReady(items=(UserItem("hello"),)))

    def tell(self, message: Message) -> None:
        self.take(self.turn.receive(message, 1.0))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert not self.left, f"{effect} behind the end"
            match effect:
                case Start(attempt):
                    assert not self.stopped, "a request behind a stop"
                    assert self.open_stream is None, "two streams"
                    assert self.writing is None, "a request before its context is on record"
                    assert attempt == self.newest + 1
                    assert attempt <= 1 + MAX_RESTARTS, "beyond the budget"
                    self.newest = self.open_stream = attempt
                    self.closing = False
                case Abort(attempt):
                    assert attempt == self.newest
                    self.cut.add(attempt)
                    self.closing = True
                case Record(_, recording):
                    assert self.writing is None, "two writes at a time"
                    reopened = isinstance(recording, AppendItems) and self.stopped
                    assert not reopened, "something is begun behind a stop"
                    self.writing = effect
                case Publish(events):
                    for event in events:
                        if isinstance(event, Text):
                            assert event.attempt not in self.cut, "text behind the cut"
                            assert event.attempt == self.open_stream
                        if isinstance(event, SessionEnded):
                            assert self.ended is None, "a second end"
                            self.ended = event
                case RunCalls():
                    assert not self.stopped
                case Leave():
                    self.left = True
                case _:
                    pass

    # --- streams

    @rule(
        lag=st.integers(0, 2),
        text=st.sampled_from(["word ", "foo "]),
        action=st.sampled_from([None, *VerdictAction]),
    )
    def a_batch_comes(self, lag: int, text: str, action: VerdictAction | None) -> None:
        if self.newest - lag < 1:
            return
        verdicts = ()
        if action is not None:
            verdicts = (Verdict(rule="r", action=action, source="text", reminder="Do not."),)
        messages = (BlockStarted(0, "text"), TextDelta(0, text))
        self.tell(WatchedBatch(self.newest - lag, messages, verdicts, 1.0))

    @precondition(lambda self: self.open_stream is not None and not self.closing)
    @rule()
    def it_is_cut_and_tried_again(self) -> None:
        """The way that is too long to be found by chance."""
        attempt = self.newest
        self.a_batch_comes(0, "foo ", VerdictAction.INTERRUPT)
        self.a_timer_goes_off(0)
        if self.open_stream == attempt:
            self.open_stream = None
            self.tell(WatchedEnd(attempt))
        if self.writing is not None:
            self.the_store_answers(False)

    @precondition(lambda self: self.open_stream is not None)
    @rule(ending=st.sampled_from(["finished", "failed", "torn"]))
    def the_stream_ends(self, ending: str) -> None:
        attempt = self.open_stream
        assert attempt is not None
        failure = ProviderFailure(FailureKind.NETWORK, "reset")
        last = StreamFailed(failure) if ending == "failed" else StreamFinished(StopReason.END_TURN)
        if ending != "torn":
            self.tell(WatchedBatch(attempt, (last,), (), 1.0))
        self.open_stream = None
        self.tell(WatchedEnd(attempt))

    @rule(lag=st.integers(1, 2))
    def an_older_stream_is_heard_of(self, lag: int) -> None:
        if self.newest - lag >= 1:
            self.tell(WatchedEnd(self.newest - lag))

    @rule(lag=st.integers(0, 2))
    def a_timer_goes_off(self, lag: int) -> None:
        if self.newest - lag >= 1:
            self.tell(RetryDue(self.newest - lag))

    @precondition(lambda self: self.closing and self.open_stream is not None)
    @rule()
    def the_stream_does_not_close(self) -> None:
        self.tell(SettleOverdue(self.newest))

    @precondition(lambda self: self.open_stream is not None)
    @rule(closed=st.booleans())
    def a_neighbour_crashes(self, closed: bool) -> None:
        if closed:
            self.open_stream = None
        self.tell(ActorLost("it crashed", closed, True))

    @rule(crashed=st.booleans())
    def the_session_hears_late_that_an_earlier_reader_is_gone(self, crashed: bool) -> None:
        self.tell(ActorLost("it was restarted", True, crashed, self.open_stream or 0))

    # --- the user, and the store

    @rule(stop=st.sampled_from([Interrupt(), CancelSession("enough")]))
    def the_user_stops_it(self, stop: Interrupt | CancelSession) -> None:
        self.stopped = True
        self.tell(stop)

    @rule()
    def the_client_goes(self) -> None:
        self.tell(Detach())

    @precondition(lambda self: self.writing is not None)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def the_store_answers(self, fails: bool) -> None:
        assert self.writing is not None
        step, self.writing = self.writing.step, None
        self.tell(RecordFailed(step, "down") if fails else Recorded(step))

    @rule(lag=st.integers(1, 3))
    def an_old_answer_of_the_store_comes(self, lag: int) -> None:
        if self.writing is not None:
            self.tell(Recorded(self.writing.step - lag))

    @invariant()
    def it_always_waits_for_something(self) -> None:
        waits = self.writing is not None or self.open_stream is not None or self.closing
        assert self.left or waits or self.turn.phase is not None

    def teardown(self) -> None:
        """Whatever happened, the session comes to its one end when it is stopped."""
        self.the_user_stops_it(Interrupt())
        for _ in range(6):
            if self.open_stream is not None:
                attempt, self.open_stream = self.open_stream, None
                self.tell(WatchedEnd(attempt))
            if self.writing is not None:
                self.the_store_answers(False)
        assert self.left, self.turn.phase
        assert self.ended is not None


class PauseMachine(RuleBasedStateMachine):
    """The shared pause against one instant and one flag."""

    settings = BackoffSettings(initial_ms=1_000, max_ms=8_000, probe_limit=1)

    def __init__(self) -> None:
        super().__init__()
        self.status = NEVER_PAUSED
        self.now_ms = BASE_MS
        self.until_ms = 0
        self.probes: set[str] = set()
        self.number = 0
        self.last_hit: tuple[QuotaSpent, int] | None = None
        """And when it was."""

    def hear(self, event: QuotaSpent | OtherEnd | Booted | DispatchAsked) -> tuple[object, ...]:
        self.status, effects = decide(self.status, event, self.now_ms, self.settings)
        return effects

    @property
    def is_open(self) -> bool:
        return self.now_ms < self.until_ms

    @rule(ms=st.integers(0, 10_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(age_ms=st.integers(0, 20_000), wait_ms=st.none() | st.integers(0, 20_000))
    def a_session_hits_the_limit(self, age_ms: int, wait_ms: int | None) -> None:
        was_open, until_before = self.is_open, self.until_ms
        started = at(self.now_ms - age_ms)
        self.number += 1
        name = f"hit-{self.number}"
        hit = QuotaSpent(session_id=name, started_at=started, retry_after_ms=wait_ms)
        self.last_hit = hit, self.now_ms
        self.hear(hit)
        assert self.status.state is DispatchState.PAUSED
        until = _ms(self.status.paused_until)
        if was_open:
            assert until == max(until_before, self.now_ms + wait_ms if wait_ms else 0)
        else:
            assert until >= until_before
            assert until >= self.now_ms + (wait_ms or 0) or until == until_before
        self.until_ms = until

    @precondition(lambda self: self.last_hit is not None)
    @rule()
    def what_was_kept_is_decided_again(self) -> None:
        assert self.last_hit is not None
        hit, at_ms = self.last_hit
        assert decide(self.status, hit, at_ms, self.settings).status == self.status

    @rule(age_ms=st.integers(0, 20_000))
    def a_session_ends_well(self, age_ms: int) -> None:
        was_open = self.is_open
        self.hear(OtherEnd(session_id="ses-x", started_at=at(self.now_ms - age_ms)))
        if was_open:
            assert self.status.state is DispatchState.PAUSED, "an open window was closed"
            assert _ms(self.status.paused_until) == self.until_ms
        self.forget_if_running()

    @rule()
    def a_host_boots(self) -> None:
        was_open = self.is_open
        self.hear(Booted())
        assert (self.status.state is DispatchState.PAUSED) == was_open
        self.forget_if_running()

    @rule()
    def a_session_wants_to_begin(self) -> None:
        self.number += 1
        effects = self.hear(DispatchAsked(session_id=f"ses-{self.number}"))
        admitted = any(isinstance(effect, Admitted) for effect in effects)
        if self.is_open:
            assert not admitted, "let in while the window is open"
        elif self.status.state is DispatchState.RUNNING:
            assert admitted
        assert len(self.status.probes) <= 1

    def forget_if_running(self) -> None:
        if self.status.state is DispatchState.RUNNING:
            self.until_ms = 0


def _ms(text: str | None) -> int:
    assert text is not None
    instant = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    return round(instant.timestamp() * 1000)


class RecordMachine(RuleBasedStateMachine):
    """A record against an owner, a final status, and a count."""

    def __init__(self) -> None:
        super().__init__()
        started = AttachRunning(
            id="ses-1", started_at=at(BASE_MS), provider="p", fence=Fence(owner="h1", token=1)
        )
        self.record: SessionRecord = reduce(None, started)
        self.token = 1
        self.status = SessionStatus.RUNNING
        self.presumed = False
        self.recoveries = 0

    def change(self, transition: object) -> bool:
        try:
            self.record = reduce(self.record, transition)  # pyright: ignore[reportArgumentType]
        except (FenceLost, RecordError):
            return False
        return True

    def fence(self, token: int) -> Fence:
        return Fence(owner=f"h{token}", token=token)

    @property
    def is_final(self) -> bool:
        return self.status is not SessionStatus.RUNNING and not self.presumed

    @rule(lag=st.integers(0, 2), outcome=st.sampled_from(list(Outcome)))
    def an_owner_ends_it(self, lag: int, outcome: Outcome) -> None:
        token = self.token - lag
        ended = Terminal(
            id="ses-1",
            status=outcome,
            ended_at=at(BASE_MS + 5),
            exit_code=0,
            last_activity_at=at(BASE_MS + 5),
            fence=self.fence(token),
        )
        taken = self.change(ended)
        if self.status is SessionStatus.RUNNING:
            assert taken == (lag == 0)
            if lag == 0:
                self.status = SessionStatus(outcome.value)

    @rule(lag=st.integers(0, 2), progressed=st.booleans())
    def an_owner_beats(self, lag: int, progressed: bool) -> None:
        beat = HeartbeatTouch(
            id="ses-1",
            last_activity_at=at(BASE_MS + 1),
            progressed=progressed,
            fence=self.fence(self.token - lag),
        )
        taken = self.change(beat)
        if self.status is SessionStatus.RUNNING:
            assert taken == (lag == 0)
            if taken and progressed:
                self.recoveries = 0

    @rule()
    def somebody_cancels_it(self) -> None:
        self.change(Cancel(id="ses-1", ended_at=at(BASE_MS + 2), reason="enough"))
        if self.status is SessionStatus.RUNNING:
            self.status = SessionStatus.CANCELLED

    @rule()
    def it_is_taken_for_dead(self) -> None:
        self.change(OrphanFailed(id="ses-1", ended_at=at(BASE_MS + 3), error="no beat"))
        if self.status is SessionStatus.RUNNING:
            self.status, self.presumed = SessionStatus.FAILED, True

    @rule(lag=st.integers(0, 2))
    def an_owner_revives_it(self, lag: int) -> None:
        fence = self.fence(self.token - lag)
        self.change(Revive(id="ses-1", last_activity_at=at(BASE_MS + 4), fence=fence))
        if self.presumed and lag == 0:
            self.status, self.presumed = SessionStatus.RUNNING, False

    @rule()
    def somebody_takes_over(self) -> None:
        running = self.status is SessionStatus.RUNNING
        self.change(Recover(id="ses-1", owner=f"h{self.token + 1}", at=at(BASE_MS + 6)))
        if self.presumed or running:
            self.token += 1
            self.presumed = False
            self.status = SessionStatus.RUNNING
            if self.recoveries == 5:
                self.status = SessionStatus.DEAD_LETTERED
            else:
                self.recoveries += 1

    @invariant()
    def the_record_is_what_the_model_says(self) -> None:
        assert (self.record.status, self.record.presumed_dead) == (self.status, self.presumed)
        assert self.record.fence == self.fence(self.token)
        assert self.record.recoveries == self.recoveries
        assert (self.record.ended_at is not None) == (self.status is not SessionStatus.RUNNING)


class ChainMachine(RuleBasedStateMachine):
    """stopMessage against a number that is left."""

    def __init__(self) -> None:
        super().__init__()
        self.state = StopMessageState()
        self.chain = Chain()
        self.now_ms = BASE_MS
        self.left: int = 0
        self.round = 0
        self.held: list[tuple[object, int]] = []
        self.armed = 0

    @rule(times=st.integers(0, 5))
    def a_directive_arms_it(self, times: int) -> None:
        self.now_ms += 1
        self.state = set_text(self.state, "go on", times, now_ms=self.now_ms)
        if times:
            self.left, self.armed = times, self.armed + 1
            self.chain = Chain()

    @rule()
    def a_directive_clears_it(self) -> None:
        self.now_ms += 1
        self.state = clear(self.state, now_ms=self.now_ms)
        self.left, self.armed = 0, self.armed + 1

    @rule(natural=st.booleans(), connected=st.booleans(), interrupted=st.booleans())
    def a_reply_ends(self, natural: bool, connected: bool, interrupted: bool) -> None:
        self.now_ms += 1
        self.round += 1
        decision = decide_continuation(
            Situation(
                state=self.state,
                is_natural_stop=natural,
                now_s=self.round / 10,
                round_hash=str(self.round),
                chain=self.chain,
                is_connected=connected,
                is_interrupted=interrupted,
            ),
            now_ms=self.now_ms,
            limits=GuardLimits(stop_after_s=0),
        )
        may = natural and connected and not interrupted and self.left > 0
        if isinstance(decision, Continue):
            assert may, "continued although it must not"
            self.state, self.chain = decision.state, decision.chain
            self.left -= 1
            self.held.append((decision.reservation, self.armed))
        elif may:
            assert decision.reason is WhyNot.SUPERSEDED

    @precondition(lambda self: self.held)
    @rule()
    def a_send_did_not_reach_anybody(self) -> None:
        reservation, armed = self.held.pop()
        self.state = refund(self.state, reservation)  # pyright: ignore[reportArgumentType]
        if armed == self.armed:
            self.left += 1

    @invariant()
    def what_is_left_is_what_the_model_says(self) -> None:
        assert self.state.remaining == self.left
        assert (reserve(self.state, now_ms=self.now_ms) is not None) == (self.left > 0)


@pytest.mark.parametrize("machine", [TurnMachine, PauseMachine, RecordMachine, ChainMachine])
def test_the_decider_does_what_its_model_does(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=MODEL)
