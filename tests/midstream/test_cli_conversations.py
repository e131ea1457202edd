"""`midstream run` with files, and `midstream conversations`, as a user runs them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from midstream.cli.app import app
from midstream.cli.conversations import hidden_because
from midstream.cli.demo_streams import HONEST_REPORT, events
from midstream.config import Config, StoreConfig
from midstream.messages.conversation import (
    AssistantItem,
    ReminderItem,
    SystemItem,
    TextPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.providers.scripted import Call, ScriptedProvider, answer
from midstream.runtime import open_runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.conversations import commit_write, replace_context
from midstream.stores.sqlite import open_sqlite

PROGRAM = (sys.executable, "-P", "-c", "from midstream.cli import main; main()")
LIMIT_S = 60
STORE = Path(".midstream") / "midstream.sqlite3"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file to refer to and a stream to replay."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("print('hello')\n")
    stream = b"".join(events(HONEST_REPORT[1], 0))
    (tmp_path / "stream.sse").write_bytes(stream)
    return tmp_path


def midstream(*arguments: str, status: int = 0) -> tuple[str, str]:
    """Run the command in this process; its output and its error output."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == status, done.output
    return done.stdout, done.stderr


def run(prompt: str, *arguments: str) -> str:
    return midstream("run", prompt, "--replay", "stream.sse", *arguments)[0]


def json_lines(shown: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.splitlines()]


def show(*arguments: str) -> list[dict[str, Any]]:
    return json_lines(midstream("conversations", "show", *arguments, "--json")[0])


def test_the_program_itself_attaches_files_and_shows_alerts(home: Path) -> None:
    command = [*PROGRAM, "run", "explain @src/app.py and @none.py", "--replay", "stream.sse"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "! @none.py was not attached: not_found" in done.stdout


def test_files_that_a_prompt_refers_to_go_along_and_what_failed_is_told(home: Path) -> None:
    shown = run("explain @src/app.py and @none.py", "--conversation", "con-1")
    assert "! @none.py was not attached: not_found" in shown
    assert shown.index("@none.py was not attached") < shown.index("attempt 1")
    user, attached, reply = show("con-1")
    assert user["item"]["text"] == "explain @src/app.py and [unresolved file ref: none.py]"
    assert attached["item"]["text"] == "[File: src/app.py]\nprint('hello')\n"
    assert attached["hidden"] == "file attachment src/app.py"
    assert (user["hidden"], reply["hidden"]) == (None, None)


def test_alerts_and_decisions_are_events_of_the_json_output(home: Path) -> None:
    shown = run('see @none.py <**stopMessage:"go on",1**>', "--json")
    kinds = [line["event"]["event"] for line in json_lines(shown)]
    assert kinds[:3] == ["alert", "stop_message.changed", "session.started"]
    assert kinds.count("continuation.decided") == 2


def test_a_continuation_is_shown_and_marked_as_hidden_in_the_history(home: Path) -> None:
    shown = run('report <**stopMessage:"go on",1**>', "--conversation", "con-1")
    assert "replies are continued with 'go on', at most 1 times" in shown
    assert "↻ continued, 1 of 1: go on" in shown
    assert "not continued: exhausted" in shown
    history, _ = midstream("conversations", "show", "con-1")
    assert "user [hidden: auto-continue]\ngo on" in history
    assert "stopMessage: 'go on', 1 of 1 used" in history


def test_a_directive_alone_is_answered_on_the_spot(home: Path) -> None:
    shown = run("<**stopMessage:clear**>")
    assert "Auto-continue is cleared." in shown
    assert "completed after 0 attempts" in shown


def test_conversations_are_listed_with_how_they_begin(home: Path) -> None:
    run("the first words", "--conversation", "con-a")
    run("other words", "--conversation", "con-b")
    run("more words", "--conversation", "con-a")
    shown, _ = midstream("conversations", "list")
    lines = [line for line in shown.splitlines() if line.startswith("con-")]
    assert [line.split()[0] for line in lines] == ["con-a", "con-b"], "the newest first"
    assert "the first words" in lines[0]
    listed = json_lines(midstream("conversations", "list", "--json", "--limit", "1")[0])
    [first] = listed
    assert (first["id"], first["turns"], first["sessions"], first["items"]) == ("con-a", 2, 2, 4)
    assert first["status"] == "completed"


def test_without_a_store_there_are_no_conversations_and_the_mend_is_named(home: Path) -> None:
    _, errors = midstream("conversations", "list", status=2)
    assert "there is no store" in errors


def test_a_conversation_that_is_not_on_record_is_named(home: Path) -> None:
    run("hello")
    _, errors = midstream("conversations", "show", "con-none", status=2)
    assert "no conversation con-none is on record" in errors


def test_long_hidden_texts_are_cut_unless_all_of_them_is_wanted(home: Path) -> None:
    (home / "long.txt").write_text("\n".join(f"line {number}" for number in range(50)))
    run("see @long.txt", "--conversation", "con-1")
    cut, _ = midstream("conversations", "show", "con-1")
    assert "line 4\n" in cut
    assert "line 30" not in cut
    assert "… 45 more lines; see --full" in cut
    full, _ = midstream("conversations", "show", "con-1", "--full")
    assert "line 49" in full


def test_calls_results_and_what_left_the_context_are_shown(home: Path) -> None:
    trio.run(look_and_sum_up, home)
    shown, _ = midstream("conversations", "show", "con-1")
    assert "4 items before are no longer in the context; see --all" in shown
    assert "It was seen." in shown
    assert "done" not in shown
    everything, _ = midstream("conversations", "show", "con-1", "--all")
    assert '→ look {"at": "it"}' in everything
    assert "2 tool look [not in the context]\nseen �[31m" in everything
    assert [line["in_context"] for line in show("con-1", "--all")] == [False] * 4 + [True] * 2


async def look_and_sum_up(home: Path) -> None:
    """A conversation with a call, whose context is then replaced by a summary."""
    provider = ScriptedProvider(answer("I look.", Call("look", '{"at": "it"}')), answer("done"))
    config = Config(store=StoreConfig(path=str(STORE)))
    async with open_runtime(config, provider=provider, rules=()) as runtime:
        await runtime.animate("look", conversation_id="con-1").result()
        results: Sequence[ToolResultItem] = (ToolResultItem("call_1", "look", "seen \x1b[31m"),)
        await runtime.animate(results, conversation_id="con-1").result()
    async with await open_sqlite(home / STORE) as store:
        conversation = await load_conversation(store, "con-1")
        summary = (UserItem("look"), AssistantItem((TextPart("It was seen."),), "anthropic"))
        await commit_write(store, conversation, lambda read: replace_context(read, summary))


@pytest.mark.parametrize(
    ("item", "because"),
    [
        (UserItem("hello"), None),
        (UserItem("go on", automatic=True), "auto-continue"),
        (AssistantItem((ToolCallPart("c", "t", "{}"),)), None),
        (ToolResultItem("c", "t", "x"), None),
        (ReminderItem("no", ("no-foo", "no-bar")), "reminder of no-foo, no-bar"),
        (SystemItem("x"), "notice"),
        (SystemItem("x", "file_attachment", "a.py"), "file attachment a.py"),
    ],
)
def test_what_a_client_does_not_show_is_hidden(item: Any, because: str | None) -> None:
    assert hidden_because(item) == because
