"""What a run came to, for the record of a session outside."""

import json
from pathlib import Path

import pytest
from claude_code_lines import (
    INIT,
    SESSION,
    Line,
    assistant,
    call,
    failed,
    message_start,
    result,
    synthetic,
    text,
    tool_result,
)

from midstream.messages.usage import Usage
from midstream.providers.claude_code_run import RunReading


def read(*lines: Line, limit_bytes: int = 1_000_000) -> RunReading:
    reading = RunReading(limit_bytes)
    for line in lines:
        reading.feed(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    reading.end()
    return reading


def test_parser_assistant_and_user_lines_are_the_transcript_as_they_came():
    said, answered = assistant(text("Hi"), call()), tool_result("ok")
    reading = read(INIT, message_start(), said, answered, result("Hi"))
    assert reading.transcript == [json.loads(json.dumps(said)), answered]


def test_parser_the_result_has_cost_session_and_usage():
    usage = {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 4,
    }
    reading = read(INIT, result("Hi", usage=usage, total_cost_usd=0.5, session_id="other"))
    assert reading.session_id == "other"
    assert reading.usage == Usage(1, 2, 3, 4, cost_usd=0.5)


def test_parser_the_output_is_that_of_the_last_message_with_any():
    reading = read(
        assistant(text("One."), message_id="m1"),
        assistant(text("Two, "), message_id="m2"),
        assistant(text("three."), message_id="m2"),
        assistant(call(), message_id="m3"),
    )
    assert reading.output == "Two, three."


def test_parser_without_any_prose_there_is_no_output():
    assert read(INIT, assistant(call()), result()).output is None


def test_parser_what_a_sub_agent_or_the_program_says_is_not_the_output():
    inside = assistant(text("inside"), message_id="m9", parent_tool_use_id="toolu_1")
    assert read(assistant(text("Out.")), inside, synthetic("API Error")).output == "Out."


def test_parser_blank_lines_and_other_text_are_skipped():
    reading = RunReading()
    reading.feed(b"\n\n  \nwarning: x\n" + json.dumps(assistant(text("Hi"))).encode() + b"\n{")
    reading.end()
    assert reading.output == "Hi"
    assert len(reading.transcript) == 1


def test_b14_a_last_line_without_its_line_feed_counts():
    reading = RunReading()
    reading.feed(json.dumps(result("x", session_id="s")).encode())
    reading.end()
    assert reading.session_id == "s"


def test_b14_characters_cut_between_reads_are_whole():
    reading = RunReading()
    for byte in json.dumps(assistant(text("Grüße 🎈")), ensure_ascii=False).encode() + b"\n":
        reading.feed(bytes([byte]))
    assert reading.output == "Grüße 🎈"


def test_the_session_is_known_before_the_result():
    assert read(INIT, assistant(text("Hi"))).session_id == SESSION


def test_usage_of_a_run_without_a_result_is_that_of_its_messages():
    one, two = assistant(text("a"), message_id="m1"), assistant(text("b"), message_id="m2")
    one["message"]["usage"] = {"input_tokens": 10, "output_tokens": 1}
    two["message"]["usage"] = {"input_tokens": 20, "output_tokens": 2}
    assert read(INIT, one, two, two).usage == Usage(30, 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (result("fine"), None),
        (failed("API Error"), "API Error"),
        (failed("", subtype="error_max_turns", errors=["Reached maximum"]), "Reached maximum"),
        (failed("", subtype="error_during_execution"), "error_during_execution"),
        (failed("", subtype=""), "the run failed"),
    ],
)
def test_what_a_result_says_of_a_failure(line: Line, said: str | None):
    assert read(INIT, line).failed_result == said


def test_the_output_of_a_program_that_prints_text_is_its_end():
    reading = RunReading()
    reading.feed(b"building\n" * 10_000 + "fertig ✓\n".encode())
    reading.end()
    assert reading.output is not None
    assert reading.output.endswith("building\nfertig ✓")
    assert len(reading.output) <= 20_000
    assert reading.transcript == []
    assert not reading.is_claude_code


def test_of_a_very_long_transcript_the_end_is_kept():
    lines = [assistant(text(f"message {n} " + "x" * 400), message_id=f"m{n}") for n in range(50)]
    transcript = read(*lines, limit_bytes=4_000).transcript
    assert transcript[0] == {"type": "midstream", "subtype": "left_out", "lines": 44}
    assert transcript[-1]["message"]["id"] == "m49"
    assert len(json.dumps(transcript)) < 6_000


def test_lines_of_other_agents_are_kept_too(recordings: Path):
    for path in sorted((recordings / "agent-cli-output").iterdir()):
        reading = RunReading()
        reading.feed(path.read_bytes())
        reading.end()
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        assert reading.transcript == lines, path.name
        assert reading.limit is None
        assert not reading.is_claude_code


def test_recorded_runs_of_claude_code(recordings: Path):
    reading = RunReading()
    reading.feed((recordings / "claude-code-ndjson/tool-roundtrip.ndjson").read_bytes())
    reading.end()
    assert reading.output == "Hello from the mock server."
    assert [line["type"] for line in reading.transcript] == [
        "assistant",
        "assistant",
        "user",
        "assistant",
    ]
    assert reading.usage == Usage(24, 18, 0, 0, cost_usd=0.00057)
