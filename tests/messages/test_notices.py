"""Notices are made from crossings alone, so none is said twice or forgotten."""

import msgspec

from midstream.messages.notices import (
    Began,
    DeadLettered,
    Ended,
    Phase,
    RecordFailed,
    Revived,
    notices_of,
)
from midstream.messages.record import Crossing, Fence, SessionRecord, SessionStatus, crossing
from midstream.messages.reducer import reduce
from midstream.messages.transition import (
    AttachRunning,
    OrphanFailed,
    Outcome,
    Recover,
    Revive,
    Terminal,
)

START, LATER = "2026-03-01T12:00:00.000Z", "2026-03-01T12:01:40.000Z"
OWNER = Fence(owner="host-a", token=1)
RUNNING = reduce(
    None,
    AttachRunning(
        id="s",
        fence=OWNER,
        started_at=START,
        provider="anthropic",
        metadata={"role": "coder", "trigger": "summon"},
    ),
)
LOST = reduce(RUNNING, OrphanFailed(id="s", ended_at=LATER, error="no heartbeat"))
COMPLETED = Terminal(
    id="s",
    fence=OWNER,
    status=Outcome.COMPLETED,
    ended_at=LATER,
    exit_code=0,
    last_activity_at=LATER,
    cost_usd=0.25,
)


def said(before: SessionRecord | None, after: SessionRecord) -> list[object]:
    return list(notices_of(before, crossing(before, after), after))


def test_a_session_that_begins_says_its_role_and_what_asked_for_it() -> None:
    assert said(None, RUNNING) == [Began(session_id="s", anima="coder", trigger="summon")]


def test_an_end_has_the_fields_of_the_reference_and_absent_ones_are_absent() -> None:
    [ended] = said(RUNNING, reduce(RUNNING, COMPLETED))
    assert msgspec.json.decode(msgspec.json.encode(ended)) == {
        "event": "animator.session.ended",
        "sessionId": "s",
        "status": "completed",
        "anima": "coder",
        "trigger": "summon",
        "exitCode": 0,
        "durationMs": 100_000,
        "costUsd": 0.25,
    }


def test_what_crosses_nothing_says_nothing() -> None:
    assert said(RUNNING, RUNNING) == []
    assert notices_of(RUNNING, None, LOST) == ()


def test_a_presumed_death_that_is_taken_back_is_said() -> None:
    revived = reduce(LOST, Revive(id="s", fence=OWNER, last_activity_at=LATER))
    assert [type(notice) for notice in said(RUNNING, LOST)] == [Ended]
    assert said(LOST, revived) == [Revived(session_id="s")]


def test_a_session_that_ends_after_its_presumed_death_takes_that_back_first() -> None:
    ended = reduce(reduce(LOST, Revive(id="s", fence=OWNER, last_activity_at=LATER)), COMPLETED)
    assert [type(notice) for notice in said(LOST, ended)] == [Revived, Ended]


def test_a_dead_letter_has_its_own_notice_behind_its_end() -> None:
    worn = msgspec.structs.replace(LOST, recoveries=5)
    given_up = reduce(worn, Recover(id="s", owner="host-b", at=LATER))
    assert given_up.status is SessionStatus.DEAD_LETTERED
    *_, ended, dead = said(worn, given_up)
    assert isinstance(ended, Ended)
    assert dead == DeadLettered(session_id="s", recoveries=5)


def test_a_failed_write_says_which() -> None:
    failed = RecordFailed(session_id="s", phase=Phase.UPDATE_ROW, error="disk full")
    assert msgspec.json.decode(msgspec.json.encode(failed)) == {
        "event": "animator.session.record-failed",
        "sessionId": "s",
        "phase": "update-row",
        "error": "disk full",
    }


def test_the_crossing_of_a_session_that_nobody_heard_of_is_an_end() -> None:
    assert crossing(None, reduce(None, COMPLETED)) is Crossing.ENDED
