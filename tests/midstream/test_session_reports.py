"""Sessions outside report to a runtime: what is kept, what is answered, what is told."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hosts import Mumbling, configuration, host, notices_so_far, record_of, wall_clock
from trio.testing import MockClock

from midstream.books import open_session_book
from midstream.messages.dispatch import DispatchState
from midstream.messages.enrolment import Enrolment, opening
from midstream.messages.envelope import ReportEnvelope
from midstream.messages.errors import StoreError
from midstream.messages.notices import Began, Ended, RecordFailed
from midstream.messages.record import Fence, SessionStatus, TerminationTag
from midstream.messages.session_reports import (
    HeartbeatReport,
    RecordReport,
    ReportedStatus,
    RunningReport,
)
from midstream.messages.transition import PendingPreWrite
from midstream.providers.scripted import ScriptedProvider
from midstream.runtime import Runtime, open_runtime
from midstream.stores.dlq_files import write_envelope
from midstream.stores.memory import MemoryStore
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import Book, Operation, Put

START = "2026-01-01T00:00:00.000Z"
RUNNING = RunningReport(
    session_id="ses-1",
    started_at=START,
    provider="claude-code",
    metadata={"role": "coder"},
    cancel_handle={"kind": "local-pgid", "pgid": 4711},
)
BEAT = HeartbeatReport(session_id="ses-1")


def ended(status: str = "completed", **fields: Any) -> RecordReport:
    return RecordReport(session_id="ses-1", status=ReportedStatus(status), exit_code=0, **fields)


async def transcript_of(runtime: Runtime) -> list[Any]:
    return [msgspec.json.decode(entry) for entry in await runtime.sessions.transcript("ses-1")]


async def test_a_session_reports_from_its_beginning_to_its_end(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        report = runtime.sessions.report
        assert (await report(RUNNING)).status is SessionStatus.RUNNING
        await trio.sleep(60)
        assert (await report(BEAT)).ok
        assert (await record_of(store, "ses-1")).last_activity_at == "2026-01-01T00:01:00.000Z"
        answer = await report(ended(transcript=[{"type": "assistant"}], output="done"))
        assert (answer.ok, answer.status) == (True, SessionStatus.COMPLETED)
        record = await record_of(store, "ses-1")
        assert await transcript_of(runtime) == [{"type": "assistant"}]
        told = await notices_so_far(runtime)
    assert (record.output, record.duration_ms, record.provider) == ("done", 60_000, "claude-code")
    assert record.cancel_handle == {"kind": "local-pgid", "pgid": 4711}
    assert [type(notice) for notice in told] == [Began, Ended]


async def test_b15_what_was_written_before_the_launch_is_told_when_it_runs(
    autojump_clock: MockClock,
) -> None:
    before = PendingPreWrite(
        id="ses-1",
        started_at=START,
        provider="claude-code",
        last_activity_at=START,
        metadata={"trigger": "summon", "role": "reviewer"},
        authorized_tools=("read",),
    )
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        assert (await runtime.sessions.apply(before)).status is SessionStatus.PENDING
        await runtime.sessions.report(msgspec.structs.replace(RUNNING, metadata=None))
        assert await notices_so_far(runtime) == [
            Began(session_id="ses-1", anima="reviewer", trigger="summon")
        ]
        assert (await record_of(store, "ses-1")).authorized_tools == ("read",)


async def test_a_repeated_report_of_running_only_refreshes(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        await trio.sleep(10)
        again = msgspec.structs.replace(RUNNING, provider="other", metadata={"x": 1})
        await runtime.sessions.report(again)
        record = await record_of(store, "ses-1")
        assert (record.provider, record.metadata) == ("claude-code", {"role": "coder"})
        assert record.last_activity_at == "2026-01-01T00:00:10.000Z"
        assert [type(notice) for notice in await notices_so_far(runtime)] == [Began]


def keeps_record(operations: Sequence[Operation]) -> bool:
    return any(isinstance(each, Put) and each.book is Book.SESSIONS for each in operations)


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_an_end_of_which_the_store_did_not_answer_is_told_and_pauses_everybody(
    autojump_clock: MockClock, lost: int
) -> None:
    """Whoever reports it has the only copy, and says it again until somebody has taken it."""
    store = Mumbling(keeps_record)
    async with host(store, clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        store.fates.extend(["kept"] * lost)
        answers = [await runtime.sessions.report(ended("rate-limited")) for _ in range(2)]
        assert [answer.ok for answer in answers] == [lost < 2, True]
        await trio.sleep(65)
        told = await notices_so_far(runtime)
        assert runtime.is_dispatchable() is False
    failed = [RecordFailed] if lost == 2 else []
    assert [type(notice) for notice in told] == [Began, *failed, Ended]


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_cancel_of_which_the_store_did_not_answer_is_told(
    autojump_clock: MockClock, lost: int
) -> None:
    store = Mumbling(keeps_record)
    async with host(store, clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        store.fates.extend(["kept"] * lost)
        assert (await runtime.cancel("ses-1")).status is SessionStatus.CANCELLED
        assert [type(notice) for notice in await notices_so_far(runtime)] == [Began, Ended]


async def test_b8_a_cancelled_session_learns_of_it_from_its_next_report(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        cancelled = await runtime.cancel("ses-1", "enough")
        for report in (RUNNING, BEAT, ended()):
            answer = await runtime.sessions.report(report)
            assert (answer.ok, answer.status) == (True, SessionStatus.CANCELLED)
        assert await record_of(store, "ses-1") == cancelled
        assert [type(notice) for notice in await notices_so_far(runtime)] == [Began, Ended]


async def test_a_late_report_keeps_its_transcript_if_it_is_the_longer_one(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        report = runtime.sessions.report
        await report(RUNNING)
        await runtime.cancel("ses-1")
        await report(ended(transcript=[{"n": 1}, {"n": 2}]))
        await report(ended(transcript=[{"n": 3}]))
        assert await transcript_of(runtime) == [{"n": 1}, {"n": 2}]
        await report(ended(transcript=[{"n": 1}, {"n": 2}, {"n": 3}]))
        assert len(await transcript_of(runtime)) == 3


async def test_a_report_of_an_end_that_nobody_heard_the_beginning_of_is_kept(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        assert (await runtime.sessions.report(ended("failed", error="boom"))).ok
        record = await record_of(store, "ses-1")
    assert (record.provider, record.started_at, record.duration_ms) == ("unknown", START, 0)


async def test_b7_a_cancel_that_nobody_heard_the_beginning_of_is_kept(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        answer = await runtime.sessions.report(ended("cancelled", error="SIGTERM", cost_usd=0.5))
        assert (answer.ok, answer.status) == (True, SessionStatus.CANCELLED)
        record = await record_of(store, "ses-1")
    assert (record.error, record.cost_usd) == ("SIGTERM", 0.5)


async def test_a_beat_of_an_unknown_session_is_refused(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        answer = await runtime.sessions.report(BEAT)
        assert not answer.ok
        assert "ses-1" in (answer.error or "")


async def test_b6_what_was_not_kept_is_not_called_kept_and_nobody_is_told_of_an_end(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    view = store.reopen()
    async with host(view, clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        view.failure = StoreError("the disk is full")
        answer = await runtime.sessions.report(ended("rate-limited"))
        assert (answer.ok, answer.error) == (False, "the disk is full")
        view.failure = None
        assert runtime.is_dispatchable()
        assert [type(n) for n in await notices_so_far(runtime)] == [Began, RecordFailed]
        assert (await runtime.sessions.report(ended("rate-limited"))).ok
        assert not runtime.is_dispatchable()


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "rate-limited"},
        {
            "status": "rate-limited",
            "termination_tag": TerminationTag(kind="rate-limit", source="ndjson-result"),
        },
    ],
)
async def test_b1_a_detached_session_that_hits_the_limit_pauses_everybody(
    fields: dict[str, Any], autojump_clock: MockClock
) -> None:
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        await runtime.sessions.report(ended(**fields, retry_after_ms=7_200_000))
        assert not runtime.is_dispatchable()
        assert (await runtime.status()).paused_until == "2026-01-01T02:00:00.000Z"


async def test_a_report_that_comes_twice_counts_once(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        await runtime.sessions.report(ended("rate-limited"))
        await trio.sleep(3600)
        await runtime.sessions.report(ended("rate-limited"))
        status = await runtime.status()
        assert (status.state, status.backoff_level) == (DispatchState.PAUSED, 0)
        assert runtime.is_dispatchable()
        assert [type(n) for n in await notices_so_far(runtime)] == [Began, Ended]


async def test_nobody_reports_on_a_session_that_a_host_owns(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        owned = Enrolment(
            session_id="ses-1",
            conversation_id="con-1",
            provider="anthropic",
            started_at=START,
            fence=Fence(owner="host-a", token=1),
        )
        await runtime.sessions.apply(opening(owned))
        assert not (await runtime.sessions.report(ended())).ok
        assert (await record_of(store, "ses-1")).status is SessionStatus.RUNNING


class Stopper:
    """A provider whose sessions live outside."""

    name = "claude-code"

    def __init__(self) -> None:
        self.stopped: list[Any] = []

    async def cancel(self, handle: Any) -> None:
        self.stopped.append(handle)
        raise OSError("no such process")


async def test_the_process_of_a_cancelled_session_is_stopped_and_errors_change_nothing(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    store, stopper = MemoryStore(), Stopper()
    async with host(store, clock=wall_clock()) as runtime:
        await runtime.sessions.report(RUNNING)
        async with open_session_book(
            configuration(), tmp_path, store=store, stoppers=[stopper]
        ) as book:
            record = await book.cancel("ses-1", "enough")
            assert await book.cancel("ses-1", "again") == record
    assert record.status is SessionStatus.CANCELLED
    assert stopper.stopped == [{"kind": "local-pgid", "pgid": 4711}]


async def test_b13_letters_of_babysitters_arrive_at_boot_and_on_every_tick(
    tmp_path: Path,
) -> None:
    queue = tmp_path / ".midstream/dlq"
    write_envelope(queue, ReportEnvelope(report=ended(output="late")))
    async with (
        await open_sqlite(tmp_path / "store.sqlite3") as store,
        open_runtime(
            configuration(), cwd=tmp_path, provider=ScriptedProvider(), rules=(), store=store
        ) as runtime,
    ):
        with trio.fail_after(30):
            while await trio.Path(queue / "ses-1.json").exists():  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert (await runtime.sessions.session("ses-1")).output == "late"


@pytest.mark.parametrize("unkeepable", ["\ud800", object(), {object(): 1}])
async def test_a_report_that_cannot_be_kept_is_refused_with_the_reason(
    unkeepable: object, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    running = msgspec.structs.replace(RUNNING, metadata={"said": unkeepable})
    async with host(store, clock=wall_clock()) as runtime:
        for report in (running, ended(transcript=[unkeepable])):
            answer = await runtime.sessions.report(report)
            assert not answer.ok
            assert "cannot be kept" in (answer.error or "")
        assert (await runtime.sessions.report(RUNNING)).ok
        assert await transcript_of(runtime) == []
