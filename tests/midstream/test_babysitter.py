"""Sessions outside: what a babysitter reports, to whom, and what it leaves behind."""

import json
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from claude_code_lines import INIT, assistant, failed, result, synthetic, text
from process_watch import PATIENCE_S, gone, is_alive, until, written
from report_host import Answer, report_host, taken
from stand_in_claude import stand_in

from midstream.actors.clock import ManualClock
from midstream.babysitter import Babysitter
from midstream.babysitter_config import BabysitterConfig, parse_babysitter_config
from midstream.babysitter_report import RunEnd, record_report
from midstream.detach import NotDetached, start_babysitter
from midstream.messages.envelope import AnyEnvelope, ReportEnvelope
from midstream.messages.errors import ConfigError
from midstream.messages.session_reports import HeartbeatReport, RecordReport, ReportedStatus
from midstream.messages.timestamps import format_timestamp
from midstream.providers.claude_code_run import RunReading
from midstream.providers.process_group import GroupEnd, kill_group, read_handle
from midstream.report_client import open_report_client

NOW_MS = 1_755_700_000_000
Configure = Callable[..., BabysitterConfig]


@pytest.fixture
def configured(tmp_path: Path) -> Configure:
    """Makes a configuration; the command does these steps."""

    def make(*steps: list[Any], **fields: Any) -> BabysitterConfig:
        fields.setdefault("argv", stand_in(*steps))
        fields.setdefault("guild_tool_url", "http://127.0.0.1:9")  # nobody listens
        return BabysitterConfig(
            session_id="ses-abc-12345678",
            cwd=str(tmp_path),
            provider="claude_code",
            started_at="2026-01-01T00:00:00.000Z",
            dead_letters=str(tmp_path / "dlq"),
            **fields,
        )

    return make


def say(*lines: dict[str, Any]) -> list[list[Any]]:
    return [["say", line] for line in lines]


def letter(tmp_path: Path) -> RecordReport:
    """The one report in the dead-letter queue."""
    [path] = (tmp_path / "dlq").iterdir()
    assert path.name == "ses-abc-12345678.json"
    envelope = msgspec.json.decode(path.read_bytes(), type=AnyEnvelope)
    assert isinstance(envelope, ReportEnvelope)
    return envelope.report


# --- configuration


@pytest.mark.parametrize("data", [b"", b"  \n"])
def test_babysitter_an_empty_stdin_is_an_error(data: bytes):
    with pytest.raises(ConfigError, match="is empty"):
        parse_babysitter_config(data)


def test_babysitter_bad_json_is_quoted_as_far_as_it_helps():
    with pytest.raises(ConfigError) as caught:
        parse_babysitter_config(b"not json " + b"x" * 1000)
    assert "not json xxx" in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sessionId": 3}, "sessionId"),
        ({"surplus": 1}, "surplus"),
        ({"argv": []}, "no command"),
        ({"cwd": "relative"}, "cwd: is no absolute path"),
        ({"deadLetters": "dlq"}, "dead_letters: is no absolute path"),
        ({"guildToolUrl": "ftp://x"}, "no http URL"),
        ({"heartbeatS": 0}, "heartbeat_s: must be more than 0"),
        ({"timeoutS": -1}, "timeout_s"),
    ],
)
def test_babysitter_a_configuration_that_does_not_fit_is_an_error(
    configured: Configure, change: dict[str, Any], said: str
):
    data = {**msgspec.json.decode(msgspec.json.encode(configured())), **change}
    with pytest.raises(ConfigError, match=said):
        parse_babysitter_config(msgspec.json.encode(data))


def test_babysitter_a_configuration_comes_through_json_and_hides_its_token(
    configured: Configure,
):
    config = configured(token="secret", metadata={"role": "smith"})
    assert parse_babysitter_config(msgspec.json.encode(config)) == config
    assert "secret" not in repr(config)


# --- how it ended


def reported(end: RunEnd, *lines: dict[str, Any]) -> RecordReport:
    run = RunReading()
    for line in lines:
        run.feed(json.dumps(line).encode() + b"\n")
    run.end()
    at = format_timestamp(NOW_MS)
    return record_report("s", None, run, end, ended_at=at, ended_ms=NOW_MS, duration_ms=5)


LIMIT = synthetic("API Error", error="rate_limit")


@pytest.mark.parametrize(
    ("end", "lines", "status", "error"),
    [
        (RunEnd(0), [INIT, result("x")], "completed", None),
        (RunEnd(0), [], "completed", None),
        (RunEnd(3), [], "failed", "exited with code 3"),
        (RunEnd(-9), [], "failed", "ended by SIGKILL"),
        (RunEnd(0), [INIT], "failed", "exited with code 0 without a result"),
        (RunEnd(1), [INIT, failed("API Error: no")], "failed", "API Error: no"),
        (RunEnd(0), [INIT, failed("API Error: no")], "failed", "API Error: no"),
        (RunEnd(0), [INIT, LIMIT, failed("x")], "rate-limited", "rate_limit"),
        (RunEnd(0), [LIMIT, INIT, result("x")], "completed", None),
        (RunEnd(-15, timed_out=True), [LIMIT], "timeout", "the command took too long"),
        (RunEnd(trouble="no such program"), [], "failed", "no such program"),
        (RunEnd(0, trouble="it broke"), [LIMIT], "failed", "it broke"),
        (RunEnd(-15, stopped=True, stop_reason="why"), [LIMIT], "cancelled", "why"),
        (RunEnd(0, stopped=True, trouble="it broke"), [result("x")], "cancelled", None),
    ],
)
def test_babysitter_the_order_in_which_causes_count(
    end: RunEnd, lines: list[dict[str, Any]], status: str, error: str | None
):
    report = reported(end, *lines)
    assert report.status == status
    assert (report.error or "").startswith(error or "")
    assert (report.error is None) is (error is None)


def test_babysitter_a_diagnostic_comes_with_a_failure_by_exit_code_alone():
    failing = reported(RunEnd(3, "Segfault"))
    assert failing.termination_diagnostic is not None
    assert failing.termination_diagnostic.stderr_excerpt == "Segfault"
    for end in (RunEnd(0, "noise"), RunEnd(trouble="x"), RunEnd(3, "x", stopped=True)):
        assert reported(end).termination_diagnostic is None
    assert reported(RunEnd(1, "x"), LIMIT).termination_diagnostic is None


def test_babysitter_a_spent_quota_is_tagged_and_says_when_it_ends():
    info = {"status": "rejected", "resetsAt": NOW_MS / 1000 + 60}
    report = reported(RunEnd(1), {"type": "rate_limit_event", "rate_limit_info": info})
    assert report.termination_tag is not None
    assert (report.termination_tag.kind, report.termination_tag.source) == (
        "rate-limit",
        "ndjson-result",
    )
    assert report.retry_after_ms == 60_000


def test_babysitter_exit_codes_are_those_of_a_shell():
    assert reported(RunEnd(-9)).exit_code == 137
    assert reported(RunEnd(None, trouble="x")).exit_code == 1
    assert reported(RunEnd(7)).exit_code == 7


def test_babysitter_figures_without_a_result_are_an_estimate():
    said = assistant(text("Hi"))
    said["message"]["usage"] = {"input_tokens": 3, "output_tokens": 1}
    cut, whole = reported(RunEnd(-9), INIT, said), reported(RunEnd(0), INIT, said, result())
    assert cut.token_usage is not None
    assert whole.token_usage is not None
    assert (cut.token_usage.source, whole.token_usage.source) == ("estimated", "reported")
    assert reported(RunEnd(0)).token_usage is None


def test_babysitter_keys_on_stderr_are_not_reported():
    report = reported(RunEnd(1, "key sk-ant-REDACTED"))
    assert "abcdefghijklmnop" not in msgspec.json.encode(report).decode()


# --- reports over HTTP


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries that take a hundredth of their time."""
    monkeypatch.setattr("midstream.report_client.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("midstream.report_client.LONGEST_DELAY_S", 0.08)


BEAT = HeartbeatReport(session_id="s")


async def test_babysitter_a_report_is_a_post_with_the_sessions_header_and_the_token():
    async with report_host() as host, open_report_client(host.url, "ses-1", "tok") as client:
        answer = await client.send(BEAT)
    assert answer is not None
    assert answer.ok
    [(path, headers, body)] = host.reports
    assert path == "/api/session/heartbeat"
    assert headers["x-session-id"] == "ses-1"
    assert headers["authorization"] == "Bearer tok"
    assert headers["content-type"] == "application/json"
    assert body["sessionId"] == "s"


@pytest.mark.parametrize(
    ("status", "body"), [(400, b'{"error":"no"}'), (503, b"down"), (500, b""), (200, b"[]")]
)
async def test_babysitter_any_answer_is_final(status: int, body: bytes):
    async with report_host() as host, open_report_client(host.url, "s") as client:
        host.answer = lambda path, got: (status, body)
        assert await client.send(BEAT) is None
        assert len(host.reports) == 1


@pytest.mark.usefixtures("fast")
async def test_babysitter_a_connection_that_breaks_is_tried_again():
    answers = [None, None, taken("completed")]
    async with report_host() as host, open_report_client(host.url, "s") as client:
        host.answer = lambda path, got: answers.pop(0)
        answer = await client.send(BEAT)
        assert answer is not None
        assert answer.status == "completed"
        assert len(host.reports) == 3


async def test_babysitter_retries_are_bounded_in_time(autojump_clock: trio.testing.MockClock):
    """A port that nobody listens on refuses at once, so all the time is that of the waits."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    await listener.aclose()
    began_s = trio.current_time()
    async with open_report_client(url, "s") as client:
        assert await client.send(BEAT) is None
    assert trio.current_time() - began_s == pytest.approx(55)  # 1 + 2 + 4 + 6 times 8


# --- real processes


@asynccontextmanager
async def watched(config: BabysitterConfig) -> AsyncGenerator[int]:
    """A babysitter that has left us; its pid. Killed if a test leaves it running."""
    pid = await start_babysitter(config)
    try:
        yield pid
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
            await gone(pid)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    for each in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{each}/cmdline").read_bytes()
        except OSError:
            continue
        assert str(tmp_path).encode() not in command, f"{each} was left behind"


RUN = say(INIT, assistant(text("Done.")), result("Done."))


async def test_babysitter_a_session_is_reported_from_beginning_to_end(
    configured: Configure, tmp_path: Path
):
    path = tmp_path / "noted"
    async with report_host() as host:
        config = configured(
            ["note", str(path)],
            *RUN,
            guild_tool_url=host.url,
            prompt="Wie geht's?",
            environment={"ROLE": "smith"},
            conversation_id="con-1",
            metadata={"role": "smith", "trigger": "detach"},
        )
        async with watched(config) as pid:
            running = await host.wait_for("running")
            record = await host.wait_for("record")
            await gone(pid)
    assert running["metadata"] == {"role": "smith", "trigger": "detach"}, "B15"
    assert running["conversationId"] == "con-1"
    assert running["startedAt"] == "2026-01-01T00:00:00.000Z"
    assert running["provider"] == "claude_code"
    assert running["cancelHandle"]["pgid"] == pid
    assert running["cancelHandle"]["startTime"]
    assert record["status"] == "completed"
    assert record["output"] == "Done."
    assert record["costUsd"] == 0.25
    assert record["tokenUsage"] == {"inputTokens": 7, "outputTokens": 5, "source": "reported"}
    assert record["transcript"] == [json.loads(json.dumps(assistant(text("Done."))))]
    assert record["durationMs"] >= 0
    [seen] = [json.loads(line) for line in path.read_text().splitlines()]
    assert seen["stdin"] == "Wie geht's?"
    assert seen["environment"]["ROLE"] == "smith"
    assert seen["cwd"] == str(tmp_path)
    assert not (tmp_path / "dlq").exists()


async def test_b4_b5_when_nobody_answers_the_end_alone_waits_in_the_hosts_queue(
    configured: Configure, tmp_path: Path
):
    """Nothing else does: a report that it runs is stale by the time somebody reads it."""
    noted = tmp_path / "noted"
    async with watched(configured(["note", str(noted)], *RUN)) as pid:
        await until(lambda: noted.exists() and read_children(pid) == [])
        os.kill(pid, signal.SIGTERM)  # the command has ended: only the retries are cut short
        await gone(pid)
    report = letter(tmp_path)
    assert report.status is ReportedStatus.COMPLETED
    assert report.output == "Done."
    assert (tmp_path / "dlq/ses-abc-12345678.json").stat().st_mode & 0o777 == 0o600


def read_children(pid: int) -> list[int]:
    """The processes that a babysitter has started and not reaped."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in listed.split()]


@pytest.mark.parametrize(
    "answer", [(503, b'{"ok":false,"sessionId":"s","error":"down"}'), (400, b"{}")]
)
async def test_b6_a_report_that_was_not_kept_is_not_lost(
    configured: Configure, tmp_path: Path, answer: tuple[int, bytes]
):
    async with report_host() as host:
        host.answer = lambda path, body: answer if path.endswith("record") else taken()
        async with watched(configured(*RUN, guild_tool_url=host.url)) as pid:
            await gone(pid)
    assert letter(tmp_path).status is ReportedStatus.COMPLETED


async def test_a_second_end_of_the_same_session_overwrites_the_first_letter(
    configured: Configure, tmp_path: Path
):
    async with report_host() as host:
        host.answer = lambda path, body: (400, b"{}")
        for text_ in ("First.", "Second."):
            steps = say(INIT, assistant(text(text_)), result(text_))
            async with watched(configured(*steps, guild_tool_url=host.url)) as pid:
                await gone(pid)
    assert letter(tmp_path).output == "Second."


BUSY = [*say(INIT, assistant(text("Working."))), ["hang"]]


@pytest.mark.parametrize("path", ["running", "heartbeat"])
async def test_b8_an_answer_that_the_session_is_over_stops_the_command(
    configured: Configure, tmp_path: Path, path: str
):
    tool = tmp_path / "tool"
    async with report_host() as host:
        host.answer = lambda got, body: taken(
            "cancelled" if got.endswith(path) and tool.exists() else "running"
        )
        # The tool comes last: where it is there, the command has said its word.
        says, waits = BUSY[:-1], BUSY[-1]
        steps = [["ignore_term"], *says, ["spawn", str(tool)], waits]
        config = configured(*steps, guild_tool_url=host.url, heartbeat_s=0.05, stop_grace_s=0.1)
        if path == "running":
            tool.touch()
        async with watched(config) as pid:
            record = await host.wait_for("record")
            await gone(pid)
    assert record["status"] == "cancelled"
    assert record["error"] == "the session is cancelled on record"
    if path == "heartbeat":
        assert record["output"] == "Working."
        await gone(int(tool.read_text()))


async def test_b12_it_lives_whatever_becomes_of_the_running_report(configured: Configure):
    async with report_host() as host:
        host.answer = lambda path, body: None if path.endswith("running") else taken()
        config = configured(*BUSY, guild_tool_url=host.url, heartbeat_s=0.05, stop_grace_s=0.1)
        async with watched(config) as pid:
            await host.wait_for("heartbeat", 2)
            os.kill(pid, signal.SIGTERM)
            await gone(pid)


@pytest.mark.parametrize("answer", [taken(ok=False), taken("pending")])
async def test_a_host_that_has_not_heard_of_the_session_is_told_again(
    configured: Configure, answer: Answer
):
    """It was down when the session began, and there is no record, or only that of a plan."""
    async with report_host() as host:
        host.answer = lambda path, body: answer if path.endswith("heartbeat") else taken()
        config = configured(*BUSY, guild_tool_url=host.url, heartbeat_s=0.05, stop_grace_s=0.1)
        async with watched(config) as pid:
            await host.wait_for("running", 3)
            os.kill(pid, signal.SIGTERM)
            await gone(pid)


async def test_b7_a_sigterm_stops_the_command_and_is_reported_as_a_cancel(
    configured: Configure, tmp_path: Path
):
    tool = tmp_path / "tool"
    steps = [["ignore_term"], ["spawn", str(tool)], *BUSY]
    async with report_host() as host:
        config = configured(*steps, guild_tool_url=host.url, stop_grace_s=0.1)
        async with watched(config) as pid:
            grandchild = int(await written(tool))
            os.kill(pid, signal.SIGTERM)
            record = await host.wait_for("record")
            await gone(pid, grandchild)
    assert record["status"] == "cancelled"
    assert record["error"] == "stopped by SIGTERM"


async def test_b16_its_cancel_handle_stops_everything_from_another_process(
    configured: Configure, tmp_path: Path
):
    tool = tmp_path / "tool"
    steps = [["ignore_term"], ["spawn", str(tool)], *BUSY]
    async with report_host() as host:
        config = configured(*steps, guild_tool_url=host.url, stop_grace_s=0.1)
        async with watched(config) as pid:
            grandchild = int(await written(tool))
            handle = read_handle((await host.wait_for("running"))["cancelHandle"])
            assert handle is not None
            assert await kill_group(handle) is GroupEnd.ENDED
            await gone(pid, grandchild)
    assert host.bodies("record")[0]["status"] == "cancelled"


async def test_55_when_the_babysitter_is_killed_its_command_dies_with_it(
    configured: Configure, tmp_path: Path
):
    tool = tmp_path / "tool"
    async with watched(configured(["ignore_term"], ["spawn", str(tool)], *BUSY)) as pid:
        grandchild = int(await written(tool))
        children = read_children(pid)
        assert len(children) == 2, "the command and its watchdog"
        os.kill(pid, signal.SIGKILL)
        await gone(pid, grandchild, *children)


async def test_14_15_a_command_that_takes_too_long_is_stopped(
    configured: Configure, tmp_path: Path
):
    async with report_host() as host:
        config = configured(*BUSY, guild_tool_url=host.url, timeout_s=0.5, stop_grace_s=0.1)
        async with watched(config) as pid:
            record = await host.wait_for("record")
            await gone(pid)
    assert record["status"] == "timeout"


async def test_babysitter_a_program_that_is_not_there_is_a_failed_session(configured: Configure):
    async with report_host() as host:
        config = configured(argv=["no-such-program"], guild_tool_url=host.url)
        async with watched(config) as pid:
            record = await host.wait_for("record")
            await gone(pid)
    assert record["status"] == "failed"
    assert "no-such-program" in record["error"]


async def test_it_outlives_its_caller_and_has_no_terminal(configured: Configure):
    async with watched(configured(*BUSY, stop_grace_s=0.1)) as pid:
        stat = (await trio.Path(f"/proc/{pid}/stat").read_text()).rpartition(")")[2].split()
        ppid, pgid, sid, terminal = map(int, stat[1:5])
        assert ppid != os.getpid()
        assert (pgid, sid, terminal) == (pid, pid, 0)
        os.kill(pid, signal.SIGTERM)


async def test_a_session_outside_does_not_end_with_the_stream_in_which_it_was_started(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MIDSTREAM_CHILD", "1:1@x:1.")
    async with watched(configured(*BUSY, stop_grace_s=0.1)) as pid:
        environment = await trio.Path(f"/proc/{pid}/environ").read_bytes()
        assert b"MIDSTREAM_CHILD=1:1@x:1." not in environment.split(b"\0")
        os.kill(pid, signal.SIGTERM)


async def test_a_babysitter_that_does_not_start_says_why(configured: Configure):
    with pytest.raises(NotDetached, match="names no command"):
        await start_babysitter(configured(argv=[]))


async def test_a_queue_that_cannot_be_written_is_the_only_way_to_lose_an_end(
    configured: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "dlq").write_text("not a directory")
    async with report_host() as host:
        host.answer = lambda path, body: (400, b"{}")
        config = configured(*RUN, guild_tool_url=host.url)
        with trio.fail_after(PATIENCE_S):
            assert await Babysitter(config, ManualClock(NOW_MS)).run() == 1
    assert "the end of ses-abc-12345678 is lost" in capsys.readouterr().err
