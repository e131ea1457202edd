"""The dead-letter queue: whole files, in order, poison aside."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.messages.conversation import AssistantItem, OpaquePart, TextPart
from midstream.messages.enrolment import Enrolment
from midstream.messages.envelope import AnyEnvelope, ReportEnvelope, StepEnvelope
from midstream.messages.errors import StoreError
from midstream.messages.events import SessionEnded
from midstream.messages.record import Fence, SessionStatus
from midstream.messages.session_reports import RecordReport, ReportedStatus
from midstream.messages.work import AppendItems, FinishSession, Recording
from midstream.stores.dlq import DeadLetterQueue, MemoryQueue, PoisonEnvelope
from midstream.stores.dlq_files import FileQueue, write_envelope


def step(number: int, session_id: str = "ses-1", recording: Recording | None = None) -> AnyEnvelope:
    said = AssistantItem((TextPart("hello"), OpaquePart("anthropic", "x", '{"a":1}')))
    return StepEnvelope(
        enrolment=Enrolment(
            session_id=session_id,
            conversation_id="con-1",
            provider="anthropic",
            started_at="2026-03-01T12:00:00.000Z",
            fence=Fence(owner="host-a", token=2),
            metadata={"role": "coder"},
        ),
        step=number,
        at="2026-03-01T12:00:01.000Z",
        recording=recording or AppendItems((said,), 1, 1),
    )


REPORT = ReportEnvelope(
    report=RecordReport(session_id="ses-9", status=ReportedStatus.COMPLETED, exit_code=0)
)


@pytest.fixture(params=["files", "memory"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> DeadLetterQueue:
    make: dict[str, Callable[[], DeadLetterQueue]] = {
        "files": lambda: FileQueue(tmp_path / "dlq"),
        "memory": MemoryQueue,
    }
    return make[request.param]()


async def test_envelopes_come_back_as_they_went_in_and_in_order(queue: DeadLetterQueue) -> None:
    ended = SessionEnded(SessionStatus.COMPLETED, "hello")
    envelopes = [step(2), step(10), step(11, recording=FinishSession((), 1, ended)), REPORT]
    for envelope in reversed(envelopes):
        await queue.put(envelope)
    assert [await queue.read(name) for name in await queue.names()] == envelopes


async def test_a_queue_that_nobody_used_is_empty(queue: DeadLetterQueue) -> None:
    assert await queue.names() == []
    assert await queue.read("ses-1") is None


async def test_putting_twice_is_putting_once(queue: DeadLetterQueue) -> None:
    await queue.put(step(2))
    await queue.put(step(2))
    assert len(await queue.names()) == 1


async def test_what_has_arrived_is_gone(queue: DeadLetterQueue) -> None:
    await queue.put(step(2))
    [name] = await queue.names()
    await queue.remove(name)
    await queue.remove(name)
    assert await queue.names() == []


async def test_what_never_will_arrive_is_aside(queue: DeadLetterQueue) -> None:
    await queue.put(step(2))
    await queue.put(step(3))
    first, second = await queue.names()
    await queue.reject(first, "FenceLost: taken over")
    assert await queue.names() == [second]


async def test_b4_a_file_is_only_taken_for_what_it_says_it_is(tmp_path: Path) -> None:
    (tmp_path / "ses-1-running.json").write_text('{"sessionId": "ses-1", "provider": "x"}')
    queue = FileQueue(tmp_path)
    with pytest.raises(PoisonEnvelope, match="ses-1-running"):
        await queue.read("ses-1-running")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'\xff\xfe{"kind": "step"}',
        b'{"kind": "session-record", "report": {"sessionId": "s", "status": "x", "exitCode": 0}}',
        b'{"kind": "session-record", "report": {"sessionId": "\\ud800", "exitCode": 0}}',
    ],
)
async def test_poison_is_named_and_put_aside_with_the_reason(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(data)
    queue = FileQueue(tmp_path)
    with pytest.raises(PoisonEnvelope, match=r"bad\.json"):
        await queue.read("bad")
    await queue.reject("bad", "no envelope")
    assert (tmp_path / "rejected" / "bad.json").read_bytes() == data
    assert (tmp_path / "rejected" / "bad.reason.txt").read_text() == "no envelope\n"
    assert await queue.names() == []


async def test_two_rejects_of_one_name_keep_both(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path)
    for reason in ("first", "second"):
        (tmp_path / "bad.json").write_text(reason)
        await queue.reject("bad", reason)
    aside = tmp_path / "rejected"
    assert (aside / "bad.json").read_text() == "first"
    assert (aside / "bad.2.json").read_text() == "second"
    assert (aside / "bad.2.reason.txt").read_text() == "second\n"


async def test_only_whole_json_files_count(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / ".ses-1.42.tmp").write_text('{"kind"')
    (tmp_path / "dir.json").mkdir()
    await FileQueue(tmp_path).put(step(2))
    assert await FileQueue(tmp_path).names() == ["ses-1-000002-000002"]


async def test_a_write_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    (tmp_path / "dlq").write_text("a file, not a directory")
    with pytest.raises(StoreError, match="dead-letter queue"):
        await FileQueue(tmp_path / "dlq").put(step(2))
    assert os.listdir(tmp_path) == ["dlq"]


async def test_text_that_is_no_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    said = AssistantItem((TextPart("\ud800"),))
    with pytest.raises(StoreError, match="surrogate"):
        await FileQueue(tmp_path).put(step(2, recording=AppendItems((said,), 1, 1)))
    assert os.listdir(tmp_path) == []


async def test_ids_from_outside_cannot_leave_the_directory(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "dlq")
    report = RecordReport(session_id="../../evil", status=ReportedStatus.FAILED, exit_code=1)
    await queue.put(ReportEnvelope(report=report))
    [name] = await queue.names()
    envelope = await queue.read(name)
    assert envelope == ReportEnvelope(report=report)
    assert os.listdir(tmp_path) == ["dlq"]


def test_a_program_without_trio_writes_the_same_file(tmp_path: Path) -> None:
    write_envelope(tmp_path / "dlq", REPORT)
    [path] = (tmp_path / "dlq").iterdir()
    assert path.name == "ses-9.json"
    assert json.loads(path.read_text())["kind"] == "session-record"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["dlq"]
