"""The websocket door as clients see it: what they get, and what nobody can do to others."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from jsonschema import Draft202012Validator
from raw_client import JSON_PROTOCOL, MSGPACK_PROTOCOL, Frame, RawClient, raw_client
from trio.testing import MockClock
from trio_websocket import ConnectionClosed, ConnectionRejected

from midstream.config import WebsocketConfig
from midstream.messages import wire as wire_frames
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.providers.scripted import Call, Hang, Pause, Script, Step, answer
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.testing.wire import HOST, Wire, open_wire
from midstream.testing.world import World, open_world

DOCS = Path(__file__).parents[2] / "docs"
BOTH = pytest.mark.parametrize("protocol", [JSON_PROTOCOL, MSGPACK_PROTOCOL])
NO_FOO = Rule(name="no-foo", conditions=("foo",), scope=(ScopeToken(Source.TEXT),), body="No foo.")


def talkative(words: int = 5_000, pause_s: float = 0.01) -> Script:
    """A model that goes on and on, and then hangs."""
    yield from (StreamStarted(), BlockStarted(0, "text"))
    for _ in range(words):
        yield from (TextDelta(0, "word "), Pause(pause_s))
    yield Hang()


HANGING: list[Step] = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "well, "), Hang()]


@asynccontextmanager
async def opened(
    *scripts: Script, rules: tuple[Rule, ...] = (), token: str | None = None, **config: Any
) -> AsyncGenerator[tuple[World, Wire]]:
    settings = WebsocketConfig(hosts=(HOST,), token_env="", **config)
    async with (
        open_world(*scripts, rules=rules) as world,
        open_wire(world.runtime, settings, token=token) as wire,
    ):
        yield world, wire


def text_of(events: list[Frame], attempt: int = 1) -> str:
    said = [frame["event"] for frame in events]
    return "".join(e["text"] for e in said if e["event"] == "text" and e["attempt"] == attempt)


def kinds(events: list[Frame]) -> list[str]:
    return [frame["event"]["event"] for frame in events]


# --- what clients get


@BOTH
async def test_a_prompt_is_answered_event_by_event(
    protocol: str, autojump_clock: MockClock
) -> None:
    async with (
        opened(answer("hello there")) as (_, wire),
        raw_client(wire, protocol=protocol) as client,
    ):
        taken = await client.submit()
        assert taken["result"]["kind"] == "submitted"
        events = await client.events()
        assert {frame["session"] for frame in events} == {taken["result"]["session"]}
        assert text_of(events) == "hello there"
        assert events[-1]["event"]["status"] == "completed"
        numbers = [frame["sequence"] for frame in events]
        assert numbers == sorted(set(numbers))


async def test_what_a_rule_cuts_is_retracted(autojump_clock: MockClock) -> None:
    scripts = [[*HANGING[:-1], TextDelta(0, "foo"), Hang()], answer("fine")]
    async with opened(*scripts, rules=(NO_FOO,)) as (_, wire), raw_client(wire) as client:
        await client.submit()
        events = await client.events()
        shown = kinds(events)
        assert shown.index("retracted") < shown.index("reminder.injected")
        assert text_of(events, attempt=2) == "fine"


async def test_who_cannot_take_back_gets_the_answer_at_the_end(autojump_clock: MockClock) -> None:
    scripts = [[*HANGING[:-1], TextDelta(0, "foo"), Hang()], answer("fine")]
    hello = {"capabilities": ["levitation"]}
    async with (
        opened(*scripts, rules=(NO_FOO,)) as (_, wire),
        raw_client(wire, hello=hello) as client,
    ):
        await client.submit()
        events = await client.events()
        assert not {"text", "retracted"} & set(kinds(events))
        assert events[-1]["event"]["output"] == "fine"


async def test_a_client_answers_the_calls_of_its_tools(autojump_clock: MockClock) -> None:
    tool = {"name": "weather", "description": "Tell it.", "schema": {"type": "object"}}
    scripts = [answer(Call("weather")), answer("rain")]
    async with opened(*scripts) as (_, wire), raw_client(wire) as client:
        session = (await client.submit(tools=[tool]))["result"]["session"]
        while (frame := await client.hear())["event"]["event"] != "tool.wanted":
            pass
        result = {"session": session, "call_id": frame["event"]["call_id"], "content": "wet"}
        assert (await client.ask("tool_result", id=2, **result))["result"]["taken"] is True
        assert (await client.ask("tool_result", id=3, **result))["result"]["taken"] is False
        assert text_of(await client.events(), attempt=2) == "rain"


@BOTH
async def test_every_frame_of_the_protocol_is_spoken_as_the_schema_has_it(
    protocol: str, autojump_clock: MockClock
) -> None:
    """One long visit, in which every request is made and everything heard is checked."""
    schema = json.loads((DOCS / "websocket.schema.json").read_text(encoding="utf-8"))
    server = Draft202012Validator({"$ref": "#/$defs/server", "$defs": schema["$defs"]})
    tool = {"name": "weather", "description": "Tell it.", "schema": {"type": "object"}}
    segments = [
        {"kind": "text", "content": "What is this? "},
        {"kind": "paste", "id": 1, "chars": 5, "lines": 1, "content": "pasty"},
    ]
    scripts = [answer(Call("weather")), [*HANGING[:-1], TextDelta(0, "foo"), Hang()]]
    scripts += [answer("rain"), HANGING, HANGING]
    async with (
        opened(*scripts, rules=(NO_FOO,)) as (_, wire),
        raw_client(wire, protocol=protocol) as client,
    ):
        heard: list[Frame] = []
        hear = client.hear

        async def checked() -> Frame:
            frame = await hear()
            heard.append(frame)
            server.validate(frame)  # pyright: ignore[reportUnknownMemberType]  # an overload of its
            return frame

        client.hear = checked
        taken = await client.ask(
            "submit", id=1, segments=segments, tools=[tool], system="Be brief."
        )
        session = taken["result"]["session"]
        while (frame := await client.hear()).get("event", {}).get("event") != "tool.wanted":
            pass
        call = {"session": session, "call_id": frame["event"]["call_id"]}
        await client.ask("tool_result", id=2, **call, content="wet", is_error=False, attempt=1)
        assert (await client.events())[-1]["event"]["output"] == "rain"
        await client.ask("subscribe", id=3, session=session, after=2, epoch=1)
        await client.events()
        for id, verb in enumerate(("interrupt", "cancel"), 4):
            hanging = (await client.submit(follow=False))["result"]["session"]
            await client.ask("subscribe", id=10, session=hanging)
            await client.ask("unsubscribe", id=11, session=hanging)
            await client.ask(verb, id=id, session=hanging)
        await client.ask("list", id=6, limit=2)
        await client.ask("status", id=7, session=session)
        await client.ask("status", id=8)
        await client.ask("ping", id=9)
        await client.ask("status", id=12, session="ses-none")
        await client.ask("subscribe", id=13, session=session, after=1_000)
        await client.say("sing")
        while (await client.hear())["type"] != "error":
            pass
    results = {frame["result"]["kind"] for frame in heard if frame["type"] == "ack"}
    wanted = {kind.__struct_config__.tag for kind in wire_frames.AnyResult.__args__}
    assert results == wanted
    codes = [frame["code"] for frame in heard if frame["type"] == "error"]
    assert codes == ["unknown_session", "gap", "bad_frame"]


async def test_a_session_goes_on_when_its_client_leaves_and_is_told_in_full_to_the_next(
    autojump_clock: MockClock,
) -> None:
    async with opened(answer("a long story " * 20, piece_chars=5)) as (world, wire):
        async with raw_client(wire) as client:
            session = (await client.submit())["result"]["session"]
            await client.hear()
        await trio.sleep(60)  # the ring has forgotten it by now
        async with raw_client(wire) as client:
            told = await client.ask("subscribe", id=1, session=session)
            assert told["result"] == {
                "kind": "subscribed",
                "session": session,
                "epoch": 1,
                "after": 0,
            }
            events = await client.events()
            assert text_of(events) == "a long story " * 20
            assert events[0]["sequence"] == 1
        assert world.provider.live == 0


async def test_interrupt_and_cancel_stop_a_session_and_unsubscribe_does_not(
    autojump_clock: MockClock,
) -> None:
    async with opened(HANGING, HANGING) as (world, wire), raw_client(wire) as client:
        first = (await client.submit())["result"]["session"]
        await client.ask("unsubscribe", id=2, session=first)
        second = (await client.submit(id=3))["result"]["session"]
        await trio.sleep(1)
        assert world.runtime.live_sessions == 2
        assert (await client.ask("interrupt", id=4, session=second))["result"]["kind"] == "told"
        ended = (await client.events())[-1]
        assert (ended["session"], ended["event"]["status"]) == (second, "cancelled")
        assert (await client.ask("cancel", id=5, session=first, reason="enough"))["type"] == "ack"
        record = (await client.ask("status", id=6, session=first))["result"]["session"]
        assert (record["status"], record["error"]) == ("cancelled", "enough")


async def test_after_the_answer_to_unsubscribe_no_event_comes(autojump_clock: MockClock) -> None:
    async with opened(talkative()) as (_, wire), raw_client(wire) as client:
        session = (await client.submit())["result"]["session"]
        await client.hear()
        await client.ask("unsubscribe", id=2, session=session)
        with trio.move_on_after(5) as patience:
            await client.hear()
        assert patience.cancelled_caught
        # It can be followed again, from where it was left.
        assert (await client.ask("subscribe", id=3, session=session))["type"] == "ack"
        await client.ask("cancel", id=4, session=session)


async def test_sessions_are_listed_page_by_page(autojump_clock: MockClock) -> None:
    async with opened(*[answer(f"nr {n}") for n in range(5)]) as (world, wire):
        for _ in range(5):
            await world.animate("x").result()
        async with raw_client(wire) as client:
            page = (await client.ask("list", id=1, limit=3))["result"]
            rest = (await client.ask("list", id=2, limit=3, after=page["next"]))["result"]
            seen = [record["id"] for record in page["sessions"] + rest["sessions"]]
            assert len(set(seen)) == 5
            assert "next" not in rest
            assert "output" not in page["sessions"][0]
            running = await client.ask("list", id=3, statuses=["running"])
            assert running["result"]["sessions"] == []


async def test_what_cannot_be_done_is_an_error_with_the_number_of_the_request(
    autojump_clock: MockClock,
) -> None:
    async with opened(HANGING) as (_, wire), raw_client(wire) as client:
        taken = (await client.submit())["result"]
        text = [{"kind": "text", "content": "x"}]
        wrong: list[tuple[str, Frame, str]] = [
            ("subscribe", {"session": "ses-none"}, "unknown_session"),
            ("status", {"session": "ses-none"}, "unknown_session"),
            ("interrupt", {"session": "ses-none"}, "unknown_session"),
            ("cancel", {"session": "ses-none"}, "unknown_session"),
            ("subscribe", {"session": taken["session"]}, "bad_request"),
            ("submit", {"segments": []}, "bad_request"),
            ("submit", {"segments": [{"content": "no kind"}]}, "bad_request"),
            ("submit", {"segments": text, "conversation": taken["conversation"]}, "busy"),
        ]
        for id, (request, fields, code) in enumerate(wrong, start=10):
            error = await client.ask(request, id=id, **fields)
            assert (error["type"], error["code"], error["id"]) == ("error", code, id)


async def test_a_number_that_was_never_given_is_a_gap(autojump_clock: MockClock) -> None:
    async with opened(HANGING) as (_, wire), raw_client(wire) as client:
        session = (await client.submit(follow=False))["result"]["session"]
        await trio.sleep(1)
        error = await client.ask("subscribe", id=2, session=session, after=1_000)
        assert (error["code"], error["after"]) == ("gap", 3)


async def test_a_request_that_is_sent_again_is_carried_out_once(autojump_clock: MockClock) -> None:
    hello = {"client": "a-name-of-the-client"}
    async with opened(answer("once"), answer("twice")) as (world, wire):
        async with raw_client(wire, hello=hello) as client:
            first = await client.submit(id=7)
        async with raw_client(wire, hello=hello) as client:
            assert await client.submit(id=7) == first
            assert (await client.submit(id=8))["result"] != first["result"]
        async with raw_client(wire, hello={"client": "another-client-here"}) as client:
            await client.ask("list", id=1)
        await trio.sleep(1)
        assert len(world.provider.requests) == 2


# --- who comes in


async def rejected(wire: Wire, **how: Any) -> tuple[int, str]:
    with pytest.raises(ExceptionGroup) as group:
        async with raw_client(wire, **how):
            pass
    [error] = group.value.exceptions
    assert isinstance(error, ConnectionRejected)
    return error.status_code, (error.body or b"").decode()


async def test_foreign_origins_names_paths_and_protocols_are_refused(
    autojump_clock: MockClock,
) -> None:
    async with opened(origins=("https://ide.example",)) as (_, wire):
        foreign = [(b"origin", b"https://evil.example")]
        assert (await rejected(wire, headers=foreign))[0] == 403
        assert (await rejected(wire, host="evil.example"))[0] == 403
        assert (await rejected(wire, path="/"))[0] == 404
        status, body = await rejected(wire, protocol="soap")
        assert (status, JSON_PROTOCOL in body) == (400, True)
        known = [(b"origin", b"https://ide.example")]
        async with raw_client(wire, headers=known) as client:
            assert (await client.ask("ping", id=1))["result"] == {"kind": "pong"}


async def test_only_the_token_opens(autojump_clock: MockClock) -> None:
    async with opened(token="s3cret") as (_, wire):
        for hello in ({}, {"token": "guess"}, {"token": None}):
            async with raw_client(wire, hello={}) as client:
                await client.say("hello", **hello)
                assert (await client.hear())["code"] == "unauthorized"
                assert await client.close_of_server() == 4401
        async with raw_client(wire, hello={"token": "s3cret"}) as client:
            assert (await client.ask("ping", id=1))["type"] == "ack"


async def test_who_says_nothing_is_closed(autojump_clock: MockClock) -> None:
    async with opened() as (_, wire), raw_client(wire, hello={}) as client:
        began_at = trio.current_time()
        assert await client.close_of_server() == 4408
        assert trio.current_time() - began_at == pytest.approx(10, abs=1)


async def test_half_open_connections_make_room(autojump_clock: MockClock) -> None:
    async with opened(half_open=3) as (_, wire):
        silent = [wire.stream() for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert wire.service.connections == 3
        async with raw_client(wire) as client:
            assert (await client.ask("ping", id=1))["type"] == "ack"
            assert await silent[0].receive_some() == b""
        assert wire.service.connections < 4


async def test_no_more_than_so_many_connections(autojump_clock: MockClock) -> None:
    async with opened(connections=2) as (_, wire), raw_client(wire), raw_client(wire) as second:
        refused = wire.stream()
        assert await refused.receive_some() == b""
        assert (await second.ask("ping", id=1))["type"] == "ack"


# --- what clients cannot do


async def test_messages_that_are_no_frames_are_answered_then_closed(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, wire), raw_client(wire) as client:
        await client.websocket.send_message("this is no frame")
        assert (await client.hear())["code"] == "bad_frame"
        assert (await client.ask("ping", id=1))["type"] == "ack"
        for _ in range(20):
            await client.websocket.send_message('{"type":')
        assert await client.close_of_server() == 1008


@BOTH
async def test_the_wrong_kind_of_message_is_closed(
    protocol: str, autojump_clock: MockClock
) -> None:
    async with opened() as (_, wire), raw_client(wire, protocol=protocol) as client:
        await client.websocket.send_message(b"x" if client.is_text else "x")
        assert await client.close_of_server() == 1003


async def test_a_message_that_is_too_big_is_closed(autojump_clock: MockClock) -> None:
    async with opened(message_bytes=10_000) as (_, wire), raw_client(wire) as client:
        await client.websocket.send_message(json.dumps({"type": "ping", "id": 1, "x": "x" * 9_000}))
        assert (await client.hear())["type"] == "ack"
        await client.websocket.send_message("x" * 11_000)
        assert await client.close_of_server() == 1009


async def test_a_message_without_end_is_closed(autojump_clock: MockClock) -> None:
    """Its parts may be empty, so that no limit of its size is ever reached."""
    async with opened(frames_per_s=1e6) as (_, wire):
        near = wire.stream()
        async with raw_client(near) as client:
            await near.send_all(b"\x01\x80\0\0\0\0")
            await near.send_all(b"\x00\x80\0\0\0\0" * 2_000)
            assert await client.close_of_server() == 1008


async def test_who_has_not_said_hello_may_not_say_much(autojump_clock: MockClock) -> None:
    async with opened(token="s3cret") as (_, wire), raw_client(wire, hello={}) as client:
        with suppress(ConnectionClosed):
            await client.say("hello", token="x" * 100_000)
        assert await client.close_of_server() == 1008
    async with opened(token="s3cret") as (_, wire), raw_client(wire, hello={}) as client:
        await client.say("hello", token="s3cret")
        assert (await client.hear())["type"] == "welcome"
        assert (await client.submit("x" * 200_000))["type"] == "ack"


async def test_who_sends_too_fast_is_read_later_and_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    async with opened(frames_per_s=10) as (_, wire), raw_client(wire) as client:
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say_pings, client, 100)
            pongs = [(await client.hear())["id"] for _ in range(100)]
        assert pongs == list(range(100))
        assert trio.current_time() - began_at == pytest.approx(8, abs=1)


async def _say_pings(client: RawClient, count: int) -> None:
    for number in range(count):
        await client.say("ping", id=number)


async def test_a_client_that_never_reads_slows_nobody_and_is_given_up(
    autojump_clock: MockClock,
) -> None:
    script = list(talkative(words=3_000))[:-1] + answer("")[1:]
    async with opened(script) as (_, wire):
        silent_end = wire.stream(is_buffered=False)
        async with (
            raw_client(wire) as reading,
            raw_client(silent_end) as silent,
        ):
            session = (await reading.submit())["result"]["session"]
            await silent.say("subscribe", id=1, session=session)
            began_at = trio.current_time()
            assert text_of(await reading.events()) == "word " * 3_000
            assert trio.current_time() - began_at == pytest.approx(30, abs=1)
            await trio.sleep(60)
            assert wire.service.connections == 1


def counting(words: int) -> Script:
    """A model that counts, a hundred numbers a second."""
    yield from (StreamStarted(), BlockStarted(0, "text"))
    for number in range(words):
        yield from (TextDelta(0, f"<{number}>"), Pause(0.01))
    yield from answer("")[1:]


async def follow_to_the_end(
    wire: Wire, session: str | None, done: Callable[[list[Frame]], None]
) -> None:
    """One client of many: of this session, or of one of its own."""
    async with raw_client(wire) as client:
        if session is None:
            await client.submit()
        else:
            await client.ask("subscribe", id=1, session=session)
        done(await client.events())


@pytest.mark.parametrize("sessions", [1, 40])
async def test_each_of_many_clients_gets_every_event_and_no_stream_is_slowed(
    sessions: int, autojump_clock: MockClock
) -> None:
    """All on one session, or each on its own, beside some that never read."""
    words, clients = 100, 40
    heard: list[list[Frame]] = []
    async with (
        opened(*[counting(words) for _ in range(sessions + 1)], half_open=100) as (_, wire),
        trio.open_nursery() as nursery,
        raw_client(wire) as first,
    ):
        session = (await first.submit(follow=False))["result"]["session"]
        for _ in range(5):
            await nursery.start(be_silent, wire, session)
        async with trio.open_nursery() as crowd:
            for _ in range(clients):
                shared = session if sessions == 1 else None
                crowd.start_soon(follow_to_the_end, wire, shared, heard.append)
        nursery.cancel_scope.cancel()
    assert len(heard) == clients
    for events in heard:
        assert text_of(events) == "".join(f"<{number}>" for number in range(words))
        numbers = [frame["sequence"] for frame in events]
        assert numbers == sorted(set(numbers))
        # By the clock of the test, on which work takes no time, so only waiting counts.
        assert events[-1]["event"]["duration_ms"] < words * 10 + 100


async def be_silent(
    wire: Wire, session: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """A client that follows a session, and takes nothing of it."""
    async with raw_client(wire.stream(is_buffered=False)) as client:
        await client.say("subscribe", id=1, session=session)
        task_status.started()
        await trio.sleep_forever()


async def test_a_client_that_was_too_slow_resumes_and_misses_nothing(
    autojump_clock: MockClock,
) -> None:
    """More is said than fits into its socket and its queue together."""
    words = [f"<{n}>" for n in range(4_000)]
    script: list[Step] = [StreamStarted(), BlockStarted(0, "text"), Pause(1)]
    for word in words:
        script += [TextDelta(0, word * 30), Pause(0.001)]
    async with opened([*script, *answer("")[1:]]) as (_, wire):
        near = wire.stream(is_buffered=False)
        async with raw_client(near) as client:
            session = (await client.submit())["result"]["session"]
            seen: list[Frame] = []
            after, id, lags = 0, 1, 0
            while not seen or kinds(seen)[-1] != "session.ended":
                frame = await client.hear()
                if frame["type"] == "event":
                    seen.append(frame)
                    after = frame["sequence"]
                    if len(seen) % 50 == 10:
                        await trio.sleep(1)
                elif frame["type"] == "lagged":
                    assert frame["after"] >= after
                    lags += 1
                    id += 1
                    await client.say("subscribe", id=id, session=session, after=after, epoch=1)
        assert lags > 0
        assert text_of(seen) == "".join(word * 30 for word in words)
        numbers = [frame["sequence"] for frame in seen]
        assert numbers == sorted(set(numbers))


async def test_a_client_that_does_not_answer_pings_is_given_up(autojump_clock: MockClock) -> None:
    async with opened() as (_, wire):
        near = wire.stream()
        handshake = (
            f"GET /v1 HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"Sec-WebSocket-Protocol: {JSON_PROTOCOL}\r\n\r\n"
        )
        await near.send_all(handshake.encode())
        assert b"101" in await near.receive_some()
        hello = b'{"type":"hello"}'
        await near.send_all(bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello)
        await trio.sleep(15)
        assert wire.service.connections == 1
        await trio.sleep(60)
        assert wire.service.connections == 0


async def test_an_error_in_the_server_is_an_answer_and_the_connection_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (world, wire), raw_client(wire) as client:

        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("secret details")

        monkeypatch.setattr(world.runtime, "animate", broken)
        error = await client.submit()
        assert (error["code"], "secret" in error["message"]) == ("internal", False)
        assert (await client.ask("ping", id=2))["type"] == "ack"


async def test_at_a_stop_every_client_is_told_to_come_back(autojump_clock: MockClock) -> None:
    told: list[int] = []

    async def watch(
        wire: Wire, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with raw_client(wire) as client:
            task_status.started((await client.submit())["result"]["session"])
            told.append(await client.close_of_server())

    async with open_world(HANGING) as world, trio.open_nursery() as nursery:
        async with open_wire(world.runtime) as wire:
            session = await nursery.start(watch, wire)
            began_at = trio.current_time()
        assert told == [1001]
        assert trio.current_time() - began_at < 1
        handle = world.runtime.handle(session)
        assert handle is not None  # leaving is not stopping
        await handle.cancel()
