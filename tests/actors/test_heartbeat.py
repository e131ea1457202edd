"""Who is presumed dead, and since when silence counts: the decisions of the Heartbeat."""

import msgspec
import pytest

from midstream.actors.heartbeat import (
    FUTURE_TOLERANCE_MS,
    STALE_MS,
    Judgement,
    Verdict,
    judge,
    listening_since,
)
from midstream.messages.record import Fence, SessionRecord, SessionStatus
from midstream.messages.timestamps import format_timestamp

NOW_MS = 1_772_366_400_000
DETACHED = SessionRecord(
    id="s",
    status=SessionStatus.RUNNING,
    started_at=format_timestamp(NOW_MS - 3_600_000),
    provider="claude-code",
)
ATTACHED = msgspec.structs.replace(DETACHED, fence=Fence(owner="host-a", token=1))


def silent_for(ms: int, record: SessionRecord = DETACHED) -> SessionRecord:
    last = format_timestamp(NOW_MS - ms)
    return msgspec.structs.replace(record, last_activity_at=last)


@pytest.mark.parametrize("record", [DETACHED, ATTACHED])
def test_silence_of_exactly_ninety_seconds_is_alive_and_a_millisecond_more_is_dead(
    record: SessionRecord,
) -> None:
    assert judge(silent_for(STALE_MS, record), NOW_MS, 0).verdict is Verdict.ALIVE
    dead = judge(silent_for(STALE_MS + 1, record), NOW_MS, 0)
    assert dead == Judgement(Verdict.DEAD, STALE_MS + 1)


def test_a_pending_session_is_judged_like_a_running_one() -> None:
    pending = msgspec.structs.replace(silent_for(100_000), status=SessionStatus.PENDING)
    assert judge(pending, NOW_MS, 0).verdict is Verdict.DEAD


def test_b11_a_silence_in_which_nobody_listened_does_not_count() -> None:
    listening_since_ms = NOW_MS - 70_000
    assert judge(silent_for(100_000), NOW_MS, listening_since_ms).verdict is Verdict.ALIVE
    assert judge(silent_for(100_000), NOW_MS + 20_001, listening_since_ms).verdict is Verdict.DEAD


def test_a_detached_session_that_never_beat_begins_to_be_watched() -> None:
    assert judge(DETACHED, NOW_MS, 0).verdict is Verdict.BACKFILL


@pytest.mark.parametrize("text", ["soon", "", "2026-13-45T00:00:00Z"])
def test_b17_an_instant_that_is_none_is_no_silence(text: str) -> None:
    record = msgspec.structs.replace(DETACHED, last_activity_at=text)
    assert judge(record, NOW_MS, 0).verdict is Verdict.BACKFILL


def test_b17_a_sign_of_life_from_the_future_does_not_last_for_ever() -> None:
    ahead = silent_for(-FUTURE_TOLERANCE_MS - 1)
    assert judge(ahead, NOW_MS, 0).verdict is Verdict.BACKFILL
    owned = silent_for(-FUTURE_TOLERANCE_MS - 1, ATTACHED)
    assert judge(owned, NOW_MS, 0).verdict is Verdict.NOTICE
    assert judge(owned, NOW_MS, 0, noticed_ms=NOW_MS - STALE_MS).verdict is Verdict.ALIVE
    assert judge(owned, NOW_MS, 0, noticed_ms=NOW_MS - STALE_MS - 1).verdict is Verdict.DEAD


def test_clocks_of_hosts_may_differ_a_little() -> None:
    assert judge(silent_for(-FUTURE_TOLERANCE_MS), NOW_MS, 0).verdict is Verdict.ALIVE


def test_an_attached_session_that_has_not_beaten_yet_is_judged_from_its_start() -> None:
    fresh = msgspec.structs.replace(ATTACHED, started_at=format_timestamp(NOW_MS - 10_000))
    assert judge(fresh, NOW_MS, 0).verdict is Verdict.ALIVE
    assert judge(ATTACHED, NOW_MS, 0).verdict is Verdict.DEAD


def test_without_an_earlier_host_listening_begins_now() -> None:
    assert listening_since(NOW_MS, None) == NOW_MS


def test_after_a_downtime_listening_begins_now() -> None:
    assert listening_since(NOW_MS, NOW_MS - 600_000) == NOW_MS


def test_a_restart_that_is_quick_or_beside_another_host_keeps_counting() -> None:
    assert listening_since(NOW_MS, NOW_MS - 12_000) == 0


def test_a_pause_of_the_whole_host_is_a_downtime_too() -> None:
    booted_ms = NOW_MS - 86_400_000
    assert listening_since(NOW_MS, NOW_MS - 30_200, booted_ms) == booted_ms
    assert listening_since(NOW_MS, NOW_MS - 7_200_000, booted_ms) == NOW_MS


def test_a_clock_that_was_set_back_gives_nobody_time_for_ever() -> None:
    assert listening_since(NOW_MS, NOW_MS + 3_600_000, 5) == 5
