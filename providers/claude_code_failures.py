"""What it means when a run of Claude Code fails: its result, or its end without one.

A result may say `subtype` `success` and have failed all the same; `is_error`, the status of
the API and the program's own words in a `<synthetic>` message tell (spec/gateway.md 3.9).
What a model wrote is never looked at. Pure.
"""

import re
import signal
from collections.abc import Callable

import msgspec

from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.providers.claude_code_limits import LimitSignal, assistant_text
from midstream.providers.failures import classify_error, without_keys
from midstream.providers.json_fields import count_of, list_of, text_of
from midstream.providers.ndjson import JsonObject

SESSION_LOST = "session_not_found"
"""The code of a run that could not go on from a session, because there is none."""

WallClock = Callable[[], float]

_OVERLOADED = re.compile(r"\boverloaded\b", re.IGNORECASE)
_LOST = "No conversation found"
_STOPPED_BY_LIMIT = ("error_max_turns", "error_max_budget_usd")
_ALIASES = {"authentication_failed": "authentication_error", "unknown": ""}


def is_failed(result: JsonObject) -> bool:
    """Whether a `result` line says that the run failed."""
    return bool(result.get("is_error")) or result.get("subtype") != "success"


def failure_of_result(
    result: JsonObject, notice: JsonObject, limit: LimitSignal | None, wall_clock: WallClock | None
) -> ProviderFailure:
    """The failure that a `result` line stands for. `notice` is the last `<synthetic>` line."""
    errors = "; ".join(filter(None, map(text_of, list_of(result.get("errors")))))
    subtype = text_of(result.get("subtype"))
    message = text_of(result.get("result")) or errors or assistant_text(notice) or subtype
    if limit is not None:
        return _spent(limit, message, wall_clock)
    if errors.startswith(_LOST):
        return ProviderFailure(FailureKind.INVALID_REQUEST, message, code=SESSION_LOST)
    if subtype in _STOPPED_BY_LIMIT:
        return ProviderFailure(FailureKind.INVALID_REQUEST, message, code=subtype)
    word = text_of(notice.get("error"))
    error = {"message": message, "type": _ALIASES.get(word, word)}
    failure = classify_error({"error": error}, count_of(result.get("api_error_status")))
    if failure.kind is FailureKind.SERVER and _OVERLOADED.search(assistant_text(notice)):
        return msgspec.structs.replace(failure, kind=FailureKind.OVERLOADED)
    return failure


def failure_of_exit(
    program: str,
    exit_code: int | None,
    stderr_tail: str,
    limit: LimitSignal | None,
    wall_clock: WallClock | None,
) -> ProviderFailure:
    """The failure of a run that ended without a result. `exit_code` as `ChildProcess` has
    it; None for a program that closed its output and runs on."""
    if exit_code is None:
        ended = f"{program} closed its output without a result"
    elif exit_code < 0:
        ended = f"{program} was ended by {_signal_name(-exit_code)} before its result"
    else:
        ended = f"{program} exited with code {exit_code} without a result"
    message = f"{ended}: {without_keys(stderr_tail)}" if stderr_tail else ended
    if limit is not None:
        return _spent(limit, f"{limit.detail} ({message})", wall_clock)
    # To end in peace without a result is to break the protocol; the rest is its own failure.
    kind = FailureKind.SERVER if exit_code else FailureKind.PROTOCOL
    return ProviderFailure(kind, message)


def _spent(limit: LimitSignal, message: str, wall_clock: WallClock | None) -> ProviderFailure:
    retry_after_s = None
    if limit.resets_at_s is not None and wall_clock is not None:
        retry_after_s = max(0.0, limit.resets_at_s - wall_clock())
    return ProviderFailure(
        FailureKind.RATE_LIMITED, without_keys(message), retry_after_s=retry_after_s
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
