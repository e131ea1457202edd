"""`midstream serve` and `midstream attach` as programs: sockets, TLS, signals, a killed server."""

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from midstream.cli.attach import url_of
from midstream.cli.demo_streams import HONEST_REPORT, events
from midstream.client import CannotConnect, connect
from midstream.config import WebsocketConfig
from midstream.config_file import config_from
from midstream.doors.websocket import CannotListen
from midstream.messages.errors import ConfigError
from midstream.messages.events import SessionEvent, Text
from midstream.messages.record import SessionStatus
from midstream.providers.scripted import answer
from midstream.testing.world import open_world
from midstream.websocket import open_websocket

MAIN = (sys.executable, "-P", "-c", "from midstream.cli import main; main()")
PATIENCE_S = 30

OPENSSL = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    " -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
)

CONFIG = """
[provider]
name = "replay"
file = "stream.sse"
pace_s = 0.05
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


class Server:
    """A `midstream serve` that runs."""

    def __init__(self, process: trio.Process, url: str, http: str) -> None:
        self.process = process
        self.url = url
        self.http = http

    async def stop(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        with trio.fail_after(PATIENCE_S):
            await self.process.wait()


@asynccontextmanager
async def serving(port: int = 0, token: str | None = None) -> AsyncGenerator[Server]:
    environment = {**os.environ, **({"MIDSTREAM_TOKEN": token} if token else {})}
    command = [*MAIN, "serve", "--port", "0", "--websocket-port", str(port)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    try:
        said = ""
        with trio.fail_after(PATIENCE_S):
            while said.count("\n") < 2:
                data = await process.stdout.receive_some()
                assert data, "it ended before it listened"
                said += data.decode()
        yield Server(process, *(line.split()[-1] for line in said.splitlines()))
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()


def text_of(seen: list[SessionEvent]) -> str:
    return "".join(event.event.text for event in seen if isinstance(event.event, Text))


async def test_a_session_is_followed_live_from_another_terminal(project: Path) -> None:
    async with serving() as server, connect(server.url) as client:
        session = await client.animate("tell me")
        command = [*MAIN, "attach", session.session_id, "--url", server.url]
        with trio.fail_after(PATIENCE_S):
            done = await trio.run_process(command, capture_stdout=True, check=False)
        assert done.returncode == 0
        assert HONEST_REPORT[1].text in done.stdout.decode()
        with trio.fail_after(PATIENCE_S):
            done = await trio.run_process([*command, "--json", "--after", "2"], capture_stdout=True)
        lines = [json.loads(line) for line in done.stdout.decode().splitlines()]
        assert lines[0]["sequence"] > 2
        assert lines[-1]["event"]["event"] == "session.ended"
        await server.stop(signal.SIGTERM)
        assert server.process.returncode == 0


async def test_ctrl_c_leaves_a_session_and_it_runs_on(project: Path) -> None:
    # So slow that it lasts, however long the other program takes to start.
    (project / "midstream.toml").write_text(CONFIG.replace("0.05", "10"))
    async with serving() as server, connect(server.url) as client:
        session = await client.animate("tell me")
        command = [*MAIN, "attach", session.session_id, "--url", server.url]
        process = await trio.lowlevel.open_process(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with trio.fail_after(PATIENCE_S):
            await process.stdout.receive_some()
            process.send_signal(signal.SIGINT)
            said = b"".join([data async for data in process.stderr])
            await process.wait()
        await process.stdout.aclose()
        assert process.returncode == 130
        assert b"it runs on" in said
        assert (await session.record()).status is SessionStatus.RUNNING
        await session.cancel()
        assert (await session.result()).status is SessionStatus.CANCELLED


async def test_a_server_that_is_killed_and_started_again_is_the_same_to_its_clients(
    project: Path,
) -> None:
    """SIGKILL between two sessions: the one that has ended is told in full by the next."""
    async with serving() as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        async with connect(server.url) as client:
            first = await client.animate("one")
            seen = [event async for event in first.events()]
            await trio.sleep(1.0)  # its last events are on record by now
            await server.stop(signal.SIGKILL)
            async with serving(port):
                again = [event async for event in client.session(first.session_id).events(5)]
                assert [e.sequence for e in again][-1] == seen[-1].sequence
                assert again[-1] == seen[-1]
                assert text_of(seen).endswith(text_of(again))
                second = await client.animate("two", conversation_id=first.conversation_id)
                with trio.fail_after(PATIENCE_S):
                    assert (await second.result()).status is SessionStatus.COMPLETED


async def test_a_token_from_the_environment_lets_in(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(token="s3cret") as server:
        command = [*MAIN, "attach", "ses-none", "--url", server.url]
        done = await trio.run_process(command, capture_stderr=True, check=False)
        assert (done.returncode, b"token" in done.stderr) == (2, True)
        monkeypatch.setenv("MIDSTREAM_TOKEN", "s3cret")
        done = await trio.run_process(command, capture_stderr=True, check=False)
        assert (done.returncode, b"no session ses-none" in done.stderr) == (2, True)


async def test_why_there_is_nobody_to_attach_to_is_said_once(project: Path) -> None:
    """No server, a server of another kind, and no such session."""
    async with serving() as server:
        other = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = other[0].socket.getsockname()[1]
        await other[0].aclose()
        problems = {
            f"ws://127.0.0.1:{port}": "failed",
            server.http.replace("http", "ws"): "this is no midstream websocket",
            server.url: "no session ses-none",
        }
        for url, problem in problems.items():
            command = [*MAIN, "attach", "ses-none", "--url", url]
            done = await trio.run_process(command, capture_stderr=True, check=False)
            assert done.returncode == 2
            said = done.stderr.decode()
            assert (said.count("\n"), said.count(problem)) == (1, 1), said


def test_the_url_is_where_the_configuration_puts_the_door() -> None:
    assert url_of(WebsocketConfig()) == "ws://127.0.0.1:7472"
    assert url_of(WebsocketConfig(host="::", port=1)) == "ws://[::1]:1"
    assert url_of(WebsocketConfig(host="a.example", tls_certificate="x")) == "wss://a.example:7472"


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"prt": 1}, r"websocket\.prt: unknown key; did you mean port"),
        ({"port": -1}, r"websocket\.port"),
        ({"frames_per_s": 0}, r"websocket\.frames_per_s"),
    ],
)
def test_a_wrong_key_of_the_door_is_named(section: dict[str, int], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        config_from({"websocket": section})


async def test_a_door_says_when_its_place_is_taken() -> None:
    taken: list[CannotListen] = []
    first = WebsocketConfig(port=0)
    async with open_world() as world, open_websocket(world.runtime, first) as door:
        port = int(door.urls[0].rpartition(":")[2].partition("/")[0])
        async with open_world(seed=1) as other:
            try:
                async with open_websocket(other.runtime, WebsocketConfig(port=port)):
                    pytest.fail("two doors listen at one place")
            except CannotListen as error:
                taken.append(error)
    assert f"nobody can listen at 127.0.0.1:{port}" in str(taken[0])


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of its own making for localhost, and its key, in one file."""
    try:
        subprocess.run(
            OPENSSL.split(),
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed, so there is no certificate to test with")
    file = tmp_path / "both.pem"
    file.write_text((tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text())
    return file


async def test_the_door_speaks_tls(certificate: Path) -> None:
    config = WebsocketConfig(port=0, tls_certificate=str(certificate))
    async with (
        open_world(answer("in private")) as world,
        open_websocket(world.runtime, config, token="s3cret") as door,
    ):
        url = door.urls[0].replace("127.0.0.1", "localhost")
        assert url.startswith("wss://")
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with connect(url, token="s3cret", tls=trusting) as client:
            ended = await (await client.animate("hello")).result()
            assert ended.output == "in private"
        with pytest.raises(CannotConnect, match="certificate"):
            async with connect(url, token="s3cret"):
                pass
        # A client that speaks no TLS gets nothing, and harms nothing.
        plain = await trio.open_tcp_stream("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        async with plain:
            await plain.send_all(b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with trio.move_on_after(5):
                assert b"HTTP" not in await plain.receive_some()


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = WebsocketConfig(port=0, tls_certificate=str(tmp_path / "none.pem"))
    with pytest.raises(ExceptionGroup) as group:
        async with open_world() as world, open_websocket(world.runtime, config):
            pass
    assert "websocket.tls_certificate" in repr(group.value)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
async def test_b23_a_server_that_is_told_to_reads_its_rules_again(project: Path) -> None:
    rules = project / "rules"
    rules.mkdir()
    (project / "midstream.toml").write_text(f'{CONFIG}paths = ["rules"]\n')
    async with serving() as server:
        (rules / "no-foo.md").write_text("---\ncondition: foo\n---\nNo foo.\n")
        server.process.send_signal(signal.SIGHUP)
        assert server.process.stdout is not None
        with trio.fail_after(PATIENCE_S):
            assert await server.process.stdout.receive_some() == b"rules that are watched for: 1\n"
        rules.rename(project / "gone")
        server.process.send_signal(signal.SIGHUP)
        await server.stop(signal.SIGTERM)
        assert server.process.returncode == 0
