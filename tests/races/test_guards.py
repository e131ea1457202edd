"""Guards against one order of things each, which are too rare to wait for.

Each test puts an actor into the very situation that its guard is for. `make mutants`
takes the guards away one by one.
"""

from typing import Any

import msgspec
import pytest
import trio
from scenes import CLEAN, NO_FOO
from trio.testing import MockClock

from midstream.actors.abort_latch import AbortLatch
from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.backoff_machine import AskDispatch, DispatchView
from midstream.actors.clock import TrioClock
from midstream.actors.dispatch_gate import DispatchGate
from midstream.actors.ledger import Ledger
from midstream.actors.ledger_messages import NotRecoverable, PresumeDead, TakeOver
from midstream.actors.open_actor import open_actor
from midstream.actors.outcome import Outcome
from midstream.actors.retry_scheduler import RetryScheduler
from midstream.actors.rule_matcher import RuleMatcher
from midstream.actors.session import stops_first
from midstream.actors.stop_latch import StopLatch
from midstream.actors.stream_monitor import StreamMonitor
from midstream.actors.turn import Turn
from midstream.actors.turn_effects import Start
from midstream.actors.turn_phases import Settling, Streaming
from midstream.actors.turn_settings import TurnSettings
from midstream.config import Config, RulesConfig
from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.dispatch import (
    DISPATCH_STATUS_ID,
    NEVER_PAUSED,
    DispatchState,
    DispatchStatus,
    Refused,
)
from midstream.messages.enrolment import Enrolment, record_unless_kept
from midstream.messages.events import SessionEnded
from midstream.messages.record import Fence, SessionStatus
from midstream.messages.stream import AnyStreamMessage, BlockStarted, TextDelta
from midstream.messages.submit_work import PromptReady
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import AttachRunning, DetachedReady, HeartbeatTouch, OrphanFailed
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.work import (
    ActorLost,
    AttemptHeld,
    AttemptReleased,
    Cancel,
    Detach,
    ForgetTimers,
    Interrupt,
    Recorded,
    RetryDue,
    StartAttempt,
    StartTimers,
    StreamBatch,
    StreamSettled,
    WatchAttempt,
    WatchedBatch,
    WatchedEnd,
)
from midstream.providers.scripted import Hang, ScriptedProvider
from midstream.rules.policy import PolicySettings, PolicyState, next_attempt
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.watch import Watch
from midstream.runtime import open_runtime
from midstream.stores.conversations import ConversationBusy
from midstream.stores.dlq import MemoryQueue
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition, load_session
from midstream.testing.world import open_world

START_MS = 1_767_225_600_000
STARTED_AT = format_timestamp(START_MS)
REQUEST = ModelRequest(model="", items=(UserItem("hello"),))


class Listener(Actor[Any]):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[msgspec.Struct] = []

    async def handle(self, message: msgspec.Struct) -> None:
        self.heard.append(message)


def no_tools(call_id: str, tool: str) -> ToolArguments:
    raise AssertionError("nothing is called here")


def said(attempt: int, *messages: AnyStreamMessage) -> StreamBatch:
    return StreamBatch(attempt, messages, 0.0)


# --- the matcher


async def heard_by_the_session(*mail: WatchAttempt | StreamBatch) -> list[int]:
    """The attempts of the batches that the matcher passes on."""
    session = Listener()
    watch = Watch(RuleSet([NO_FOO]), no_tools, 1_000)
    async with open_actor(session) as address:
        matcher = RuleMatcher(watch, PolicySettings(), address, AbortLatch())
        async with open_actor(matcher) as matching:
            for message in mail:
                await matching.tell(message)
            await trio.sleep(1.0)
    return [message.attempt for message in session.heard if isinstance(message, WatchedBatch)]


async def test_the_matcher_passes_on_nothing_of_an_attempt_that_it_does_not_watch(
    autojump_clock: MockClock,
) -> None:
    begun = BlockStarted(0, "text")
    passed = await heard_by_the_session(
        WatchAttempt(2, 1, {}), said(1, begun), said(2, begun), said(1, TextDelta(0, "foo"))
    )
    assert passed == [2]


async def test_the_matcher_passes_on_nothing_behind_a_verdict_that_cuts(
    autojump_clock: MockClock,
) -> None:
    begun = BlockStarted(0, "text")
    passed = await heard_by_the_session(
        WatchAttempt(1, 1, {}), said(1, begun, TextDelta(0, "foo")), said(1, TextDelta(0, " more"))
    )
    assert passed == [1]


async def test_a_verdict_that_cuts_closes_the_stream_before_the_session_hears_of_it(
    autojump_clock: MockClock,
) -> None:
    aborts, watch = AbortLatch(), Watch(RuleSet([NO_FOO]), no_tools, 1_000)
    heard: list[tuple[bool, float | None]] = []

    class Session(Actor[Any]):
        async def handle(self, message: WatchedBatch) -> None:
            heard.append((aborts.is_aborted(1), message.aborted_at))

    async with open_actor(Session()) as session:
        matcher = RuleMatcher(watch, PolicySettings(), session, aborts)
        async with open_actor(matcher) as matching:
            await matching.tell(WatchAttempt(1, 1, {}))
            await matching.tell(said(1, BlockStarted(0, "text"), TextDelta(0, "f")))
            await trio.sleep(1.0)
            await matching.tell(said(1, TextDelta(0, "oo")))
            began_at = trio.current_time()
            await trio.sleep(1.0)
    assert heard == [(False, None), (True, began_at)]


# --- the monitor


def monitoring(
    provider: ScriptedProvider,
    listener: Address[Any],
    *,
    aborts: AbortLatch | None = None,
    stop: StopLatch | None = None,
    view: DispatchView | None = None,
) -> StreamMonitor:
    """A monitor that tells everything to `listener`; nobody is paused, except by `view`."""
    gate = DispatchGate("ses-1", STARTED_AT, view or DispatchView(), listener, TrioClock(START_MS))
    return StreamMonitor(
        provider, listener, listener, gate, aborts or AbortLatch(), stop or StopLatch()
    )


async def test_a_session_that_was_stopped_asks_nobody(autojump_clock: MockClock) -> None:
    provider, latch, matcher = ScriptedProvider(CLEAN), StopLatch(), Listener()
    async with (
        open_actor(matcher) as address,
        open_actor(monitoring(provider, address, stop=latch)) as monitor,
    ):
        latch.set()
        await monitor.tell(StartAttempt(1, REQUEST))
        await trio.sleep(1.0)
    assert provider.requests == []
    assert matcher.heard == [StreamSettled(1)]


@pytest.mark.parametrize("is_follow_up", [True, False])
async def test_a_follow_up_whose_client_has_gone_asks_nobody_and_an_answer_is_asked_for(
    autojump_clock: MockClock, *, is_follow_up: bool
) -> None:
    provider, latch, matcher = ScriptedProvider(CLEAN), StopLatch(), Listener()
    async with (
        open_actor(matcher) as address,
        open_actor(monitoring(provider, address, stop=latch)) as monitor,
    ):
        latch.leave()
        await monitor.tell(StartAttempt(1, REQUEST, is_follow_up))
        await trio.sleep(1.0)
    assert len(provider.requests) == (not is_follow_up)
    assert matcher.heard[-1] == StreamSettled(1)


async def test_an_order_to_start_that_was_aborted_unread_asks_nobody(
    autojump_clock: MockClock,
) -> None:
    provider, aborts, matcher = ScriptedProvider(CLEAN), AbortLatch(), Listener()
    async with (
        open_actor(matcher) as address,
        open_actor(monitoring(provider, address, aborts=aborts)) as monitor,
    ):
        monitor.tell_nowait(StartAttempt(1, REQUEST))
        aborts.abort(1)
        await trio.sleep(1.0)
    assert provider.requests == []
    assert matcher.heard == [StreamSettled(1)]


async def test_an_attempt_that_was_aborted_before_it_began_is_cancelled() -> None:
    aborts = AbortLatch()
    aborts.abort(2)
    for attempt in (1, 2, 3):
        with aborts.begin(attempt) as live:
            assert live.cancel_called == (attempt < 3)
    assert [aborts.is_aborted(attempt) for attempt in (1, 2, 3)] == [True, True, False]
    aborts.abort_all()
    with aborts.begin(4) as live:
        assert live.cancel_called


async def test_an_attempt_that_is_held_back_ends_at_once_when_it_is_aborted(
    autojump_clock: MockClock,
) -> None:
    view, provider, listener = DispatchView(), ScriptedProvider(CLEAN), Listener()
    view.status, aborts = paused(START_MS, until_ms=START_MS + 900_000), AbortLatch()
    async with (
        open_actor(listener) as address,
        open_actor(monitoring(provider, address, aborts=aborts, view=view)) as monitor,
    ):
        await monitor.tell(StartAttempt(1, REQUEST))
        await trio.sleep(1.0)
        [asked] = [each for each in listener.heard if isinstance(each, AskDispatch)]
        asked.reply.send(Refused(session_id="ses-1", reason="the quota is spent"))
        await trio.sleep(1.0)
        aborts.abort(1)
        await trio.sleep(0.01)
        assert listener.heard[-2:] == [AttemptHeld(1, "the quota is spent"), StreamSettled(1)]
    assert provider.requests == []


async def test_a_window_that_opens_behind_the_word_of_the_machine_holds_the_attempt(
    autojump_clock: MockClock,
) -> None:
    """The gate looks once more in the moment in which the request would go out."""
    view, provider, listener = DispatchView(), ScriptedProvider(CLEAN), Listener()
    view.status = paused(START_MS, until_ms=START_MS + 1)
    async with (
        open_actor(listener) as address,
        open_actor(monitoring(provider, address, view=view)) as monitor,
    ):
        await trio.sleep(1.0)
        await monitor.tell(StartAttempt(1, REQUEST))
        await trio.sleep(1.0)
        [asked] = [each for each in listener.heard if isinstance(each, AskDispatch)]
        asked.reply.send(None)
        view.status = paused(START_MS, until_ms=START_MS + 900_000)
        await trio.sleep(1.0)
        assert provider.requests == []


class SlowListener(Listener):
    """Once it has heard that an attempt is held, it hears no more until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()

    async def handle(self, message: msgspec.Struct) -> None:
        await super().handle(message)
        if isinstance(message, AttemptHeld):
            await self.go.wait()


async def test_a_window_that_opens_while_the_session_is_told_of_the_release_holds_the_attempt(
    autojump_clock: MockClock,
) -> None:
    view, provider, listener = DispatchView(), ScriptedProvider(CLEAN), SlowListener()
    window = view.status = paused(START_MS, until_ms=START_MS + 900_000)
    async with (
        open_actor(listener, mailbox_capacity=1) as address,
        open_actor(monitoring(provider, address, view=view)) as monitor,
    ):
        await monitor.tell(StartAttempt(1, REQUEST))
        await trio.sleep(1.0)
        [asked] = [each for each in listener.heard if isinstance(each, AskDispatch)]
        asked.reply.send(Refused(session_id="ses-1", reason="the quota is spent"))
        await trio.sleep(1.0)
        await address.tell(Detach())  # fills the mailbox: what follows has to wait
        view.status = NEVER_PAUSED
        await trio.sleep(1.0)
        view.status = window
        listener.go.set()
        await trio.sleep(1.0)
        assert AttemptReleased(1) in listener.heard
        assert provider.requests == []


def paused(since_ms: int, *, until_ms: int) -> DispatchStatus:
    return DispatchStatus(
        id=DISPATCH_STATUS_ID,
        state=DispatchState.PAUSED,
        backoff_level=0,
        paused_since=format_timestamp(since_ms),
        paused_until=format_timestamp(until_ms),
    )


async def test_an_abort_of_an_older_attempt_leaves_the_live_one_alone(
    autojump_clock: MockClock,
) -> None:
    provider, matcher = ScriptedProvider([BlockStarted(0, "text"), Hang()]), Listener()
    aborts = AbortLatch()
    async with (
        open_actor(matcher) as address,
        open_actor(monitoring(provider, address, aborts=aborts)) as monitor,
    ):
        await monitor.tell(StartAttempt(2, REQUEST))
        await trio.sleep(1.0)
        aborts.abort(1)
        await trio.sleep(1.0)
        assert provider.live == 1
        aborts.abort(2)
        await trio.sleep(1.0)
        assert provider.live == 0


# --- timers, stops, outcomes


async def test_timers_that_were_forgotten_do_not_go_off(autojump_clock: MockClock) -> None:
    session = Listener()
    async with open_actor(session) as address, open_actor(RetryScheduler(address)) as scheduler:
        await scheduler.tell(StartTimers(1, 10.0, 0.05))
        await scheduler.tell(ForgetTimers())
        await trio.sleep(60.0)
    assert session.heard == []


def test_a_stop_is_handled_before_whatever_waited_longer() -> None:
    for stop in (Interrupt(), Cancel("enough")):
        assert stops_first((RetryDue(1), Detach(), stop)) == [stop, Detach(), RetryDue(1)]


def test_the_first_outcome_counts() -> None:
    outcome = Outcome()
    enrolment = Enrolment(
        session_id="ses-1",
        conversation_id="con-1",
        provider="scripted",
        started_at="2026-01-01T00:00:00.000Z",
        fence=Fence(owner="host", token=1),
    )
    for status in (SessionStatus.COMPLETED, SessionStatus.FAILED):
        ended = SessionEnded(status, "")
        outcome.settle(ended, record_unless_kept(enrolment, ended))
    assert outcome.ended is not None
    assert outcome.ended.status is SessionStatus.COMPLETED


async def test_a_session_whose_host_goes_has_an_outcome(autojump_clock: MockClock) -> None:
    config = Config(rules=RulesConfig(discover=False))
    provider = ScriptedProvider([Hang()])
    async with open_runtime(config, provider=provider, store=MemoryStore()) as runtime:
        session = runtime.animate("hello")
        await trio.sleep(1.0)
    with trio.fail_after(60.0):
        assert (await session.result()).status is SessionStatus.CANCELLED


def test_what_was_reserved_is_free_again_when_its_attempt_is_over() -> None:
    state = PolicyState(reserved=frozenset({"no-foo"}))
    assert next_attempt(state, {}).reserved == frozenset()


# --- conversations


async def test_a_conversation_that_is_being_answered_takes_no_second_prompt(
    autojump_clock: MockClock,
) -> None:
    async with open_world([Hang()], CLEAN) as world:
        first = world.animate("one", conversation_id="con-1")
        with pytest.raises(ConversationBusy, match=first.handle.session_id):
            world.animate("two", conversation_id="con-1")
        await first.cancel()


# --- the turn: mail of an attempt that is over


FOO = Verdict(rule="no-foo", action=VerdictAction.INTERRUPT, source="text", reminder="Do not.")


def batch(attempt: int, text: str, *verdicts: Verdict) -> WatchedBatch:
    return WatchedBatch(attempt, (BlockStarted(0, "text"), TextDelta(0, text)), verdicts, 0.0)


def in_second_attempt() -> Turn:
    """A turn whose first attempt was cut, and whose second one streams."""
    settings = TurnSettings(
        conversation_id="con-1", provider="scripted", format="anthropic", model=""
    )
    turn = Turn(settings, (), {}, 0, 0.0)
    ready = PromptReady(items=(UserItem("hello"),))
    first = (Recorded(1), batch(1, "foo", FOO), WatchedEnd(1))
    for message in (ready, *first, RetryDue(1), Recorded(2)):
        turn.receive(message, 0.0)
    assert turn.phase == Streaming(2)
    return turn


def test_a_batch_of_an_attempt_that_is_over_is_dropped() -> None:
    turn = in_second_attempt()
    assert turn.receive(batch(1, "late"), 0.0) == []
    assert turn.receive(batch(1, "foo", FOO), 0.0) == []
    assert turn.phase == Streaming(2)


def test_the_end_of_an_older_stream_does_not_end_the_live_attempt() -> None:
    turn = in_second_attempt()
    assert turn.receive(WatchedEnd(1), 0.0) == []
    assert turn.phase == Streaming(2)


@pytest.mark.parametrize(
    ("stale", "fresh"), [(RetryDue(1), WatchedEnd(2)), (WatchedEnd(1), RetryDue(2))]
)
def test_what_an_older_attempt_waited_for_does_not_count_for_the_next(
    stale: RetryDue | WatchedEnd, fresh: RetryDue | WatchedEnd
) -> None:
    turn = in_second_attempt()
    turn.receive(batch(2, "foo", FOO), 0.0)
    assert turn.receive(stale, 0.0) == []
    assert turn.receive(fresh, 0.0) == []
    assert isinstance(turn.phase, Settling)


def test_an_attempt_that_was_lost_is_repeated_when_its_stream_is_closed() -> None:
    turn = in_second_attempt()
    turn.receive(ActorLost("the matcher crashed", False, True), 0.0)
    assert turn.receive(RetryDue(2), 0.0) == []
    assert any(isinstance(effect, Start) for effect in turn.receive(WatchedEnd(2), 0.0))


# --- marks of death


async def test_who_beats_in_the_last_moment_is_not_marked_as_dead(
    autojump_clock: MockClock,
) -> None:
    store, clock, others = MemoryStore(), TrioClock(1_767_225_600_000), Listener()
    began, beat = (format_timestamp(clock.now_ms() + ms) for ms in (0, 1_000))
    ready = DetachedReady(id="ses-1", started_at=began, provider="p", last_activity_at=began)
    await apply_transition(store, ready)
    judged = await load_session(store, "ses-1")
    assert judged is not None
    await apply_transition(store, HeartbeatTouch(id="ses-1", last_activity_at=beat))
    mark = OrphanFailed(id="ses-1", ended_at=beat, error="no sign of life")
    async with (
        open_actor(others) as other,
        open_actor(Ledger(store, clock, MemoryQueue(), other, other)) as ledger,
    ):
        marked: bool = await ledger.ask(lambda reply: PresumeDead(judged, mark, reply), 5.0)
    assert not marked
    kept = await load_session(store, "ses-1")
    assert kept is not None
    assert kept.record.status is SessionStatus.RUNNING


async def test_a_session_that_lives_is_not_taken_over(autojump_clock: MockClock) -> None:
    store, clock, others = MemoryStore(), TrioClock(START_MS), Listener()
    began = AttachRunning(
        id="ses-1", fence=Fence(owner="host-a", token=1), started_at=STARTED_AT, provider="p"
    )
    await apply_transition(store, began)
    before = await load_session(store, "ses-1")
    async with (
        open_actor(others) as other,
        open_actor(Ledger(store, clock, MemoryQueue(), other, other)) as ledger,
    ):
        for session_id, problem in (("ses-1", "not presumed dead"), ("ses-2", "no such session")):
            with pytest.raises(NotRecoverable, match=problem):
                await ledger.ask(lambda reply, id=session_id: TakeOver(id, "host-b", reply), 5.0)
    assert await load_session(store, "ses-1") == before
