"""Detection of a spent quota: what counts, and what an agent may say without alarm."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from claude_code_lines import (
    INIT,
    Line,
    assistant,
    failed,
    message_start,
    result,
    synthetic,
    text,
    tool_result,
)

from midstream.providers.claude_code_limits import LimitSignal, LimitWatch


def watched(lines: Iterable[Line]) -> LimitSignal | None:
    watch = LimitWatch()
    for line in lines:
        watch.feed(line)
    return watch.signal


@pytest.mark.parametrize(
    "error",
    [
        "rate limit exceeded",
        "Rate_Limit_Error",
        "RATE-LIMIT",
        "ratelimit",
        "HTTP 429",
        "Your usage of this model is over the limit",
        "quota has been exceeded",
        "Too Many Requests",
    ],
)
def test_detection_an_error_at_the_top_of_any_line_counts(error: str):
    assert watched([{"type": "whatever", "error": error}]) == LimitSignal(error)


@pytest.mark.parametrize(
    "error",
    [
        {"type": "rate_limit_error", "message": "slow down"},
        {"message": "429 Too Many Requests"},
        {"type": "error", "code": 429},
    ],
)
def test_b19_an_error_that_is_an_object_counts_too(error: object):
    assert watched([{"type": "turn.failed", "error": error}]) is not None


@pytest.mark.parametrize("error", ["request 1429 failed", "code 42900", "exit 4290", "", 429, []])
def test_b19_a_number_that_only_contains_429_is_none(error: object):
    assert watched([{"type": "x", "error": error}]) is None


PROSE = "The API answered 429: rate limit exceeded, too many requests, usage limit reached."


@pytest.mark.parametrize(
    "lines",
    [
        [assistant(text(PROSE)), failed(PROSE)],
        [assistant(text(PROSE)), result(PROSE)],
        [tool_result(PROSE), failed(PROSE)],
        [result("", subtype="error_rate_limit", is_error=True)],
        [failed("API Error: something else")],
        [{"type": "assistant", "message": {"error": PROSE}}],
        [{"type": "system", "subtype": "rate_limit", "message": PROSE}],
        [{"type": "stream_event", "event": {"type": "x", "error": PROSE}}],
    ],
    ids=["prose", "prose-success", "tool", "subtype", "is_error", "nested", "system", "event"],
)
def test_detection_an_agent_may_talk_about_rate_limits(lines: list[Line]):
    assert watched([INIT, *lines]) is None


def test_b19_a_limit_that_the_program_got_over_is_none():
    retry: Line = {"type": "system", "subtype": "api_retry", "error": "rate_limit"}
    assert watched([INIT, retry]) is not None
    assert watched([INIT, retry, assistant(text("Hello"))]) is None
    assert watched([INIT, retry, message_start()]) is None
    assert watched([INIT, retry, result("fine")]) is None
    assert watched([INIT, retry, failed("API Error")]) is not None


def test_b19_a_limit_after_good_work_counts():
    lines = [assistant(text("Hello")), synthetic("API Error", error="rate_limit"), failed("x")]
    assert watched(lines) == LimitSignal("rate_limit")


def test_the_first_match_is_the_detail_and_is_bounded():
    lines: list[Line] = [
        {"type": "a", "error": "rate limit " + "x" * 500},
        {"type": "b", "error": "429"},
    ]
    signal = watched(lines)
    assert signal is not None
    assert signal.detail == ("rate limit " + "x" * 500)[:200]


def test_the_status_of_a_failed_result_counts():
    assert watched([failed("API Error: rejected", api_error_status=429)]) is not None
    assert watched([failed("API Error: overloaded", api_error_status=529)]) is None
    assert watched([result("fine", api_error_status=429)]) is None


def test_the_words_of_the_program_itself_count_and_those_of_the_model_do_not(recordings: Path):
    phrases = (recordings / "assembled/claude-code-limit-phrases.txt").read_text().splitlines()
    assert len(phrases) == 10
    for phrase in phrases:
        assert watched([synthetic(phrase), failed(phrase)]) is not None, phrase
        assert watched([synthetic(phrase), result("went on")]) is None, phrase
        if "|" not in phrase:
            assert watched([assistant(text(phrase)), failed(phrase)]) is None, phrase


def test_what_older_versions_wrote_for_programs_tells_when_the_limit_ends():
    said = "Claude AI usage limit reached|1755615600"
    assert watched([failed(said)]) == LimitSignal(said, 1755615600.0)
    assert watched([failed(f"The log says: {said}")]) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-code-ndjson/api-retry-429.ndjson", False),
        ("claude-code-ndjson/api-retry-529.ndjson", False),
        ("claude-code-ndjson/result-429-noretry.ndjson", True),
        ("claude-code-ndjson/result-429-retry-after-3600.ndjson", True),
        ("claude-code-ndjson/result-529-final.ndjson", False),
        ("claude-code-ndjson/result-401.ndjson", False),
        ("claude-code-ndjson/tool-roundtrip.ndjson", False),
        ("claude-code-ndjson/tool-ran-before-stream-error.ndjson", False),
        ("claude-code-ndjson/connection-closed-mid-response.ndjson", False),
        ("assembled/claude-code-usage-limit-result.ndjson", True),
        ("agent-cli-output/codex-exec-reconnect.jsonl", False),
        ("agent-cli-output/codex-exec-failed-401.jsonl", False),
        ("agent-cli-output/pi-json-auto-retry.jsonl", False),
        ("agent-cli-output/omp-json-error.jsonl", False),
    ],
)
def test_detection_on_recorded_output(recordings: Path, name: str, expected: bool):
    lines = [json.loads(line) for line in (recordings / name).read_bytes().splitlines()]
    assert (watched(lines) is not None) is expected


def test_a_rejected_window_tells_when_it_ends(recordings: Path):
    path = recordings / "assembled/claude-code-usage-limit-result.ndjson"
    signal = watched(json.loads(line) for line in path.read_bytes().splitlines())
    assert signal is not None
    assert signal.resets_at_s == 1755772800.0


def test_windows_that_are_open_are_no_limit(recordings: Path):
    path = recordings / "assembled/claude-code-rate-limit-events.ndjson"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    by_status = {line["rate_limit_info"]["status"]: watched([line]) for line in lines}
    assert by_status["allowed"] is None
    assert by_status["allowed_warning"] is None
    assert by_status["rejected"] is not None
