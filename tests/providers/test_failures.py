"""Every refusal a provider is known to send is put into the class one can act on."""

import json
from pathlib import Path
from typing import Any

import pytest

from midstream.messages.failure import FailureKind
from midstream.providers.failures import classify_error, classify_response, retry_after_s

NOON_S = 1_700_000_000.0
NOON = "Tue, 14 Nov 2023 22:13:20 GMT"
LATER = "Tue, 14 Nov 2023 22:14:20 GMT"

RESPONSES: list[tuple[int, Any, FailureKind]] = [
    (400, {"error": {"type": "invalid_request_error"}}, FailureKind.INVALID_REQUEST),
    (400, {"error": {"code": "context_length_exceeded"}}, FailureKind.INVALID_REQUEST),
    (400, {"error": {"type": "rate_limit_error"}}, FailureKind.RATE_LIMITED),
    (401, {"error": {"type": "invalid_request_error"}}, FailureKind.AUTH),
    (401, {"error": {"code": "invalid_api_key"}}, FailureKind.AUTH),
    (402, {"error": {"type": "billing_error"}}, FailureKind.RATE_LIMITED),
    (403, {"error": {"type": "permission_error"}}, FailureKind.AUTH),
    (403, {"error": {"code": "insufficient_quota"}}, FailureKind.RATE_LIMITED),
    (404, {"error": {"type": "not_found_error"}}, FailureKind.INVALID_REQUEST),
    (404, "<html>nginx</html>", FailureKind.INVALID_REQUEST),
    (408, "", FailureKind.TIMEOUT),
    (413, {"error": {"type": "request_too_large"}}, FailureKind.INVALID_REQUEST),
    (422, {"detail": "no such field"}, FailureKind.INVALID_REQUEST),
    (429, {"error": {"type": "rate_limit_error"}}, FailureKind.RATE_LIMITED),
    (429, {"error": {"type": "requests"}}, FailureKind.RATE_LIMITED),
    (429, "", FailureKind.RATE_LIMITED),
    (498, "", FailureKind.OVERLOADED),
    (500, {"error": {"type": "api_error"}}, FailureKind.SERVER),
    (500, {"error": {"type": "overloaded_error"}}, FailureKind.OVERLOADED),
    (502, "<html>Bad Gateway</html>", FailureKind.SERVER),
    (503, "", FailureKind.OVERLOADED),
    (504, {"error": {"type": "timeout_error"}}, FailureKind.TIMEOUT),
    (524, "", FailureKind.SERVER),
    (529, {"error": {"type": "overloaded_error"}}, FailureKind.OVERLOADED),
    (302, "", FailureKind.PROTOCOL),
    (200, {"id": "msg_1", "type": "message"}, FailureKind.PROTOCOL),
]


@pytest.mark.parametrize(("status", "body", "kind"), RESPONSES)
def test_a_refusal_by_status_and_body_gets_its_class(status: int, body: Any, kind: FailureKind):
    raw = body if isinstance(body, str) else json.dumps(body)
    failure = classify_response(status, {}, raw.encode())
    assert failure.kind == kind
    assert failure.status == status
    assert failure.message


IN_STREAM: list[tuple[Any, FailureKind]] = [
    ({"type": "overloaded_error", "message": "Overloaded"}, FailureKind.OVERLOADED),
    ({"type": "rate_limit_error"}, FailureKind.RATE_LIMITED),
    ({"type": "api_error"}, FailureKind.SERVER),
    ({"type": "authentication_error"}, FailureKind.AUTH),
    ({"type": "invalid_request_error"}, FailureKind.INVALID_REQUEST),
    ({"type": "invalid_request_error", "code": "tool_use_failed"}, FailureKind.INVALID_REQUEST),
    ({"type": "insufficient_quota", "code": "insufficient_quota"}, FailureKind.RATE_LIMITED),
    ({"code": "rate_limit_exceeded"}, FailureKind.RATE_LIMITED),
    ({"code": "server_is_overloaded"}, FailureKind.OVERLOADED),
    ({"code": "server_error"}, FailureKind.SERVER),
    ({"code": 400, "message": "Token limit reached"}, FailureKind.INVALID_REQUEST),
    ({"code": 429}, FailureKind.RATE_LIMITED),
    ({"code": 502}, FailureKind.SERVER),
    ("upstream went away", FailureKind.SERVER),
    ({}, FailureKind.SERVER),
    (None, FailureKind.SERVER),
]


@pytest.mark.parametrize(("error", "kind"), IN_STREAM)
def test_an_error_inside_a_stream_is_classed_like_a_status(error: Any, kind: FailureKind):
    assert classify_error({"error": error}).kind == kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "13262"}, 13262.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": LATER}, 60.0),
        ({"retry-after": NOON}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None):
    assert retry_after_s(headers, NOON_S) == seconds


def test_a_date_needs_no_clock_when_the_answer_says_what_time_it_is():
    assert retry_after_s({"retry-after": LATER, "date": NOON}) == 60.0
    assert retry_after_s({"retry-after": LATER}) is None


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Rate limit reached. Please try again in 11.054s. Visit ...", 11.054),
        ("Please try again in 20ms.", 0.02),
        ("try again in 6m0s", 360.0),
        ("Please retry in 48.9s.", 48.9),
        ("Please retry after 26 seconds.", 26.0),
        ("Try again later.", None),
    ],
)
def test_a_wait_that_only_the_message_tells_is_read(message: str, seconds: float | None):
    failure = classify_error({"error": {"code": "rate_limit_exceeded", "message": message}})
    assert failure.retry_after_s == pytest.approx(seconds)


def test_a_header_wins_over_the_words_of_the_body():
    body = b'{"error":{"code":"rate_limit_exceeded","message":"try again in 2s"}}'
    assert classify_response(429, {"retry-after": "7"}, body).retry_after_s == 7.0


def test_keys_in_a_providers_words_are_not_kept():
    body = {"error": {"message": "Incorrect API key provided: sk-proj-abcdefghijklmnop."}}
    failure = classify_response(401, {}, json.dumps(body).encode())
    assert "abcdefgh" not in failure.message
    assert failure.message.startswith("Incorrect API key provided: ***")


def test_a_page_of_html_is_cut():
    assert len(classify_response(502, {}, b"x" * 100_000).message) == 2000


def test_recorded_refusals_are_classed(recordings: Path):
    def load(path: str) -> bytes:
        return (recordings / path).read_bytes()

    headers: dict[str, str] = json.loads(load("assembled/anthropic-429-headers.json"))
    anthropic = classify_response(429, headers, load("assembled/anthropic-429-body.json"))
    assert (anthropic.kind, anthropic.code) == (FailureKind.RATE_LIMITED, "rate_limit_error")
    assert anthropic.retry_after_s == 13262.0
    assert anthropic.request_id == "req_011CSHCYzBstm5tDEsXB7mev"
    overloaded = classify_response(529, {}, load("assembled/anthropic-529-body.json"))
    assert overloaded.kind == FailureKind.OVERLOADED
    gemini = classify_response(429, {}, load("errors/gemini-429-quota.json"))
    assert (gemini.code, gemini.retry_after_s) == ("RESOURCE_EXHAUSTED", 48.0)
    azure = classify_response(429, {}, load("errors/azure-429-ratelimitreached.json"))
    assert (azure.kind, azure.code) == (FailureKind.RATE_LIMITED, "RateLimitReached")
    for path in ("errors/anthropic-400-invalid-request.json", "errors/openai-400-image.json"):
        assert classify_response(400, {}, load(path)).kind == FailureKind.INVALID_REQUEST
