"""The gateway between clients that may vanish and an upstream that may do anything.

Nothing can be taken back here: what the client has read is held against the rules, the format of
the stream, and what was asked of the upstream meanwhile (invariants 1, 2, 4, 6 and 7). No sockets:
the client is an ASGI server's side, the upstream a transport of httpx2.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from scenes import NO_FOO, a_host

from midstream.actors.clock import TrioClock
from midstream.actors.stop_message_book import StopMessageBook, StopMessageSettings
from midstream.actors.turn_settings import PromptBudget
from midstream.doors.gateway import Gateway
from midstream.doors.gateway_request import Begun, Finished
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.messages.events import AnyEvent
from midstream.messages.session_identity import SessionIdentity
from midstream.providers.scripted import ScriptedProvider
from midstream.rules.policy import PolicySettings
from midstream.rules.rule import RepeatMode
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race
from midstream.testing.transcript_rules import violations
from midstream.testing.world import START_MS

N = 2
"""How often the client wants to be continued by itself, if it does."""

MAX_RESTARTS = 6

ROUNDING_S = 0.001
"""The gateway reckons in milliseconds."""

FIRST_WINDOW_S = 1
"""How long the gateway leaves a key alone whose upstream does not say for how long."""

TAKES_NOTICE = 5
"""Turns of the scheduler after which the gateway knows that its client has gone."""

MERGED = "the same role twice in a row"
"""Messages of one role are one to the provider; what clients wrote is left as it is."""


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()


def message(words: Sequence[str]) -> list[bytes]:
    """A message of the upstream, in the pieces in which it comes."""
    usage = {"input_tokens": 3, "output_tokens": 1}
    head: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
    }
    empty: list[Any] = []
    return [
        event("message_start", message={**head, "content": empty, "usage": usage}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
            for word in words
        ),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage),
        event("message_stop"),
    ]


def reply(race: Race) -> list[bytes]:
    """A message of the upstream, which may say the forbidden word, or break off."""
    words = race.one_of((("a ", "clean ", "answer"), ("well f", "oo ", "and"), ("bar ", "foo")))
    pieces = message(words)
    whole = b"".join(pieces)
    if race.pick(4) == 3:
        size = 1 + race.pick(200)
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    if race.pick(6) == 5:
        del pieces[1 + race.pick(len(pieces)) :]
    return pieces


class Body(httpx2.AsyncByteStream):
    """The body of one answer, at the pace that the run decides."""

    def __init__(self, race: Race, close: Callable[[], Awaitable[None]]) -> None:
        self._race = race
        self._close = close

    async def __aiter__(self) -> AsyncIterator[bytes]:
        race = self._race
        for piece in reply(race):
            if race.pick(3) == 2:
                await trio.sleep(race.seconds(0.1))
            else:
                await trio.lowlevel.checkpoint()
            yield piece
        match race.pick(12):
            case 10:
                await trio.sleep_forever()
            case 11:
                raise httpx2.ReadError("injected: reset by peer")
            case _:
                pass

    async def aclose(self) -> None:
        await self._close()


class Connection(httpx2.AsyncBaseTransport):
    """A connection to the upstream, with one answer at a time."""

    def __init__(self, upstream: "ScriptedUpstream") -> None:
        self._upstream = upstream
        self._is_busy = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        upstream, race = self._upstream, self._upstream.race
        upstream.asked.append(json.loads(await request.aread()))
        race.note("upstream", f"is asked, number {len(upstream.asked)}")
        await trio.sleep(race.seconds(0.05))
        match race.pick(14):
            case 12:
                raise httpx2.ReadError("injected: reset by peer")
            case 13:
                refusal = {"type": "error", "error": {"type": "api_error", "message": "injected"}}
                status = race.one_of((500, 429, 529))
                if status != 500:
                    upstream.refuse(request.headers["x-api-key"], None)
                return httpx2.Response(status, json=refusal)
            case _:
                pass
        self._is_busy = True
        upstream.live += 1
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=kind, stream=Body(race, self.aclose))

    async def aclose(self) -> None:
        """The answer that is being read, if one is, will not be read on."""
        if self._is_busy:
            await trio.sleep(self._upstream.race.one_of((0.0, 0.0, 0.02)))
        if self._is_busy:
            self._is_busy = False
            self._upstream.live -= 1


class ScriptedUpstream:
    """The upstream. `live` answers are being read, `asked` are the bodies that it got."""

    def __init__(self, race: Race) -> None:
        self.race = race
        self.live = 0
        self.asked: list[Any] = []
        self.refusals: list[tuple[str, float]] = []
        """Keys that it has had enough of, and until when."""
        self.closed_until_s: dict[str, float] = {}
        """The same, as far as clients were told."""
        self.broken: InvariantBroken | None = None

    def connection(self) -> Connection:
        return Connection(self)

    def refuse(self, key: str, seconds: int | None) -> None:
        """The key is out of quota. One that has to wait already waits no longer for that, unless
        it is told how long."""
        now_s = trio.current_time()
        is_open = any(one == key and until_s > now_s for one, until_s in self.refusals)
        window_s = 0 if is_open else FIRST_WINDOW_S
        self.refusals.append((key, now_s + (window_s if seconds is None else seconds)))


class Caller:
    """A client of the gateway, as the server sees it. It may vanish, and may read slowly."""

    def __init__(self, race: Race, *texts: str, key: str = "key", session: str = "") -> None:
        self._race = race
        self._key = key
        roles = ("user", "assistant") * len(texts)
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}]}
            for role, text in zip(roles, texts, strict=False)
        ]
        body: dict[str, Any] = {"model": "m", "max_tokens": 9, "stream": True, "messages": messages}
        if session:
            body["metadata"] = {"session_id": session}
        self._body = json.dumps(body).encode()
        self._has_asked = False
        self.gone = trio.Event()
        self.read = b""
        self.status = 0

    @property
    def scope(self) -> dict[str, Any]:
        path = "/v1/messages"
        headers = [(b"content-type", b"application/json"), (b"x-api-key", self._key.encode())]
        return {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
        }

    async def receive(self) -> dict[str, Any]:
        if self._has_asked:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        self._has_asked = True
        await trio.lowlevel.checkpoint()
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def lose_patience(self, after_s: float) -> None:
        """Go, some time."""
        await trio.sleep(after_s)
        self.gone.set()

    async def send(self, message: Any) -> None:
        if self._race.pick(12) == 11:
            await trio.sleep(self._race.seconds(0.1))
        else:
            await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.read += message["body"]
        check_stream(self)

    def events(self) -> list[dict[str, Any]]:
        lines = self.read.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


class Record:
    """What is told of one watched request."""

    def __init__(self) -> None:
        self.ends: list[Finished] = []
        self.events: list[AnyEvent] = []

    def note(self, events: Sequence[AnyEvent]) -> None:
        self.events += events

    async def finish(self, finished: Finished) -> None:
        await trio.lowlevel.checkpoint()
        self.ends.append(finished)


def watched() -> GatewayRules:
    rule_set = RuleSet([NO_FOO])
    return GatewayRules(
        rule_set=rule_set,
        new_arguments=lambda call_id, tool: ToolArguments(call_id, tool, raw=False),
        policy=PolicySettings(
            repeat_mode=RepeatMode.ALWAYS, max_retries_per_rule=99, max_retries_per_prompt=99
        ),
        budget=PromptBudget(max_restarts=MAX_RESTARTS),
        retry_delay_s=0.05,
    )


def check_stream(caller: Caller) -> None:
    """What was read is the beginning of one message, and all of one if it ends well."""
    text, open_block, ended = "", None, False
    for number, each in enumerate(caller.events()):
        kind = each["type"]
        if kind in ("ping", "error"):
            continue
        if ended or (kind == "message_start") != (number == 0):
            raise InvariantBroken(4, f"{kind} is event {number} of the message")
        match kind:
            case "content_block_start" if open_block is None:
                open_block = each["index"]
            case "content_block_delta" if open_block == each["index"]:
                text += each["delta"].get("text", "")
            case "content_block_stop" if open_block == each["index"]:
                open_block = None
            case "message_stop" if open_block is None:
                ended = True
            case "message_start" | "message_delta" if open_block is None:
                pass
            case _:
                raise InvariantBroken(4, f"{kind} while block {open_block} is open")
    if "foo" in text:
        raise InvariantBroken(2, f"a rule forbids it, and it was read: {text!r}")


@pytest.mark.races(seeds=500)
async def test_a_client_that_may_vanish_before_an_upstream_that_does_anything(race: Race) -> None:
    upstream = ScriptedUpstream(race)
    records: list[Record] = []

    def begin(begun: Begun) -> Record:
        records.append(Record())
        return records[-1]

    def one_stream() -> None:
        if upstream.live > 1:
            raise InvariantBroken(1, f"{upstream.live} streams are open for one client")

    race.always(one_stream)
    chained = bool(race.pick(2))
    server = Upstream("up", "http://upstream.test", transport=upstream.connection)
    book = StopMessageBook(TrioClock(START_MS), StopMessageSettings())
    gateway = Gateway([server], watched, begin, stop_messages=book)
    caller = Caller(race, f'hello <**stopMessage:"go on",{N}**>' if chained else "hello")
    over = trio.Event()

    async def serve() -> None:
        await gateway(caller.scope, caller.receive, caller.send)
        over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        if race.pick(2):
            with trio.move_on_after(race.seconds(1.0)):
                await over.wait()
        else:
            with trio.move_on_after(8.0):
                await over.wait()
        caller.gone.set()
        for _ in range(TAKES_NOTICE):
            await trio.lowlevel.checkpoint()
        asked = len(upstream.asked)
        await trio.sleep(1.0)
        if len(upstream.asked) > asked:
            raise InvariantBroken(3, "the upstream was asked for a client that had gone")
        with trio.fail_after(60.0):
            await over.wait()
    await server.aclose()
    if upstream.live:
        raise InvariantBroken(1, "an answer is still being read for nobody")
    for body in upstream.asked:
        problems = [each for each in violations(body, "anthropic") if MERGED not in each]
        if problems:
            raise InvariantBroken(6, "; ".join(problems))
    allowed = 1 + MAX_RESTARTS
    if len(upstream.asked) > allowed:
        raise InvariantBroken(7, f"{len(upstream.asked)} requests, of {allowed}")
    if any(len(record.ends) != 1 for record in records):
        raise InvariantBroken(4, f"ends were told: {[record.ends for record in records]}")


class Metered(Connection):
    """A connection to an upstream that has enough of a key now and then, and may say for how
    long. Nobody may ask it before that is over, once a client was told."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        upstream, race = self._upstream, self._upstream.race
        key, now_s = request.headers["x-api-key"], trio.current_time()
        if now_s < upstream.closed_until_s.get(key, 0.0) - ROUNDING_S:
            upstream.broken = InvariantBroken(8, f"{key} is out of quota, and asks at {now_s} s")
        if race.pick(3) != 2:
            return await super().handle_async_request(request)
        await trio.sleep(race.seconds(0.05))
        seconds, number = race.one_of((None, 1, 4)), len(upstream.refusals)
        upstream.refuse(key, seconds)
        race.note("upstream", f"refuses {key}, number {number}, for {seconds} s")
        headers = {} if seconds is None else {"retry-after": str(seconds)}
        error = {"type": "rate_limit_error", "message": f"refused <{number}>"}
        refusal = {"type": "error", "error": error}
        return httpx2.Response(race.one_of((429, 529)), headers=headers, json=refusal)


def is_told(upstream: ScriptedUpstream, caller: Caller) -> None:
    """What this client has read of refusals, all know."""
    for number in re.findall(rb"refused <(\d+)>", caller.read):
        key, until_s = upstream.refusals[int(number)]
        upstream.closed_until_s[key] = max(until_s, upstream.closed_until_s.get(key, 0.0))


@pytest.mark.races(seeds=500)
async def test_clients_of_one_gateway_whose_keys_run_out_of_quota(race: Race) -> None:
    """What one request of a key was told all others know: none asks before the time."""
    upstream, callers = ScriptedUpstream(race), list[Caller]()
    server = Upstream("up", "http://upstream.test", transport=lambda: Metered(upstream))
    gateway = Gateway([server], watched)

    def no_window_is_ignored() -> None:
        if upstream.broken is not None:
            raise upstream.broken
        for caller in callers:
            is_told(upstream, caller)

    race.always(no_window_is_ignored)

    async def come_and_go() -> None:
        for _ in range(4):
            await trio.sleep(race.seconds(race.one_of((0.1, 1.0, 5.0))))
            caller = Caller(race, "hello", key=race.one_of(("key 1", "key 2")))
            callers.append(caller)
            async with trio.open_nursery() as patience:
                patience.start_soon(caller.lose_patience, race.seconds(race.one_of((1.0, 8.0))))
                await gateway(caller.scope, caller.receive, caller.send)
                patience.cancel_scope.cancel()
            race.note("client", f"has got {caller.status}")

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(come_and_go)
    await server.aclose()


class Steady(httpx2.AsyncBaseTransport):
    """A connection to an upstream that answers whatever it is asked. `asked` are the bodies."""

    def __init__(self, race: Race, asked: list[Any]) -> None:
        self._race = race
        self._asked = asked

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._asked.append(json.loads(request.content))
        self._race.note("upstream", f"is asked, number {len(self._asked)}")
        await trio.sleep(self._race.seconds(0.05))
        words = message((f"answer {len(self._asked)} ", "of ", "many"))
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=kind, content=b"".join(words))


ARMED = f'work <**stopMessage:"go on",{N}**>'


def sends(asked: Sequence[Any]) -> int:
    """How many of these requests nobody has typed."""
    newest = (each["messages"][-1] for each in asked)
    return sum("go on" in json.dumps(said["content"]) for said in newest)


@pytest.mark.races(seeds=500)
async def test_requests_of_one_session_at_two_gateways_share_its_sends(race: Race) -> None:
    """Whoever continues, here or there: N in all (invariant 7; spec/stop_message.md 14.8)."""
    used, sent = await ask_at_gateways(race, 2)
    if used != sent:
        raise InvariantBroken(7, f"continued {sent} times, and {used} are counted")


@pytest.mark.races(seeds=500, store=True, crashing=("ledger",), most_crashes=2)
async def test_requests_of_one_session_whose_store_fails_share_its_sends(race: Race) -> None:
    """What the store does not take is remembered until it does (spec/stop_message.md 14.19)."""
    used, sent = await ask_at_gateways(race, 1)
    if used < sent:
        raise InvariantBroken(7, f"continued {sent} times, and {used} are counted")


async def ask_at_gateways(race: Race, number: int) -> tuple[int, int]:
    """How many sends of a session are counted at the end, and how many there were. Never more
    than N."""
    store, clock, asked = race.store(), race.clock(), list[Any]()
    key = SessionIdentity("one", "one").state_key

    async def ask(gateway: Gateway, *texts: str) -> None:
        caller = Caller(race, *texts, session="one")
        async with trio.open_nursery() as patience:
            patience.start_soon(caller.lose_patience, race.seconds(race.one_of((0.2, 8.0))))
            await gateway(caller.scope, caller.receive, caller.send)
            patience.cancel_scope.cancel()
        race.note("client", f"has got {caller.status}")

    async def ask_now_and_then(gateway: Gateway) -> None:
        for _ in range(2):
            await trio.sleep(race.seconds(0.3))
            await ask(gateway, "work", "answer", "more")

    def not_more_than_n() -> None:
        if sends(asked) > N:
            raise InvariantBroken(7, f"continued {sends(asked)} times, of {N}")

    race.always(not_more_than_n)
    async with AsyncExitStack() as hosts:
        books: list[StopMessageBook] = []
        gateways: list[Gateway] = []
        for each in range(number):
            host = a_host(race, store.reopen(), ScriptedProvider(), clock, each)
            runtime = await hosts.enter_async_context(host)
            books.append(runtime.stop_message_book(Path()))
            server = Upstream("up", "http://upstream.test", transport=lambda: Steady(race, asked))
            hosts.push_async_callback(server.aclose)
            gateways.append(Gateway([server], watched, stop_messages=books[-1]))
        await ask(gateways[0], ARMED)
        async with trio.open_nursery() as nursery:
            for gateway in gateways:
                nursery.start_soon(ask_now_and_then, gateway)
                nursery.start_soon(ask_now_and_then, gateway)
        state = (await race.one_of(books).read(key)).state
    return 0 if state is None else state.used, sends(asked)
