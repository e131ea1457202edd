"""`midstream sessions` and `midstream status`, as a user types them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hosts import SPEAKING, configuration, until_it_speaks
from typer.testing import CliRunner, Result

from midstream.cli.app import app
from midstream.cli.sessions_view import span
from midstream.messages.dispatch import DISPATCH_STATUS_ID, DispatchState, DispatchStatus
from midstream.messages.record import (
    Fence,
    SessionRecord,
    SessionStatus,
    TokenUsage,
)
from midstream.providers.scripted import ScriptedProvider
from midstream.runtime import open_runtime
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import Book, Put, encode

STORE = ".midstream/midstream.sqlite3"


def record(number: int, status: SessionStatus, **fields: Any) -> SessionRecord:
    return SessionRecord(
        id=f"ses-00000{number}-aaaaaaaa",
        status=status,
        started_at=f"2026-03-0{number}T12:00:00.000Z",
        ended_at=f"2026-03-0{number}T12:03:04.000Z" if status.is_terminal else None,
        duration_ms=184_000 if status.is_terminal else None,
        provider="anthropic",
        conversation_id=f"con-{number}",
        fence=Fence(owner="host-a", token=1),
        **fields,
    )


RECORDS = [
    record(1, SessionStatus.COMPLETED, output="the answer", metadata={"role": "coder"}),
    record(2, SessionStatus.FAILED, error="connection reset\nby peer"),
    record(
        3,
        SessionStatus.COMPLETED,
        cost_usd=0.25,
        token_usage=TokenUsage(input_tokens=100, output_tokens=20),
    ),
    record(4, SessionStatus.RUNNING),
]
IDS = [record.id for record in RECORDS]


async def _fill(path: Path, documents: Sequence[Put]) -> None:
    async with await open_sqlite(path) as store:
        await store.commit(documents)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    puts = [Put(Book.SESSIONS, record.id, encode(record), 0) for record in RECORDS]
    trio.run(_fill, tmp_path / STORE, puts)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return result


def objects(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("place")
def test_the_newest_sessions_are_listed_first() -> None:
    lines = run("sessions", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == IDS[::-1]
    assert "3m 04s" in lines[2]
    assert "$0.2500" in lines[2]
    assert "connection reset by peer" in lines[3]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_list_for_a_file_is_not_cut_to_a_width(place: Path, columns: int) -> None:
    env = {"COLUMNS": str(columns)}
    lines = CliRunner().invoke(app, ["sessions", "list"], env=env).stdout.splitlines()
    assert lines[3].startswith(f"{IDS[1]}  failed ")
    assert lines[3].rstrip().endswith("connection reset by peer")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--status", "completed"], [3, 1]),
        (["-s", "completed", "-s", "failed"], [3, 2, 1]),
        (["--provider", "openai"], []),
        (["--conversation", "con-2"], [2]),
        (["--since", "2026-03-02", "--until", "2026-03-03"], [3, 2]),
        (["--limit", "1"], [4]),
    ],
)
def test_filters_let_through_what_they_say(options: list[str], numbers: list[int]) -> None:
    found = objects(run("sessions", "list", "--json", *options))
    assert [record["id"] for record in found] == [IDS[number - 1] for number in numbers]


@pytest.mark.usefixtures("place")
def test_json_is_the_record_as_it_is_kept() -> None:
    *_, first = objects(run("sessions", "list", "--json"))
    assert first["startedAt"] == "2026-03-01T12:00:00.000Z"
    assert first["metadata"] == {"role": "coder"}


@pytest.mark.usefixtures("place")
def test_a_session_is_shown_with_all_that_is_on_record() -> None:
    shown = run("sessions", "show", IDS[0]).stdout
    for piece in (IDS[0], "completed", "2026-03-01 12:00:00", "con-1", "host-a", "the answer"):
        assert piece in shown
    assert objects(run("sessions", "show", IDS[0], "--json"))[0]["output"] == "the answer"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", ["show", "cancel"])
def test_an_unknown_session_is_one_line_and_code_2(command: str) -> None:
    result = run("sessions", command, "ses-nowhere", code=2)
    assert result.stderr == "midstream: there is no session ses-nowhere\n"


@pytest.mark.usefixtures("place")
def test_a_running_session_is_cancelled_with_its_reason() -> None:
    assert "is cancelled" in run("sessions", "cancel", IDS[3], "--reason", "enough").stdout
    [shown] = objects(run("sessions", "show", IDS[3], "--json"))
    assert (shown["status"], shown["error"]) == ("cancelled", "enough")


@pytest.mark.usefixtures("place")
def test_a_session_that_has_ended_stays_as_it_is() -> None:
    assert "had ended before: completed" in run("sessions", "cancel", IDS[0]).stdout
    [cancelled] = objects(run("sessions", "cancel", IDS[0], "--json"))
    assert cancelled["status"] == "completed"


@pytest.mark.usefixtures("place")
def test_costs_are_summed_and_what_nobody_told_is_not_zero() -> None:
    shown = run("sessions", "costs").stdout
    assert "4 sessions" in shown
    assert "$0.2500" in shown
    assert shown.count("not told") == 3
    assert objects(run("sessions", "costs", IDS[2], "ses-nowhere", "--json")) == [
        {IDS[2]: {"costUsd": 0.25, "inputTokens": 100, "outputTokens": 20}}
    ]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "options", [["--since", "yesterday"], ["--status", "sleeping"], ["--limit", "many"]]
)
def test_wrong_input_is_refused_with_code_2(options: list[str]) -> None:
    run("sessions", "list", *options, code=2)


def test_where_there_is_no_store_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("sessions", "list", code=2)
    assert "there is no store" in result.stderr
    assert os.listdir(tmp_path) == []


def test_the_status_says_until_when_nothing_may_begin(place: Path) -> None:
    paused = DispatchStatus(
        id=DISPATCH_STATUS_ID,
        state=DispatchState.PAUSED,
        backoff_level=1,
        paused_since="2026-03-01T12:00:00.000Z",
        paused_until="2999-01-01T00:00:00.000Z",
        pause_reason="429",
    )
    trio.run(_fill, place / STORE, [Put(Book.STATE, paused.id, encode(paused), 0)])
    shown = run("status").stdout
    for piece in ("no", "paused, level 1", "2999-01-01 00:00:00", "429", "1 running, 0 pending"):
        assert piece in shown
    assert objects(run("status", "--json")) == [
        {
            "id": "dispatch-status",
            "state": "paused",
            "backoffLevel": 1,
            "pausedSince": "2026-03-01T12:00:00.000Z",
            "pausedUntil": "2999-01-01T00:00:00.000Z",
            "pauseReason": "429",
            "dispatchable": False,
            "running": 1,
            "pending": 0,
        }
    ]


@pytest.mark.usefixtures("place")
def test_the_status_of_a_store_that_never_paused() -> None:
    assert objects(run("status", "--json"))[0]["dispatchable"] is True


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0.0s"), (840, "0.8s"), (12_000, "12s"), (184_000, "3m 04s"), (7_500_000, "2h 05m")],
)
def test_spans_are_said_as_people_say_them(ms: int, text: str) -> None:
    assert span(ms) == text


# --- other processes


def midstream(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    program = "from midstream.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watching_shows_each_change_and_ends_with_the_session(place: Path) -> None:
    watching = midstream("sessions", "show", IDS[3], "--watch", "--json", cwd=place)
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["status"] == "running"
    done = midstream("sessions", "cancel", IDS[3], cwd=place)
    assert done.wait(60) == 0
    assert json.loads(watching.stdout.readline())["status"] == "cancelled"
    assert watching.wait(60) == 0
    for process in (watching, done):
        process.communicate()


def test_a_watched_list_is_left_with_ctrl_c_without_a_failure(place: Path) -> None:
    watching = midstream("sessions", "list", "--watch", "--json", cwd=place)
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["id"] == IDS[3]
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (0, "")


async def test_a_command_stops_a_session_that_runs_in_another_process(tmp_path: Path) -> None:
    provider = ScriptedProvider(SPEAKING)
    async with open_runtime(configuration(), cwd=tmp_path, provider=provider, rules=()) as runtime:
        handle = runtime.animate("hi")
        await until_it_speaks(runtime, handle.session_id)
        done = midstream("sessions", "cancel", handle.session_id, "--reason", "typed", cwd=tmp_path)
        output, errors = await trio.to_thread.run_sync(done.communicate)
        assert (done.returncode, errors) == (0, "")
        assert "is cancelled" in output
        ended = await handle.result()
        assert (ended.status, ended.reason) == (SessionStatus.CANCELLED, "typed")
        assert provider.live == 0


def test_a_prompt_in_a_pause_is_told_why_it_did_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = DispatchStatus(
        id=DISPATCH_STATUS_ID,
        state=DispatchState.PAUSED,
        backoff_level=0,
        paused_until="2999-01-01T00:00:00.000Z",
        pause_reason="429 from the provider",
    )
    trio.run(_fill, tmp_path / STORE, [Put(Book.STATE, paused.id, encode(paused), 0)])
    monkeypatch.chdir(tmp_path)
    start = 'event: message_start\ndata: {"type": "message_start"}\n\n'
    (tmp_path / "stream.sse").write_text(start)
    shown = run("run", "hi", "--replay", "stream.sse", code=1).stdout
    assert "rate-limited" in shown
    assert "429 from the provider (paused until 2999" in shown
