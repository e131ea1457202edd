"""`midstream gateway` as it is started: configuration, rules, records, metrics."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from gateway_streams import anthropic_stream
from gateway_world import Reply, ScriptedUpstream

from midstream.config import GatewayUpstreamConfig
from midstream.gateway import build_upstreams, named_upstream
from midstream.messages.errors import ConfigError

RULE = """---
condition: 'SECRET-\\d+'
---
Never say that word.
"""


async def started(process: trio.Process) -> str:
    """The address that the command says."""
    said = b""
    with trio.fail_after(20):
        assert process.stdout is not None
        while not (found := re.search(rb"listens at (\S+)\n", said)):
            said += await process.stdout.receive_some()
    return found[1].decode()


async def test_the_command_watches_counts_and_keeps_records(tmp_path: Path) -> None:
    (tmp_path / "no-secret.md").write_text(RULE)
    upstream = ScriptedUpstream(
        [
            Reply(anthropic_stream("It is SECRET-12.")),
            Reply(anthropic_stream("I may not.")),
            Reply([b"{}"], status=429, content_type="application/json"),
        ]
    )
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, upstream.handle, [listener])
        address = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        base = [sys.executable, "-P", "-c", "from midstream.cli import main; main()"]
        options = ["--upstream", address, "--port", "0", "--rules", "no-secret.md"]
        process = await trio.lowlevel.open_process(
            [*base, "gateway", *options], stdout=subprocess.PIPE, cwd=tmp_path
        )
        try:
            url = await started(process)
            async with httpx2.AsyncClient() as client:
                body: dict[str, Any] = {"model": "claude-x", "stream": True, "messages": []}
                key = {"x-api-key": "sk-ant-very-secret"}
                answer = await client.post(f"{url}/v1/messages", json=body, headers=key)
                await client.post(f"{url}/v1/messages", json=body, headers={"x-api-key": "other"})
                assert (await client.head(url)).status_code == 200
                assert (await client.get(f"{url}/healthz")).json() == {"status": "ok"}
                metrics = (await client.get(f"{url}/metrics")).text
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()
        nursery.cancel_scope.cancel()
    assert "SECRET" not in answer.text
    assert "I may not." in "".join(re.findall(r'"text":"([^"]*)"', answer.text))
    assert 'midstream_gateway_retries_total{upstream="upstream"} 1.0' in metrics
    listed = await trio.run_process(
        [*base, "sessions", "list", "--json"], capture_stdout=True, cwd=tmp_path, env=os.environ
    )
    assert b'"completed"' in listed.stdout
    assert b'"rate-limited"' in listed.stdout
    status = await trio.run_process(
        [*base, "status", "--json"], capture_stdout=True, cwd=tmp_path, env=os.environ
    )
    assert b'"paused"' not in status.stdout  # a client's quota is no pause of this host
    kept = b"".join(file.read_bytes() for file in (tmp_path / ".midstream").glob("*.sqlite3*"))
    assert b"sk-ant-very-secret" not in kept


def test_an_upstream_that_is_no_address_is_explained() -> None:
    with pytest.raises(ConfigError, match="begins with https://"):
        named_upstream("antropic")


def test_a_key_of_this_host_is_not_lent_to_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-1")
    config = {"anthropic": GatewayUpstreamConfig(api_key_env="SOME_KEY")}
    build_upstreams(config, "127.0.0.1")
    with pytest.raises(ConfigError, match="reached from the network"):
        build_upstreams(config, "0.0.0.0")
