"""What the gateway remembers over requests and restarts, and whom it lets in."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import trio
from gateway_streams import chat_stream, responses_stream
from gateway_world import Reply, ScriptedUpstream, gateway_rules, rule

from midstream.actors.clock import Ids, SystemClock
from midstream.config import Config, StoreConfig
from midstream.doors.gateway import Gateway, gateway_app
from midstream.doors.gateway_access import LocalOnly
from midstream.doors.gateway_backoff import DOCUMENT_ID as WINDOWS
from midstream.doors.gateway_backoff import Windows
from midstream.doors.gateway_client import capped_retry_after
from midstream.doors.gateway_metrics import GatewayMetrics
from midstream.doors.gateway_response_ids import DOCUMENT_ID as RESPONSES
from midstream.doors.gateway_response_ids import ResponseIds
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.gateway_wire import Json
from midstream.doors.http import serve_http
from midstream.gateway_records import GatewayRecords
from midstream.messages.events import (
    AnyEvent,
    ContinuationDecided,
    RuleTriggered,
    SessionEnded,
    SessionStarted,
)
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.providers.json_fields import list_of
from midstream.rules.rule import Action
from midstream.runtime import Runtime, open_runtime

SECRET = rule(r"SECRET-\d+")


@asynccontextmanager
async def kept_world(
    cwd: Path, *replies: Reply, rules: GatewayRules | None = None
) -> AsyncGenerator[tuple[str, ScriptedUpstream, Runtime]]:
    """A gateway as the command runs it, with its store below `cwd`."""
    scripted, clock = ScriptedUpstream(replies), SystemClock()
    config = Config(store=StoreConfig(path=str(cwd / "store.sqlite3")))
    async with open_runtime(config, cwd=cwd, rules=()) as runtime, trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, scripted.handle, [listener])
        address = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        upstream = Upstream("up", address)
        ids = Ids(clock, random.Random())
        records = GatewayRecords(runtime, GatewayMetrics(), clock, ids, nursery)
        gateway = Gateway(
            [upstream],
            lambda: rules or gateway_rules(SECRET),
            records.begin,
            stop_messages=runtime.stop_message_book(cwd),
            windows=Windows(now_ms=clock.now_ms, document=runtime.state_document(WINDOWS)),
            response_ids=ResponseIds(runtime.state_document(RESPONSES)),
        )
        await gateway.recall()
        try:
            async with serve_http(LocalOnly(gateway_app(gateway)), "127.0.0.1", 0) as url:
                yield url, scripted, runtime
        finally:
            await upstream.aclose()
            nursery.cancel_scope.cancel()


async def ask(url: str, path: str = "/v1/chat/completions", **body: Any) -> httpx2.Response:
    headers = {"x-session-id": "ses-1", "authorization": "Bearer k"}
    async with httpx2.AsyncClient() as client:
        return await client.post(url + path, json={"model": "m", **body}, headers=headers)


async def records_of(runtime: Runtime, count: int, *, are_over: bool = True) -> list[SessionRecord]:
    """The records of the store once there are so many, that are over or still run."""
    with trio.fail_after(10):
        async for _ in await runtime.notices():
            page = await runtime.sessions.list_sessions()
            found = [record for record in page.records if record.is_terminal == are_over]
            if len(found) >= count:
                return found
    raise AssertionError


async def events_of(runtime: Runtime, session_id: str) -> list[AnyEvent]:
    """All that happened in a session that is over."""
    replay, events = runtime.replay(session_id), list[AnyEvent]()
    with trio.fail_after(10):
        while batch := await replay.take():
            events += [each.event for each in batch]
    return events


MESSAGES = [{"role": "user", "content": 'Go <**stopMessage:"on",1**>'}]


async def told_so_far(runtime: Runtime, session_id: str, kind: type[AnyEvent]) -> list[AnyEvent]:
    """What is told of a session that runs, up to the first event of this kind."""
    replay, events = runtime.replay(session_id), list[AnyEvent]()
    with trio.fail_after(10):
        while not any(isinstance(event, kind) for event in events):
            events += [each.event for each in await replay.take()]
    return events


@pytest.mark.parametrize("cuts", [True, False], ids=["it cuts", "it only watches"])
async def test_a_hit_is_told_when_it_happens_once_and_before_the_end(
    tmp_path: Path, cuts: bool
) -> None:
    action = Action.REMIND if cuts else Action.OBSERVE
    pieces = chat_stream("It is SECRET-12, they say, and so on.")
    replies = Reply(pieces[:-4], hold=True), Reply(chat_stream("Well")[:3], hold=True)
    rules = gateway_rules(rule(r"SECRET-\d+", action=action))
    async with kept_world(tmp_path, *replies, rules=rules) as (url, _, runtime):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(ask, url, stream=True, messages=[]))
            [record] = await records_of(runtime, 1, are_over=False)
            live = await told_so_far(runtime, record.id, RuleTriggered)
            assert isinstance(live[0], SessionStarted)
            assert not any(isinstance(event, SessionEnded) for event in live)
            await runtime.cancel(record.id, "enough")
        events = await events_of(runtime, record.id)
    [hit] = [event for event in events if isinstance(event, RuleTriggered)]
    assert (hit.attempt, hit.verdict.rule) == (1, "no-secret")
    assert isinstance(events[-1], SessionEnded)


async def test_a_continuation_is_told_when_it_is_decided(tmp_path: Path) -> None:
    replies = Reply(chat_stream("One.")), Reply(chat_stream("Two.")[:3], hold=True)
    async with kept_world(tmp_path, *replies) as (url, _, runtime):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(ask, url, stream=True, messages=MESSAGES))
            [record] = await records_of(runtime, 1, are_over=False)
            await told_so_far(runtime, record.id, ContinuationDecided)
            await runtime.cancel(record.id, "enough")
        events = await events_of(runtime, record.id)
    assert sum(isinstance(event, ContinuationDecided) for event in events) == 1
    assert isinstance(events[-1], SessionEnded)


async def test_a_request_is_on_record_while_it_runs_and_can_be_cancelled(tmp_path: Path) -> None:
    replies = Reply(chat_stream("Hello, world")[:3], hold=True)
    async with kept_world(tmp_path, replies) as (url, upstream, runtime):
        answers: list[httpx2.Response] = []

        async def read() -> None:
            answers.append(await ask(url, stream=True, messages=MESSAGES))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            [running] = await records_of(runtime, 1, are_over=False)
            assert running.status is SessionStatus.RUNNING
            assert running.metadata is not None
            assert running.metadata["trigger"] == "gateway"
            ended = await runtime.cancel(running.id, "enough")
        assert ended.status is SessionStatus.CANCELLED
        assert ended.output == "Hello, wor"[: len(ended.output or "")]
        assert b"enough" in answers[0].content
        with trio.fail_after(5):
            await upstream.closed.wait()


async def test_a_chain_is_on_record_with_its_decisions(tmp_path: Path) -> None:
    replies = Reply(chat_stream("One.")), Reply(chat_stream("Two."))
    async with kept_world(tmp_path, *replies) as (url, _, runtime):
        await ask(url, stream=True, messages=MESSAGES)
        [record] = await records_of(runtime, 1)
        assert record.status is SessionStatus.COMPLETED
        assert record.metadata is not None
        assert (record.metadata["attempts"], record.metadata["follow_ups"]) == (2, 1)
        events = await events_of(runtime, record.id)
        assert isinstance(events[0], SessionStarted)
        assert isinstance(events[-1], SessionEnded)
        reasons = [each.record.decision for each in events if isinstance(each, ContinuationDecided)]
        assert reasons == ["continue", "stop"]
        assert record.conversation_id is not None
        state = await runtime.stop_message(record.conversation_id)
        assert state is not None
        assert (state["stopMessageText"], state["stopMessageUsed"]) == ("on", 1)


async def test_a_window_is_still_open_after_a_restart(tmp_path: Path) -> None:
    wait = [("retry-after", "600")]
    spent = Reply([b"{}"], status=429, content_type="application/json", headers=wait)
    async with kept_world(tmp_path, spent) as (url, _, _):
        assert (await ask(url, messages=[])).status_code == 429
    async with kept_world(tmp_path, Reply(chat_stream("Hi"))) as (url, upstream, _):
        refused = await ask(url, messages=[])
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 600
        assert upstream.asked == []


async def test_a_client_goes_on_from_a_response_that_was_continued(tmp_path: Path) -> None:
    replies = (
        Reply(responses_stream("It is SECRET-1", message_id="resp_cut")),
        Reply(responses_stream("I may not.", message_id="resp_kept")),
        Reply(responses_stream("Fine.", message_id="resp_2")),
    )
    async with kept_world(tmp_path, *replies) as (url, _, runtime):
        answer = await ask(url, "/v1/responses", stream=True, input="Say it")
        assert b"resp_cut" in answer.content
        assert b'"id":"resp_kept"' not in answer.content
        await records_of(runtime, 1)
    async with kept_world(tmp_path, replies[2]) as (url, upstream, _):
        more = {"previous_response_id": "resp_cut", "input": "And now?"}
        await ask(url, "/v1/responses", stream=True, **more)
        assert upstream.asked[0].json["previous_response_id"] == "resp_kept"


async def test_reasoning_that_was_cut_is_not_sent_back() -> None:
    ids = ResponseIds()
    await ids.learn({"rs_cut": ""})
    items: list[Json] = [
        {"type": "reasoning", "id": "rs_cut", "summary": []},
        {"type": "reasoning", "id": "rs_half", "summary": [], "status": "incomplete"},
        {"type": "reasoning", "id": "rs_kept", "summary": []},
        {"type": "reasoning", "id": "rs_cut", "encrypted_content": "x", "summary": []},
        {"type": "message", "role": "user", "content": "Go"},
    ]
    sent = list_of(ids.translated({"input": items})["input"])
    assert sent == items[2:]
    body: Json = {"input": items[2:]}
    assert ids.translated(body) is body


def with_reasoning(text: str) -> list[bytes]:
    """A stream that has thought before it says a text."""
    events = responses_stream(text)
    item: Json = {"id": "rs_1", "type": "reasoning", "summary": []}
    thought: list[Json] = [
        {"type": f"response.output_item.{kind}", "output_index": 0, "item": item}
        for kind in ("added", "done")
    ]
    raw = [b"data: " + msgspec.json.encode(each) + b"\n\n" for each in thought]
    moved = [each.replace(b'"output_index":0', b'"output_index":1') for each in events[2:]]
    return [*events[:2], *raw, *moved]


async def test_the_reasoning_of_an_attempt_that_was_cut_is_known_as_lost(tmp_path: Path) -> None:
    replies = Reply(with_reasoning("It is SECRET-1")), Reply(responses_stream("No."))
    async with kept_world(tmp_path, *replies) as (url, upstream, _):
        await ask(url, "/v1/responses", stream=True, input="Say it")
        back: list[Json] = [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "user", "content": "?"},
        ]
        await ask(url, "/v1/responses", stream=True, input=back)
        assert upstream.asked[-1].json["input"] == back[1:]
        assert "reasoning" not in str(upstream.asked[1].json["input"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:1"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "app://an-editor"}, 200),
        ({"origin": "https://my.example", "host": "my.example"}, 200),
    ],
)
async def test_other_names_and_pages_are_kept_out(headers: dict[str, str], status: int) -> None:
    gateway = gateway_app(Gateway([Upstream("up", "http://127.0.0.1:9")], gateway_rules))
    async with (
        serve_http(LocalOnly(gateway, ["my.example"]), "127.0.0.1", 0) as url,
        httpx2.AsyncClient() as client,
    ):
        answer = await client.get(url, headers=headers)
    assert answer.status_code == status


def test_a_long_retry_after_is_capped_where_that_is_wanted() -> None:
    date = b"Wed, 21 Oct 2026 07:28:00 GMT"
    headers = [(b"retry-after", b"3600"), (b"retry-after-ms", b"900"), (b"retry-after", date)]
    assert capped_retry_after(headers, None) is headers
    assert capped_retry_after(headers, 60) == [(b"retry-after", b"60"), *headers[1:]]


class Unreachable(httpx2.AsyncBaseTransport):
    """A server that is there from some try on."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.tries = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.tries += 1
        if self.tries <= self.failures:
            raise httpx2.ConnectError("refused")
        head = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=head, content=b"".join(chat_stream("Hi")))


@pytest.mark.parametrize(("failures", "status"), [(0, 200), (2, 200), (3, 502)])
async def test_a_connection_that_cannot_be_made_is_tried_again_unseen(
    failures: int, status: int
) -> None:
    server = Unreachable(failures)
    upstream = Upstream("up", "http://127.0.0.1:9", transport=lambda: server)
    gateway = gateway_app(Gateway([upstream], gateway_rules))
    async with serve_http(gateway, "127.0.0.1", 0) as url:
        answer = await ask(url, stream=True, messages=[])
    await upstream.aclose()
    assert answer.status_code == status
    assert server.tries == min(failures + 1, 3)
