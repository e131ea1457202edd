"""Session records: what each transition changes, and what nothing changes."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.errors import FenceLost, RecordError
from midstream.messages.record import (
    Crossing,
    Fence,
    SessionRecord,
    SessionStatus,
    TerminationDiagnostic,
    TerminationTag,
    TokenUsage,
    crossing,
)
from midstream.messages.reducer import reduce
from midstream.messages.transition import (
    AnyTransition,
    AttachRunning,
    Cancel,
    DetachedReady,
    HeartbeatTouch,
    OrphanFailed,
    Outcome,
    OwnersTransition,
    PendingPreWrite,
    Recover,
    Revive,
    Terminal,
)
from midstream.messages.usage import Usage, UsageSource

ID = "ses-mk3q7a1b-0123abcd"
OWNER = Fence("host-a", 1)
START = "2026-03-01T12:00:00.000Z"
BEAT = "2026-03-01T12:00:30.000Z"
END = "2026-03-01T12:01:00.000Z"


def running(**changes: Any) -> SessionRecord:
    record = SessionRecord(
        id=ID,
        status=SessionStatus.RUNNING,
        started_at=START,
        provider="anthropic",
        last_activity_at=START,
        fence=OWNER,
    )
    return msgspec.structs.replace(record, **changes)


def pending(**changes: Any) -> SessionRecord:
    return running(status=SessionStatus.PENDING, **changes)


def terminal(**changes: Any) -> Terminal:
    completed = Terminal(
        id=ID,
        fence=OWNER,
        status=Outcome.COMPLETED,
        ended_at=END,
        exit_code=0,
        last_activity_at=END,
    )
    return msgspec.structs.replace(completed, **changes)


EVERY_TRANSITION: list[AnyTransition] = [
    PendingPreWrite(id=ID, fence=OWNER, started_at=BEAT, provider="other", last_activity_at=BEAT),
    AttachRunning(id=ID, fence=OWNER, started_at=BEAT, provider="other", metadata={"a": 1}),
    DetachedReady(id=ID, fence=OWNER, started_at=BEAT, provider="other", last_activity_at=BEAT),
    HeartbeatTouch(id=ID, fence=OWNER, last_activity_at=BEAT),
    *[terminal(status=outcome, error="late") for outcome in Outcome],
    Cancel(id=ID, ended_at=END, reason="stop"),
    OrphanFailed(id=ID, ended_at=END, error="no heartbeat for 91 s"),
    Revive(id=ID, fence=OWNER, last_activity_at=BEAT),
    Recover(id=ID, owner="host-b", at=BEAT),
]

TERMINAL_STATUSES = [status for status in SessionStatus if status.is_terminal]


# --- rule 0 ---------------------------------------------------------------------------


@pytest.mark.parametrize("status", TERMINAL_STATUSES)
@pytest.mark.parametrize("transition", EVERY_TRANSITION, ids=lambda t: type(t).__name__)
def test_a_terminal_record_is_given_back_as_the_same_object(
    status: SessionStatus, transition: AnyTransition
) -> None:
    ended = running(status=status, ended_at=END)

    assert reduce(ended, transition) is ended


def test_all_but_pending_and_running_are_terminal() -> None:
    assert {status.value for status in SessionStatus if not status.is_terminal} == {
        "pending",
        "running",
    }


def test_a_terminal_record_does_not_even_ask_who_writes() -> None:
    ended = running(status=SessionStatus.CANCELLED, ended_at=END)

    assert reduce(ended, terminal(fence=Fence("a stranger", 9))) is ended


# --- each transition ------------------------------------------------------------------


def test_a_pre_write_makes_a_pending_record() -> None:
    record = reduce(
        None,
        PendingPreWrite(
            id=ID,
            fence=OWNER,
            started_at="2026-03-01T13:00:00+01:00",
            provider="claude-code",
            last_activity_at=BEAT,
            metadata={"trigger": "summon"},
            authorized_tools=("session-list",),
        ),
    )

    assert record == SessionRecord(
        id=ID,
        status=SessionStatus.PENDING,
        started_at=START,
        provider="claude-code",
        last_activity_at=BEAT,
        metadata={"trigger": "summon"},
        authorized_tools=("session-list",),
        fence=OWNER,
    )


def test_a_pre_write_over_a_record_keeps_its_start_and_provider_and_takes_given_tools() -> None:
    existing = pending(metadata={"role": "scribe", "n": 1}, authorized_tools=("old",))
    again = PendingPreWrite(
        id=ID,
        fence=OWNER,
        started_at=BEAT,
        provider="other",
        last_activity_at=BEAT,
        metadata={"n": 2},
    )

    kept = reduce(existing, again)
    replaced = reduce(existing, msgspec.structs.replace(again, authorized_tools=()))

    assert (kept.started_at, kept.provider) == (START, "anthropic")
    assert kept.metadata == {"role": "scribe", "n": 2}
    assert kept.last_activity_at == BEAT
    assert kept.authorized_tools == ("old",)
    assert replaced.authorized_tools == ()


def test_attaching_makes_it_run_and_leaves_the_heartbeat_alone() -> None:
    change = AttachRunning(
        id=ID, fence=OWNER, started_at=BEAT, provider="other", cancel_handle={"kind": "scope"}
    )

    fresh = reduce(None, change)
    attached = reduce(pending(conversation_id="c-1"), change)

    assert fresh.status is SessionStatus.RUNNING
    assert (fresh.started_at, fresh.provider, fresh.last_activity_at) == (BEAT, "other", None)
    assert attached.status is SessionStatus.RUNNING
    assert (attached.started_at, attached.provider) == (START, "anthropic")
    assert attached.last_activity_at == START
    assert attached.conversation_id == "c-1"
    assert attached.cancel_handle == {"kind": "scope"}


def test_attaching_with_a_conversation_replaces_the_one_on_record() -> None:
    change = AttachRunning(
        id=ID, fence=OWNER, started_at=START, provider="anthropic", conversation_id="c-2"
    )

    assert reduce(pending(conversation_id="c-1"), change).conversation_id == "c-2"


def test_a_detached_session_starts_with_its_metadata_and_its_first_beat() -> None:
    change = DetachedReady(
        id=ID,
        fence=OWNER,
        started_at=BEAT,
        provider="other",
        last_activity_at=BEAT,
        conversation_id="c-1",
        metadata={"b": 2},
    )

    cold = reduce(None, change)
    prewritten = reduce(pending(metadata={"a": 1}), change)

    assert (cold.status, cold.started_at, cold.last_activity_at) == (
        SessionStatus.RUNNING,
        BEAT,
        BEAT,
    )
    assert prewritten.status is SessionStatus.RUNNING
    assert prewritten.metadata == {"a": 1, "b": 2}
    assert prewritten.started_at == START
    assert prewritten.conversation_id == "c-1"


def test_a_detached_session_that_already_runs_only_refreshes_beat_and_handle() -> None:
    existing = running(metadata={"a": 1}, conversation_id="c-1")
    again = DetachedReady(
        id=ID,
        fence=OWNER,
        started_at=BEAT,
        provider="other",
        last_activity_at=BEAT,
        conversation_id="c-2",
        metadata={"b": 2},
        cancel_handle={"kind": "local-pgid", "pgid": 42},
    )

    assert reduce(existing, again) == msgspec.structs.replace(
        existing, last_activity_at=BEAT, cancel_handle={"kind": "local-pgid", "pgid": 42}
    )


def test_a_heartbeat_changes_the_beat_and_nothing_else() -> None:
    existing = running(recoveries=2, metadata={"a": 1})

    touched = reduce(existing, HeartbeatTouch(id=ID, fence=OWNER, last_activity_at=BEAT))

    assert touched == msgspec.structs.replace(existing, last_activity_at=BEAT)


def test_an_end_keeps_what_it_was_not_given() -> None:
    existing = running(
        cancel_handle={"kind": "local-pgid", "pgid": 42},
        metadata={"a": 1},
        conversation_id="c-1",
        output="so far",
        token_usage=TokenUsage(input_tokens=1, output_tokens=2),
    )

    ended = reduce(existing, terminal(duration_ms=5))

    assert ended == msgspec.structs.replace(
        existing,
        status=SessionStatus.COMPLETED,
        ended_at=END,
        duration_ms=5,
        exit_code=0,
        last_activity_at=END,
    )


def test_an_end_writes_every_field_it_was_given() -> None:
    usage = TokenUsage.of(
        Usage(input_tokens=10, output_tokens=20, source=UsageSource.REPORTED),
    )
    tag = TerminationTag(kind="rate-limit", source="http-status", detail="429")

    ended = reduce(
        running(),
        terminal(
            status=Outcome.RATE_LIMITED,
            error="429",
            conversation_id="c-9",
            provider_session_id="p-1",
            token_usage=usage,
            cost_usd=0.5,
            output="text",
            termination_tag=tag,
        ),
    )

    assert ended.status is SessionStatus.RATE_LIMITED
    assert (ended.error, ended.output, ended.cost_usd) == ("429", "text", 0.5)
    assert (ended.conversation_id, ended.provider_session_id) == ("c-9", "p-1")
    assert ended.token_usage == usage
    assert ended.termination_tag == tag


def test_a_diagnostic_is_kept_only_for_a_failure() -> None:
    diagnostic = TerminationDiagnostic(exit_code=3, stderr_excerpt="boom")

    failed = reduce(running(), terminal(status=Outcome.FAILED, termination_diagnostic=diagnostic))
    done = reduce(running(), terminal(termination_diagnostic=diagnostic))

    assert failed.termination_diagnostic == diagnostic
    assert done.termination_diagnostic is None


def test_a_providers_session_becomes_the_conversation_only_where_there_is_none() -> None:
    reported = terminal(provider_session_id="p-1")

    assert reduce(running(), reported).conversation_id == "p-1"
    assert reduce(running(conversation_id="c-1"), reported).conversation_id == "c-1"


def test_an_end_without_a_record_makes_one() -> None:
    cold = reduce(None, terminal())
    told = reduce(None, terminal(started_at=START, provider="claude-code", duration_ms=7))

    assert (cold.started_at, cold.provider, cold.duration_ms) == (END, "unknown", 0)
    assert (told.started_at, told.provider, told.duration_ms) == (START, "claude-code", 7)


def test_a_cancel_writes_a_reason_only_when_there_is_one() -> None:
    existing = running(error="earlier")

    stopped = reduce(existing, Cancel(id=ID, ended_at=END, reason="user"))
    silent = reduce(existing, Cancel(id=ID, ended_at=END, reason=""))

    assert stopped == msgspec.structs.replace(
        existing,
        status=SessionStatus.CANCELLED,
        ended_at=END,
        duration_ms=60_000,
        error="user",
    )
    assert silent.error == "earlier"
    assert silent.last_activity_at == START


def test_a_cancelled_session_keeps_what_it_has_cost_and_said() -> None:
    usage = TokenUsage(input_tokens=7, source=UsageSource.ESTIMATED)
    existing = running(output="so far")

    told = reduce(
        existing, Cancel(id=ID, ended_at=END, token_usage=usage, cost_usd=0.1, output="half")
    )
    untold = reduce(existing, Cancel(id=ID, ended_at=END))

    assert (told.token_usage, told.cost_usd, told.output) == (usage, 0.1, "half")
    assert (untold.token_usage, untold.cost_usd, untold.output) == (None, None, "so far")


def test_a_presumed_death_is_a_failure_that_leaves_the_beat_alone() -> None:
    dead = reduce(running(), OrphanFailed(id=ID, ended_at=END, error="no heartbeat for 91 s"))

    assert (dead.status, dead.exit_code) == (SessionStatus.FAILED, 1)
    assert dead.error == "no heartbeat for 91 s"
    assert dead.last_activity_at == START
    assert dead.presumed_dead


OUTSIDE_ALIVE = [
    (HeartbeatTouch(id=ID, last_activity_at=BEAT), SessionStatus.RUNNING),
    (
        DetachedReady(id=ID, started_at=START, provider="cc", last_activity_at=BEAT),
        SessionStatus.RUNNING,
    ),
    (
        Terminal(id=ID, status=Outcome.COMPLETED, ended_at=END, exit_code=0, last_activity_at=BEAT),
        SessionStatus.COMPLETED,
    ),
    (
        Terminal(
            id=ID,
            status=Outcome.FAILED,
            ended_at=END,
            exit_code=3,
            last_activity_at=BEAT,
            error="exited with code 3",
        ),
        SessionStatus.FAILED,
    ),
    (Cancel(id=ID, ended_at=END, reason="enough"), SessionStatus.CANCELLED),
]


@pytest.mark.parametrize(("transition", "status"), OUTSIDE_ALIVE, ids=lambda each: str(each)[:24])
def test_a_session_outside_takes_the_mark_of_death_back_by_whatever_it_reports(
    transition: AnyTransition, status: SessionStatus
) -> None:
    ready = DetachedReady(id=ID, started_at=START, provider="cc", last_activity_at=START)
    dead = reduce(reduce(None, ready), OrphanFailed(id=ID, ended_at=END, error="no heartbeat"))
    alive = reduce(dead, transition)
    assert (alive.status, alive.presumed_dead) == (status, False)
    assert alive.error != "no heartbeat"
    assert (alive.ended_at is None) == (status is SessionStatus.RUNNING)
    redone = reduce(dead, Recover(id=ID, owner="host-b", at=BEAT))
    if isinstance(transition, OwnersTransition):
        with pytest.raises(FenceLost):
            reduce(redone, transition)


@pytest.mark.parametrize(
    "transition",
    [t for t in EVERY_TRANSITION if isinstance(t, HeartbeatTouch | Cancel | OrphanFailed)]
    + [
        Revive(id=ID, fence=OWNER, last_activity_at=BEAT),
        Recover(id=ID, owner="host-b", at=BEAT),
    ],
    ids=lambda t: type(t).__name__,
)
def test_what_needs_a_record_says_so_when_there_is_none(transition: AnyTransition) -> None:
    with pytest.raises(RecordError, match=ID):
        reduce(None, transition)


def test_a_transition_of_another_session_is_refused() -> None:
    with pytest.raises(RecordError, match="ses-2"):
        reduce(running(), HeartbeatTouch(id="ses-2", fence=OWNER, last_activity_at=BEAT))


# --- merges and clamps ----------------------------------------------------------------


def test_metadata_is_merged_in_depth_and_lists_are_replaced() -> None:
    existing = pending(metadata={"a": {"x": 1, "deep": {"k": 1}}, "l": [1, 2], "s": {"gone": 1}})
    change = AttachRunning(
        id=ID,
        fence=OWNER,
        started_at=START,
        provider="anthropic",
        metadata={"a": {"y": 2, "deep": {"k": 2}}, "l": [3], "s": "scalar"},
    )

    assert reduce(existing, change).metadata == {
        "a": {"x": 1, "y": 2, "deep": {"k": 2}},
        "l": [3],
        "s": "scalar",
    }


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, {"kind": "scope"}, {"kind": "scope"}),
        ({"kind": "scope"}, None, {"kind": "scope"}),
        (
            {"kind": "local-pgid", "pgid": 7, "startTime": 1},
            {"kind": "local-pgid", "pgid": 7, "host": "b"},
            {"kind": "local-pgid", "pgid": 7, "startTime": 1, "host": "b"},
        ),
        (
            {"kind": "local-pgid", "pgid": 7, "startTime": 1},
            {"kind": "local-pgid", "pgid": 8},
            {"kind": "local-pgid", "pgid": 8},
        ),
        ({"kind": "local-pgid", "pgid": 7}, {"kind": "scope"}, {"kind": "scope"}),
    ],
)
def test_the_handle_of_another_process_inherits_nothing(
    old: dict[str, Any] | None, new: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    change = AttachRunning(
        id=ID, fence=OWNER, started_at=START, provider="anthropic", cancel_handle=new
    )

    assert reduce(pending(cancel_handle=old), change).cancel_handle == expected


@pytest.mark.parametrize(
    ("started_at", "ended_at", "given_ms", "expected_ms"),
    [
        (START, END, None, 60_000),
        (END, START, None, 0),
        (START, END, -5, 0),
        (START, END, 12, 12),
        ("garbage", END, None, 0),
        (START, "garbage", None, 0),
    ],
)
def test_a_duration_is_never_negative(
    started_at: str, ended_at: str, given_ms: int | None, expected_ms: int
) -> None:
    existing = running(started_at=started_at)

    for transition in (
        terminal(ended_at=ended_at, duration_ms=given_ms),
        Cancel(id=ID, ended_at=ended_at, duration_ms=given_ms),
        OrphanFailed(id=ID, ended_at=ended_at, duration_ms=given_ms, error="lost"),
    ):
        assert reduce(existing, transition).duration_ms == expected_ms


# --- owners, presumed deaths, recoveries ----------------------------------------------


@pytest.mark.parametrize("fence", [None, Fence("host-a", 2), Fence("host-b", 1)])
@pytest.mark.parametrize(
    "transition",
    [t for t in EVERY_TRANSITION if not isinstance(t, Cancel | OrphanFailed | Recover)],
    ids=lambda t: type(t).__name__,
)
def test_an_owners_write_without_the_owners_fence_is_refused(
    transition: AnyTransition, fence: Fence | None
) -> None:
    with pytest.raises(FenceLost, match="host-a"):
        reduce(running(), msgspec.structs.replace(transition, fence=fence))


def test_a_record_that_nobody_owns_takes_reports_from_anybody() -> None:
    unowned = pending(fence=None)
    ready = DetachedReady(id=ID, started_at=START, provider="x", last_activity_at=BEAT)

    assert reduce(unowned, ready).fence is None
    assert reduce(unowned, msgspec.structs.replace(ready, fence=OWNER)).fence == OWNER


def test_the_owner_may_revoke_a_presumed_death() -> None:
    alive = running(recoveries=1)
    dead = reduce(alive, OrphanFailed(id=ID, ended_at=END, error="lost"))

    assert dead.is_revocable_by(OWNER)
    assert reduce(
        dead, Revive(id=ID, fence=OWNER, last_activity_at=BEAT)
    ) == msgspec.structs.replace(alive, last_activity_at=BEAT)


def test_nobody_else_may_revoke_a_presumed_death() -> None:
    dead = reduce(running(), OrphanFailed(id=ID, ended_at=END, error="lost"))

    for fence in (None, Fence("host-a", 2), Fence("host-b", 1)):
        assert not dead.is_revocable_by(fence)
        assert reduce(dead, Revive(id=ID, fence=fence, last_activity_at=BEAT)) is dead


def test_once_the_work_is_redone_the_old_owner_is_told_that_it_lost() -> None:
    dead = reduce(running(), OrphanFailed(id=ID, ended_at=END, error="lost"))

    redone = reduce(dead, Recover(id=ID, owner="host-b", at=END))

    assert redone.status is SessionStatus.RUNNING
    assert redone.fence == Fence("host-b", 2)
    assert redone.recoveries == 1
    assert (redone.ended_at, redone.error, redone.presumed_dead) == (None, None, False)
    for late in (Revive(id=ID, fence=OWNER, last_activity_at=END), terminal()):
        with pytest.raises(FenceLost):
            reduce(redone, late)


def test_an_owner_that_returns_under_its_old_name_needs_its_new_token() -> None:
    taken = reduce(running(), Recover(id=ID, owner="host-a", at=BEAT))

    with pytest.raises(FenceLost):
        reduce(taken, HeartbeatTouch(id=ID, fence=OWNER, last_activity_at=END))
    reduce(taken, HeartbeatTouch(id=ID, fence=Fence("host-a", 2), last_activity_at=END))


def test_five_recoveries_without_output_end_in_the_dead_letters() -> None:
    record = running()
    for attempt in range(1, 6):
        record = reduce(record, Recover(id=ID, owner="host-b", at=BEAT))
        assert (record.status, record.recoveries) == (SessionStatus.RUNNING, attempt)

    poison = reduce(record, Recover(id=ID, owner="host-b", at=END))

    assert poison.status is SessionStatus.DEAD_LETTERED
    assert poison.error == "recovered 5 times without new output"
    assert (poison.ended_at, poison.duration_ms, poison.exit_code) == (END, 60_000, 1)


def test_new_output_sets_the_count_of_recoveries_back() -> None:
    taken = reduce(running(recoveries=4), Recover(id=ID, owner="host-b", at=BEAT))
    assert taken.recoveries == 5

    moving = reduce(
        taken, HeartbeatTouch(id=ID, fence=taken.fence, last_activity_at=BEAT, progressed=True)
    )

    assert moving.recoveries == 0
    again = reduce(moving, Recover(id=ID, owner="host-b", at=END))
    assert again.status is SessionStatus.RUNNING


# --- what to announce -----------------------------------------------------------------


def test_each_crossing_is_announced_once() -> None:
    prepared = reduce(None, EVERY_TRANSITION[0])
    started = reduce(prepared, EVERY_TRANSITION[1])
    refreshed = reduce(started, EVERY_TRANSITION[2])
    ended = reduce(refreshed, terminal())
    late = reduce(ended, Cancel(id=ID, ended_at=END))

    assert crossing(None, prepared) is None
    assert crossing(prepared, started) is Crossing.STARTED
    assert crossing(None, started) is Crossing.STARTED
    assert crossing(started, refreshed) is None
    assert crossing(refreshed, ended) is Crossing.ENDED
    assert crossing(None, ended) is Crossing.ENDED
    assert crossing(ended, late) is None


def test_a_revoked_death_is_announced_as_a_revival() -> None:
    dead = reduce(running(), OrphanFailed(id=ID, ended_at=END, error="lost"))
    revived = reduce(dead, Revive(id=ID, fence=OWNER, last_activity_at=BEAT))

    assert crossing(running(), dead) is Crossing.ENDED
    assert crossing(dead, revived) is Crossing.REVIVED


def test_a_presumed_death_that_becomes_a_dead_letter_is_announced_again() -> None:
    dead = reduce(running(recoveries=5), OrphanFailed(id=ID, ended_at=END, error="lost"))
    poison = reduce(dead, Recover(id=ID, owner="host-b", at=END))

    assert poison.status is SessionStatus.DEAD_LETTERED
    assert crossing(dead, poison) is Crossing.ENDED


# --- the shape on disk ----------------------------------------------------------------


def test_the_json_of_a_record_is_the_references_camel_case() -> None:
    record = running(
        conversation_id="c-1",
        token_usage=TokenUsage(input_tokens=1, output_tokens=2, cache_read_tokens=3),
        cancel_handle={"kind": "local-pgid", "pgid": 42},
    )

    assert msgspec.json.decode(msgspec.json.encode(record)) == {
        "id": ID,
        "status": "running",
        "startedAt": START,
        "provider": "anthropic",
        "lastActivityAt": START,
        "conversationId": "c-1",
        "tokenUsage": {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3},
        "cancelHandle": {"kind": "local-pgid", "pgid": 42},
        "fence": {"owner": "host-a", "token": 1},
    }


def test_a_record_of_the_reference_is_read() -> None:
    record = msgspec.json.decode(
        b'{"id":"ses-1","status":"rate-limited","startedAt":"2026-03-01T12:00:00.000Z",'
        b'"provider":"claude-code","exitCode":0,"durationMs":0,"authorizedTools":["a"],'
        b'"terminationTag":{"kind":"rate-limit","source":"ndjson-result"},"unknown":1}',
        type=SessionRecord,
    )

    assert record.status is SessionStatus.RATE_LIMITED
    assert record.authorized_tools == ("a",)
    assert record.termination_tag == TerminationTag(kind="rate-limit", source="ndjson-result")
    assert record.fence is None


@pytest.mark.parametrize("transition", EVERY_TRANSITION, ids=lambda t: type(t).__name__)
def test_a_transition_survives_the_dead_letter_queue(transition: AnyTransition) -> None:
    written = msgspec.json.encode(transition)

    assert msgspec.json.decode(written, type=AnyTransition) == transition


# --- properties -----------------------------------------------------------------------

FENCES = st.sampled_from([OWNER, Fence("host-b", 2), None])
INSTANTS = st.sampled_from([START, BEAT, END, "2026-03-01T11:00:00.000Z", "not an instant"])
OBJECTS = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from("abc"),
        st.one_of(st.integers(0, 3), st.dictionaries(st.sampled_from("xy"), st.integers(0, 3))),
        max_size=3,
    ),
)
TRANSITIONS = st.one_of(
    st.builds(
        PendingPreWrite,
        id=st.just(ID),
        fence=FENCES,
        started_at=INSTANTS,
        provider=st.sampled_from(["p", "q"]),
        last_activity_at=INSTANTS,
        metadata=OBJECTS,
    ),
    st.builds(
        AttachRunning,
        id=st.just(ID),
        fence=FENCES,
        started_at=INSTANTS,
        provider=st.sampled_from(["p", "q"]),
        metadata=OBJECTS,
        cancel_handle=OBJECTS,
    ),
    st.builds(
        DetachedReady,
        id=st.just(ID),
        fence=FENCES,
        started_at=INSTANTS,
        provider=st.sampled_from(["p", "q"]),
        last_activity_at=INSTANTS,
        metadata=OBJECTS,
        cancel_handle=OBJECTS,
    ),
    st.builds(
        HeartbeatTouch,
        id=st.just(ID),
        fence=FENCES,
        last_activity_at=INSTANTS,
        progressed=st.booleans(),
    ),
    st.builds(
        Terminal,
        id=st.just(ID),
        fence=FENCES,
        status=st.sampled_from(Outcome),
        ended_at=INSTANTS,
        exit_code=st.integers(0, 1),
        last_activity_at=INSTANTS,
        duration_ms=st.one_of(st.none(), st.integers(-5, 5)),
    ),
    st.builds(Cancel, id=st.just(ID), ended_at=INSTANTS, reason=st.sampled_from([None, "", "r"])),
    st.builds(OrphanFailed, id=st.just(ID), ended_at=INSTANTS, error=st.just("lost")),
    st.builds(Revive, id=st.just(ID), fence=FENCES, last_activity_at=INSTANTS),
    st.builds(
        Recover,
        id=st.just(ID),
        owner=st.sampled_from(["host-a", "host-b"]),
        at=INSTANTS,
        max_recoveries=st.integers(0, 2),
    ),
)


@given(st.lists(TRANSITIONS, max_size=12))
@settings(deadline=None, max_examples=200)
def test_whatever_happens_a_record_keeps_its_promises(transitions: list[AnyTransition]) -> None:
    record: SessionRecord | None = None
    for transition in transitions:
        before = copy.deepcopy(record)
        given_ = copy.deepcopy(transition)
        try:
            after = reduce(record, transition)
        except (RecordError, FenceLost):
            assert record == before
            continue
        assert record == before, "the existing record was changed"
        assert transition == given_, "the transition was changed"
        assert after.duration_ms is None or after.duration_ms >= 0
        assert msgspec.json.decode(msgspec.json.encode(after), type=SessionRecord) == after
        if record is not None:
            _promises_of_a_step(record, transition, after)
        record = after


def _promises_of_a_step(
    before: SessionRecord, transition: AnyTransition, after: SessionRecord
) -> None:
    assert (after.id, after.started_at, after.provider) == (
        before.id,
        before.started_at,
        before.provider,
    )
    if before.is_terminal and not before.presumed_dead:
        assert after is before
    if before.fence is not None:
        assert after.fence is not None
        assert after.fence.token >= before.fence.token
        if not isinstance(transition, Recover):
            assert after.fence == before.fence
    assert after.is_terminal == (after.ended_at is not None)
    assert not after.presumed_dead or after.status is SessionStatus.FAILED
    assert set(before.metadata or {}) <= set(after.metadata or {})
