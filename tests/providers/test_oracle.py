"""What our providers hear is what the official clients hear, for every way of cutting the bytes.

Each recorded stream is served over loopback to the official `anthropic` or `openai` client and,
cut in five ways and more, to our provider. Compared are the text, the thinking, the
tool calls, the provider's own stop reason and the usage. Where the client raises, our stream
must fail, and what had been heard until then is compared.

Some recordings break the accumulator of the client's stream helper. `SEVERAL_ANSWERS` and
`HELPER_FAILS` name them and say why. For those, the client still reads and decodes the stream,
and the test puts together what its raw events say.
"""

import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from jiter import from_json

from midstream.messages.accumulate import PartialTranscript, StreamState, accumulate
from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import UsageReported
from midstream.messages.usage import Usage
from midstream.providers.anthropic import AnthropicProvider
from midstream.providers.openai_chat import OpenAIChatProvider
from midstream.providers.openai_responses import OpenAIResponsesProvider
from midstream.providers.provider import Provider

REQUEST = ModelRequest(model="m", items=(UserItem("hello"),))
SMALL_BYTES = 2000

SEVERAL_ANSWERS = {
    "anthropic-messages/vercel-programmatic-tool-calling.chunks.jsonl": b"message_start",
    "openai-responses/vercel-reasoning-encrypted-content.chunks.jsonl": b"response.created",
}
"""Recordings of several answers in one stream, and the event that begins each. The clients
write later messages over earlier ones (Anthropic) or refuse a second response id (OpenAI), so
they are given each answer alone, and the sum is compared."""

HELPER_FAILS = {
    "completion-legacy.sse": "a stream of the older completions API",
    "tool-call-variant-a.sse": "a repeated name is appended to itself",
    "perplexity-crlf.sse": "the last chunk is skipped for its `object`, `chat.completion.done`",
    "vercel-moonshot.chunks.jsonl": "every chunk is skipped, for it has no `object`",
    "background-resume-starting-after.sse": "refused without `response.created`",
    "bedrock-mantle-text.sse": "IndexError: the content index of the first part is 1",
    "vercel-github-copilot-id-rotation.chunks.jsonl": "refused, for the response id changes",
    "vercel-shell-container.chunks.jsonl": "shortened by hand: its deltas are not those of its "
    "finished text, which alone the helper returns",
}


class Heard(NamedTuple):
    text: str
    thinking: str
    calls: tuple[tuple[str, Any], ...]
    """Names and arguments, decoded as far as they came."""
    stop: str | None
    usage: tuple[int | None, ...]
    """Input, output, read from the cache."""
    failed: bool


# --- Serving ------------------------------------------------------------------------------------


class Recorded(ThreadingHTTPServer):
    """Answers `POST /<number>/...` with the pieces that were put under that number."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cases: list[list[bytes]] = []

    def put(self, pieces: list[bytes]) -> str:
        self.cases.append(pieces)
        return f"http://127.0.0.1:{self.server_address[1]}/{len(self.cases) - 1}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Recorded)
        pieces = self.server.cases[int(self.path.split("/")[1])]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece]
        self.wfile.write(b"".join(chunks) + b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Recorded]:
    recorded = Recorded()
    thread = threading.Thread(target=recorded.serve_forever, daemon=True)
    thread.start()
    yield recorded
    recorded.shutdown()
    recorded.server_close()
    thread.join()


def body_of(recording: Path) -> bytes:
    """The bytes as the provider sent them; payloads without framing are framed."""
    data = recording.read_bytes()
    if recording.suffix != ".jsonl":
        return data
    lines = [line for line in data.splitlines() if line.strip()]
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (json.loads(line).get("type", "message").encode(), line)
        for line in lines
    )


def cuttings(data: bytes) -> dict[str, list[bytes]]:
    rng = random.Random(len(data))
    ends = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(40))})
    inside = [i + 1 for i, byte in enumerate(data) if byte >= 0xC0]  # within a character
    utf8 = sorted({0, len(data), *inside, *(i + 3 for i in range(0, len(data) - 3, 997))})
    ways = {
        "whole": [data],
        "lines": data.splitlines(keepends=True),
        "random": [data[start:end] for start, end in pairwise(ends)],
        "within characters": [data[start:end] for start, end in pairwise(utf8)],
        "every 61 bytes": [data[start : start + 61] for start in range(0, len(data), 61)],
    }
    if len(data) <= SMALL_BYTES:
        ways["bytes"] = [data[start : start + 1] for start in range(len(data))]
    return ways


# --- Ours ---------------------------------------------------------------------------------------


async def ours(provider: Provider) -> Heard:
    return (await ours_and_failure(provider))[0]


async def ours_and_failure(provider: Provider) -> tuple[Heard, ProviderFailure | None]:
    async with provider.open(REQUEST) as batches:
        messages = [message async for batch in batches for message in batch]
    await provider.aclose()
    transcript = accumulate(messages)
    reported = [message.usage for message in messages if isinstance(message, UsageReported)]
    return told(transcript, reported[-1] if reported else Usage()), transcript.failure


def told(transcript: PartialTranscript, usage: Usage) -> Heard:
    return Heard(
        transcript.text,
        transcript.thinking,
        tuple((call.name, arguments(call.arguments)) for call in transcript.calls),
        transcript.raw_reason,
        (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens),
        transcript.state is StreamState.FAILED,
    )


def arguments(text: str | None) -> Any:
    return from_json((text or "{}").encode(), partial_mode=True)


# --- The official clients -----------------------------------------------------------------------


def plain(model: Any) -> dict[str, Any]:
    """A client's model as the tree that it was made of."""
    return model.to_dict()


class Clients(NamedTuple):
    """One of each, whose connections serve all tests."""

    anthropic: anthropic.Anthropic
    openai: openai.OpenAI


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with (
        anthropic.Anthropic(api_key="k", max_retries=0) as first,
        openai.OpenAI(api_key="k", max_retries=0) as second,
    ):
        yield Clients(first, second)


def official_anthropic(client: anthropic.Anthropic, base_url: str) -> Heard:
    failed = False
    message = None
    with client.with_options(base_url=base_url).messages.stream(
        model="m", max_tokens=1, messages=[{"role": "user", "content": "hello"}]
    ) as stream:
        try:
            for _ in stream:
                message = stream.current_message_snapshot
        except anthropic.APIError:
            failed = True
    if message is None:
        return Heard("", "", (), None, (None, None, None), failed)
    blocks = [plain(block) for block in message.content]
    usage = message.usage
    return Heard(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tuple((b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"),
        message.stop_reason,
        (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens),
        failed,
    )


def official_chat(client: openai.OpenAI, base_url: str) -> Heard:
    failed = False
    snapshot = None
    usage = None
    with client.with_options(base_url=f"{base_url}/v1").chat.completions.stream(
        model="m", messages=[{"role": "user", "content": "hello"}]
    ) as stream:
        try:
            for event in stream:
                if event.type == "chunk":
                    snapshot = event.snapshot
                    usage = event.chunk.usage or usage
        except openai.APIError:
            failed = True
    assert snapshot is not None
    choice = plain(snapshot.choices[0])
    message = choice["message"]
    return Heard(
        message.get("content") or "",
        message.get("reasoning_content") or message.get("reasoning") or "",
        tuple(
            (call["function"]["name"], arguments(call["function"].get("arguments")))
            for call in message.get("tool_calls") or ()
        ),
        choice.get("finish_reason"),
        chat_usage(usage),
        failed,
    )


def chat_by_hand(client: openai.OpenAI, base_url: str) -> Heard:
    """The client's chunks, put together here."""
    text = thinking = ""
    stop = usage = None
    calls: dict[int, dict[str, str]] = {}
    for chunk in client.with_options(base_url=f"{base_url}/v1").chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], stream=True
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            tree = plain(choice)
            delta: dict[str, Any] = tree.get("delta") or {}
            text += delta.get("content") or tree.get("text") or ""
            thinking += delta.get("reasoning_content") or ""
            stop = choice.finish_reason or stop
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(piece["index"], {"name": "", "arguments": ""})
                call["name"] = piece["function"]["name"]
                call["arguments"] += piece["function"]["arguments"]
    heard = tuple((call["name"], arguments(call["arguments"])) for call in calls.values())
    return Heard(text, thinking, heard, stop, chat_usage(usage), failed=False)


def chat_usage(usage: Any) -> tuple[int | None, ...]:
    if usage is None:
        return (None, None, None)
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details else None
    return (usage.prompt_tokens, usage.completion_tokens, cached)


def official_responses(client: openai.OpenAI, base_url: str) -> Heard:
    with client.with_options(base_url=f"{base_url}/v1").responses.stream(
        model="m", input="hello"
    ) as stream:
        try:
            for _ in stream:
                pass
        except openai.APIError:
            return Heard("", "", (), None, (None, None, None), failed=True)
        response = stream.get_final_response()
    items = [plain(item) for item in response.output]
    return Heard(
        response.output_text,
        "".join(
            part["text"]
            for item in items
            if item["type"] == "reasoning"
            for part in [*(item.get("summary") or ()), *(item.get("content") or ())]
        ),
        tuple(call for item in items if (call := host_call(item))),
        response.status,
        responses_usage(response.usage),
        failed=False,
    )


def responses_by_hand(client: openai.OpenAI, base_url: str) -> Heard:
    """The client's events, put together here."""
    text = thinking = ""
    stop = usage = None
    calls: list[tuple[str, Any]] = []
    for event in client.with_options(base_url=f"{base_url}/v1").responses.create(
        model="m", input="hello", stream=True
    ):
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type.startswith("response.reasoning") and event.type.endswith("text.delta"):
            thinking += plain(event)["delta"]
        elif event.type == "response.output_item.done":
            calls += [call] if (call := host_call(plain(event.item))) else []
        elif event.type == "response.completed":
            stop, usage = event.response.status, event.response.usage
    return Heard(text, thinking, tuple(calls), stop, responses_usage(usage), failed=False)


def host_call(item: dict[str, Any]) -> tuple[str, Any] | None:
    """An output item as a call of the host's, if it is one."""
    match item["type"]:
        case "function_call":
            return item["name"], arguments(item["arguments"])
        case "custom_tool_call":
            return item["name"], {"input": item["input"]}
        case "local_shell_call":
            return "local_shell", item["action"]
        case "apply_patch_call":
            return "apply_patch", item["operation"]
        case _:
            return None


def responses_usage(usage: Any) -> tuple[int | None, ...]:
    if usage is None:
        return (None, None, None)
    details = usage.input_tokens_details
    cached = details.cached_tokens if details else None
    return (usage.input_tokens, usage.output_tokens, cached)


# --- The comparison -----------------------------------------------------------------------------

Official = Callable[[Any, str], Heard]


def heard_alone(data: bytes, begins: bytes, server: Recorded, official: Official, client: Any):
    """What the client hears of each answer of a stream, summed up."""
    answers: list[bytes] = []
    for event in re.split(rb"(?<=\n\n)", data):
        if b'"type":"%s"' % begins in event and not (answers and answers[-1].count(b"\n\n") == 1):
            answers.append(b"")
        answers[-1] += event
    each = [official(client, server.put([answer])) for answer in answers]
    return Heard(
        "".join(heard.text for heard in each),
        "".join(heard.thinking for heard in each),
        tuple(call for heard in each for call in heard.calls),
        each[-1].stop,
        tuple(
            sum(part or 0 for part in parts)
            for parts in zip(*(heard.usage for heard in each), strict=True)
        ),
        failed=any(heard.failed for heard in each),
    )


async def compare(
    recording: Path,
    provider: Callable[[str], Provider],
    server: Recorded,
    official: Official,
    client: Any,
) -> None:
    data = body_of(recording)
    begins = SEVERAL_ANSWERS.get(f"{recording.parent.name}/{recording.name}")
    if begins:
        theirs = heard_alone(data, begins, server, official, client)
    else:
        theirs = official(client, server.put([data]))
    for way, pieces in cuttings(data).items():
        heard = await ours(provider(server.put(pieces)))
        if theirs.failed:
            # A failed stream has no stop reason of ours, and the client that raises tells
            # nothing that its last event said.
            usage = theirs.usage if theirs.usage != (None, None, None) else heard.usage
            theirs = theirs._replace(stop=None, usage=usage)
        assert heard == theirs, way


def anthropic_at(base_url: str) -> Provider:
    return AnthropicProvider(base_url=base_url)


def chat_at(base_url: str) -> Provider:
    return OpenAIChatProvider(base_url=f"{base_url}/v1")


def responses_at(base_url: str) -> Provider:
    return OpenAIResponsesProvider(base_url=f"{base_url}/v1")


@pytest.mark.recordings("anthropic-messages")
async def test_anthropic(recording: Path, server: Recorded, clients: Clients):
    await compare(recording, anthropic_at, server, official_anthropic, clients.anthropic)


@pytest.mark.recordings("openai-chat", "openai-compatible")
async def test_openai_chat(recording: Path, server: Recorded, clients: Clients):
    official = chat_by_hand if recording.name in HELPER_FAILS else official_chat
    await compare(recording, chat_at, server, official, clients.openai)


@pytest.mark.recordings("openai-responses")
async def test_openai_responses(recording: Path, server: Recorded, clients: Clients):
    official = responses_by_hand if recording.name in HELPER_FAILS else official_responses
    await compare(recording, responses_at, server, official, clients.openai)


@pytest.mark.parametrize("name", HELPER_FAILS)
def test_the_list_of_what_the_helper_cannot_read_is_no_longer_than_it_must_be(
    name: str, server: Recorded, clients: Clients, recordings: Path
):
    recording = next(recordings.glob(f"openai-*/{name}"))
    chat = recording.parent.name != "openai-responses"
    base_url = server.put([body_of(recording)])
    by_helper, by_hand = (
        (official_chat, chat_by_hand) if chat else (official_responses, responses_by_hand)
    )
    try:
        helped = by_helper(clients.openai, base_url)
    except (RuntimeError, IndexError, AssertionError):
        return
    assert helped != by_hand(clients.openai, base_url)


FAILURES = {
    "anthropic-overloaded-midtext.sse": FailureKind.OVERLOADED,
    "anthropic-overloaded-first-event.sse": FailureKind.OVERLOADED,
    "anthropic-overloaded-mid-tool-json.sse": FailureKind.OVERLOADED,
    "anthropic-cut-mid-event.sse": FailureKind.PROTOCOL,
    "anthropic-eof-after-tool-block.sse": FailureKind.PROTOCOL,
    "responses-failed-rate-limit.sse": FailureKind.RATE_LIMITED,
}
SILENTLY_ACCEPTED = ("anthropic-cut-mid-event.sse", "anthropic-eof-after-tool-block.sse")
"""Streams without their terminal event, which Anthropic's client takes for finished."""


@pytest.mark.recordings("assembled")
async def test_assembled_streams(recording: Path, server: Recorded, clients: Clients):
    data = body_of(recording)
    whole = server.put([data])
    provider: Callable[[str], Provider]
    if recording.name.startswith("anthropic"):
        theirs = official_anthropic(clients.anthropic, whole)
        provider = anthropic_at
    elif recording.name.startswith("chat"):
        theirs = chat_by_hand(clients.openai, whole)
        provider = chat_at
    else:
        theirs = Heard("", "", (), None, (None, None, None), failed=True)
        provider = responses_at
    if recording.name in SILENTLY_ACCEPTED:
        assert not theirs.failed
        theirs = theirs._replace(failed=True)
    for way, pieces in cuttings(data).items():
        heard, failure = await ours_and_failure(provider(server.put(pieces)))
        assert (failure and failure.kind) == FAILURES.get(recording.name), way
        assert heard == theirs, way
