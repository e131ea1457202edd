"""`midstream serve` and `midstream detach`, as a user types them, with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
import trio
from claude_code_lines import INIT, assistant, result, text
from process_watch import PATIENCE_S, gone, is_alive, until, written
from stand_in_claude import stand_in
from typer.testing import CliRunner, Result

from midstream.actors.clock import Ids, ManualClock
from midstream.cli.app import app
from midstream.config import Config, StoreConfig
from midstream.config_file import config_from
from midstream.detach import DetachRequest, NotDetached, detach
from midstream.messages.errors import ConfigError

Run = Callable[..., Result]
Typed = Callable[..., Awaitable[Result]]

MAIN = "from midstream.cli import main; main()"
CONFIG = """
[provider]
name = "claude_code"
[rules]
discover = false
builtin_rules = false
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a configuration; nothing that was started there outlives the test."""
    (tmp_path / "midstream.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIDSTREAM_TOKEN", raising=False)
    yield tmp_path
    for each in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if Path(f"/proc/{each}/cwd").readlink() == tmp_path and int(each) != os.getpid():
                os.kill(int(each), signal.SIGKILL)
        except OSError:
            continue


@pytest.fixture
def run(project: Path) -> Run:
    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [*arguments], input=stdin)

    return invoke


@pytest.fixture
def typed(run: Run) -> Typed:
    """The same in a thread, since a command runs trio by itself."""

    async def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return await trio.to_thread.run_sync(lambda: run(*arguments, stdin=stdin))

    return invoke


@asynccontextmanager
async def serving(
    project: Path, *options: str, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[str]:
    """`midstream serve` in a process of its own; its URL."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-c", MAIN, "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        cwd=project,
        env={**os.environ, **(environment or {})},
    )
    assert process.stdout is not None
    try:
        said = b""
        with trio.fail_after(PATIENCE_S):
            while not said.endswith(b"\n"):
                data = await process.stdout.receive_some()
                assert data, "it ended before it listened"
                said += data
        yield said.decode().split()[-1]
    finally:
        with trio.CancelScope(shield=True):
            process.send_signal(signal.SIGTERM)
            with trio.move_on_after(PATIENCE_S):
                await process.wait()
            process.kill()
            await process.wait()
            await process.stdout.aclose()
    assert process.returncode == 0


async def shown(url: str, session: str, wanted: str, token: str | None = None) -> dict[str, Any]:
    """The record of a session, once it has this status."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(base_url=url, trust_env=False, headers=headers) as client:
        with trio.fail_after(PATIENCE_S):
            while True:
                answer = await client.get("/api/session/show", params={"id": session})
                if answer.status_code == 200 and answer.json()["status"] == wanted:
                    return answer.json()
                await trio.sleep(0.02)


def say(*lines: dict[str, Any]) -> list[list[Any]]:
    return [["say", line] for line in lines]


async def records(typed: Typed) -> list[dict[str, Any]]:
    listed = (await typed("sessions", "list", "--json")).stdout
    return [json.loads(line) for line in listed.splitlines()]


async def test_a_command_outlives_the_program_that_detached_it_and_its_end_is_on_record(
    project: Path, typed: Typed
):
    noted = project / "noted"
    steps = [["note", str(noted)], *say(INIT, assistant(text("Done.")), result("Done."))]
    async with serving(project) as url:
        done = await typed(
            *("detach", "--json", "--url", url, "--role", "smith", "--meta", "writId=w-1"),
            *("--conversation", "con-1", "--prompt-file", "-", "--", *stand_in(*steps)),
            stdin="Wie geht's?",
        )
        assert done.exit_code == 0, done.output
        started = json.loads(done.stdout)
        record = await shown(url, started["sessionId"], "completed")
        await gone(started["pid"])
    assert record["metadata"] == {"trigger": "detach", "role": "smith", "writId": "w-1"}
    assert record["conversationId"] == "con-1"
    assert record["output"] == "Done."
    assert record["costUsd"] == 0.25
    assert json.loads(noted.read_text())["stdin"] == "Wie geht's?"
    assert [kept["id"] for kept in await records(typed)] == [started["sessionId"]]


async def test_b8_cancelled_from_the_command_line_it_stops_with_all_its_tools(
    project: Path, typed: Typed
):
    tool = project / "tool"
    steps = [["spawn", str(tool)], *say(INIT, assistant(text("Hi"))), ["hang"]]
    async with serving(project) as url:
        done = await typed("detach", "--url", url, "--", *stand_in(*steps))
        session = done.stdout.strip()
        grandchild = int(await written(tool))
        running = await shown(url, session, "running")
        assert is_alive(grandchild)
        cancelled = await typed("sessions", "cancel", session)
        assert cancelled.exit_code == 0, cancelled.output
        await gone(running["cancelHandle"]["pgid"], grandchild)
        record = await shown(url, session, "cancelled")
    assert record["status"] == "cancelled"


async def test_b5_b13_without_a_host_the_session_is_pending_and_its_end_waits_for_one(
    project: Path, typed: Typed
):
    noted = project / "noted"
    steps = [["note", str(noted)], *say(INIT, assistant(text("Done.")), result("Done."))]
    url = "http://127.0.0.1:9"
    done = await typed("detach", "--json", "--url", url, "--", *stand_in(*steps))
    started = json.loads(done.stdout)
    session, pid = started["sessionId"], started["pid"]
    assert [kept["status"] for kept in await records(typed)] == ["pending"]
    await until(lambda: noted.exists() and not children(pid))
    os.kill(pid, signal.SIGTERM)  # its command has ended: this cuts the retries short
    await gone(pid)
    assert [path.name for path in (project / ".midstream/dlq").iterdir()] == [f"{session}.json"]
    async with serving(project) as served:
        record = await shown(served, session, "completed")
    assert record["output"] == "Done."
    assert record["provider"] == Path(sys.executable).name
    assert record["metadata"] == {"trigger": "detach"}
    assert list((project / ".midstream/dlq").glob("*.json")) == []


def children(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
    except OSError:
        return ""


async def test_with_a_token_the_babysitter_brings_it(
    project: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MIDSTREAM_TOKEN", "secret")
    async with serving(project) as url:
        done = await typed("detach", "--url", url, "--", *stand_in(*say(result("x"))))
        await shown(url, done.stdout.strip(), "completed", token="secret")
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/api/session/list")).status_code == 401


def test_a_command_that_cannot_run_is_a_failed_session_and_not_an_error(run: Run, project: Path):
    done = run("detach", "--json", "--url", "http://127.0.0.1:9", "--", "no-such-program")
    assert done.exit_code == 0
    os.kill(json.loads(done.stdout)["pid"], signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--meta", "novalue", "--", "true"], "KEY=VALUE"),
        (["--prompt", "a", "--prompt-file", "b", "--", "true"], "not both"),
        (["--prompt-file", "missing", "--", "true"], "missing cannot be read"),
        (["--timeout", "0", "--", "true"], "timeout"),
        ([], "COMMAND"),
    ],
)
def test_wrong_options_are_said(run: Run, arguments: list[str], said: str):
    done = run("detach", *arguments)
    assert done.exit_code == 2
    assert said.lower() in done.output.lower()


async def test_a_babysitter_that_does_not_start_leaves_a_failed_record(project: Path, typed: Typed):
    request = DetachRequest(argv=("true",), cwd=project, url="ftp://nowhere")
    clock = ManualClock(1_767_225_600_000)
    with pytest.raises(NotDetached, match="no http URL"):
        await detach(request, Config(), project, clock, Ids(clock, Random(0)))
    [record] = await records(typed)
    assert (record["status"], record["exitCode"]) == ("failed", 1)
    assert "no http URL" in record["error"]


async def test_a_store_that_cannot_be_written_hinders_nobody(project: Path):
    (project / "file").touch()
    config = Config(store=StoreConfig(path="file/store.sqlite3", dead_letters="dlq"))
    clock = ManualClock(1_767_225_600_000)
    request = DetachRequest(argv=("true",), cwd=project, url="http://127.0.0.1:9")
    detached = await detach(request, config, project, clock, Ids(clock, Random(0)))
    assert detached.warning is not None
    assert "not on record yet" in detached.warning
    os.kill(detached.pid, signal.SIGTERM)
    await gone(detached.pid)


def test_serve_refuses_the_network_without_a_token(run: Run):
    done = run("serve", "--host", "0.0.0.0")
    assert done.exit_code == 2
    assert "MIDSTREAM_TOKEN" in done.output


async def test_serve_says_when_its_place_is_taken(typed: Typed):
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    done = await typed("serve", "--port", str(port))
    await listener.aclose()
    assert done.exit_code == 2
    assert f"port {port}" in done.output


def test_the_configuration_says_where_a_host_listens():
    config = config_from({"http": {"host": "::1", "port": 9000, "token_env": "T"}})
    assert (config.http.host, config.http.port, config.http.token_env) == ("::1", 9000, "T")
    with pytest.raises(ConfigError, match=r"http\.prt: unknown key; did you mean port"):
        config_from({"http": {"prt": 1}})
