"""Auto-continue through the gateway: directives, hops in one message, and what ends a chain.

The clients are the official ones, over real sockets.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from gateway_streams import anthropic_stream, chat_stream, responses_stream
from gateway_world import Reply, World, gateway_world
from openai import AsyncOpenAI

from midstream.config import Config
from midstream.config_file import config_from
from midstream.doors.gateway_rules import GatewayRules
from midstream.messages.events import ContinuationDecided
from midstream.messages.record import SessionStatus
from midstream.runtime import open_runtime

# The official OpenAI client leaves its generators to the garbage collector after [DONE].
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")

SESSION = {"x-session-id": "ses-1"}
STREAMS = {"anthropic": anthropic_stream, "chat": chat_stream, "responses": responses_stream}
PATHS = {
    "anthropic": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
protocols = pytest.mark.parametrize("protocol", STREAMS)
ways = pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])


@asynccontextmanager
async def continuing_world(
    *replies: Reply,
    rules: GatewayRules | None = None,
    config: Config | None = None,
    cwd: Path | None = None,
) -> AsyncGenerator[World]:
    """A gateway whose stopMessages are kept by a runtime, in memory or below `cwd`."""
    config = config or config_from({} if cwd else {"store": {"path": ":memory:"}})
    directory = cwd or Path("/")
    async with (
        open_runtime(config, cwd=directory, rules=()) as runtime,
        gateway_world(
            *replies, rules=rules, stop_messages=runtime.stop_message_book(directory)
        ) as world,
    ):
        yield world


async def ask(
    url: str, protocol: str, text: str, *, streams: bool = True, **more: Any
) -> tuple[str, Any]:
    """What the official client makes of the answer: its text, and all of it."""
    headers = more.pop("headers", SESSION)
    if protocol == "anthropic":
        claude: Any = AsyncAnthropic(base_url=url, api_key="k", max_retries=0)
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [_user(text)], **more}
        async with claude:
            message = await _answer(claude.messages, "message", streams, asked, headers)
        return "|".join(b.text for b in message.content if b.type == "text"), message
    client: Any = AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    async with client:
        if protocol == "chat":
            asked = {"model": "m", "messages": [_user(text)], **more}
            if streams:
                asked["stream_options"] = {"include_usage": True}
            door = client.chat.completions
            whole = await _answer(door, "completion", streams, asked, headers)
            return (whole.choices[0].message.content or "").replace("\n\n", "|"), whole
        asked = {"model": "m", "input": text, **more}
        response = await _answer(client.responses, "response", streams, asked, headers)
    texts = [part.text for item in response.output for part in getattr(item, "content", ())]
    return "|".join(texts), response


async def _answer(door: Any, what: str, streams: bool, asked: Any, headers: Any) -> Any:
    if not streams:
        return await door.create(**asked, extra_headers=headers)
    async with door.stream(**asked, extra_headers=headers) as stream:
        return await getattr(stream, f"get_final_{what}")()


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def replies_of(protocol: str, *texts: str) -> list[Reply]:
    """One reply for each text, with ids of its own."""
    return [
        Reply(STREAMS[protocol](text, message_id=f"id_{number}"))
        for number, text in enumerate(texts)
    ]


def decisions(world: World) -> list[str]:
    """Why each reply of the last request was continued or not."""
    events = world.requests[-1].events
    return [
        one.record.reason or one.record.decision
        for one in events
        if isinstance(one, ContinuationDecided)
    ]


@protocols
@ways
async def test_hops_are_one_message_for_the_official_client(protocol: str, streams: bool) -> None:
    replies = replies_of(protocol, "One.", "Two.", "Three.")
    async with continuing_world(*replies) as world:
        text, answer = await ask(
            world.url, protocol, 'Work <**stopMessage:"go on",2**>', streams=streams
        )
        assert text == "One.|Two.|Three."
        done = await world.finished()
        assert done.status is SessionStatus.COMPLETED
        asked = [one.json for one in world.upstream.asked]
        assert decisions(world) == ["continue", "continue", "exhausted"]
    assert len(asked) == 3
    assert b"stopMessage" not in b"".join(one.body for one in world.upstream.asked)
    said = [
        [str(entry.get("content")) for entry in body.get("messages", body.get("input"))]
        for body in asked[1:]
    ]
    assert "One." in said[0][1]
    assert "go on" in said[0][2]
    assert "Two." in said[1][3]
    assert len(said[1]) == 5
    if protocol == "anthropic":
        assert answer.stop_reason == "end_turn"
        assert answer.id == "id_0"
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (30, 21)
    elif protocol == "chat":
        assert [choice.finish_reason for choice in answer.choices] == ["stop"]
        assert answer.id == "id_0"
    else:
        assert answer.status == "completed"
        assert answer.id == "id_0"
        assert len({item.id for item in answer.output}) == 3
