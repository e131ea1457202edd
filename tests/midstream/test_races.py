"""Abort against retry, interrupt, cancel, error and crash, in a whole runtime.

Every test runs under a clock that jumps, and every world is checked against the invariants
of the design when it ends.
"""

from collections.abc import Sequence
from random import Random

import pytest
import trio
from trio.testing import MockClock

from midstream.config import BudgetConfig, Config, RulesConfig
from midstream.messages.conversation import AssistantItem, ReminderItem, UserItem
from midstream.messages.events import (
    AttemptLost,
    AttemptStarted,
    ReminderInjected,
    Retracted,
    RuleTriggered,
    Text,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.lifecycle import AnyLifecycleEvent, ChildCrashed
from midstream.messages.record import SessionStatus
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.verdict import VerdictAction
from midstream.providers.scripted import (
    Hang,
    Pause,
    Script,
    ScriptedProvider,
    SlowClose,
    Step,
    answer,
)
from midstream.rules.finding import Finding
from midstream.rules.passage_watch import PassageWatch
from midstream.rules.rule import InterruptMode, RepeatMode, Rule, ScopeToken, Source
from midstream.stores.conversation_load import load_conversation
from midstream.testing.world import ObservedSession, open_world

NO_FOO = Rule(
    name="no-foo",
    conditions=("foo",),
    scope=(ScopeToken(Source.TEXT),),
    body="Do not say foo.",
)
NO_BAR = Rule(
    name="no-bar",
    conditions=("bar",),
    scope=(ScopeToken(Source.TEXT),),
    body="Do not say bar.",
)
CLEAN = answer("a clean answer")
DELAY_S = 0.05


def breaking(*after: Step) -> list[Step]:
    """A stream that says foo, then whatever follows; it does not end by itself."""
    start: list[Step] = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "well, foo")]
    return [*start, *(after or (Hang(),))]


def seen(session: ObservedSession, kind: type) -> list[object]:
    return [event.event for event in session.events if isinstance(event.event, kind)]


def text_of(session: ObservedSession, attempt: int) -> str:
    """What a client has on its screen of an attempt, retracted or not."""
    return "".join(
        event.event.text
        for event in session.events
        if isinstance(event.event, Text) and event.event.attempt == attempt
    )


async def until_cut(session: ObservedSession) -> None:
    """Wait until the first attempt was cut."""
    async for event in session.handle.events():
        if isinstance(event.event, Retracted):
            return


async def test_a_violation_is_cut_told_and_tried_again(autojump_clock: MockClock) -> None:
    async with open_world(breaking(), CLEAN, rules=[NO_FOO]) as world:
        session = world.animate("hello")
        ended = await session.result()
        assert (ended.status, ended.output, ended.attempts) == (
            SessionStatus.COMPLETED,
            "a clean answer",
            2,
        )
        assert text_of(session, 1) == ""
        [triggered] = seen(session, RuleTriggered)
        assert isinstance(triggered, RuleTriggered)
        assert (triggered.verdict.rule, triggered.verdict.offset_chars) == ("no-foo", 6)
        user, reminder = world.provider.requests[1].items
        assert user == UserItem("hello")
        assert isinstance(reminder, ReminderItem)
        assert "Do not say foo." in reminder.text


async def test_the_retry_waits_for_50_ms(autojump_clock: MockClock) -> None:
    async with open_world(breaking(), CLEAN, rules=[NO_FOO]) as world:
        session = world.animate("hello")
        await until_cut(session)
        cut_at = trio.current_time()
        await session.result()
        assert trio.current_time() - cut_at == pytest.approx(DELAY_S)


async def test_the_retry_waits_for_a_stream_that_settles_late(autojump_clock: MockClock) -> None:
    async with open_world(breaking(SlowClose(2.0), Hang()), CLEAN, rules=[NO_FOO]) as world:
        session = world.animate("hello")
        await until_cut(session)
        cut_at = trio.current_time()
        assert (await session.result()).status is SessionStatus.COMPLETED
        assert trio.current_time() - cut_at == pytest.approx(2.0)
        assert world.provider.most_live == 1


async def test_a_stream_that_does_not_settle_fails_the_session(autojump_clock: MockClock) -> None:
    async with open_world(breaking(SlowClose(60.0), Hang()), CLEAN, rules=[NO_FOO]) as world:
        ended = await world.animate("hello").result()
        assert ended.status is SessionStatus.FAILED
        assert len(world.provider.requests) == 1


@pytest.mark.parametrize("verb", ["interrupt", "cancel"])
@pytest.mark.parametrize(
    "wait_s", [0.0, 0.04, DELAY_S, 0.06], ids=["at once", "before", "at", "after"]
)
async def test_a_stop_around_the_retry_leaves_one_outcome_and_nothing_behind(
    wait_s: float, verb: str, autojump_clock: MockClock
) -> None:
    async with open_world(breaking(), breaking(Pause(1.0)), CLEAN, rules=[NO_FOO]) as world:
        session = world.animate("hello")
        await until_cut(session)
        await trio.sleep(wait_s)
        await getattr(session, verb)()
        ended = await session.result()
        assert ended.status is SessionStatus.CANCELLED
        await trio.sleep(60.0)
        assert world.provider.live == 0
        await world.check()


async def test_a_stop_that_comes_before_the_retry_wins(autojump_clock: MockClock) -> None:
    async with open_world(breaking(), CLEAN, rules=[NO_FOO]) as world:
        session = world.animate("hello")
        await until_cut(session)
        await session.interrupt()
        await session.result()
        await trio.sleep(60.0)
        assert len(world.provider.requests) == 1
        assert not seen(session, ReminderInjected)


async def test_an_interrupted_rule_is_free_again_for_the_next_prompt(
    autojump_clock: MockClock,
) -> None:
    async with open_world(breaking(), breaking(), CLEAN, rules=[NO_FOO]) as world:
        first = world.animate("hello", conversation_id="con-1")
        await until_cut(first)
        await first.interrupt()
        await first.result()
        second = world.animate("again", conversation_id="con-1")
        assert (await second.result()).status is SessionStatus.COMPLETED
        assert [type(event) for event in seen(second, ReminderInjected)] == [ReminderInjected]


async def test_a_second_rule_in_the_same_batch_shares_the_injection(
    autojump_clock: MockClock,
) -> None:
    both: Script = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "foo and bar"), Hang()]
    async with open_world(both, CLEAN, rules=[NO_FOO, NO_BAR]) as world:
        session = world.animate("hello")
        await session.result()
        [injected] = seen(session, ReminderInjected)
        assert isinstance(injected, ReminderInjected)
        assert injected.rules == ("no-foo", "no-bar")


async def test_a_second_rule_before_the_abort_has_landed_is_not_acted_on(
    autojump_clock: MockClock,
) -> None:
    more = breaking(TextDelta(0, " and bar"), TextDelta(0, " bar"), Hang())
    async with open_world(more, answer("a bar"), CLEAN, rules=[NO_FOO, NO_BAR]) as world:
        session = world.animate("hello")
        await session.result()
        injections = [event.rules for event in seen(session, ReminderInjected)]  # type: ignore[attr-defined]
        assert injections == [("no-foo",), ("no-bar",)]


async def test_a_provider_error_in_the_window_does_not_stop_the_retry(
    autojump_clock: MockClock,
) -> None:
    broken = breaking(ProviderFailure(FailureKind.NETWORK, "reset by peer"))
    async with open_world(broken, CLEAN, rules=[NO_FOO]) as world:
        assert (await world.animate("hello").result()).status is SessionStatus.COMPLETED


async def test_a_never_rule_rides_along_and_does_not_interrupt(autojump_clock: MockClock) -> None:
    quiet = Rule(
        name="quiet",
        conditions=("well",),
        scope=(ScopeToken(Source.TEXT),),
        body="Do not say well.",
        interrupt_mode=InterruptMode.NEVER,
    )
    async with open_world(breaking(), CLEAN, rules=[NO_FOO, quiet]) as world:
        session = world.animate("hello")
        await session.result()
        actions = [event.verdict.action for event in seen(session, RuleTriggered)]  # type: ignore[attr-defined]
        assert actions == [VerdictAction.INTERRUPT, VerdictAction.RIDE_ALONG]


async def test_a_rule_with_once_is_silent_after_its_reminder_and_after_a_restart(
    autojump_clock: MockClock,
) -> None:
    async with open_world(breaking(), answer("foo again"), rules=[NO_FOO]) as world:
        first = world.animate("hello", conversation_id="con-1")
        assert (await first.result()).output == "foo again"
    store = world.store.reopen()
    async with open_world(answer("foo"), rules=[NO_FOO], store=store, seed=1) as later:
        again = later.animate("more", conversation_id="con-1")
        assert (await again.result()).attempts == 1
        kinds = [type(item) for item in later.provider.requests[0].items]
        assert kinds == [UserItem, ReminderItem, AssistantItem, UserItem]


async def test_a_gap_is_counted_in_turns_across_a_restart(autojump_clock: MockClock) -> None:
    config = Config(
        rules=RulesConfig(discover=False, repeat_mode=RepeatMode.AFTER_GAP, repeat_gap=3)
    )
    scripts = [breaking(), answer("foo"), answer("foo")]
    async with open_world(*scripts, rules=[NO_FOO], config=config) as world:
        await world.animate("1", conversation_id="con-1").result()
        ended = await world.animate("2", conversation_id="con-1").result()
        assert ended.attempts == 1, "turn 3 is two turns after the reminder"
    store = world.store.reopen()
    async with open_world(
        breaking(), CLEAN, rules=[NO_FOO], config=config, store=store, seed=1
    ) as later:
        ended = await later.animate("3", conversation_id="con-1").result()
        assert ended.attempts == 2, "turn 4 is three turns after it"


async def test_a_rule_that_repeats_always_is_bounded_by_its_retry_budget(
    autojump_clock: MockClock,
) -> None:
    config = Config(rules=RulesConfig(discover=False, repeat_mode=RepeatMode.ALWAYS))
    scripts = [breaking() for _ in range(3)]
    async with open_world(*scripts, answer("foo at last"), rules=[NO_FOO], config=config) as world:
        session = world.animate("hello")
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.CAPPED, "foo at last")
        assert ended.attempts == 4


async def test_a_prompt_has_one_budget_for_all_that_starts_by_itself(
    autojump_clock: MockClock,
) -> None:
    config = Config(
        rules=RulesConfig(discover=False, repeat_mode=RepeatMode.ALWAYS),
        budget=BudgetConfig(max_restarts=1),
    )
    async with open_world(breaking(), breaking(), CLEAN, rules=[NO_FOO], config=config) as world:
        ended = await world.animate("hello").result()
        assert (ended.status, ended.attempts) == (SessionStatus.CAPPED, 2)


async def test_a_crash_of_the_matcher_loses_the_attempt_and_never_the_watch(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = iter([True])
    feed = PassageWatch.feed

    def feed_once_broken(watch: PassageWatch, text: str) -> Sequence[Finding]:
        if "well" in text and next(crashes, False):
            raise RuntimeError("a defect in the matcher")
        return feed(watch, text)

    monkeypatch.setattr(PassageWatch, "feed", feed_once_broken)
    lifecycle: list[AnyLifecycleEvent] = []
    scripts = [breaking(), breaking(), CLEAN]
    async with open_world(*scripts, rules=[NO_FOO], lifecycle=lifecycle) as world:
        session = world.animate("hello")
        ended = await session.result()
        assert (ended.status, ended.attempts) == (SessionStatus.COMPLETED, 3)
        assert len(seen(session, AttemptLost)) == 1
        assert text_of(session, 1) == "", "unwatched output is never delivered"
        assert len(seen(session, RuleTriggered)) == 1
    crashed = [event.who for event in lifecycle if isinstance(event, ChildCrashed)]
    assert len(crashed) == 1
    assert crashed[0].endswith("/rule_matcher")


async def test_a_matcher_that_crashes_again_and_again_fails_the_session_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed_broken(watch: PassageWatch, text: str) -> Sequence[Finding]:
        raise RuntimeError("a defect in the matcher")

    monkeypatch.setattr(PassageWatch, "feed", feed_broken)
    async with open_world(*[breaking() for _ in range(9)], rules=[NO_FOO]) as world:
        session = world.animate("hello")
        ended = await session.result()
        assert ended.status is SessionStatus.FAILED
        assert (ended.reason or "").endswith("rule_matcher: RuntimeError: a defect in the matcher")
        await trio.sleep(1.0)
        assert world.provider.live == 0


async def test_a_provider_that_raises_costs_the_attempt_and_is_tried_again(
    autojump_clock: MockClock,
) -> None:
    provider = ScriptedProvider()
    async with open_world(rules=[NO_FOO], provider=provider) as world:
        session = world.animate("hello")
        ended = await session.result()
        assert ended.status is SessionStatus.FAILED
        assert len(seen(session, AttemptStarted)) > 1


async def test_closing_the_runtime_ends_live_sessions_on_record(autojump_clock: MockClock) -> None:
    async with open_world([StreamStarted(), Hang()], rules=[NO_FOO]) as world:
        session = world.animate("hello", conversation_id="con-1")
        await trio.sleep(1.0)
    assert session.handle.ended is not None
    assert session.handle.ended.status is SessionStatus.CANCELLED
    kept = await load_conversation(world.store.reopen(), "con-1")
    assert kept.session is not None
    assert kept.session.record.status is SessionStatus.CANCELLED


async def test_many_sessions_are_independent(autojump_clock: MockClock) -> None:
    scripts: list[Script] = []
    for _ in range(40):
        scripts += [breaking(Pause(0.01), Hang())]
    scripts += [CLEAN] * 40
    async with open_world(*scripts, rules=[NO_FOO]) as world:
        sessions = [world.animate(f"prompt {number}") for number in range(40)]
        for session in sessions:
            assert (await session.result()).status is SessionStatus.COMPLETED
        assert world.provider.most_live > 1


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_the_moment_of_the_stop_the_invariants_hold(
    seed: int, autojump_clock: MockClock
) -> None:
    """The seed decides the pace of the stream, when it settles, and when the stop comes."""
    random = Random(seed)

    def wild() -> Script:
        steps: list[Step] = [StreamStarted(), BlockStarted(0, "text")]
        for _ in range(random.randint(0, 6)):
            steps.append(random.choice([Pause(random.random() / 10), TextDelta(0, "word ")]))
        steps.append(TextDelta(0, random.choice(["foo", "foo", "bar", "fine"])))
        steps.append(random.choice([Hang(), SlowClose(random.random() / 5), Pause(0.02)]))
        return [*steps, *random.choice([[], [Hang()], answer("x")[-3:]])]

    scripts = [wild() for _ in range(12)]
    config = Config(rules=RulesConfig(discover=False, repeat_mode=RepeatMode.ALWAYS))
    async with open_world(*scripts, rules=[NO_FOO, NO_BAR], config=config, seed=seed) as world:
        session = world.animate("hello")
        await trio.sleep(random.random() / 2)
        if session.handle.ended is None:
            await random.choice([session.interrupt, session.cancel])()
        with trio.fail_after(120):
            await session.result()
        assert world.provider.most_live <= 1, f"seed {seed}"
