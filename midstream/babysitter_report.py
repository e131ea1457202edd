"""How a session outside has ended: the report that its babysitter sends. Pure.

The order in which causes count is that of spec/animator.md 8: a cancel, then what the
babysitter itself could not do, then its time limit, then a spent quota, then what the
program said and exited with. A run of Claude Code without a `result`, or with one that says
that it failed, is not completed, whatever it exited with.
"""

import signal

import msgspec

from midstream.messages.record import TerminationDiagnostic, TerminationTag, TokenUsage
from midstream.messages.session_reports import RecordReport, ReportedStatus
from midstream.messages.usage import UsageSource
from midstream.providers.claude_code_run import RunReading
from midstream.providers.failures import without_keys

RATE_LIMIT_SOURCE = "ndjson-result"


class RunEnd(msgspec.Struct, frozen=True):
    """How the command ended.

    `exit_code` is negative for a signal, as `ChildProcess` has it, and None if the command
    never began. `trouble` is what the babysitter could not do. `stopped` and `timed_out` say
    that it ended the command itself: because somebody cancelled, or because it took too long.
    """

    exit_code: int | None = None
    stderr_tail: str = ""
    trouble: str | None = None
    stopped: bool = False
    stop_reason: str | None = None
    timed_out: bool = False


def record_report(
    session_id: str,
    conversation_id: str | None,
    run: RunReading,
    end: RunEnd,
    *,
    ended_at: str,
    ended_ms: int,
    duration_ms: int,
) -> RecordReport:
    """The report of a run that has ended as `end` says. `ended_ms` is `ended_at` in
    milliseconds since 1970."""
    status, error = _verdict(run, end)
    limited = status is ReportedStatus.RATE_LIMITED
    by_exit_code = status is ReportedStatus.FAILED and end.trouble is None and bool(end.exit_code)
    return RecordReport(
        session_id=session_id,
        status=status,
        exit_code=_shell_code(end.exit_code),
        ended_at=ended_at,
        duration_ms=duration_ms,
        error=without_keys(error) if error else None,
        conversation_id=conversation_id,
        provider_session_id=run.session_id,
        token_usage=_token_usage(run),
        cost_usd=None if run.usage is None else run.usage.cost_usd,
        output=run.output,
        termination_tag=TerminationTag(
            kind="rate-limit", source=RATE_LIMIT_SOURCE, detail=run.limit.detail
        )
        if limited and run.limit is not None
        else None,
        termination_diagnostic=TerminationDiagnostic(
            exit_code=_shell_code(end.exit_code),
            stderr_excerpt=without_keys(end.stderr_tail) or None,
        )
        if by_exit_code
        else None,
        transcript=run.transcript or None,
        retry_after_ms=_retry_after_ms(run, ended_ms) if limited else None,
    )


def _verdict(run: RunReading, end: RunEnd) -> tuple[ReportedStatus, str | None]:
    if end.stopped:
        return ReportedStatus.CANCELLED, end.stop_reason
    if end.trouble is not None:
        return ReportedStatus.FAILED, end.trouble
    if end.timed_out:
        return ReportedStatus.TIMEOUT, "the command took too long and was stopped"
    if run.limit is not None:
        return ReportedStatus.RATE_LIMITED, run.limit.detail
    if run.failed_result is not None:
        return ReportedStatus.FAILED, run.failed_result
    if end.exit_code:
        return ReportedStatus.FAILED, _exit_error(end.exit_code)
    if run.is_claude_code and run.result is None:
        return ReportedStatus.FAILED, "exited with code 0 without a result"
    return ReportedStatus.COMPLETED, None


def _token_usage(run: RunReading) -> TokenUsage | None:
    """The figures, and how well they are known: messages say less than a result does."""
    if run.usage is None:
        return None
    known = UsageSource.ESTIMATED if run.result is None else UsageSource.REPORTED
    return TokenUsage.of(msgspec.structs.replace(run.usage, source=known))


def _exit_error(code: int) -> str:
    if code > 0:
        return f"exited with code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _shell_code(code: int | None) -> int:
    """As a shell tells it: 128 and the number of a signal; 1 for what never began."""
    if code is None:
        return 1
    return code if code >= 0 else 128 - code


def _retry_after_ms(run: RunReading, ended_ms: int) -> int | None:
    if run.limit is None or run.limit.resets_at_s is None:
        return None
    return max(0, round(run.limit.resets_at_s * 1000) - ended_ms)
