"""Files that the messages of a gateway's clients refer to."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from gateway_streams import anthropic_stream, chat_stream, responses_stream
from gateway_world import Reply, ScriptedUpstream

from midstream.config import (
    Config,
    GatewayConfig,
    GatewayFilesConfig,
    GatewayUpstreamConfig,
    StoreConfig,
)
from midstream.gateway import open_gateway
from midstream.messages.errors import ConfigError
from midstream.runtime import open_runtime

PROTOCOLS: dict[str, Any] = {
    "/v1/messages": (anthropic_stream, "messages"),
    "/v1/chat/completions": (chat_stream, "messages"),
    "/v1/responses": (responses_stream, "input"),
}


CONFIG = Config(store=StoreConfig(path=":memory:"))


def gateway_config(*allow: str, upstream: str, host: str = "127.0.0.1") -> GatewayConfig:
    return GatewayConfig(
        host=host,
        port=0,
        files=GatewayFilesConfig(allow=allow) if allow else None,
        upstreams={"up": GatewayUpstreamConfig(base_url=upstream)},
    )


async def sent(
    cwd: Path, path: str, *entries: object, allow: tuple[str, ...] = ("docs",), times: int = 1
) -> list[Any]:
    """What the upstream gets of a conversation, each time that it is sent."""
    stream, key = PROTOCOLS[path]
    scripted = ScriptedUpstream([Reply(stream("Fine."))])
    body = {"model": "m", "stream": True, key: list(entries)}
    async with (
        open_runtime(CONFIG, cwd=cwd, rules=()) as runtime,
        trio.open_nursery() as nursery,
        httpx2.AsyncClient() as client,
    ):
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, scripted.handle, [listener])
        upstream = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with open_gateway(runtime, gateway_config(*allow, upstream=upstream)) as gateway:
            for _ in range(times):
                await client.post(gateway.url + path, json=body, headers={"x-session-id": "s"})
                await trio.Path(cwd / "docs" / "plan.md").write_text("Changed.")
        nursery.cancel_scope.cancel()
    return [one.json[key] for one in scripted.asked]


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "plan.md").write_text("Paint it red.")
    (tmp_path / "secret.txt").write_text("hunter2")
    return tmp_path


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_a_file_stands_behind_the_message_that_refers_to_it(cwd: Path, path: str) -> None:
    asked = {"role": "user", "content": "Do @docs/plan.md now"}
    rest = [
        {"role": "assistant", "content": "Done @docs/plan.md"},
        {"role": "user", "content": "?"},
    ]
    first, again = await sent(cwd, path, asked, *rest, times=2)
    text, file = first[0]["content"]
    assert text["text"] == "Do @docs/plan.md now"
    assert "Paint it red." in file["text"]
    assert first[1:] == rest
    assert again == first  # as it was when the message was first seen


@pytest.mark.parametrize("path", PROTOCOLS)
@pytest.mark.parametrize(
    "reference", ["secret.txt", "docs/../secret.txt", "docs/none.md", "/etc/passwd"]
)
async def test_what_is_not_allowed_stays_a_word(cwd: Path, path: str, reference: str) -> None:
    asked = {"role": "user", "content": f"Read @{reference} please"}
    [entries] = await sent(cwd, path, asked)
    assert entries == [asked]


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_nothing_is_read_unless_it_is_configured(cwd: Path, path: str) -> None:
    asked = {"role": "user", "content": "Do @docs/plan.md now"}
    assert await sent(cwd, path, asked, allow=()) == [[asked]]


async def test_the_network_reads_no_files(cwd: Path) -> None:
    config = gateway_config("docs", upstream="http://127.0.0.1:9", host="0.0.0.0")
    async with open_runtime(CONFIG, cwd=cwd, rules=()) as runtime:
        with pytest.raises(ConfigError, match="reached from the network"):
            async with open_gateway(runtime, config):
                pass
