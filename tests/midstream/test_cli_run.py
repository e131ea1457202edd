"""`midstream run` and `midstream demo`, as a user runs them: as programs."""

import json
import os
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from midstream.cli.demo_streams import HONEST_REPORT, TYPED_CONFIG, Answer, events

PROGRAM = (sys.executable, "-P", "-c", "from midstream.cli import main; main()")
LIMIT_S = 60

NO_ANY = r"""---
condition: ':\s*any\b'
scope: tool:write(*.ts)
---
Do not use the type `any`.
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def rules(home: Path) -> Path:
    folder = home / "rules"
    folder.mkdir()
    (folder / "ts-no-any.md").write_text(NO_ANY)
    return folder


def recorded(home: Path, answer: Answer) -> Path:
    """A stream of the demo, as a file."""
    file = home / "stream.sse"
    file.write_bytes(b"".join(events(answer, 0)))
    return file


def midstream(*arguments: str | Path, status: int = 0) -> tuple[str, str]:
    """Run the program to its end; its output and its error output."""
    command = [*PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_replayed_stream_that_breaks_a_rule_is_cut_and_explained(home: Path, rules: Path) -> None:
    shown, _ = midstream("run", "--replay", recorded(home, TYPED_CONFIG[0]), "--rules", rules)
    assert "cut by ts-no-any in write call for src/config.ts" in shown
    assert "Do not use the type `any`." in shown
    assert "attempt 2" in shown


def test_a_clean_stream_is_shown_as_it_is(home: Path, rules: Path) -> None:
    shown, _ = midstream("run", "--replay", recorded(home, HONEST_REPORT[1]), "--rules", rules)
    assert HONEST_REPORT[1].text in shown
    assert "completed (end_turn) after 1 attempt" in shown


HOSTILE = "\x1b]52;c;ZWNobw==\x07\x1b[2Jgone\x9b1A\rover\x7f – and\u00a0👩‍💻\n"


def test_what_a_model_says_does_not_command_the_terminal(home: Path, rules: Path) -> None:
    stream = home / "stream.sse"
    stream.write_bytes(b"".join(events(Answer(HOSTILE), 0)))

    shown, _ = midstream("run", "--replay", stream, "--rules", rules)
    session = json.loads(midstream("sessions", "list", "--json")[0])["id"]
    kept, _ = midstream("sessions", "show", session)
    said, _ = midstream("conversations", "list")

    for page in (shown, kept, said):
        assert not [c for c in page if c != "\n" and unicodedata.category(c) == "Cc"]
    assert "gone�1Aover� – and\u00a0👩‍💻" in shown
    assert "gone�1Aover� – and\u00a0👩‍💻" in kept


def test_the_version_is_the_one_installed(home: Path) -> None:
    assert midstream("--version")[0] == f"midstream {version('midstream')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("rules", "list"),
        ("rules", "list", "--json"),
        ("demo", "--speed", "50"),
        ("demo", "--speed", "50", "--json"),
    ],
)
def test_a_reader_that_goes_away_ends_the_program_without_a_word(
    home: Path, arguments: tuple[str, ...]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as unread:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            stdout=unread,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_json_prints_one_event_a_line(home: Path, rules: Path) -> None:
    file = recorded(home, TYPED_CONFIG[0])
    shown, _ = midstream("run", "--replay", file, "--rules", rules, "--json")
    lines = [json.loads(line) for line in shown.splitlines()]
    kinds = [line["event"]["event"] for line in lines]
    assert kinds[0] == "session.started"
    assert kinds[-1] == "session.ended"
    assert "ttsr_triggered" in kinds
    assert [line["sequence"] for line in lines] == sorted({line["sequence"] for line in lines})


def test_a_conversation_goes_on_with_what_it_remembers(home: Path, rules: Path) -> None:
    file = recorded(home, TYPED_CONFIG[0])
    arguments = ("run", "--replay", file, "--rules", rules, "--conversation", "con-1")
    first, _ = midstream(*arguments)
    assert "cut by ts-no-any" in first
    second, _ = midstream(*arguments)
    assert "cut by" not in second, "a rule with `once` is silent in this conversation"
    assert "suppressed" in second


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run"], "PROMPT"),
        (["run", "--replay", "nowhere.sse"], "nowhere.sse"),
        (["run", "hello", "--rules", "nowhere"], "nowhere"),
        (["run", "hello", "--provider", "nobody"], "provider.name"),
        (["run", "hello", "--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_is_one_clear_line_that_names_it(
    arguments: list[str], named: str, home: Path
) -> None:
    shown, problem = midstream(*arguments, status=2)
    assert not shown
    assert named in problem
    assert len(problem.strip().splitlines()) == 1


def test_a_cause_is_told_once(home: Path) -> None:
    _, said = midstream("run", "--replay", "/nope.sse", "hello", status=2)
    assert said == (
        "midstream: replay: paths: /nope.sse cannot be read: No such file or directory\n"
    )
    (home / "midstream.toml").write_bytes(b"\xff\xfe")
    _, said = midstream("run", "hello", status=2)
    assert said.count("byte 0xff in position 0") == 1


def test_a_wrong_key_of_the_configuration_is_named(home: Path) -> None:
    (home / "midstream.toml").write_text("[provider]\nmodle = 'x'\n")
    _, problem = midstream("run", "hello", status=2)
    assert "midstream.toml: provider.modle: unknown key; did you mean model?" in problem


def test_a_missing_key_is_a_failure_that_names_the_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    shown, _ = midstream("run", "hello", "--provider", "anthropic", status=1)
    assert "ANTHROPIC_API_KEY" in shown


@pytest.fixture
def slow_run(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A replay that would take minutes, and has begun to talk."""
    file = recorded(home, HONEST_REPORT[1])
    command = [*PROGRAM, "run", "--replay", str(file), "--pace", "5", "--json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        while "attempt.started" not in process.stdout.readline():
            pass
        yield process
        process.kill()


def test_ctrl_c_interrupts_once_and_ends_cleanly(slow_run: subprocess.Popen[str]) -> None:
    slow_run.send_signal(signal.SIGINT)
    shown, _ = slow_run.communicate(timeout=LIMIT_S)
    assert slow_run.returncode == 130
    ended = json.loads(shown.splitlines()[-1])["event"]
    assert (ended["event"], ended["status"]) == ("session.ended", "cancelled")


def test_the_demo_cuts_corrects_and_finishes_both_answers(home: Path) -> None:
    shown, _ = midstream("demo", "--speed", "30")
    assert shown.count("✂ cut by") == 2
    assert "What happened" in shown


def test_the_demo_has_no_colour_codes_where_there_is_no_terminal(home: Path) -> None:
    shown, _ = midstream("demo", "--speed", "30", "--json")
    assert "\x1b" not in shown
    for line in shown.splitlines():
        json.loads(line)
