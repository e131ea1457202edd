"""What sessions outside report: decoded as the reference's clients write it."""

import msgspec
import pytest

from midstream.messages.record import SessionRecord, SessionStatus, TokenUsage
from midstream.messages.reducer import reduce
from midstream.messages.session_reports import (
    HeartbeatReport,
    RecordReport,
    RunningReport,
    not_taken,
    taken,
)
from midstream.messages.transition import Cancel, Terminal
from midstream.messages.usage import UsageSource

AT = "2026-03-01T12:00:30.000Z"
RUNNING = b"""{"sessionId": "ses-1", "startedAt": "2026-03-01T12:00:00Z",
    "provider": "claude-code", "metadata": {"role": "coder"},
    "cancelHandle": {"kind": "local-pgid", "pgid": 4711}, "unknown": 1}"""
RECORD = b"""{"sessionId": "ses-1", "status": "completed", "exitCode": 0, "costUsd": 0.5,
    "providerSessionId": "conv-9", "tokenUsage": {"inputTokens": 10, "outputTokens": 5},
    "terminationDiagnostic": {"exitCode": 1, "stderrExcerpt": "boom"}}"""


def test_payloads_are_those_of_the_reference_and_need_no_tag() -> None:
    running = msgspec.json.decode(RUNNING, type=RunningReport)
    record = msgspec.json.decode(RECORD, type=RecordReport)
    beat = msgspec.json.decode(b'{"sessionId": "ses-1"}', type=HeartbeatReport)
    assert (running.session_id, record.session_id, beat.session_id) == ("ses-1",) * 3
    assert running.cancel_handle == {"kind": "local-pgid", "pgid": 4711}


def test_reported_figures_count_as_reported() -> None:
    record = msgspec.json.decode(RECORD, type=RecordReport)
    transition = record.transition(AT)
    assert isinstance(transition, Terminal)
    assert transition.token_usage == TokenUsage(
        input_tokens=10, output_tokens=5, source=UsageSource.REPORTED
    )


def test_b3_the_providers_session_id_is_promoted_by_the_report_itself() -> None:
    running = msgspec.json.decode(RUNNING, type=RunningReport).transition(AT)
    ended = msgspec.json.decode(RECORD, type=RecordReport).transition(AT)
    record = reduce(reduce(None, running), ended)
    assert record.conversation_id == record.provider_session_id == "conv-9"


def test_b7_cancelled_is_accepted_and_keeps_what_it_has_cost() -> None:
    report = msgspec.json.decode(RECORD.replace(b"completed", b"cancelled"), type=RecordReport)
    transition = report.transition(AT)
    assert isinstance(transition, Cancel)
    assert transition.cost_usd == 0.5


def test_b7_the_diagnostic_is_kept_for_a_failure() -> None:
    report = msgspec.json.decode(RECORD.replace(b"completed", b"failed"), type=RecordReport)
    record = reduce(None, report.transition(AT))
    assert record.termination_diagnostic is not None
    assert record.termination_diagnostic.stderr_excerpt == "boom"


@pytest.mark.parametrize("status", ["running", "pending", "capped", "dead-lettered", "", "x"])
def test_other_statuses_are_refused(status: str) -> None:
    data = RECORD.replace(b"completed", status.encode())
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=RecordReport)


def test_equal_reports_have_equal_keys_and_others_do_not() -> None:
    report = msgspec.json.decode(RECORD, type=RecordReport)
    again = msgspec.json.decode(RECORD, type=RecordReport)
    other = msgspec.structs.replace(report, exit_code=3)
    assert report.key == again.key
    assert report.key != other.key


def test_b8_an_answer_carries_the_status_of_the_record() -> None:
    record = SessionRecord(
        id="ses-1", status=SessionStatus.CANCELLED, started_at=AT, provider="claude-code"
    )
    assert msgspec.json.decode(msgspec.json.encode(taken(record))) == {
        "ok": True,
        "sessionId": "ses-1",
        "status": "cancelled",
    }
    assert msgspec.json.decode(msgspec.json.encode(not_taken("ses-2", "no record"))) == {
        "ok": False,
        "sessionId": "ses-2",
        "error": "no record",
    }
