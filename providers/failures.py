"""What a provider's refusal means: status, headers and error body to a `ProviderFailure`.

Pure, and one table for all providers, because gateways and compatible servers mix their
vocabularies. The same words come as the body of an HTTP error and inside a stream that began
with 200, and mean the same there (spec/lessons.md B.2, 529 overload). A precise word (`code`
`insufficient_quota`) says more than the status; the status says more than a general word
(`type` `invalid_request_error`, which OpenAI writes on 401 too).

Sources: platform.claude.com/docs/en/api/errors, platform.openai.com/docs/guides/error-codes,
and the recorded errors of Azure, Gemini, Groq, OpenRouter and vLLM.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, cast

import msgspec

from midstream.messages.failure import FailureKind, ProviderFailure

MESSAGE_LIMIT_CHARS = 2000
"""How much of a provider's words is kept: enough to see what it is about, no HTML pages."""

_PRECISE_WORDS = {
    FailureKind.RATE_LIMITED: """
        rate_limit_error rate_limit_exceeded rate_limited ratelimitreached rate_limit
        too_many_requests insufficient_quota quota_exceeded resource_exhausted
        billing_hard_limit_reached billing_error payment_required usage_limit_reached
        usage_not_included tokens_limit_reached""",
    FailureKind.OVERLOADED: """
        overloaded_error overloaded server_is_overloaded slow_down engine_overloaded
        engine_overloaded_error capacity_exceeded service_unavailable
        service_unavailable_error unavailable model_overloaded no_capacity""",
    FailureKind.AUTH: """
        authentication_error permission_error permission_denied invalid_api_key
        incorrect_api_key unauthorized unauthenticated account_deactivated
        invalid_authentication forbidden""",
    FailureKind.INVALID_REQUEST: """
        context_length_exceeded string_above_max_length model_not_found not_found_error
        request_too_large invalid_prompt tool_use_failed json_validate_failed
        invalid_argument unsupported_parameter unsupported_value invalid_image_format
        content_policy_violation badrequesterror bad_request""",
    FailureKind.TIMEOUT: "timeout_error request_timeout deadline_exceeded vector_store_timeout",
}
_GENERAL_WORDS = {
    FailureKind.INVALID_REQUEST: "invalid_request_error invalid_request not_found",
    FailureKind.SERVER: """
        api_error server_error internal_server_error internal_error internal error
        internalservererror""",
}
_PRECISE = {word: kind for kind, words in _PRECISE_WORDS.items() for word in words.split()}
_GENERAL = {word: kind for kind, words in _GENERAL_WORDS.items() for word in words.split()}

_STATUSES = {
    401: FailureKind.AUTH,
    402: FailureKind.RATE_LIMITED,  # the account has no money left: the quota is spent
    403: FailureKind.AUTH,
    407: FailureKind.AUTH,
    408: FailureKind.TIMEOUT,
    425: FailureKind.SERVER,
    429: FailureKind.RATE_LIMITED,
    498: FailureKind.OVERLOADED,  # Groq: flex tier at capacity
    503: FailureKind.OVERLOADED,
    504: FailureKind.TIMEOUT,
    529: FailureKind.OVERLOADED,
}

_WAIT_IN_WORDS = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?\s?(?:ms|seconds?|minutes?|[hms])\s?)+)",
    re.IGNORECASE,
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s?(ms|h|m|s)", re.IGNORECASE)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_KEYS = re.compile(r"\b(?:sk|xai|gsk|pplx|AIza)[-_\w]{12,}|(?<=bearer )\S+", re.IGNORECASE)


def classify_response(
    status: int, headers: Mapping[str, str], body: bytes, now_s: float | None = None
) -> ProviderFailure:
    """The failure that an HTTP answer other than a stream stands for.

    `headers` has lower-case names; `now_s` is the wall clock in seconds since 1970, which
    only a `retry-after` that names a date needs (its answer's own `date` serves as well).
    """
    failure = classify_error(decode_lax(body), status)
    asked_s = retry_after_s(headers, now_s)
    return msgspec.structs.replace(
        failure,
        retry_after_s=failure.retry_after_s if asked_s is None else asked_s,
        request_id=headers.get("request-id") or headers.get("x-request-id") or failure.request_id,
    )


def classify_error(body: object, status: int | None = None) -> ProviderFailure:
    """The failure that an error object stands for; `body` is decoded JSON or plain text."""
    error, words = _error_of(body)
    numeric = next((word for word in words if isinstance(word, int)), None)
    names = [word for word in words if isinstance(word, str) and word]
    effective = status if status is not None else numeric
    kind = _kind_of(names, effective)
    code = next((name for name in names if name.lower() in _PRECISE), None)
    message = _message_of(error) or f"HTTP {effective}"
    return ProviderFailure(
        kind=kind,
        message=without_keys(message)[:MESSAGE_LIMIT_CHARS],
        status=effective,
        code=code or (names[0] if names else None),
        retry_after_s=_wait_in_body(error, message) if kind in _WAITING else None,
        request_id=_text(_mapping(body).get("request_id")),
    )


def without_keys(text: str) -> str:
    """The text without what looks like a key in it; some servers and programs echo theirs."""
    return _KEYS.sub("***", text)


def decode_lax(body: bytes) -> object:
    """The JSON of an error body, or its text when it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


def retry_after_s(headers: Mapping[str, str], now_s: float | None = None) -> float | None:
    """How many seconds the headers ask to wait: `retry-after-ms`, or `retry-after` as a
    number or as an HTTP date (RFC 9110, 10.2.3). None when they do not say it."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    until_s = _date_s(text)
    if now_s is None:
        now_s = _date_s(headers.get("date", ""))
    if until_s is None or now_s is None:
        return None
    return max(0.0, until_s - now_s)


_WAITING = (FailureKind.RATE_LIMITED, FailureKind.OVERLOADED)


def _kind_of(names: list[str], status: int | None) -> FailureKind:
    for name in names:
        if kind := _PRECISE.get(name.lower()):
            return kind
    if status is not None and status >= 400:
        by_family = FailureKind.INVALID_REQUEST if status < 500 else FailureKind.SERVER
        return _STATUSES.get(status, by_family)
    for name in names:
        if kind := _GENERAL.get(name.lower()):
            return kind
    if status is not None:
        return FailureKind.PROTOCOL
    return FailureKind.SERVER


def _error_of(body: object) -> tuple[object, list[object]]:
    """The error inside a body, and its words from the most to the least precise."""
    if isinstance(body, list):  # Gemini wraps its error object in a list
        return _error_of(next(iter(cast(list[object], body)), None))
    error = _mapping(body).get("error", body)
    inner = _mapping(error)
    words = [inner.get("code"), inner.get("type"), inner.get("status"), inner.get("status_code")]
    return error, [word for word in words if word is not None]


def _message_of(error: object) -> str:
    if isinstance(error, str):
        return error.strip()
    inner = _mapping(error)
    return _text(inner.get("message")) or _text(inner.get("detail")) or ""


def _wait_in_body(error: object, message: str) -> float | None:
    """Seconds to wait as Google's `RetryInfo` or a sentence in the message says it."""
    details = _mapping(error).get("details")
    for detail in cast(list[object], details) if isinstance(details, list) else []:
        if delay := _text(_mapping(detail).get("retryDelay")):
            return _duration_s(delay)
    match = _WAIT_IN_WORDS.search(message)
    return _duration_s(match.group(1)) if match else None


def _duration_s(text: str) -> float | None:
    pieces = _DURATION.findall(text)
    return sum(float(n) * _UNIT_S[unit.lower()] for n, unit in pieces) if pieces else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None


def _date_s(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _mapping(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
