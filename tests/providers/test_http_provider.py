"""Where the HTTP providers get keys and addresses from, and what they say of themselves."""

import httpx2
import pytest
import trio

from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.errors import ConfigError
from midstream.messages.failure import FailureKind
from midstream.messages.stream import StreamFailed
from midstream.providers.anthropic import AnthropicProvider
from midstream.providers.http_provider import HttpProvider
from midstream.providers.openai_chat import OpenAIChatProvider
from midstream.providers.openai_responses import OpenAIResponsesProvider

REQUEST = ModelRequest(model="m", items=(UserItem("hello"),), max_tokens=7)
PROVIDERS = [AnthropicProvider, OpenAIChatProvider, OpenAIResponsesProvider]


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch):
    for vendor in ("ANTHROPIC", "OPENAI"):
        monkeypatch.delenv(f"{vendor}_API_KEY", raising=False)
        monkeypatch.delenv(f"{vendor}_BASE_URL", raising=False)


class Recorder(httpx2.AsyncBaseTransport):
    """Keeps the request and refuses it."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.requests.append(request)
        return httpx2.Response(500, content=b"")


async def request_of(provider_class: type, **arguments: object) -> httpx2.Request:
    recorder = Recorder()
    provider: HttpProvider = provider_class(transport=lambda: recorder, **arguments)
    async with provider.open(REQUEST) as batches:
        _ = [message async for batch in batches for message in batch]
    await provider.aclose()
    return recorder.requests[0]


@pytest.mark.parametrize(
    ("provider_class", "base_url", "url"),
    [
        (AnthropicProvider, None, "https://api.anthropic.com/v1/messages"),
        (AnthropicProvider, "http://localhost:1/", "http://localhost:1/v1/messages"),
        (AnthropicProvider, "http://localhost:1/proxy/v1", "http://localhost:1/proxy/v1/messages"),
        (OpenAIChatProvider, None, "https://api.openai.com/v1/chat/completions"),
        (OpenAIChatProvider, "http://localhost:1/v1/", "http://localhost:1/v1/chat/completions"),
        (OpenAIResponsesProvider, None, "https://api.openai.com/v1/responses"),
        (OpenAIResponsesProvider, "http://h.example/v1?a=b", "http://h.example/v1/responses?a=b"),
    ],
)
async def test_where_the_request_goes(provider_class: type, base_url: str | None, url: str):
    assert str((await request_of(provider_class, api_key="k", base_url=base_url)).url) == url


async def test_key_and_address_come_from_the_environment_unless_given(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", " from-env\n")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://env.example")
    request = await request_of(AnthropicProvider)
    assert request.headers["x-api-key"] == "from-env"
    assert request.url.host == "env.example"
    request = await request_of(AnthropicProvider, api_key="given", base_url="http://given.example")
    assert request.headers["x-api-key"] == "given"
    assert request.url.host == "given.example"


async def test_headers_of_ones_own_are_added_and_win():
    headers = {"anthropic-beta": "b", "anthropic-version": "v"}
    request = await request_of(AnthropicProvider, api_key="k", headers=headers)
    assert request.headers["anthropic-beta"] == "b"
    assert request.headers["anthropic-version"] == "v"
    assert (await request_of(AnthropicProvider, api_key="k")).headers["anthropic-version"]


async def test_the_limit_is_named_as_the_server_knows_it():
    official = await request_of(OpenAIChatProvider, api_key="k")
    assert b'"max_completion_tokens":7' in official.content
    compatible = await request_of(OpenAIChatProvider, api_key="k", base_url="http://h.example/v1")
    assert b'"max_tokens":7' in compatible.content


@pytest.mark.parametrize("provider_class", PROVIDERS)
def test_keys_are_in_no_repr(provider_class: type):
    provider = provider_class(api_key="topsecret", base_url="http://user:hidden@h.example")
    assert "topsecret" not in repr(provider)
    assert "hidden" not in repr(provider)


@pytest.mark.parametrize("provider_class", PROVIDERS)
@pytest.mark.parametrize("base_url", ["ftp://h.example", "h.example/v1", "http://", " "])
def test_what_is_no_address_is_refused(
    provider_class: type, base_url: str, monkeypatch: pytest.MonkeyPatch
):
    if not base_url.strip():
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "nowhere")
        monkeypatch.setenv("OPENAI_BASE_URL", "nowhere")
    with pytest.raises(ConfigError):
        provider_class(api_key="k", base_url=base_url)


@pytest.mark.parametrize("key", ["two words", "k\u00e9y", "line\nbreak"])
def test_what_is_no_key_is_refused_without_showing_it(key: str):
    with pytest.raises(ConfigError) as refused:
        OpenAIChatProvider(api_key=key)
    assert key not in str(refused.value)


@pytest.mark.parametrize(
    ("base_url", "stops"),
    [
        (None, True),
        ("http://127.0.0.1:1/v1", True),
        ("http://[::1]/v1", True),
        ("http://h.example", False),
    ],
)
def test_an_abort_is_believed_to_stop_the_billing_only_where_that_is_known(
    base_url: str | None, stops: bool
):
    assert OpenAIChatProvider(api_key="k", base_url=base_url).abort_stops_billing is stops
    told = OpenAIChatProvider(api_key="k", base_url=base_url, abort_stops_billing=not stops)
    assert told.abort_stops_billing is not stops


async def test_a_request_that_is_no_json_is_a_failure_and_not_sent():
    recorder = Recorder()
    provider = OpenAIChatProvider(api_key="k", transport=lambda: recorder)
    request = ModelRequest(model="m", items=(UserItem("hi"),), options={"x": object()})
    async with provider.open(request) as batches:
        (message,) = [message async for batch in batches for message in batch]
    assert isinstance(message, StreamFailed)
    assert message.failure.kind == FailureKind.INVALID_REQUEST
    assert recorder.requests == []


async def test_a_provider_that_was_closed_keeps_no_more_connections():
    closed = trio.Event()

    class Closing(Recorder):
        async def aclose(self) -> None:
            closed.set()

    provider = OpenAIChatProvider(api_key="k", transport=Closing)
    async with provider.open(REQUEST) as batches:
        await provider.aclose()
        async for _ in batches:
            pass
        assert not closed.is_set()
    assert closed.is_set()
