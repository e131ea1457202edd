"""The examples and the programs of the documentation, run as their readers run them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import trio

from midstream.cli.demo_streams import HONEST_REPORT, events
from midstream.config import WebsocketConfig
from midstream.providers.scripted import Pause, Script, answer
from midstream.testing.world import open_world
from midstream.websocket import open_websocket

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TEXT = HONEST_REPORT[1].text
LIMIT_S = 60

CONFIG = """
[provider]
name = "replay"
file = "stream.sse"
pace_s = 0.02
[websocket]
port = 0
[rules]
discover = false
builtin_rules = false
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose model says the same again and again."""
    (tmp_path / "midstream.toml").write_text(CONFIG)
    (tmp_path / "stream.sse").write_bytes(b"".join(events(HONEST_REPORT[1], 0)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIDSTREAM_TOKEN", raising=False)
    return tmp_path


def run_example(name: str, *arguments: str) -> str:
    command = [sys.executable, "-P", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextmanager
def running(
    command: list[str], url: str, environment: Mapping[str, str] | None = None
) -> Generator[None]:
    """A server that answers at `url`; it has to end well when it is told to."""
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})})
    try:
        with httpx2.Client(trust_env=False) as client:
            for _ in range(LIMIT_S * 10):
                assert process.poll() is None, "it has ended by itself"
                try:
                    client.get(url)
                    break
                except httpx2.TransportError:
                    trio.run(trio.sleep, 0.1)
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_the_trio_host_shows_an_answer(project: Path) -> None:
    shown = run_example("trio_host.py", "hello")
    assert TEXT in shown
    assert "completed after 1 attempts" in shown


def test_the_script_with_threads_answers_all_prompts(project: Path) -> None:
    shown = run_example("threads_script.py", "one", "two", "three")
    lines = shown.splitlines()
    assert [line.split(":")[0] for line in lines] == ["'one'", "'two'", "'three'"]
    assert all(TEXT in line for line in lines)


@contextmanager
def fastapi_host(project: Path) -> Generator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-P", str(EXAMPLES / "fastapi_host.py"), "--port", str(port)]
    with running(command, url):
        yield url


def test_the_fastapi_host_asks_and_streams(project: Path) -> None:
    with fastapi_host(project) as url, httpx2.Client(base_url=url, trust_env=False) as client:
        asked = client.post("/ask", json={"prompt": "hello"}).json()
        said = ""
        with client.stream("GET", f"/sessions/{asked['session']}") as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    said += chunk["text"] if chunk["event"] == "text" else ""
        assert said == TEXT
        assert client.get("/sessions/ses-none").status_code == 404
        assert client.post("/sessions/ses-none/cancel").status_code == 404
        ended = client.post(f"/sessions/{asked['session']}/cancel").json()
        assert ended == {"status": "completed"}
        assert "midstream.js" in client.get("/").text


def test_the_page_works_in_a_browser(project: Path) -> None:
    """With Debian's Chromium, or the one that CHROMIUM names."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium to look at the page with")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with fastapi_host(project) as url, playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        problems: list[object] = []

        def note_problem(problem: object) -> None:
            problems.append(problem)

        page.on("pageerror", note_problem)
        page.goto(url)
        page.wait_for_function("document.querySelector('#state').textContent.startsWith('open')")
        page.click("form button")
        page.wait_for_selector("text=completed after 1 attempt(s)", timeout=LIMIT_S * 1000)
        assert page.inner_text(".attempt") == TEXT
        assert problems == []
        browser.close()


def story() -> Script:
    script = list(answer("".join(f"<{number}>" for number in range(100)), piece_chars=5))
    return [step for each in script for step in (each, Pause(0.01))]


async def test_the_client_in_plain_javascript_follows_a_story_over_broken_connections() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run JavaScript with")
    config = WebsocketConfig(port=0)
    async with (
        open_world(story()) as world,
        open_websocket(world.runtime, config, token="s3cret") as door,
    ):
        script = Path(__file__).with_name("follow_a_story.mjs")
        # Node has had a WebSocket of its own since version 22, and behind this flag since 20.10.
        command = [node, "--no-warnings", "--experimental-websocket", str(script)]
        with trio.fail_after(LIMIT_S):
            done = await trio.run_process(
                [*command, door.urls[0], "s3cret"],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
    if b"bad option" in done.stderr:
        pytest.skip("this node knows no websockets")
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["text"] == "".join(f"<{number}>" for number in range(100))
    assert told["numbers"] == sorted(set(told["numbers"]))
    assert told["breaks"] > 3
    assert told["status"] == "completed"
    assert told["listed"] is True
    assert told["refused"] == "unknown_session"
    assert told["late"] == "the client was closed"


def programs_of(page: str) -> list[str]:
    """The complete programs on a page of the documentation: those that run something."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    starts = (".run(main", "with sync.open_runtime")
    return [block for block in blocks if any(start in block for start in starts)]


PROGRAMS = [
    (page, number)
    for page in ("websocket.md", "embedding.md")
    for number in range(len(programs_of(page)))
]


@pytest.mark.parametrize(("page", "number"), PROGRAMS)
async def test_the_programs_of_the_documentation_run(page: str, number: int, project: Path) -> None:
    """Each is run as it stands, but for the address of a server."""
    program = programs_of(page)[number]
    async with (
        open_world(answer("Hello from the server.")) as world,
        open_websocket(world.runtime, WebsocketConfig(port=0)) as door,
    ):
        program = program.replace("ws://127.0.0.1:7472", door.urls[0])
        with trio.fail_after(LIMIT_S):
            code, shown, errors = await run_program(program)
    if "sleep_forever" in program:
        assert "KeyboardInterrupt" in errors
        return
    assert code == 0, errors
    wanted = "Hello from the server." if "connect(" in program else TEXT
    assert wanted in shown
    assert "completed" in shown


async def run_program(program: str) -> tuple[int | None, str, str]:
    """Run it to its end, or until it listens; its exit code, output and errors."""
    command = [sys.executable, "-P", "-c", program]
    process = await trio.lowlevel.open_process(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with process.stdout, process.stderr:
        shown = ""
        async for data in process.stdout:
            shown += data.decode()
            if "listening at ws://" in shown:
                process.send_signal(signal.SIGINT)
        errors = b"".join([data async for data in process.stderr]).decode()
        return await process.wait(), shown, errors
