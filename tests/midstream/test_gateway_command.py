"""`midstream gateway` as it is started: configuration, rules, records, metrics."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from gateway_process import MAIN, gateway_command, said, started, words
from gateway_streams import anthropic_stream
from gateway_world import Reply, ScriptedUpstream

from midstream.config import Config, GatewayConfig, GatewayUpstreamConfig, StoreConfig
from midstream.doors.websocket import CannotListen
from midstream.gateway import open_gateway
from midstream.gateway_upstreams import build_upstreams, named_upstream
from midstream.messages.errors import ConfigError
from midstream.runtime import open_runtime

BODY: dict[str, Any] = {"model": "claude-x", "stream": True, "messages": []}
RULE = """---
condition: 'SECRET-\\d+'
---
Never say that word.
"""


async def test_the_command_watches_counts_and_keeps_records(tmp_path: Path) -> None:
    (tmp_path / "no-secret.md").write_text(RULE)
    upstream = ScriptedUpstream(
        [
            Reply(anthropic_stream("It is SECRET-12.")),
            Reply(anthropic_stream("I may not.")),
            Reply([b"{}"], status=429, content_type="application/json"),
        ]
    )
    async with gateway_command(tmp_path, upstream, "--rules", "no-secret.md") as process:
        url = await started(process)
        async with httpx2.AsyncClient() as client:
            key = {"x-api-key": "sk-ant-very-secret"}
            answer = await client.post(f"{url}/v1/messages", json=BODY, headers=key)
            await client.post(f"{url}/v1/messages", json=BODY, headers={"x-api-key": "other"})
            assert (await client.head(url)).status_code == 200
            assert (await client.get(f"{url}/healthz")).json() == {"status": "ok"}
            metrics = (await client.get(f"{url}/metrics")).text
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(30):
            assert await process.wait() == 0
    assert "SECRET" not in answer.text
    assert "I may not." in words(answer)
    assert 'midstream_gateway_retries_total{upstream="upstream"} 1.0' in metrics
    listed = await trio.run_process(
        [*MAIN, "sessions", "list", "--json"], capture_stdout=True, cwd=tmp_path, env=os.environ
    )
    assert b'"completed"' in listed.stdout
    assert b'"rate-limited"' in listed.stdout
    status = await trio.run_process(
        [*MAIN, "status", "--json"], capture_stdout=True, cwd=tmp_path, env=os.environ
    )
    assert b'"paused"' not in status.stdout  # a client's quota is no pause of this host
    kept = b"".join(file.read_bytes() for file in (tmp_path / ".midstream").glob("*.sqlite3*"))
    assert b"sk-ant-very-secret" not in kept


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
async def test_rules_that_are_read_again_count_for_the_requests_that_come_then(
    tmp_path: Path,
) -> None:
    """One that runs keeps those of its beginning, and a file that cannot be read any more
    changes nothing."""
    rule_file, go_on = tmp_path / "rule.md", trio.Event()
    rule_file.write_text(RULE)
    first = anthropic_stream("It is SECRET-12 and ")
    begun, end = first[:2], b"".join(first[2:])
    upstream = ScriptedUpstream(
        [
            Reply([*begun, end], last_piece_after=go_on),
            Reply(anthropic_stream("I may not.")),
            Reply(anthropic_stream("It is SECRET-13, you FOOL.")),
            Reply(anthropic_stream("It is SECRET-14, friend.")),
            Reply(anthropic_stream("FOOL again.")),
            Reply(anthropic_stream("Friend again.")),
        ]
    )
    async with (
        gateway_command(tmp_path, upstream, "--rules", "rule.md") as process,
        httpx2.AsyncClient(timeout=30) as client,
        trio.open_nursery() as nursery,
    ):
        url = await started(process)
        first_over = trio.Event()
        answers: list[str] = []

        async def ask() -> None:
            answers.append(words(await client.post(f"{url}/v1/messages", json=BODY)))
            first_over.set()

        nursery.start_soon(ask)
        await upstream.wait_asked(1)
        rule_file.write_text(RULE.replace("SECRET-\\d+", "FOOL"))
        process.send_signal(signal.SIGHUP)
        await said(process.stdout, rb"watched for: (\d+)\n")
        go_on.set()
        await first_over.wait()
        await ask()
        rule_file.write_text("---\ncondition: '('\n---\nNo.\n")
        process.send_signal(signal.SIGHUP)
        why = await said(process.stderr, rb"the rules stay as they are: (.*)\n")
        await ask()
    early, late, kept = answers
    assert early.endswith("I may not.")
    assert "SECRET" not in early
    assert "SECRET-14" in late
    assert "FOOL" not in late
    assert "rule.md:2" in why
    assert "a group is not closed" in why
    assert kept == "Friend again."


def test_an_upstream_that_is_no_address_is_explained() -> None:
    with pytest.raises(ConfigError, match="begins with https://"):
        named_upstream("antropic")


def test_a_key_of_this_host_is_not_lent_to_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-1")
    config = {"anthropic": GatewayUpstreamConfig(api_key_env="SOME_KEY")}
    build_upstreams(config, "127.0.0.1")
    with pytest.raises(ConfigError, match="reached from the network"):
        build_upstreams(config, "0.0.0.0")


async def test_a_place_that_is_taken_is_named(tmp_path: Path) -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    config = GatewayConfig(port=port, upstreams={"anthropic": GatewayUpstreamConfig()})
    async with listener:
        with pytest.raises(ExceptionGroup) as group:
            async with (
                open_runtime(Config(store=StoreConfig(path=":memory:")), cwd=tmp_path) as runtime,
                open_gateway(runtime, config),
            ):
                pass
    assert group.group_contains(CannotListen, match=f"port {port}.*gateway.port")
