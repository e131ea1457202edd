"""The shared pause: who opens it, what makes it grow, what ends it, and what does not."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.backoff import BackoffSettings, parse_backoff, window_ms
from midstream.messages.dispatch import (
    NEVER_PAUSED,
    Admitted,
    AnyDispatchEvent,
    Booted,
    Decision,
    DispatchAsked,
    DispatchState,
    DispatchStatus,
    NeutralEnd,
    OtherEnd,
    Paused,
    QuotaSpent,
    Refused,
    Resumed,
    Warned,
    decide,
    end_of,
    is_dispatchable,
    malformed_pause,
)
from midstream.messages.errors import ConfigError
from midstream.messages.record import SessionRecord, SessionStatus, TerminationTag
from midstream.messages.timestamps import format_timestamp, parse_timestamp

T0_MS = 1_772_366_400_000
MINUTE_MS = 60_000
DEFAULTS = BackoffSettings()
ONE_PROBE = BackoffSettings(probe_limit=1)


def at(ms: int) -> str:
    return format_timestamp(ms)


def quota_spent(
    started_ms: int, session_id: str = "s", retry_after_ms: int | None = None
) -> QuotaSpent:
    return QuotaSpent(
        session_id=session_id,
        started_at=at(started_ms),
        reason="429",
        retry_after_ms=retry_after_ms,
    )


def other_end(started_ms: int, session_id: str = "s") -> OtherEnd:
    return OtherEnd(session_id=session_id, started_at=at(started_ms))


def paused(level: int = 0, minutes: int = 15, **changes: Any) -> DispatchStatus:
    status = DispatchStatus(
        id="dispatch-status",
        state=DispatchState.PAUSED,
        backoff_level=level,
        paused_since=at(T0_MS),
        paused_until=at(T0_MS + minutes * MINUTE_MS),
        pause_reason="429",
        backoff_last_hit_at=at(T0_MS),
        last_triggering_session="s-0",
    )
    return msgspec.structs.replace(status, **changes)


AFTER_MS = T0_MS + 16 * MINUTE_MS
"""When the first window is over."""


# --- may anyone dispatch? -------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (NEVER_PAUSED, True),
        (paused(paused_until=at(T0_MS + 1)), False),
        (paused(paused_until=at(T0_MS)), True),
        (paused(paused_until=at(T0_MS - 1)), True),
        (paused(paused_until=None), True),
        (paused(paused_until="whenever"), True),
        (paused(paused_until="2026-03-01T14:00:00.001+02:00"), False),
        (paused(paused_until="2026-03-01T14:00:00.000+02:00"), True),
    ],
)
def test_the_window_ends_at_its_instant(status: DispatchStatus, expected: bool) -> None:
    assert is_dispatchable(status, T0_MS) is expected


def test_a_pause_without_a_readable_end_is_reported_and_pauses_nobody() -> None:
    broken = paused(paused_until="whenever")

    assert malformed_pause(paused()) is None
    assert malformed_pause(NEVER_PAUSED) is None
    assert "'whenever'" in (malformed_pause(broken) or "")
    _, effects = decide(broken, DispatchAsked(session_id="s"), T0_MS, DEFAULTS)
    assert [type(effect) for effect in effects] == [Warned, Admitted]


def test_a_refused_dispatch_changes_nothing_and_says_until_when() -> None:
    decision = decide(paused(), DispatchAsked(session_id="s"), T0_MS, DEFAULTS)

    assert decision == Decision(
        paused(),
        (Refused(session_id="s", reason="429 (paused until 2026-03-01T12:15:00.000Z)"),),
    )


def test_a_dispatch_after_the_window_passes_and_flips_nothing() -> None:
    status = paused()

    decision = decide(status, DispatchAsked(session_id="s"), AFTER_MS, DEFAULTS)

    assert decision.status is status
    assert decision.effects == (Admitted(session_id="s"),)


# --- the table of the machine ---------------------------------------------------------


def test_a_spent_quota_pauses_everybody_for_the_first_window() -> None:
    status, effects = decide(NEVER_PAUSED, quota_spent(T0_MS - 5, "s-0"), T0_MS, DEFAULTS)

    assert status == paused()
    assert effects == (Paused(until="2026-03-01T12:15:00.000Z", level=0, reason="429"),)


def test_a_straggler_of_the_burst_only_leaves_its_trace() -> None:
    later_ms = T0_MS + 20_000

    status, effects = decide(paused(level=1), quota_spent(T0_MS, "s-9"), later_ms, DEFAULTS)

    assert status == paused(
        level=1, backoff_last_hit_at=at(later_ms), last_triggering_session="s-9"
    )
    assert effects == ()


def test_a_spent_quota_that_is_decided_again_opens_no_pause_that_was_ended() -> None:
    spent = quota_spent(T0_MS - 5, "s-0")
    kept = decide(NEVER_PAUSED, spent, T0_MS, DEFAULTS).status
    ended = decide(kept, Booted(), T0_MS + 20 * MINUTE_MS, DEFAULTS).status
    assert ended.state is DispatchState.RUNNING

    assert decide(kept, spent, T0_MS, DEFAULTS).status == kept
    assert decide(ended, spent, T0_MS, DEFAULTS).status == ended
    again = decide(ended, spent, T0_MS + 30 * MINUTE_MS, DEFAULTS).status
    assert again.state is DispatchState.PAUSED


def test_a_probe_that_is_refused_doubles_the_window_up_to_the_longest() -> None:
    status, now_ms, windows = NEVER_PAUSED, T0_MS, list[int]()
    for probe in range(6):
        status, effects = decide(
            status, quota_spent(now_ms - 1_000, f"s-{probe}"), now_ms, DEFAULTS
        )
        assert status.backoff_level == probe
        assert status.paused_since == at(now_ms)
        assert isinstance(effects[0], Paused)
        until_ms = parse_timestamp(status.paused_until)
        assert until_ms is not None
        windows.append((until_ms - now_ms) // MINUTE_MS)
        now_ms = until_ms + 2_000
    assert windows == [15, 30, 60, 60, 60, 60]


def test_an_ordinary_end_while_nothing_is_paused_changes_nothing() -> None:
    decision = decide(NEVER_PAUSED, other_end(T0_MS), T0_MS, DEFAULTS)

    assert decision.status is NEVER_PAUSED
    assert decision.effects == ()


def test_an_ordinary_end_while_running_clears_a_level_that_a_restart_kept() -> None:
    kept = msgspec.structs.replace(NEVER_PAUSED, backoff_level=2)

    assert decide(kept, other_end(T0_MS), T0_MS, DEFAULTS) == Decision(NEVER_PAUSED)


def test_a_probe_that_gets_an_answer_ends_the_pause_and_keeps_the_audit() -> None:
    status, effects = decide(paused(level=3), other_end(T0_MS + 1), AFTER_MS, DEFAULTS)

    assert status == DispatchStatus(
        id="dispatch-status",
        state=DispatchState.RUNNING,
        backoff_level=0,
        backoff_last_hit_at=at(T0_MS),
        last_triggering_session="s-0",
    )
    assert effects == (Resumed(),)


@pytest.mark.parametrize("started_ms", [T0_MS - 1, T0_MS])
def test_a_straggler_does_not_end_the_pause(started_ms: int) -> None:
    status = paused()

    assert decide(status, other_end(started_ms), AFTER_MS, DEFAULTS) == Decision(status)


def test_a_straggler_after_a_dispatched_probe_still_changes_nothing() -> None:
    probing, _ = decide(paused(), DispatchAsked(session_id="p"), AFTER_MS, ONE_PROBE)

    after, effects = decide(probing, other_end(T0_MS - 1, "old"), AFTER_MS + 1, ONE_PROBE)

    assert after is probing
    assert effects == ()


def test_what_was_dispatched_before_its_host_heard_of_the_pause_does_not_close_the_window() -> None:
    status = paused()

    ended = decide(status, other_end(T0_MS + 5), T0_MS + 900, DEFAULTS)
    hit = decide(status, quota_spent(T0_MS + 5), T0_MS + 900, DEFAULTS)

    assert ended == Decision(status)
    assert hit.status.backoff_level == 0
    assert hit.status.paused_until == status.paused_until


@pytest.mark.parametrize("status", [NEVER_PAUSED, paused(), paused(level=2)])
def test_a_cancel_or_a_lost_host_says_nothing_about_quota(status: DispatchStatus) -> None:
    assert decide(status, NeutralEnd(session_id="s"), AFTER_MS, DEFAULTS) == Decision(status)


# --- what the provider asks for -------------------------------------------------------


def test_a_pause_is_never_shorter_than_the_provider_asked() -> None:
    long_ms, short_ms = 7_200_000, 1_000

    for_long, _ = decide(NEVER_PAUSED, quota_spent(T0_MS, "s", long_ms), T0_MS, DEFAULTS)
    for_short, _ = decide(NEVER_PAUSED, quota_spent(T0_MS, "s", short_ms), T0_MS, DEFAULTS)
    probed, _ = decide(paused(), quota_spent(AFTER_MS - 1, "s", long_ms), AFTER_MS, DEFAULTS)

    assert for_long.paused_until == at(T0_MS + long_ms)
    assert for_short.paused_until == at(T0_MS + 15 * MINUTE_MS)
    assert probed.paused_until == at(AFTER_MS + long_ms)


def test_a_straggler_may_make_the_open_window_longer_and_never_shorter() -> None:
    longer, effects = decide(paused(), quota_spent(T0_MS, "s-9", 3_600_000), T0_MS + 1, DEFAULTS)
    shorter, quiet = decide(paused(), quota_spent(T0_MS, "s-9", 1_000), T0_MS + 1, DEFAULTS)

    assert longer.paused_until == at(T0_MS + 1 + 3_600_000)
    assert (longer.paused_since, longer.backoff_level) == (at(T0_MS), 0)
    assert effects == (Paused(until=at(T0_MS + 1 + 3_600_000), level=0, reason="429"),)
    assert shorter.paused_until == paused().paused_until
    assert quiet == ()


def test_an_absurd_wait_is_not_an_error() -> None:
    status, _ = decide(NEVER_PAUSED, quota_spent(T0_MS, "s", 10**30), T0_MS, DEFAULTS)

    assert status.paused_until == "9999-12-31T23:59:59.999Z"
    assert not is_dispatchable(status, T0_MS)


# --- a bounded number of probes -------------------------------------------------------


def test_one_probe_at_a_time_passes_after_a_window() -> None:
    probing, first = decide(paused(), DispatchAsked(session_id="p"), AFTER_MS, ONE_PROBE)
    same, second = decide(probing, DispatchAsked(session_id="q"), AFTER_MS, ONE_PROBE)
    asked_again = decide(probing, DispatchAsked(session_id="p"), AFTER_MS, ONE_PROBE)

    assert first == (Admitted(session_id="p"),)
    assert isinstance(second[0], Refused)
    assert "waiting for p" in second[0].reason
    assert same is probing
    assert asked_again == Decision(probing, (Admitted(session_id="p"),))


def test_a_probe_that_was_cancelled_makes_room_for_the_next() -> None:
    probing, _ = decide(paused(), DispatchAsked(session_id="p"), AFTER_MS, ONE_PROBE)

    free, _ = decide(probing, NeutralEnd(session_id="p"), AFTER_MS, ONE_PROBE)

    assert free == paused()
    assert decide(free, DispatchAsked(session_id="q"), AFTER_MS, ONE_PROBE).effects == (
        Admitted(session_id="q"),
    )


def test_a_new_window_and_the_end_of_the_pause_forget_the_probes() -> None:
    probing, _ = decide(paused(), DispatchAsked(session_id="p"), AFTER_MS, ONE_PROBE)

    escalated, _ = decide(probing, quota_spent(AFTER_MS, "p"), AFTER_MS + 1, ONE_PROBE)
    resumed, _ = decide(probing, other_end(AFTER_MS, "p"), AFTER_MS + 1, ONE_PROBE)

    assert (escalated.backoff_level, escalated.probes) == (1, ())
    assert (resumed.state, resumed.probes) == (DispatchState.RUNNING, ())


def test_while_nothing_is_paused_nobody_is_counted() -> None:
    decision = decide(NEVER_PAUSED, DispatchAsked(session_id="p"), T0_MS, ONE_PROBE)

    assert decision == Decision(NEVER_PAUSED, (Admitted(session_id="p"),))


# --- start ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "flips"),
    [
        (paused(level=2), True),
        (paused(level=2, minutes=60), False),
        (paused(level=2, paused_until=None), True),
        (NEVER_PAUSED, False),
    ],
    ids=["expired", "open", "no end", "running"],
)
def test_an_expired_pause_is_over_at_start(status: DispatchStatus, flips: bool) -> None:
    after, effects = decide(status, Booted(), AFTER_MS, DEFAULTS)

    if not flips:
        assert (after, effects) == (status, ())
        return
    assert (after.state, after.backoff_level) == (DispatchState.RUNNING, 0)
    assert (after.paused_since, after.paused_until, after.pause_reason) == (None, None, None)
    assert (after.backoff_last_hit_at, after.last_triggering_session) == (at(T0_MS), "s-0")
    assert effects == (Resumed(),)


def test_a_kept_level_makes_the_next_pause_as_long_as_the_last() -> None:
    keeping = BackoffSettings(keep_level_on_boot=True)

    booted, _ = decide(paused(level=1), Booted(), AFTER_MS, keeping)
    again, _ = decide(booted, quota_spent(AFTER_MS), AFTER_MS, keeping)

    assert (booted.state, booted.backoff_level) == (DispatchState.RUNNING, 1)
    assert again.backoff_level == 1
    assert again.paused_until == at(AFTER_MS + 30 * MINUTE_MS)


def test_an_unreadable_end_is_reported_at_start() -> None:
    after, effects = decide(paused(paused_until="never"), Booted(), T0_MS, DEFAULTS)

    assert after.state is DispatchState.RUNNING
    assert [type(effect) for effect in effects] == [Warned, Resumed]


def test_the_machine_heals_a_pause_without_a_readable_beginning() -> None:
    broken = paused(paused_since="??", paused_until="??")

    status, _ = decide(broken, quota_spent(T0_MS), T0_MS, DEFAULTS)

    assert status.paused_since == at(T0_MS)
    assert status.paused_until == at(T0_MS + 30 * MINUTE_MS)


# --- what a record's end means --------------------------------------------------------


def record(status: SessionStatus, **changes: Any) -> SessionRecord:
    ended = SessionRecord(id="s", status=status, started_at=at(T0_MS), provider="p")
    return msgspec.structs.replace(ended, **changes)


@pytest.mark.parametrize(
    "status",
    [
        SessionStatus.COMPLETED,
        SessionStatus.FAILED,
        SessionStatus.TIMEOUT,
        SessionStatus.CAPPED,
    ],
)
def test_an_answer_of_any_kind_proves_that_there_is_quota(status: SessionStatus) -> None:
    assert end_of(record(status)) == other_end(T0_MS)


@pytest.mark.parametrize(
    "ended",
    [
        record(SessionStatus.CANCELLED),
        record(SessionStatus.DEAD_LETTERED),
        record(SessionStatus.FAILED, presumed_dead=True),
    ],
)
def test_cancelled_and_lost_sessions_end_neutrally(ended: SessionRecord) -> None:
    assert end_of(ended) == NeutralEnd(session_id="s")


def test_a_rate_limited_end_brings_its_reason_and_its_wait() -> None:
    tag = TerminationTag(kind="rate-limit", source="ndjson-result", detail="usage limit")

    event = end_of(record(SessionStatus.RATE_LIMITED, termination_tag=tag), retry_after_ms=9)

    assert event == QuotaSpent(
        session_id="s", started_at=at(T0_MS), reason="usage limit", retry_after_ms=9
    )


def test_a_late_signal_counts_although_the_cancel_was_first() -> None:
    late = TerminationTag(kind="rate-limit", source="http-status", detail="429")

    event = end_of(record(SessionStatus.CANCELLED, error="user"), late)

    assert event == QuotaSpent(session_id="s", started_at=at(T0_MS), reason="429")


# --- the document ---------------------------------------------------------------------


def test_the_document_is_the_references() -> None:
    assert msgspec.json.decode(msgspec.json.encode(NEVER_PAUSED)) == {
        "id": "dispatch-status",
        "state": "running",
        "backoffLevel": 0,
    }
    assert msgspec.json.decode(msgspec.json.encode(paused())) == {
        "id": "dispatch-status",
        "state": "paused",
        "backoffLevel": 0,
        "pausedSince": "2026-03-01T12:00:00.000Z",
        "pausedUntil": "2026-03-01T12:15:00.000Z",
        "pauseReason": "429",
        "backoffLastHitAt": "2026-03-01T12:00:00.000Z",
        "lastTriggeringSession": "s-0",
    }


# --- settings -------------------------------------------------------------------------


def test_a_missing_block_means_the_defaults() -> None:
    assert parse_backoff(where="m.yaml") == BackoffSettings()
    assert parse_backoff({}, where="m.yaml") == BackoffSettings()
    assert [window_ms(level, DEFAULTS) // MINUTE_MS for level in range(4)] == [15, 30, 60, 60]


def test_a_block_may_be_partial_or_whole() -> None:
    assert parse_backoff({"initialMs": 1_000}, where="m.yaml").initial_ms == 1_000
    whole = {
        "initialMs": 1,
        "maxMs": 1,
        "factor": 1.5,
        "probeLimit": 1,
        "keepLevelOnBoot": True,
    }
    assert parse_backoff(whole, where="m.yaml") == BackoffSettings(
        initial_ms=1, max_ms=1, factor=1.5, probe_limit=1, keep_level_on_boot=True
    )


@pytest.mark.parametrize("block", [None, 42, -1, 1.5, "15m", True, [], [{"initialMs": 1}]])
def test_a_block_that_is_no_object_refuses_the_start(block: object) -> None:
    with pytest.raises(ConfigError, match="object") as caught:
        parse_backoff(block, where="m.yaml")

    assert (caught.value.where, caught.value.key) == ("m.yaml", "rateLimit.backoff")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("initialMs", bad) for bad in (0, -1, 1.5, True, "1", None, math.inf)],
        *[("maxMs", bad) for bad in (0, -1, 1.5, False, "1", None, 899_999)],
        *[("factor", bad) for bad in (1, 0.5, -2, True, "2", None, math.nan, math.inf, 10**400)],
        *[("probeLimit", bad) for bad in (-1, 1.0, True, None)],
        *[("keepLevelOnBoot", bad) for bad in (1, "yes", None)],
        ("initialms", 5),
    ],
)
def test_a_malformed_value_is_refused_by_its_key(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_backoff({name: value}, where="m.yaml", key="animator.rateLimit.backoff")

    assert caught.value.key == f"animator.rateLimit.backoff.{name}"
    assert "m.yaml" in str(caught.value)
    assert caught.value.mend


def test_a_first_window_above_the_default_longest_is_refused() -> None:
    with pytest.raises(ConfigError, match="less than initialMs"):
        parse_backoff({"initialMs": 3_600_001}, where="m.yaml")


@given(
    level=st.integers(0, 10**9),
    initial_ms=st.integers(1, 10**9),
    longer_ms=st.integers(0, 10**12),
    factor=st.floats(1.0000001, 1e300),
)
@settings(deadline=None)
def test_a_window_is_bounded_and_never_shrinks_with_the_level(
    level: int, initial_ms: int, longer_ms: int, factor: float
) -> None:
    chosen = BackoffSettings(initial_ms=initial_ms, max_ms=initial_ms + longer_ms, factor=factor)

    assert initial_ms <= window_ms(level, chosen) <= chosen.max_ms
    assert window_ms(level, chosen) <= window_ms(level + 1, chosen)
    assert window_ms(0, chosen) == initial_ms


# --- properties -----------------------------------------------------------------------

EVENTS = st.one_of(
    st.builds(
        quota_spent,
        started_ms=st.integers(T0_MS, T0_MS + 10 * MINUTE_MS),
        session_id=st.sampled_from("abc"),
        retry_after_ms=st.one_of(st.none(), st.integers(0, 4 * MINUTE_MS)),
    ),
    st.builds(
        other_end,
        started_ms=st.integers(T0_MS, T0_MS + 10 * MINUTE_MS),
        session_id=st.sampled_from("abc"),
    ),
    st.builds(NeutralEnd, session_id=st.sampled_from("abc")),
    st.builds(DispatchAsked, session_id=st.sampled_from("abc")),
    st.just(Booted()),
)


@given(
    st.lists(st.tuples(EVENTS, st.integers(0, 3 * MINUTE_MS)), max_size=25),
    st.integers(0, 2),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_an_open_window_only_ever_grows_and_lets_nobody_through(
    steps: list[tuple[AnyDispatchEvent, int]], probe_limit: int, keep_level: bool
) -> None:
    chosen = BackoffSettings(
        initial_ms=MINUTE_MS,
        max_ms=5 * MINUTE_MS,
        probe_limit=probe_limit,
        keep_level_on_boot=keep_level,
    )
    status, now_ms = NEVER_PAUSED, T0_MS
    for event, passed_ms in steps:
        now_ms += passed_ms
        open_until = None if is_dispatchable(status, now_ms) else status.paused_until
        after, effects = decide(status, event, now_ms, chosen)
        if open_until is not None:
            assert after.paused_until is not None
            assert after.paused_until >= open_until
            assert not any(isinstance(effect, Admitted) for effect in effects)
        if isinstance(event, DispatchAsked) and isinstance(effects[-1], Refused):
            assert after is status
        if probe_limit:
            assert len(after.probes) <= probe_limit
        assert msgspec.json.decode(msgspec.json.encode(after), type=DispatchStatus) == after
        status = after
