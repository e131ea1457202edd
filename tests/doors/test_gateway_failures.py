"""A provider that fails in the middle of its answer, as the official clients are told of it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anthropic
import openai
import pytest
from gateway_streams import anthropic_stream, chat_stream, event, responses_stream
from gateway_world import Reply, gateway_rules, gateway_world, rule

# The official OpenAI client leaves its generators to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")

TEXT = "So far so good"
Heard = tuple[str, str]
"""The text that came, and what the client said of the failure."""


async def hear_anthropic(url: str) -> Heard:
    said = ""
    client = anthropic.AsyncAnthropic(base_url=url, api_key="sk-client", max_retries=0)
    try:
        async with (
            client,
            client.messages.stream(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "Say it"}]
            ) as stream,
        ):
            async for text in stream.text_stream:
                said += text
    except anthropic.APIError as error:
        return said, str(error)
    return said, ""


async def hear_chat(url: str) -> Heard:
    said = ""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0)
    try:
        async with client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Say it"}], stream=True
            )
            async for chunk in stream:
                said += "".join(choice.delta.content or "" for choice in chunk.choices)
    except openai.APIError as error:
        return said, str(error)
    return said, ""


async def hear_responses(url: str) -> Heard:
    said, failure = "", ""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0)
    try:
        async with client:
            stream = await client.responses.create(model="m", input="Say it", stream=True)
            async for piece in stream:
                if piece.type == "response.output_text.delta":
                    said += piece.delta
                elif piece.type == "response.failed":
                    assert piece.response.error is not None
                    failure = piece.response.error.message
    except openai.APIError as error:
        return said, str(error)
    return said, failure


CLIENTS: dict[str, tuple[Callable[[str], Awaitable[Heard]], Callable[..., list[bytes]]]] = {
    "anthropic": (hear_anthropic, anthropic_stream),
    "chat": (hear_chat, chat_stream),
    "responses": (hear_responses, responses_stream),
}

ERRORS: dict[str, Sequence[dict[str, Any]]] = {
    "anthropic": [{"type": "error", "error": {"type": "overloaded_error", "message": "Too busy"}}],
    "chat": [{"error": {"message": "Too busy", "type": "server_error", "code": 503}}],
    "responses": [
        {"type": "error", "code": "server_error", "message": "Too busy", "param": None},
        {
            "type": "response.failed",
            "response": {
                "id": "resp_1",
                "object": "response",
                "created_at": 1,
                "model": "m",
                "output": [],
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
                "status": "failed",
                "error": {"code": "server_error", "message": "Too busy"},
            },
        },
    ],
}


def begun(protocol: str) -> list[bytes]:
    """An answer up to the end of its text, without the end of the block, or anything behind."""
    pieces = CLIENTS[protocol][1](TEXT, size=len("So far so "))
    last = next(number for number, piece in enumerate(pieces) if b"good" in piece)
    return pieces[: last + 1]


WATCHES = {"watched": [rule(r"SECRET-\d+")], "unwatched": []}


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize("rules", WATCHES)
async def test_a_connection_that_breaks_is_an_error_and_the_text_before_it_came(
    protocol: str, rules: str
) -> None:
    reply = Reply(begun(protocol), breaks=True)
    async with gateway_world(reply, rules=gateway_rules(*WATCHES[rules])) as world:
        said, failure = await CLIENTS[protocol][0](world.url)
    assert said == TEXT
    assert "the connection to the upstream broke" in failure


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize("rules", WATCHES)
async def test_a_stream_without_its_last_event_is_an_error_and_no_end(
    protocol: str, rules: str
) -> None:
    """Two of the official clients would take it for a complete answer."""
    reply = Reply(begun(protocol))
    async with gateway_world(reply, rules=gateway_rules(*WATCHES[rules])) as world:
        said, failure = await CLIENTS[protocol][0](world.url)
    assert said == TEXT
    assert "without its terminal event" in failure


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize("rules", WATCHES)
async def test_an_error_that_the_provider_says_itself_comes_in_its_own_words(
    protocol: str, rules: str
) -> None:
    name = "" if protocol == "chat" else None
    errors = [event(error, name) for error in ERRORS[protocol]]
    reply = Reply([*begun(protocol), *errors])
    async with gateway_world(reply, rules=gateway_rules(*WATCHES[rules])) as world:
        said, failure = await CLIENTS[protocol][0](world.url)
    assert said == TEXT
    assert "Too busy" in failure


@pytest.mark.parametrize("protocol", CLIENTS)
async def test_an_attempt_that_fails_after_a_cut_is_an_error_too(protocol: str) -> None:
    stream = CLIENTS[protocol][1]
    bad = Reply(stream("The word is SECRET-1", size=4), hold=True)
    again = Reply(begun(protocol), breaks=True)
    async with gateway_world(bad, again, rules=gateway_rules(*WATCHES["watched"])) as world:
        said, failure = await CLIENTS[protocol][0](world.url)
    assert said == f"The word is {TEXT}"
    assert "the connection to the upstream broke" in failure


@pytest.mark.parametrize("protocol", CLIENTS)
async def test_a_refusal_of_a_later_attempt_is_an_error_event(protocol: str) -> None:
    """The answer has begun, so its status cannot be said any more."""
    stream = CLIENTS[protocol][1]
    bad = Reply(stream("The word is SECRET-1", size=4), hold=True)
    refusal = b'{"type":"error","error":{"type":"overloaded_error","message":"Too busy"}}'
    refused = Reply([refusal], status=529, content_type="application/json")
    async with gateway_world(bad, refused, rules=gateway_rules(*WATCHES["watched"])) as world:
        said, failure = await CLIENTS[protocol][0](world.url)
    assert said == "The word is "
    assert "Too busy" in failure
