"""Auto-continue through the gateway: directives, hops in one message, and what ends a chain.

The clients are the official ones, over real sockets.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import trio
from anthropic import AsyncAnthropic
from gateway_streams import anthropic_stream, chat_stream, responses_stream
from gateway_world import Reply, World, gateway_rules, gateway_world, rule
from openai import AsyncOpenAI
from starlette.types import Message, Scope

from midstream.actors.clock import ManualClock
from midstream.actors.stop_message_book import StopMessageBook, StopMessageSettings
from midstream.config import Config
from midstream.config_file import config_from
from midstream.doors.gateway import Gateway
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.messages.events import ContinuationDecided
from midstream.messages.record import SessionStatus
from midstream.messages.session_identity import SessionIdentity
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


async def decisions(world: World) -> list[str]:
    """Why each reply of the last request was continued or not, once it is over."""
    with trio.fail_after(5):
        await world.requests[-1].over.wait()
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
        assert await decisions(world) == ["continue", "continue", "exhausted"]
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


@protocols
async def test_n_counts_over_requests_and_a_restart(protocol: str, tmp_path: Path) -> None:
    replies = replies_of(protocol, *(f"{number}." for number in range(9)))
    config = config_from({"stop_message": {"single_hop": True}})
    async with continuing_world(*replies, config=config, cwd=tmp_path) as world:
        first, _ = await ask(world.url, protocol, 'Work <**stopMessage:"go on",2**>')
        assert await decisions(world) == ["continue", "single_hop"]
    async with continuing_world(*replies, config=config, cwd=tmp_path) as world:
        second, _ = await ask(world.url, protocol, "And now?")
        third, _ = await ask(world.url, protocol, "And now?")
        await world.finished()
        assert await decisions(world) == ["exhausted"]
        assert len(world.upstream.asked) == 3
    assert (first, second, third) == ("0.|1.", "0.|1.", "2.")


@protocols
@ways
async def test_a_clear_is_answered_without_asking_anybody(protocol: str, streams: bool) -> None:
    replies = replies_of(protocol, "One.", "Two.")
    async with continuing_world(*replies) as world:
        await ask(world.url, protocol, 'Work <**stopMessage:"go on",5**>', tools=TOOLS[protocol])
        asked = len(world.upstream.asked)
        text, _ = await ask(world.url, protocol, "<**stopMessage:clear**>", streams=streams)
        assert text == "Auto-continue is cleared."
        again, _ = await ask(world.url, protocol, "Hello")
        assert again == "Two."
        assert len(world.upstream.asked) == asked + 1
        assert await decisions(world) == ["no_state"]


TOOLS: dict[str, Any] = {
    "anthropic": [{"name": "run", "input_schema": {"type": "object"}}],
    "chat": [{"type": "function", "function": {"name": "run", "parameters": {}}}],
    "responses": [{"type": "function", "name": "run", "parameters": {}}],
}


@protocols
async def test_a_message_of_directives_alone_says_the_text_itself(protocol: str) -> None:
    async with continuing_world(*replies_of(protocol, "One.", "Two.")) as world:
        text, _ = await ask(world.url, protocol, '<**stopMessage:"go on",1**>')
        assert text == "One.|Two."
        first, second = (str(one.json) for one in world.upstream.asked)
        assert first.count("go on") == 1
        assert second.count("go on") == 2


@protocols
async def test_without_a_session_the_directive_holds_for_its_request(protocol: str) -> None:
    async with continuing_world(*replies_of(protocol, "One.", "Two.", "Three.")) as world:
        text, _ = await ask(world.url, protocol, 'Go <**stopMessage:"on",1**>', headers={})
        assert text == "One.|Two."
        text, _ = await ask(world.url, protocol, "Go", headers={})
        assert text == "Three."


@protocols
async def test_two_conversations_do_not_share_a_stop_message(protocol: str) -> None:
    async with continuing_world(*replies_of(protocol, "One.", "Two.")) as world:
        await ask(world.url, protocol, 'Go <**stopMessage:"on",1**>')
        text, _ = await ask(world.url, protocol, "Go", headers={"x-session-id": "ses-2"})
        assert text == "Two."


@protocols
@ways
async def test_calls_end_a_chain_and_leave_the_rest_of_n(protocol: str, streams: bool) -> None:
    call = ("call_1", "run", '{"a": 1}')
    replies = [
        Reply(STREAMS[protocol]("One.", message_id="id_0")),
        Reply(STREAMS[protocol]("Two.", calls=[call], message_id="id_1")),
    ]
    more: Any = {"tools": TOOLS[protocol], "streams": streams}
    async with continuing_world(*replies) as world:
        text, answer = await ask(world.url, protocol, 'Go <**stopMessage:"on",3**>', **more)
        assert text == "One.|Two."
        assert await decisions(world) == ["continue", "not_a_natural_stop"]
        assert len(world.upstream.asked) == 2
        await world.finished()
        assert world.requests[-1].events[-1].record.used == 1  # type: ignore[union-attr]
    if protocol == "anthropic":
        assert answer.stop_reason == "tool_use"
        assert [block.input for block in answer.content if block.type == "tool_use"] == [{"a": 1}]
    elif protocol == "chat":
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [c.function.name for c in answer.choices[0].message.tool_calls] == ["run"]
    else:
        assert [item.call_id for item in answer.output if item.type == "function_call"] == [
            "call_1"
        ]


@protocols
async def test_what_is_not_continued_goes_out_as_it_came(protocol: str) -> None:
    """Byte for byte, also while a stopMessage is armed and the ending was kept back."""
    call = ("call_1", "run", '{"a": 1}')
    stream = STREAMS[protocol]("Two.", calls=[call])
    async with continuing_world(Reply(stream)) as world:
        body = {"model": "m", "stream": True, **_asked(protocol, 'Go <**stopMessage:"on",3**>')}
        async with httpx2.AsyncClient() as client:
            answer = await client.post(world.url + PATHS[protocol], json=body, headers=SESSION)
        assert answer.content == b"".join(stream)
        assert await decisions(world) == ["not_a_natural_stop"]


def _asked(protocol: str, text: str) -> dict[str, Any]:
    return {"input": text} if protocol == "responses" else {"messages": [_user(text)]}


@protocols
@ways
async def test_a_spent_quota_ends_the_chain_with_the_good_reply(
    protocol: str, streams: bool
) -> None:
    wait = [("retry-after", "30")]
    refusal = Reply([b"{}"], status=429, content_type="application/json", headers=wait)
    replies = [*replies_of(protocol, "One."), refusal, *replies_of(protocol, "Two.")]
    async with continuing_world(*replies) as world:
        text, answer = await ask(
            world.url, protocol, 'Go <**stopMessage:"on",1**>', streams=streams
        )
        assert text == "One."
        done = await world.finished()
        assert done.status is SessionStatus.RATE_LIMITED
        if protocol == "anthropic":
            assert answer.stop_reason == "end_turn"
            assert answer.usage.output_tokens == 7
        # The window is open for whoever asks with this key, and nothing of N was spent.
        body = {"model": "m", **_asked(protocol, "Go")}
        async with httpx2.AsyncClient() as client:
            refused = await client.post(
                world.url + PATHS[protocol],
                json=body,
                headers={**SESSION, "authorization": "Bearer k"},
            )
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            other = {**SESSION, "authorization": "Bearer k2"}
            await client.post(world.url + PATHS[protocol], json=body, headers=other)
        assert await decisions(world) == ["continue", "exhausted"]


@protocols
@ways
async def test_a_follow_up_that_a_rule_cuts_spends_n_once(protocol: str, streams: bool) -> None:
    replies = replies_of(protocol, "One.", "It is SECRET-12.", "I may not say.", "Three.")
    rules = gateway_rules(rule(r"SECRET-\d+"))
    async with continuing_world(*replies, rules=rules) as world:
        text, _ = await ask(world.url, protocol, 'Go <**stopMessage:"on",2**>', streams=streams)
        assert "SECRET" not in text
        assert text.endswith("I may not say.|Three.")
        assert text.startswith("One.|")
        done = await world.finished()
        assert await decisions(world) == ["continue", "continue", "exhausted"]
        assert (done.exchange.retries, done.exchange.follow_ups) == (1, 2)
        assert done.status is SessionStatus.COMPLETED
        last = str(world.upstream.asked[-1].json)
        assert "Never say that word." in last
        assert "SECRET" not in last


@protocols
@ways
async def test_a_follow_up_that_breaks_off_costs_nothing_that_was_said(
    protocol: str, streams: bool
) -> None:
    broken = Reply(STREAMS[protocol]("Two and more", message_id="id_1")[:4], breaks=True)
    async with continuing_world(*replies_of(protocol, "One."), broken) as world:
        text, answer = await ask(
            world.url, protocol, 'Go <**stopMessage:"on",3**>', streams=streams
        )
        assert text.startswith("One.")
        done = await world.finished()
        assert done.status is SessionStatus.COMPLETED
        assert done.conclusion is not None
        assert "broke" in str(done.conclusion.reason)
        if protocol == "anthropic":
            assert answer.stop_reason == "end_turn"
        elif protocol == "chat":
            assert answer.choices[0].finish_reason == "stop"
        else:
            assert answer.status == "completed"


@protocols
async def test_a_follow_up_that_says_nothing_is_asked_once_more(protocol: str) -> None:
    empty = Reply(STREAMS[protocol]("", message_id="id_e"))
    replies = [*replies_of(protocol, "One."), empty, *replies_of(protocol, "Two.")]
    async with continuing_world(*replies) as world:
        text, _ = await ask(world.url, protocol, 'Go <**stopMessage:"on",1**>')
        assert text == "One.|Two."
        assert await decisions(world) == ["continue", "exhausted"]
    async with continuing_world(*replies_of(protocol, "One."), empty) as world:
        text, _ = await ask(world.url, protocol, 'Go <**stopMessage:"on",5**>')
        assert text == "One."
        await ask(world.url, protocol, "Go")
        assert len(world.upstream.asked) == 4
        assert await decisions(world) == ["no_state"]


@protocols
async def test_a_client_that_leaves_ends_the_chain(protocol: str) -> None:
    replies = [
        *replies_of(protocol, "One."),
        Reply(STREAMS[protocol]("Two.")[:3], hold=True),
    ]
    async with continuing_world(*replies) as world:
        body = {"model": "m", "stream": True, **_asked(protocol, 'Go <**stopMessage:"on",9**>')}
        async with httpx2.AsyncClient() as client, trio.open_nursery() as nursery:

            async def read() -> None:
                async with client.stream(
                    "POST", world.url + PATHS[protocol], json=body, headers=SESSION
                ) as answer:
                    async for _ in answer.aiter_bytes():
                        pass

            nursery.start_soon(read)
            await world.upstream.wait_asked(2)
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await world.upstream.closed.wait()
        done = await world.finished()
        assert done.gone
        assert len(world.upstream.asked) == 2


@protocols
async def test_a_request_for_a_summary_is_not_continued(protocol: str) -> None:
    async with continuing_world(*replies_of(protocol, "One.", "Two.", "Three.")) as world:
        await ask(world.url, protocol, 'Go <**stopMessage:"on",2**>', tools=TOOLS[protocol])
        asked = "You are performing a CONTEXT CHECKPOINT COMPACTION. Summarise."
        await ask(world.url, protocol, 'Go <**stopMessage:"on",2**>', tools=TOOLS[protocol])
        before = len(world.upstream.asked)
        await ask(world.url, protocol, asked, tools=TOOLS[protocol])
        assert len(world.upstream.asked) == before + 1
        assert await decisions(world) in (["compaction"], ["exhausted"])


@protocols
async def test_a_request_without_the_tools_of_its_session_is_an_aside(protocol: str) -> None:
    """Agents ask for a title beside the first turn, with the user's own words."""
    call = ("call_1", "run", "{}")
    first = Reply(STREAMS[protocol]("", calls=[call]))
    async with continuing_world(first, *replies_of(protocol, "A title")) as world:
        text = 'Go <**stopMessage:"on",2**>'
        await ask(world.url, protocol, text, tools=TOOLS[protocol])
        title, _ = await ask(world.url, protocol, f"Give a title to: {text}")
        assert title == "A title"
        assert await decisions(world) == ["aside"]
        assert b"stopMessage" not in world.upstream.asked[-1].body


@protocols
async def test_replies_that_repeat_themselves_end_the_chain(protocol: str) -> None:
    config = config_from(
        {"store": {"path": ":memory:"}, "stop_message": {"stop_after_identical": 3}}
    )
    async with continuing_world(*replies_of(protocol, "Same."), config=config) as world:
        await ask(world.url, protocol, 'Go <**stopMessage:"on",9**>')
        done = await world.finished()
        assert done.status is SessionStatus.CAPPED
        assert (await decisions(world))[-1] == "repeating"
        assert len(world.upstream.asked) < 6


@protocols
async def test_two_requests_of_one_session_share_n(protocol: str) -> None:
    replies = replies_of(protocol, *(f"{number}." for number in range(20)))
    async with continuing_world(*replies) as world:
        call = ("call_1", "run", "{}")
        world.upstream.replies = [Reply(STREAMS[protocol]("", calls=[call])), *replies]
        await ask(world.url, protocol, 'Go <**stopMessage:"on",3**>')
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, world.url, protocol, f"Go {number}")
        assert len(world.upstream.asked) == 1 + 3 + 3


@protocols
async def test_what_only_counts_a_conversation_holds_no_directive(protocol: str) -> None:
    counted = Reply([b'{"input_tokens": 3}'], content_type="application/json")
    async with continuing_world(counted) as world:
        body = {"model": "m", **_asked(protocol, 'Go <**stopMessage:"on",3**>')}
        async with httpx2.AsyncClient() as client:
            await client.post(f"{world.url}{PATHS[protocol]}/count_tokens", json=body)
        assert msgspec.json.decode(world.upstream.asked[0].body) == {
            "model": "m",
            **_asked(protocol, "Go "),
        }


async def test_a_batch_goes_out_without_its_directives() -> None:
    """It is answered later, where nobody could continue it."""
    made = Reply([b'{"id": "msgbatch_1"}'], content_type="application/json")
    marked = {"model": "m", **_asked("anthropic", 'Go <**stopMessage:"on",3**>')}
    plain = {"model": "m", **_asked("anthropic", "Go ")}
    entries = [{"custom_id": "a", "params": marked}, {"custom_id": "b", "params": plain}, "odd"]
    async with continuing_world(made) as world, httpx2.AsyncClient() as client:
        await client.post(f"{world.url}/v1/messages/batches", json={"requests": entries})
        as_it_is = b'{"requests":  [{"custom_id": "b"}]}'
        await client.post(f"{world.url}/v1/messages/batches", content=as_it_is)
    sent, same = world.upstream.asked
    cleaned = {"custom_id": "a", "params": plain}
    assert sent.json == {"requests": [cleaned, *entries[1:]]}
    assert same.body == as_it_is


async def test_auto_continue_can_be_off_and_directives_stay_inside() -> None:
    async with (
        open_runtime(config_from({"store": {"path": ":memory:"}}), rules=()) as runtime,
        gateway_world(
            *replies_of("chat", "One."),
            stop_messages=runtime.stop_message_book(Path("/"), is_allowed=False),
        ) as world,
    ):
        text, _ = await ask(world.url, "chat", 'Go <**stopMessage:"on",3**>')
        assert text == "One."
        assert b"stopMessage" not in world.upstream.asked[0].body


class Recited(httpx2.AsyncBaseTransport):
    """An upstream that always answers the same. `asked` counts the requests."""

    def __init__(self) -> None:
        self.asked = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=kind, content=b"".join(anthropic_stream("Done.")))


class BookOfALostClient(StopMessageBook):
    """Its client goes while a send is being counted, which is done to its end all the same."""

    def __init__(self) -> None:
        super().__init__(ManualClock(), StopMessageSettings())
        self.gone = trio.Event()

    async def change(self, key: str, decide: Any, *, uses_tools: bool | None = None) -> Any:
        result = await super().change(key, decide, uses_tools=uses_tools)
        kept = await self.read(key)
        if kept.state is not None and kept.state.used:
            self.gone.set()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
        return result


async def test_a_send_that_was_counted_and_never_made_is_given_back() -> None:
    upstream, book = Recited(), BookOfALostClient()
    server = Upstream("up", "http://upstream.test", transport=lambda: upstream)
    gateway = Gateway([server], gateway_rules, stop_messages=book)
    message = {"role": "user", "content": 'Work <**stopMessage:"go on",2**>'}
    asks = {"model": "m", "max_tokens": 9, "stream": True, "messages": [message]}
    body = [msgspec.json.encode({**asks, "metadata": {"session_id": "ses-1"}})]
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": []}

    async def receive() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop()}
        await book.gone.wait()
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        await trio.lowlevel.checkpoint()

    await gateway(scope, receive, send)
    await server.aclose()
    kept = await book.read(SessionIdentity("ses-1", "ses-1").state_key)
    assert upstream.asked == 1
    assert kept.state is not None
    assert kept.state.used == 0
