"""The gateway as its users have it: official clients, real sockets, a server behind it."""

from typing import Any

import httpx2
import msgspec
import pytest
import trio
from anthropic import AsyncAnthropic
from anthropic.types import Message
from gateway_streams import Call, anthropic_stream, chat_stream, responses_stream
from gateway_world import FIXTURES, Reply, gateway_rules, gateway_world, needs_fixtures, rule
from openai import AsyncOpenAI

from midstream.messages.record import SessionStatus
from midstream.messages.verdict import VerdictAction
from midstream.rules.rule import Action, InterruptMode

# The official OpenAI client leaves its generators to the garbage collector after [DONE].
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")

SECRET = rule(r"SECRET-\d+")
BAD = "The word is SECRET-1234, they say."
GOOD = "I would rather not tell."


async def ask_anthropic(url: str) -> tuple[str, object]:
    async with (
        AsyncAnthropic(base_url=url, api_key="sk-client", max_retries=0) as client,
        client.messages.stream(
            model="m", max_tokens=99, messages=[{"role": "user", "content": "Say it"}]
        ) as stream,
    ):
        message = await stream.get_final_message()
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, message


async def ask_chat(url: str) -> tuple[str, object]:
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0) as client,
        client.chat.completions.stream(
            model="m",
            messages=[{"role": "user", "content": "Say it"}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        completion = await stream.get_final_completion()
    return completion.choices[0].message.content or "", completion


async def ask_responses(url: str) -> tuple[str, object]:
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0) as client,
        client.responses.stream(model="m", input="Say it") as stream,
    ):
        response = await stream.get_final_response()
    return response.output_text, response


CLIENTS = {
    "anthropic": (ask_anthropic, anthropic_stream),
    "chat": (ask_chat, chat_stream),
    "responses": (ask_responses, responses_stream),
}


@pytest.mark.parametrize("protocol", CLIENTS)
async def test_a_violation_never_reaches_the_client_and_the_retry_goes_on(protocol: str) -> None:
    ask, stream = CLIENTS[protocol]
    replies = Reply(stream(BAD, size=4), hold=True), Reply(stream(GOOD, size=4))
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        text, answer = await ask(world.url)
        assert text == "The word is " + GOOD
        done = await world.finished()
        assert done.exchange.attempts == 2
        assert [verdict.rule for verdict in done.exchange.verdicts] == ["no-secret"]
        with trio.fail_after(5):
            await world.upstream.closed.wait()
        again = world.upstream.asked[1].body.decode()
    assert "Never say that word." in again
    assert "The word is" in again
    assert "SECRET" not in again
    assert "SECRET" not in repr(answer)


async def raw_bytes(url: str, path: str, body: object) -> bytes:
    """What the socket carries."""
    data = msgspec.json.encode(body)
    host, _, port = url.removeprefix("http://").partition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        await stream.send_all(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        return b"".join([piece async for piece in stream])


PATHS = {
    "anthropic": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}


@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_no_byte_of_a_violation_is_on_the_wire(protocol: str, size: int) -> None:
    stream = CLIENTS[protocol][1]
    replies = Reply(stream(BAD, size=size)), Reply(stream(GOOD, size=size))
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        received = await raw_bytes(world.url, PATHS[protocol], {"stream": True, "model": "m"})
    assert b"SECRET" not in received
    assert b"1234" not in received


async def finished_stream(url: str, protocol: str, **more: object) -> bytes:
    body = {"stream": True, "model": "m", **more}
    return await raw_bytes(url, PATHS[protocol], body)


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_client_that_leaves_ends_the_request_to_the_upstream(protocol: str) -> None:
    stream = CLIENTS[protocol][1]
    async with gateway_world(Reply(stream(GOOD)[:4], hold=True)) as world:
        host, _, port = world.url.removeprefix("http://").partition(":")
        client = await trio.open_tcp_stream(host, int(port))
        async with client:
            head = f"POST {PATHS[protocol]} HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n"
            await client.send_all(head.encode() + b'{"stream":true}')
            await client.receive_some()
        with trio.fail_after(5):
            await world.upstream.closed.wait()
        assert (await world.finished()).gone


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_stream_that_breaks_reaches_the_client_as_an_error_event(protocol: str) -> None:
    stream = CLIENTS[protocol][1]
    async with gateway_world(Reply(stream(GOOD)[:5], breaks=True)) as world:
        received = await finished_stream(world.url, protocol)
    said = b"the connection to the upstream broke"
    assert said in received
    wanted = {"anthropic": b"event: error", "chat": b'data: {"error"', "responses": b"event: error"}
    assert wanted[protocol] in received


async def test_an_answer_that_was_cut_is_one_block_of_text() -> None:
    """Claude Code prints the last block as the result, so what was said before the cut would
    be missing there."""
    bad, good = (Reply(anthropic_stream(text, size=4)) for text in (BAD, GOOD))
    async with gateway_world(bad, bad, good, rules=gateway_rules(SECRET)) as world:
        _, answer = await ask_anthropic(world.url)
    assert isinstance(answer, Message)
    [block] = answer.content
    assert block.type == "text"
    assert block.text == "The word is The word is " + GOOD


async def test_other_blocks_of_the_next_attempt_end_the_text_before_them() -> None:
    replies = Reply(anthropic_stream(BAD)), Reply(anthropic_stream(calls=[GOOD_CALL]))
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        _, answer = await ask_anthropic(world.url)
    assert isinstance(answer, Message)
    assert [block.type for block in answer.content] == ["text", "tool_use"]


BAD_CALL: Call = ("call_bad", "write", '{"content":"SECRET-99"}')
GOOD_CALL: Call = ("call_good", "write", '{"content":"nothing"}')


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_call_that_breaks_a_rule_is_never_seen_and_its_successor_is(protocol: str) -> None:
    ask, stream = CLIENTS[protocol]
    bad = stream("I will write. ", calls=[BAD_CALL])
    good = stream("Then so. ", calls=[GOOD_CALL])
    async with gateway_world(Reply(bad), Reply(good), rules=gateway_rules(SECRET)) as world:
        text, answer = await ask(world.url)
    assert text == "I will write. Then so. "
    shown = repr(answer)
    assert "call_good" in shown
    assert "call_bad" not in shown
    assert "SECRET" not in shown


@pytest.mark.parametrize("protocol", PATHS)
async def test_an_answer_in_one_piece_is_watched_like_a_stream(protocol: str) -> None:
    stream = CLIENTS[protocol][1]
    replies = Reply(stream(BAD)), Reply(stream(GOOD, calls=[GOOD_CALL]))
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        received = await raw_bytes(world.url, PATHS[protocol], {"model": "m"})
        assert world.upstream.asked[0].json["stream"] is True
    _, _, document = received.partition(b"\r\n\r\n")
    assert b"SECRET" not in received
    answer = msgspec.json.decode(document[document.index(b"{") : document.rindex(b"}") + 1])
    said = repr(answer)
    assert GOOD in said
    assert "call_good" in said
    assert "nothing" in said


async def test_an_upstream_that_answers_in_one_piece_is_watched_too() -> None:
    def reply(text: str) -> Reply:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        document = {"id": "c", "object": "chat.completion", "choices": [choice], "extra": 1}
        return Reply([msgspec.json.encode(document)], content_type="application/json")

    async with gateway_world(reply(BAD), reply(GOOD), rules=gateway_rules(SECRET)) as world:
        received = await raw_bytes(world.url, PATHS["chat"], {"model": "m"})
    assert b"SECRET" not in received
    assert reply(GOOD).pieces[0] in received


async def test_refusals_of_the_upstream_come_through_as_they_are() -> None:
    refusal = b'{"type":"error","error":{"type":"rate_limit_error","message":"Slow down"}}'
    headers = [("retry-after", "17"), ("x-should-retry", "true"), ("request-id", "req_1")]
    reply = Reply([refusal], status=429, content_type="application/json", headers=headers)
    async with gateway_world(reply, rules=gateway_rules(SECRET)) as world:
        received = await finished_stream(world.url, "anthropic")
    assert received.startswith(b"HTTP/1.1 429")
    assert refusal in received
    for name, value in headers:
        assert f"{name}: {value}".encode() in received.lower()


async def test_what_no_rule_concerns_passes_with_its_headers_and_its_query() -> None:
    reply = Reply([b'{"data":[]}'], content_type="application/json", headers=[("x-odd", "1")])
    async with gateway_world(reply) as world:
        host, _, port = world.url.removeprefix("http://").partition(":")
        client = await trio.open_tcp_stream(host, int(port))
        async with client:
            head = "GET /v1/models?limit=1000 HTTP/1.1\r\nhost: x\r\nx-api-key: sk-1\r\n"
            await client.send_all(f"{head}connection: close, x-hop\r\nx-hop: 1\r\n\r\n".encode())
            received = b"".join([piece async for piece in client])
        [asked] = world.upstream.asked
    assert asked.line == "GET /v1/models?limit=1000 HTTP/1.1"
    assert asked.headers["x-api-key"] == "sk-1"
    assert asked.headers["accept-encoding"] == "identity"
    assert "x-hop" not in asked.headers
    assert b"x-odd: 1" in received.lower()
    assert b'{"data":[]}' in received


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_shadow_rule_holds_nothing_and_changes_nothing(protocol: str) -> None:
    stream = CLIENTS[protocol][1](BAD)
    shadow = rule(r"SECRET-\d+", action=Action.OBSERVE)
    async with (
        gateway_world(Reply(stream), rules=gateway_rules(shadow)) as world,
        httpx2.AsyncClient() as client,
    ):
        answer = await client.post(world.url + PATHS[protocol], json={"stream": True, "model": "m"})
        assert answer.content == b"".join(stream)
        done = await world.finished()
    assert [verdict.action for verdict in done.exchange.verdicts] == [VerdictAction.OBSERVE]
    assert len(world.upstream.asked) == 1


RESULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": (
        "messages",
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call_bad", "content": "done"}],
        },
    ),
    "chat": ("messages", {"role": "tool", "tool_call_id": "call_bad", "content": "done"}),
    "responses": (
        "input",
        {"type": "function_call_output", "call_id": "call_bad", "output": "done"},
    ),
}


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_reminder_that_cuts_nothing_is_told_with_the_result_of_its_call(
    protocol: str,
) -> None:
    stream = CLIENTS[protocol][1]
    gentle = rule(r"SECRET-\d+", mode=InterruptMode.NEVER)
    key, result = RESULTS[protocol]
    asks = {"role": "user", "content": "Go"}
    first: dict[str, Any] = {key: [asks], "model": "m", "stream": True}
    then = {**first, key: [asks, result]}
    async with (
        gateway_world(
            Reply(stream(calls=[BAD_CALL])), Reply(stream(GOOD)), rules=gateway_rules(gentle)
        ) as world,
        httpx2.AsyncClient(headers={"x-session-id": "s-1"}) as client,
    ):
        for body in (first, then, then):
            await client.post(world.url + PATHS[protocol], json=body)
        other = {"x-session-id": "s-2"}
        await client.post(world.url + PATHS[protocol], json=then, headers=other)
    asked = [request.body.decode() for request in world.upstream.asked]
    assert "Never say that word." not in asked[0]
    for body in asked[1:3]:
        assert body.count("Never say that word.") == 1
        assert "done" in body
    assert msgspec.json.decode(asked[3]) == then


async def test_the_base_path_answers_and_a_websocket_is_refused_at_once() -> None:
    async with gateway_world(Reply()) as world, httpx2.AsyncClient() as client:
        assert (await client.head(world.url)).status_code == 200
        assert (await client.get(f"{world.url}/up")).status_code == 200
        assert (await client.get(f"{world.url}/elsewhere")).status_code == 404
        upgrade = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        refused = await client.get(f"{world.url}/v1/responses", headers=upgrade)
        assert refused.status_code == 426
    assert not world.upstream.asked


def recorded_requests() -> list[dict[str, Any]]:
    files = sorted((FIXTURES / "client-requests").glob("*.json"))
    requests = [request for file in files for request in msgspec.json.decode(file.read_bytes())]
    return [request for request in requests if request["method"] == "POST"]


@needs_fixtures
async def test_what_real_clients_send_goes_through_as_it_is() -> None:
    sent: list[bytes] = []
    async with (
        gateway_world(Reply([b"{}"], content_type="application/json")) as world,
        httpx2.AsyncClient() as client,
    ):
        for request in recorded_requests():
            target = request["target"]
            target = target if target.startswith("/v1/") else f"/v1{target}"
            sent.append(msgspec.json.encode(request["body"]))
            hop = ("host", "content-length", "connection")
            headers = [(n, v) for n, v in request["headers"] if n.lower() not in hop]
            answer = await client.post(world.url + target, content=sent[-1], headers=headers)
            assert answer.status_code == 200, target
    assert [asked.body for asked in world.upstream.asked] == sent
    assert len(sent) > 30


@pytest.mark.parametrize("status", [429, 529])
async def test_while_a_key_is_out_of_quota_the_upstream_is_left_alone(status: int) -> None:
    spent = Reply(
        [b'{"type":"error","error":{"type":"rate_limit_error","message":"Slow down"}}'],
        status=status,
        content_type="application/json",
        headers=[("retry-after", "30")],
    )
    async with (
        gateway_world(spent, Reply(anthropic_stream(GOOD))) as world,
        httpx2.AsyncClient() as client,
    ):
        url, body = f"{world.url}/v1/messages", {"model": "m", "stream": True}
        mine, theirs = {"x-api-key": "sk-mine"}, {"x-api-key": "sk-theirs"}
        first = await client.post(url, json=body, headers=mine)
        waiting = await client.post(url, json=body, headers=mine)
        other = await client.post(url, json=body, headers=theirs)
    assert first.status_code == status
    assert waiting.status_code == 429
    assert 28 <= int(waiting.headers["retry-after"]) <= 30
    assert waiting.json()["error"]["type"] == "rate_limit_error"
    assert other.status_code == 200
    assert len(world.upstream.asked) == 2


async def test_a_retry_waits_for_a_quota_that_another_request_has_found_spent() -> None:
    told = trio.Event()
    whole = anthropic_stream(BAD, size=1000)
    upto = next(number for number, piece in enumerate(whole) if b"SECRET" in piece) + 1
    begun = Reply(whole[:upto], hold=True, last_piece_after=told)
    spent = Reply(
        [b'{"type":"error","error":{"type":"rate_limit_error","message":"Slow down"}}'],
        status=429,
        content_type="application/json",
        headers=[("retry-after", "1")],
    )
    async with (
        gateway_world(
            begun, spent, Reply(anthropic_stream(GOOD)), rules=gateway_rules(SECRET)
        ) as world,
        httpx2.AsyncClient() as client,
    ):
        url, body, key = f"{world.url}/v1/messages", {"model": "m", "stream": True}, "sk-mine"
        answers: list[httpx2.Response] = []

        async def ask() -> None:
            answers.append(await client.post(url, json=body, headers={"x-api-key": key}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await world.upstream.was_asked.wait()
            await ask()
            told.set()
    refused, watched = answers
    assert (refused.status_code, watched.status_code) == (429, 200)
    assert len(world.upstream.asked) == 3
    assert world.upstream.asked[2].at_s - world.upstream.asked[1].at_s >= 0.9


@pytest.mark.parametrize(
    ("protocol", "sign"),
    [("anthropic", b"event: ping"), ("chat", b": keep-alive"), ("responses", b": keep-alive")],
)
async def test_a_client_that_waits_for_what_is_held_hears_that_all_is_well(
    protocol: str, sign: bytes
) -> None:
    begun = [
        piece for piece in CLIENTS[protocol][1]("SECRET-1", size=20) if b"event: ping" not in piece
    ]
    at = next(number for number, piece in enumerate(begun) if b"SECRET" in piece)
    unsure = rule(r"SECRET-\d+ and more")
    async with gateway_world(
        Reply(begun[: at + 1], hold=True), rules=gateway_rules(unsure), keep_alive_s=0.02
    ) as world:
        host, _, port = world.url.removeprefix("http://").partition(":")
        client = await trio.open_tcp_stream(host, int(port))
        received = b""
        async with client:
            head = f"POST {PATHS[protocol]} HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n"
            await client.send_all(head.encode() + b'{"stream":true}')
            with trio.fail_after(5):
                while sign not in received:
                    received += await client.receive_some()
    assert b"SECRET" not in received


@pytest.mark.parametrize("protocol", PATHS)
async def test_when_the_retries_are_spent_a_call_still_never_goes_out(protocol: str) -> None:
    bad = CLIENTS[protocol][1](calls=[BAD_CALL])
    async with gateway_world(Reply(bad), rules=gateway_rules(SECRET)) as world:
        received = await finished_stream(world.url, protocol)
        done = await world.finished()
    assert b"SECRET" not in received
    assert b"midstream ended this" in received
    assert done.status is SessionStatus.CAPPED
    assert len(world.upstream.asked) == 4
