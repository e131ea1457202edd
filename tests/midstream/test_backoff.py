"""The shared pause in whole runtimes: who opens it, who is kept out, who ends it."""

import logging
from collections.abc import Sequence

import msgspec
import pytest
import trio
from hosts import (
    SPEAKING,
    Mumbling,
    configuration,
    doomed_host,
    host,
    limited,
    notices_so_far,
    record_of,
    until_it_speaks,
    wall_clock,
)
from trio.testing import MockClock

from midstream.actors.ledger_messages import NotRecoverable
from midstream.messages.dispatch import DISPATCH_STATUS_ID, DispatchState, DispatchStatus
from midstream.messages.errors import StoreError
from midstream.messages.events import AttemptPaused
from midstream.messages.failure import FailureKind
from midstream.messages.notices import Ended
from midstream.messages.record import SessionStatus
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.timestamps import format_timestamp, parse_timestamp
from midstream.messages.transition import DetachedReady, Outcome, Terminal
from midstream.providers.scripted import Call, Hang, Pause, ScriptedProvider, Step, answer
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.runtime import Runtime
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition
from midstream.stores.state import load_status
from midstream.stores.store import Book, Operation, Put, Query
from midstream.tools import Tool

MINUTE_S = 60.0
HELLO = answer("hello")
NO_FOO = Rule(name="no-foo", conditions=("foo",), scope=(ScopeToken(Source.TEXT),), body="No foo.")


async def hit_the_limit(runtime: Runtime, prompt: str = "hi") -> str:
    handle = runtime.animate(prompt)
    assert (await handle.result()).status is SessionStatus.RATE_LIMITED
    return handle.session_id


def window_s(status: DispatchStatus) -> float:
    since, until = parse_timestamp(status.paused_since), parse_timestamp(status.paused_until)
    assert since is not None
    assert until is not None
    return (until - since) / 1000


async def sessions_on_record(store: MemoryStore) -> int:
    return len((await store.find(Book.SESSIONS, Query())).rows)


@pytest.mark.parametrize("kind", [FailureKind.RATE_LIMITED, FailureKind.OVERLOADED])
async def test_b1_an_attached_session_that_hits_the_limit_pauses_everybody(
    kind: FailureKind, autojump_clock: MockClock
) -> None:
    store, provider = MemoryStore(), ScriptedProvider(limited(kind), HELLO)
    async with host(store, provider=provider, clock=wall_clock()) as runtime:
        assert runtime.is_dispatchable()
        session_id = await hit_the_limit(runtime)
        assert not runtime.is_dispatchable()
        status = await runtime.status()
        assert (status.state, status.backoff_level) == (DispatchState.PAUSED, 0)
        assert status.last_triggering_session == session_id
        assert window_s(status) == 15 * MINUTE_S
        record = await record_of(store, session_id)
        assert record.termination_tag is not None
        assert record.termination_tag.kind == "rate-limit"
        assert len(provider.requests) == 1


async def test_the_same_error_inside_a_stream_that_began_well_pauses_too(
    autojump_clock: MockClock,
) -> None:
    began: list[Step] = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "well")]
    script = [*began, *limited(FailureKind.OVERLOADED)]
    async with host(MemoryStore(), script, clock=wall_clock()) as runtime:
        await hit_the_limit(runtime)
        assert not runtime.is_dispatchable()


async def test_a_rejected_dispatch_leaves_no_record_no_event_and_no_request(
    autojump_clock: MockClock,
) -> None:
    store, provider = MemoryStore(), ScriptedProvider(limited(), HELLO)
    async with host(store, provider=provider, clock=wall_clock()) as runtime:
        await hit_the_limit(runtime)
        before = await notices_so_far(runtime)
        handle = runtime.animate("again", metadata={"writId": 1})
        assert handle.ended is not None
        assert [chunk async for chunk in handle.chunks] == []
        assert [event async for event in handle.events()] == []
        record = await handle.record()
        assert (record.status, record.exit_code, record.duration_ms) == ("rate-limited", 0, 0)
        assert record.id == handle.session_id
        assert (record.provider, record.metadata) == ("scripted", {"writId": 1})
        assert record.conversation_id is None
        assert record.error is not None
        assert "paused until 2026-01-01T00:15:00" in record.error
        assert record.termination_tag is not None
        assert await sessions_on_record(store) == 1
        assert await notices_so_far(runtime) == before
        assert len(provider.requests) == 1
        # and the conversation is free for the next one
        runtime.animate("again", conversation_id=handle.conversation_id)


async def test_after_the_window_a_success_ends_the_pause(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), limited(), HELLO, clock=wall_clock()) as runtime:
        await hit_the_limit(runtime)
        await trio.sleep(15 * MINUTE_S + 1)
        assert runtime.is_dispatchable()
        assert (await runtime.status()).state is DispatchState.PAUSED
        assert (await runtime.animate("hi").result()).status is SessionStatus.COMPLETED
        status = await runtime.status()
        assert (status.state, status.paused_until) == (DispatchState.RUNNING, None)
        assert status.last_triggering_session is not None


async def test_probes_that_fail_double_the_window_up_to_the_longest(
    autojump_clock: MockClock,
) -> None:
    windows: list[float] = []
    async with host(MemoryStore(), *[limited()] * 5, clock=wall_clock()) as runtime:
        for _ in range(5):
            await hit_the_limit(runtime)
            windows.append(window_s(await runtime.status()))
            await trio.sleep(windows[-1] + 1)
    assert windows == [minutes * MINUTE_S for minutes in (15, 30, 60, 60, 60)]


async def test_the_window_is_never_shorter_than_what_the_provider_asked_for(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), limited(after_s=7200.5), clock=wall_clock()) as runtime:
        await hit_the_limit(runtime)
        assert window_s(await runtime.status()) == 7200.5


async def test_an_open_window_only_grows(autojump_clock: MockClock) -> None:
    """LiteLLM #40130: a longer wait that is asked for within the window counts."""
    slow: list[Step] = [Pause(60), *limited(after_s=3600)]
    slower: list[Step] = [Pause(120), *limited(after_s=5)]
    async with host(MemoryStore(), slow, slower, limited(after_s=5), clock=wall_clock()) as runtime:
        others = [runtime.animate("a")]
        await trio.sleep(1)
        others.append(runtime.animate("b"))
        await trio.sleep(1)
        await hit_the_limit(runtime)
        first = (await runtime.status()).paused_until
        await others[0].result()
        grown = await runtime.status()
        await others[1].result()
        last = await runtime.status()
    assert first is not None
    assert grown.paused_until is not None
    assert grown.paused_until > first
    assert last.paused_until == grown.paused_until
    assert last.backoff_level == 0


async def test_b9_a_straggler_neither_resets_nor_escalates(autojump_clock: MockClock) -> None:
    """It was dispatched before the pause, and ends when a probe might be under way."""
    straggler: list[Step] = [Pause(20 * MINUTE_S), *answer("late but fine")]
    hit: list[Step] = [Pause(20 * MINUTE_S), *limited()]
    async with host(
        MemoryStore(), straggler, hit, limited(), SPEAKING, clock=wall_clock()
    ) as runtime:
        late = runtime.animate("a")
        await trio.sleep(1)
        also_late = runtime.animate("b")
        await trio.sleep(1)
        await hit_the_limit(runtime)
        await trio.sleep(16 * MINUTE_S)
        runtime.animate("probe")
        assert (await late.result()).status is SessionStatus.COMPLETED
        assert (await also_late.result()).status is SessionStatus.RATE_LIMITED
        status = await runtime.status()
    assert (status.state, status.backoff_level) == (DispatchState.PAUSED, 0)


async def test_sessions_that_run_are_not_stopped_by_a_pause(autojump_clock: MockClock) -> None:
    slow: list[Step] = [Pause(5), *HELLO]
    async with host(MemoryStore(), slow, limited(), clock=wall_clock()) as runtime:
        running = runtime.animate("a")
        await trio.sleep(1)
        await hit_the_limit(runtime)
        assert (await running.result()).status is SessionStatus.COMPLETED
        assert not runtime.is_dispatchable()


async def other_hits_the_limit(runtime: Runtime, minutes: float = 15) -> None:
    other = ScriptedProvider(limited(after_s=minutes * MINUTE_S))
    assert (await runtime.animate("b", provider=other).result()).status is (
        SessionStatus.RATE_LIMITED
    )


async def look(path: str) -> str:
    """Look at a file."""
    await trio.sleep(60)
    return f"nothing in {path}"


FOO = [StreamStarted(), BlockStarted(0, "text"), Pause(5), TextDelta(0, "foo")]
NEXT_REQUESTS: dict[str, list[Step]] = {
    "a retry for a rule": [*FOO, Hang()],
    "the results of calls": answer("I look", Call("look", '{"path": "x"}')),
}


@pytest.mark.parametrize("kind", NEXT_REQUESTS)
async def test_a_running_session_asks_nothing_more_while_the_window_is_open(
    kind: str, autojump_clock: MockClock
) -> None:
    """It is not ended by the pause (spec/animator.md 6), so it waits; the budget of its
    prompt, which is shorter than the window, does not count that time."""
    provider = ScriptedProvider(NEXT_REQUESTS[kind], HELLO)
    async with host(MemoryStore(), clock=wall_clock(), rules=[NO_FOO]) as runtime:
        running = runtime.animate("a", provider=provider, tools=[Tool(look)])
        await trio.sleep(1)
        await other_hits_the_limit(runtime)
        await trio.sleep(14 * MINUTE_S)
        assert len(provider.requests) == 1
        assert running.ended is None
        await trio.sleep(MINUTE_S)
        assert (await running.result()).status is SessionStatus.COMPLETED
        assert len(provider.requests) == 2
        assert (await runtime.status()).state is DispatchState.RUNNING
        waits = [e.event for e in [e async for e in running.events()]]
        [paused] = [event for event in waits if isinstance(event, AttemptPaused)]
        assert paused.attempt == 2
        assert "paused until 2026-01-01T00:15:01" in paused.reason


async def test_what_waited_for_the_window_and_is_refused_again_escalates(
    autojump_clock: MockClock,
) -> None:
    """It began before the pause, and asked after its window: it is a probe, no straggler."""
    provider = ScriptedProvider(NEXT_REQUESTS["a retry for a rule"], limited())
    async with host(MemoryStore(), clock=wall_clock(), rules=[NO_FOO]) as runtime:
        running = runtime.animate("a", provider=provider)
        await trio.sleep(1)
        await other_hits_the_limit(runtime)
        assert (await running.result()).status is SessionStatus.RATE_LIMITED
        status = await runtime.status()
        assert (status.state, status.backoff_level) == (DispatchState.PAUSED, 1)
        assert window_s(status) == 30 * MINUTE_S
        assert status.probes == ()


async def test_a_window_that_grows_holds_a_running_session_for_longer(
    autojump_clock: MockClock,
) -> None:
    provider = ScriptedProvider(NEXT_REQUESTS["a retry for a rule"], HELLO)
    slow = ScriptedProvider([Pause(10 * MINUTE_S), *limited(after_s=30 * MINUTE_S)])
    async with host(MemoryStore(), clock=wall_clock(), rules=[NO_FOO]) as runtime:
        running = runtime.animate("a", provider=provider)
        runtime.animate("c", provider=slow)
        await trio.sleep(1)
        await other_hits_the_limit(runtime)
        await trio.sleep(39 * MINUTE_S)
        assert len(provider.requests) == 1
        await trio.sleep(2 * MINUTE_S)
        assert (await running.result()).status is SessionStatus.COMPLETED


async def test_sessions_that_wait_for_the_window_are_as_many_probes_as_may_be(
    autojump_clock: MockClock,
) -> None:
    config = configuration(probe_limit=1)
    slow: list[Step] = [Pause(MINUTE_S), *HELLO]
    providers = [ScriptedProvider(NEXT_REQUESTS["a retry for a rule"], slow) for _ in range(3)]
    async with host(MemoryStore(), clock=wall_clock(), rules=[NO_FOO], config=config) as runtime:
        running = [runtime.animate("a", provider=provider) for provider in providers]
        await trio.sleep(1)
        await other_hits_the_limit(runtime)
        await trio.sleep(15.5 * MINUTE_S)
        assert sorted(len(provider.requests) for provider in providers) == [1, 1, 2]
        for handle in running:
            assert (await handle.result()).status is SessionStatus.COMPLETED


async def test_a_session_that_waits_for_the_window_can_be_cancelled(
    autojump_clock: MockClock,
) -> None:
    provider = ScriptedProvider(NEXT_REQUESTS["a retry for a rule"])
    async with host(MemoryStore(), clock=wall_clock(), rules=[NO_FOO]) as runtime:
        running = runtime.animate("a", provider=provider)
        await trio.sleep(1)
        await other_hits_the_limit(runtime)
        await trio.sleep(60)
        began = trio.current_time()
        assert (await runtime.cancel(running.session_id)).status is SessionStatus.CANCELLED
        assert trio.current_time() - began < 1
        await trio.sleep(MINUTE_S * 60)
    assert len(provider.requests) == 1


async def test_nobody_takes_a_session_over_while_the_window_is_open(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, SPEAKING, clock=clock) as lost:
        session_id = lost.animate("hi").session_id
        await until_it_speaks(lost, session_id)
    provider = ScriptedProvider(HELLO)
    async with host(store.reopen(), provider=provider, clock=clock, seed=1) as heir:
        await trio.sleep(4 * MINUTE_S)
        await other_hits_the_limit(heir)
        before = await record_of(store, session_id)
        with pytest.raises(NotRecoverable, match="paused until"):
            await heir.recover(session_id)
        assert await record_of(store, session_id) == before
        assert provider.requests == []
        await trio.sleep(15 * MINUTE_S)
        handle = await heir.recover(session_id)
        assert (await handle.result()).status is SessionStatus.COMPLETED


async def test_a_continuation_is_not_begun_while_the_window_is_open(
    autojump_clock: MockClock,
) -> None:
    """It ends as it does when its own quota is spent: with the last good reply, and nothing
    of N is used."""
    slow: list[Step] = [Pause(5), *HELLO]
    provider = ScriptedProvider(slow, HELLO)
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        running = runtime.animate('<**stopMessage:"go on",3**>a', provider=provider)
        await trio.sleep(1)
        await other_hits_the_limit(runtime)
        ended = await running.result()
        assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "hello")
        assert ended.reason is not None
        assert "paused until" in ended.reason
        assert len(provider.requests) == 1
        state = await runtime.stop_message(running.conversation_id)
        assert state is not None
        assert state.get("stopMessageUsed", 0) == 0


async def test_a_cancel_says_nothing_about_the_quota(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), limited(), SPEAKING, clock=wall_clock()) as runtime:
        await hit_the_limit(runtime)
        await trio.sleep(16 * MINUTE_S)
        probe = runtime.animate("probe")
        await until_it_speaks(runtime, probe.session_id)
        await runtime.cancel(probe.session_id)
        status = await runtime.status()
    assert (status.state, status.backoff_level) == (DispatchState.PAUSED, 0)


async def test_b10_with_a_probe_limit_one_session_tries_and_the_others_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    slow: list[Step] = [Pause(5), *HELLO]
    config = configuration(probe_limit=1)
    async with host(
        MemoryStore(), limited(), slow, HELLO, clock=wall_clock(), config=config
    ) as runtime:
        await hit_the_limit(runtime)
        await trio.sleep(16 * MINUTE_S)
        probe = runtime.animate("probe")
        await trio.sleep(1)
        second = runtime.animate("too early")
        assert (await second.result()).status is SessionStatus.RATE_LIMITED
        assert (await probe.result()).status is SessionStatus.COMPLETED
        assert (await runtime.animate("now").result()).status is SessionStatus.COMPLETED


async def test_two_probes_at_the_same_moment_are_one(autojump_clock: MockClock) -> None:
    config, provider = configuration(probe_limit=1), ScriptedProvider(limited(), HELLO, HELLO)
    async with host(MemoryStore(), provider=provider, clock=wall_clock(), config=config) as runtime:
        await hit_the_limit(runtime)
        await trio.sleep(16 * MINUTE_S)
        handles = [runtime.animate(str(number)) for number in range(5)]
        statuses = sorted([(await handle.result()).status for handle in handles])
        assert statuses == [SessionStatus.COMPLETED, *[SessionStatus.RATE_LIMITED] * 4]
        for handle in handles:
            if handle.ended and handle.ended.status is SessionStatus.RATE_LIMITED:
                assert [chunk async for chunk in handle.chunks] == []
    assert len(provider.requests) == 2


async def test_a_probe_whose_host_dies_does_not_keep_the_others_out_for_ever(
    autojump_clock: MockClock,
) -> None:
    store, clock, config = MemoryStore(), wall_clock(), configuration(probe_limit=1)
    async with host(store, limited(), HELLO, clock=clock, config=config) as runtime:
        await hit_the_limit(runtime)
        await trio.sleep(16 * MINUTE_S)
        kept = await load_status(store)
        lost = msgspec.structs.replace(kept.status, probes=("ses-of-a-dead-host",))
        await store.put(Book.STATE, DISPATCH_STATUS_ID, lost, kept.version)
        await trio.sleep(30)
        assert runtime.sessions.refusal("ses-x") is not None
        await trio.sleep(60)
        assert (await runtime.animate("hi").result()).status is SessionStatus.COMPLETED


async def test_others_leave_it_to_the_host_of_a_probe_to_say_how_it_has_ended(
    autojump_clock: MockClock,
) -> None:
    """It alone knows how long the provider wants to be left alone; if it is dead, they say it."""
    store, clock, config = MemoryStore(), wall_clock(), configuration(probe_limit=1)
    async with host(store, limited(), clock=clock, config=config) as runtime:
        await hit_the_limit(runtime)
        await trio.sleep(16 * MINUTE_S)
        now = format_timestamp(clock.now_ms())
        begun = DetachedReady(id="ses-probe", started_at=now, provider="cc", last_activity_at=now)
        refused = Terminal(
            id="ses-probe",
            status=Outcome.RATE_LIMITED,
            ended_at=now,
            exit_code=1,
            last_activity_at=now,
        )
        await apply_transition(store, begun)
        kept = await load_status(store)
        probed = msgspec.structs.replace(kept.status, probes=("ses-probe",))
        await store.put(Book.STATE, DISPATCH_STATUS_ID, probed, kept.version)
        await trio.sleep(30)
        await apply_transition(store, refused)
        await trio.sleep(5)
        assert (await load_status(store)).status == probed
        await trio.sleep(5)
        status = (await load_status(store)).status
        assert (status.backoff_level, status.last_triggering_session) == (1, "ses-probe")


# --- several hosts, restarts, stores that fail


async def test_a_pause_holds_for_all_hosts_of_the_store(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with (
        host(store, limited(), clock=clock, seed=1) as one,
        host(store.reopen(), clock=clock, seed=2) as other,
    ):
        await hit_the_limit(one)
        handle = other.animate("hi")  # the other host has not looked yet, and asks first
        assert (await handle.result()).status is SessionStatus.RATE_LIMITED
        assert [chunk async for chunk in handle.chunks] == []
        await trio.sleep(2)
        assert not other.is_dispatchable()
        assert await sessions_on_record(store) == 1


async def test_an_open_window_survives_a_restart(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, limited(), clock=clock) as runtime:
        await hit_the_limit(runtime)
    async with host(store.reopen(), clock=clock) as runtime:
        assert not runtime.is_dispatchable()
        await trio.sleep(5)
        assert (await runtime.status()).state is DispatchState.PAUSED


async def test_a_pause_that_is_over_at_boot_is_ended_there(autojump_clock: MockClock) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, limited(), clock=clock) as runtime:
        await hit_the_limit(runtime)
    await trio.sleep(20 * MINUTE_S)
    async with host(store.reopen(), clock=clock) as runtime:
        await trio.sleep(0.1)
        status = await runtime.status()
    assert (status.state, status.backoff_level) == (DispatchState.RUNNING, 0)
    assert status.last_triggering_session is not None


async def test_the_pause_is_kept_when_the_host_leaves_right_after_the_hit(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, limited(), clock=clock) as runtime:
        await runtime.animate("hi").result()
    assert (await load_status(store)).status.state is DispatchState.PAUSED


def keeps_status(operations: Sequence[Operation]) -> bool:
    return any(isinstance(each, Put) and each.id == DISPATCH_STATUS_ID for each in operations)


@pytest.mark.parametrize("fate", ["refused", "kept"])
async def test_others_hear_at_once_of_a_spent_quota_that_the_store_has_taken_at_the_second_try(
    fate: str, autojump_clock: MockClock
) -> None:
    store = Mumbling(keeps_status, [fate])
    async with host(store, limited(), clock=wall_clock()) as runtime:
        session_id = await hit_the_limit(runtime)
        status = (await load_status(store)).status
        assert (status.state, status.last_triggering_session) == (DispatchState.PAUSED, session_id)
        assert (window_s(status), status.backoff_level) == (15 * MINUTE_S, 0)


async def test_a_spent_quota_that_was_not_kept_yet_is_when_the_host_leaves(
    autojump_clock: MockClock,
) -> None:
    store = Mumbling(keeps_status, ["refused", "refused"])
    async with host(store, limited(), clock=wall_clock()) as runtime:
        await hit_the_limit(runtime)
        assert (await load_status(store)).status.state is DispatchState.RUNNING
    assert (await load_status(store)).status.state is DispatchState.PAUSED


async def test_an_end_is_not_told_before_the_pause_has_heard_of_its_spent_quota(
    autojump_clock: MockClock,
) -> None:
    """The one who knows of the quota may be lost before he is heard; the end is told late then."""
    store = Mumbling(keeps_status, [14.0])
    async with host(store, limited(), clock=wall_clock()) as runtime:
        await hit_the_limit(runtime)
        assert not [each for each in await notices_so_far(runtime) if isinstance(each, Ended)]
        await trio.sleep(100)
        ends = [each for each in await notices_so_far(runtime) if isinstance(each, Ended)]
        assert [each.status for each in ends] == [SessionStatus.RATE_LIMITED]
        assert (await load_status(store)).status.state is DispatchState.PAUSED


async def test_b17_a_pause_without_a_readable_end_pauses_nobody(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    broken = DispatchStatus(
        id=DISPATCH_STATUS_ID,
        state=DispatchState.PAUSED,
        backoff_level=3,
        paused_until="tomorrow",
        pause_reason="429",
    )
    await store.put(Book.STATE, DISPATCH_STATUS_ID, broken, 0)
    with caplog.at_level(logging.WARNING, "midstream.backoff"):
        async with host(store, HELLO, clock=wall_clock()) as runtime:
            assert runtime.is_dispatchable()
            assert (await runtime.animate("hi").result()).status is SessionStatus.COMPLETED
    assert "tomorrow" in caplog.text


async def test_a_status_that_cannot_be_read_is_running_with_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    await store.put(Book.STATE, DISPATCH_STATUS_ID, {"state": "sleeping"}, 0)
    with caplog.at_level(logging.WARNING, "midstream.backoff"):
        async with host(store, limited(), clock=wall_clock()) as runtime:
            assert runtime.is_dispatchable()
            await hit_the_limit(runtime)
            assert not runtime.is_dispatchable()
    assert "dispatch status" in caplog.text
    assert (await load_status(store)).status.state is DispatchState.PAUSED


async def test_a_spent_quota_is_remembered_while_the_store_is_down(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MemoryStore(), wall_clock()
    view = store.reopen()
    slow: list[Step] = [Pause(1), *limited(after_s=3600)]
    async with host(view, slow, clock=clock) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(0.5)
        view.failure = StoreError("the disk is full")
        assert (await handle.result()).status is SessionStatus.RATE_LIMITED
        assert not runtime.is_dispatchable()
        assert (await runtime.animate("again").result()).status is SessionStatus.RATE_LIMITED
        view.failure = None
        await trio.sleep(2)
        assert (await load_status(store)).status.state is DispatchState.PAUSED
        kept = (await load_status(store)).status
    assert window_s(kept) == 3600


async def test_a_late_signal_about_the_quota_counts_although_the_session_was_cancelled(
    autojump_clock: MockClock,
) -> None:
    """14.7: the cancel from elsewhere was first, the provider's answer is true all the same."""
    store, clock = MemoryStore(), wall_clock()
    slow: list[Step] = [Pause(0.5), *limited()]
    async with (
        host(store, slow, clock=clock, seed=1) as owner,
        host(store.reopen(), clock=clock, seed=2) as other,
    ):
        handle = owner.animate("hi")
        await trio.sleep(0.2)
        await other.cancel(handle.session_id, "from elsewhere")
        ended = await handle.result()
        assert ended.status is SessionStatus.CANCELLED
        assert (ended.reason, (await handle.record()).error) == ("from elsewhere",) * 2
        assert not owner.is_dispatchable()
        ends = [n for n in await notices_so_far(owner) if isinstance(n, Ended)]
        assert ends == []  # the other host has told it, once
        assert len([n for n in await notices_so_far(other) if isinstance(n, Ended)]) == 1
