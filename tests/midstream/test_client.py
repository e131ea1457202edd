"""The client: one unbroken iterator, whatever happens to connections and servers."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
from hosts import host, wall_clock
from trio.testing import MockClock

from midstream.actors.announcer import UnknownSession
from midstream.actors.clock import TrioClock
from midstream.actors.event_channel import GapError
from midstream.client import (
    CannotConnect,
    Client,
    ConnectionLost,
    EventsLost,
    OutcomeUnknown,
    Paused,
    RemoteEvents,
    RemoteSession,
    connect,
)
from midstream.config import WebsocketConfig
from midstream.messages.conversation import ToolSpec
from midstream.messages.errors import StoreError
from midstream.messages.events import Retracted, SessionEnded, SessionEvent, Text, ToolWanted
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.segments import TextSegment
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.transition import OrphanFailed
from midstream.messages.wire_codec import JSON_PROTOCOL, MSGPACK_PROTOCOL
from midstream.providers.scripted import (
    Call,
    Hang,
    Pause,
    Script,
    ScriptedProvider,
    SlowClose,
    Step,
    answer,
)
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.stores.conversations import ConversationBusy
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition
from midstream.testing.wire import HOST, Wire, open_wire
from midstream.testing.world import World, open_world

NO_FOO = Rule(name="no-foo", conditions=("foo",), scope=(ScopeToken(Source.TEXT),), body="No foo.")
HANGING: list[Step] = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "well, "), Hang()]


def story(words: int, pause_s: float = 0.01) -> Script:
    yield from (StreamStarted(), BlockStarted(0, "text"))
    for number in range(words):
        yield from (TextDelta(0, f"<{number}>"), Pause(pause_s))
    yield from answer("")[1:]


def story_text(words: int) -> str:
    return "".join(f"<{number}>" for number in range(words))


def words_of(events: list[SessionEvent]) -> str:
    return "".join(event.event.text for event in events if isinstance(event.event, Text))


@asynccontextmanager
async def opened(
    *scripts: Script, rules: tuple[Rule, ...] = (), token: str | None = None
) -> AsyncGenerator[tuple[World, Wire]]:
    config = WebsocketConfig(hosts=(HOST,), token_env="")
    async with (
        open_world(*scripts, rules=rules) as world,
        open_wire(world.runtime, config, token=token) as wire,
    ):
        yield world, wire


@pytest.mark.parametrize("protocol", [JSON_PROTOCOL, MSGPACK_PROTOCOL])
async def test_a_session_at_a_server_is_like_one_here(
    protocol: str, autojump_clock: MockClock
) -> None:
    async with (
        opened(answer("hello there"), token="s3cret") as (_, wire),
        wire.connect(protocol=protocol) as client,
    ):
        session = await client.animate("hello")
        chunks = [chunk async for chunk in session.chunks]
        assert "".join(c.text for c in chunks if isinstance(c, Text)) == "hello there"
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "hello there")
        record = await session.record()
        assert (record.id, record.conversation_id) == (session.session_id, session.conversation_id)
        assert (await client.status()).live_sessions == 0
        [listed] = (await client.list_sessions()).sessions
        assert listed.id == session.session_id
        await client.ping()


async def test_what_a_rule_cuts_is_retracted_at_the_client(autojump_clock: MockClock) -> None:
    breaking = [*HANGING[:-1], TextDelta(0, "foo"), Hang()]
    async with (
        opened(breaking, answer("fine"), rules=(NO_FOO,)) as (_, wire),
        wire.connect() as client,
    ):
        session = await client.animate([TextSegment("hello "), TextSegment("there")])
        chunks = [chunk async for chunk in session.chunks]
        assert Retracted(1, "no-foo") in chunks
        assert (await session.result()).output == "fine"


async def test_a_client_answers_the_calls_of_its_tools(autojump_clock: MockClock) -> None:
    tool = ToolSpec("weather", "Tell the weather.", {"type": "object"})
    async with (
        opened(answer(Call("weather")), answer("rain")) as (_, wire),
        wire.connect() as client,
    ):
        session = await client.animate("will it rain?", tools=[tool])
        async for chunk in session.chunks:
            if isinstance(chunk, ToolWanted):
                assert await session.answer(chunk.call_id, "wet", attempt=chunk.attempt)
                assert not await session.answer(chunk.call_id, "wet")
        assert (await session.result()).output == "rain"


async def test_a_session_is_stopped_from_afar(autojump_clock: MockClock) -> None:
    async with opened(HANGING, HANGING) as (_, wire), wire.connect() as client:
        for stop in (RemoteSession.interrupt, RemoteSession.cancel):
            session = await client.animate("hello")
            await trio.sleep(1)
            assert session.ended is None
            await stop(session)
            assert (await session.result()).status is SessionStatus.CANCELLED


async def test_what_the_server_refuses_is_raised_as_what_it_is(autojump_clock: MockClock) -> None:
    async with opened(HANGING) as (_, wire), wire.connect() as client:
        session = await client.animate("hello")
        with pytest.raises(ConversationBusy):
            await client.animate("again", conversation_id=session.conversation_id)
        with pytest.raises(UnknownSession):
            await client.session("ses-none").record()
        with pytest.raises(UnknownSession):
            await anext(client.session("ses-none").events())
        await trio.sleep(1)
        with pytest.raises(GapError) as gap:
            await anext(session.events(after=1_000))
        assert gap.value.after == 3
        await session.cancel()


async def test_while_the_quota_is_spent_nothing_begins(autojump_clock: MockClock) -> None:
    spent: list[Step] = [ProviderFailure(FailureKind.RATE_LIMITED, "too many")]
    async with opened(spent) as (_, wire), wire.connect() as client:
        session = await client.animate("hello")
        assert (await session.result()).status is SessionStatus.RATE_LIMITED
        with pytest.raises(Paused):
            await client.animate("hello")
        status = await client.status()
        assert not status.dispatchable
        assert status.paused_until is not None


async def test_who_is_not_let_in_is_told_why(autojump_clock: MockClock) -> None:
    async with opened(token="s3cret") as (_, wire):
        with pytest.raises(CannotConnect, match="token"):
            async with wire.connect(token="guess"):
                pass
        wire.is_up = False
        with pytest.raises(CannotConnect, match="not up"):
            async with wire.connect():
                pass


@pytest.mark.parametrize("url", ["http://host", "ws://", "host:1", "ws://host:port", "ws://[::1"])
async def test_a_url_that_is_none_is_an_error(url: str) -> None:
    with pytest.raises(CannotConnect, match="no URL of a websocket"):
        async with connect(url):
            pass


async def test_a_consumer_does_not_notice_that_connections_break(autojump_clock: MockClock) -> None:
    async with opened(story(1_000)) as (_, wire), wire.connect() as client:
        session = await client.animate("tell a story")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cut_now_and_then, wire, 0.37)
            events = [event async for event in session.events()]
            nursery.cancel_scope.cancel()
        assert words_of(events) == story_text(1_000)
        numbers = [event.sequence for event in events]
        assert numbers == sorted(set(numbers))
        assert isinstance(events[-1].event, SessionEnded)


async def _cut_now_and_then(wire: Wire, every_s: float) -> None:
    while True:
        await trio.sleep(every_s)
        wire.cut()


async def test_a_prompt_is_taken_once_however_often_its_connection_breaks(
    autojump_clock: MockClock,
) -> None:
    async with opened(*[answer(f"nr {n}") for n in range(10)]) as (world, wire):
        async with wire.connect() as client, trio.open_nursery() as nursery:
            nursery.start_soon(_cut_before_the_answer, wire)
            for number in range(10):
                with trio.fail_after(60):
                    session = await client.animate(f"prompt {number}")
                assert (await session.result()).output == f"nr {number}"
            nursery.cancel_scope.cancel()
        assert len(world.provider.requests) == 10


async def _cut_before_the_answer(wire: Wire) -> None:
    """Cut whenever the server has just begun to do something."""
    random = Random(1)
    while True:
        for _ in range(random.randint(1, 40)):
            await trio.lowlevel.checkpoint()
        await trio.sleep(random.choice([0.0, 0.0, 0.01]))
        wire.cut()
        await trio.sleep(0.5)


@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_are_cut_at_random_see_every_event_once_in_order(
    seed: int, autojump_clock: MockClock
) -> None:
    """Many clients, some sessions, cuts and outages: the promise of the whole thing."""
    random = Random(seed)
    words = 400
    async with opened(*[story(words, 0.02) for _ in range(4)]) as (_, wire):
        async with wire.connect() as first:
            ids = [(await first.animate("go")).session_id for _ in range(4)]
            done: list[list[SessionEvent]] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_disturb, wire, random)
                async with trio.open_nursery() as clients:
                    for number in range(20):
                        clients.start_soon(
                            _follow, wire, ids[number % 4], number, Random(number), done.append
                        )
                nursery.cancel_scope.cancel()
        assert len(done) == 20
        for events in done:
            assert words_of(events) == story_text(words)
            numbers = [event.sequence for event in events]
            assert numbers == sorted(set(numbers))
            assert isinstance(events[-1].event, SessionEnded)


async def _disturb(wire: Wire, random: Random) -> None:
    while True:
        await trio.sleep(random.uniform(0, 0.6))
        wire.cut()
        if random.random() < 0.2:
            wire.is_up = False
            await trio.sleep(random.uniform(0, 2))
            wire.is_up = True


async def _follow(
    wire: Wire,
    session_id: str,
    seed: int,
    random: Random,
    done: Callable[[list[SessionEvent]], None],
) -> None:
    """A client that is killed now and then, and comes back knowing only its last event."""
    events: list[SessionEvent] = []
    while not events or not isinstance(events[-1].event, SessionEnded):
        with trio.move_on_after(random.uniform(0.1, 4)):
            try:
                async with wire.connect(seed=seed) as client:
                    last = events[-1] if events else None
                    after, epoch = (last.sequence, last.epoch) if last else (0, None)
                    session = client.session(session_id)
                    async for event in session.events(after, epoch):
                        events.append(event)
                        if random.random() < 0.01:
                            await trio.sleep(random.uniform(0, 0.3))
            except* CannotConnect:
                await trio.sleep(0.1)
    done(events)


class Line:
    """Leads to whichever server there is."""

    def __init__(self) -> None:
        self.wire: Wire | None = None

    async def open_stream(self) -> trio.abc.Stream:
        if self.wire is None:
            raise ConnectionRefusedError("there is no server")
        return await self.wire.open_stream()

    @asynccontextmanager
    async def server(
        self, store: MemoryStore, *scripts: Script, seed: int = 0
    ) -> AsyncGenerator[World]:
        provider = ScriptedProvider(*scripts)
        async with open_world(provider=provider, store=store, seed=seed) as world:
            async with open_wire(world.runtime, WebsocketConfig(hosts=(HOST,))) as self.wire:
                yield world
            self.wire = None

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        async with connect(
            f"ws://{HOST}", random=Random(0), open_stream=self.open_stream
        ) as client:
            yield client


async def _one_server_after_another(
    line: Line,
    store: MemoryStore,
    script: Script,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with line.server(store, script):
        task_status.started()
        await trio.sleep(1)
    await trio.sleep(3)
    async with line.server(store, seed=1):
        await trio.sleep_forever()


async def test_a_restart_of_the_server_leaves_no_gap_and_no_duplicate(
    autojump_clock: MockClock,
) -> None:
    """The server stops in the middle of a session, which ends with it on record."""
    line = Line()
    async with trio.open_nursery() as nursery:
        await nursery.start(_one_server_after_another, line, MemoryStore(), story(200))
        async with line.client() as client:
            session = await client.animate("go")
            events = [event async for event in session.events()]
            assert [e.sequence for e in events] == sorted({e.sequence for e in events})
            said = words_of(events)
            assert story_text(200).startswith(said)
            assert len(said) > 200
            assert isinstance(events[-1].event, SessionEnded)
            assert events[-1].event.status is SessionStatus.CANCELLED
            # The record has the same events for whoever comes new.
            again = [event async for event in client.session(session.session_id).events()]
            assert words_of(again) == said
        nursery.cancel_scope.cancel()


async def test_a_request_of_which_nobody_knows_is_not_sent_again(
    autojump_clock: MockClock,
) -> None:
    """The server stops while it cancels a session, which takes its time."""
    line = Line()
    async with trio.open_nursery() as nursery:
        slow: Script = [SlowClose(5.0), *HANGING]
        await nursery.start(_one_server_after_another, line, MemoryStore(), slow)
        async with line.client() as client:
            session = await client.animate("go")
            await trio.sleep(0.5)
            with pytest.raises(OutcomeUnknown):
                await session.cancel()
            assert (await session.result()).status is SessionStatus.CANCELLED
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_client_that_leaves_hears_the_goodbye_of_the_server(
    is_cancelled: bool, autojump_clock: MockClock
) -> None:
    """In the middle of a story, and without the two seconds that a silent server is given."""
    async with opened(story(2_000)) as (_, wire):
        began_at = 0.0
        with trio.CancelScope() as scope:
            async with wire.connect() as client:
                session = await client.animate("go")
                async for event in session.events():
                    if event.sequence > 100:
                        break
                began_at = trio.current_time()
                if is_cancelled:
                    scope.cancel()
        assert trio.current_time() - began_at < 0.5
        assert wire.service.connections == 0


async def test_two_iterators_over_one_session_each_get_everything(
    autojump_clock: MockClock,
) -> None:
    async with opened(story(100)) as (_, wire), wire.connect() as client:
        session = await client.animate("go")
        got: list[list[SessionEvent]] = []

        async def follow(start_s: float) -> None:
            await trio.sleep(start_s)
            got.append([event async for event in session.events()])

        async with trio.open_nursery() as nursery:
            for start_s in (0.0, 0.3, 0.3):
                nursery.start_soon(follow, start_s)
        assert [words_of(events) for events in got] == [story_text(100)] * 3


async def test_a_session_that_was_left_can_be_followed_again(autojump_clock: MockClock) -> None:
    async with opened(story(300)) as (world, wire), wire.connect() as client:
        session = await client.animate("go")
        with trio.move_on_after(0.5):  # cancelled in the middle
            async with session.events() as events:
                async for _ in events:
                    pass
        async with session.events() as events:
            await anext(events)
        assert words_of([event async for event in session.events()]) == story_text(300)
        assert wire.service.connections == 1
        assert world.provider.live == 0


async def test_a_consumer_that_is_slow_misses_nothing(autojump_clock: MockClock) -> None:
    long = [
        *[StreamStarted(), BlockStarted(0, "text")],
        *[
            step
            for n in range(3_000)
            for step in (TextDelta(0, f"<{n}>" + "x" * 990), Pause(0.001))
        ],
        *answer("")[1:],
    ]
    async with opened(long) as (_, wire), wire.connect() as client:
        session = await client.animate("go")
        events: list[SessionEvent] = []
        async for event in session.events():
            events.append(event)
            if len(events) == 10:
                await trio.sleep(60)
        assert words_of(events) == "".join(f"<{n}>" + "x" * 990 for n in range(3_000))
        numbers = [event.sequence for event in events]
        assert numbers == sorted(set(numbers))


async def test_what_waits_when_the_client_is_closed_is_told(autojump_clock: MockClock) -> None:
    async with opened(HANGING) as (world, wire), trio.open_nursery() as nursery:
        async with wire.connect() as client:
            session = await client.animate("go")
            nursery.start_soon(_expect_lost, session)
            await trio.sleep(1)
        with pytest.raises(ConnectionLost):
            await client.ping()
        handle = world.runtime.handle(session.session_id)
        assert handle is not None  # it runs on
        await handle.cancel()


async def _expect_lost(session: RemoteSession) -> None:
    with pytest.raises(ConnectionLost):
        await session.result()


async def test_a_client_that_is_not_let_in_again_gives_up(autojump_clock: MockClock) -> None:
    async with (
        opened(HANGING) as (_, wire),
        connect(
            f"ws://{HOST}", random=Random(0), open_stream=wire.open_stream, patience_s=30
        ) as client,
    ):
        session = await client.animate("go")
        wire.is_up = False
        wire.cut()
        began_at = trio.current_time()
        with pytest.raises(CannotConnect, match="did not come back"):
            await session.result()
        assert 30 <= trio.current_time() - began_at < 60


async def test_what_a_lost_host_had_not_kept_is_said_to_be_lost(autojump_clock: MockClock) -> None:
    """Its host is killed; another takes the session over and tells it anew."""
    line, store, clock = Line(), MemoryStore(), wall_clock()
    async with trio.open_nursery() as nursery:
        begin = partial(_killed_then_taken_over, line, store, clock)
        await nursery.start(begin)
        async with line.client() as client:
            session = await client.animate("go")
            events = session.events()
            seen: list[SessionEvent] = []
            with pytest.raises(EventsLost) as lost:
                await _read_into(events, seen)
            kept = [event for event in seen if event.sequence <= lost.value.position.sequence]
            assert 0 < len(kept) < len(seen)
            rest = [event async for event in events]
            numbers = [event.sequence for event in kept + rest]
            assert numbers == sorted(set(numbers))
            # What is on record behind the last seam is told again.
            again = [event for event in rest if event.epoch == 1]
            assert words_of(seen).startswith(words_of(kept + again))
            assert rest[len(again)].event == Retracted(1, "its host was lost")
            assert isinstance(rest[-1].event, SessionEnded)
            assert rest[-1].event.output == "told anew"
            chunks = [chunk async for chunk in client.session(session.session_id).chunks]
            assert chunks[-2:] == [Retracted(1, "its host was lost"), Text(1, "told anew")]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_who_shows_chunks_shows_what_is_on_record_when_a_host_was_lost(
    is_taken_over: bool, autojump_clock: MockClock
) -> None:
    """Whether another host tells it anew, or the session is cancelled as it is."""
    line, store, clock = Line(), MemoryStore(), wall_clock()
    async with trio.open_nursery() as nursery:
        begin = partial(_killed_then_taken_over, line, store, clock, is_taken_over=is_taken_over)
        await nursery.start(begin)
        async with line.client() as client:
            session = await client.animate("go")
            screen: dict[int, str] = {}
            voided = 0
            async for chunk in session.chunks:
                if isinstance(chunk, Text):
                    screen[chunk.attempt] = screen.get(chunk.attempt, "") + chunk.text
                if isinstance(chunk, Retracted):
                    voided += len(screen.pop(chunk.attempt, ""))
            if is_taken_over:
                assert screen == {1: "told anew"}
            else:
                kept = [event async for event in client.session(session.session_id).events()]
                assert screen == {1: words_of(kept)}
                assert voided > len(screen[1]) > 0
        nursery.cancel_scope.cancel()


async def _read_into(events: RemoteEvents, seen: list[SessionEvent]) -> None:
    async for event in events:
        seen.append(event)


async def _killed_then_taken_over(
    line: Line,
    store: MemoryStore,
    clock: TrioClock,
    *,
    is_taken_over: bool = True,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    config = WebsocketConfig(hosts=(HOST,), token_env="")
    view = store.reopen()
    async with host(view, story(500), clock=clock) as runtime:
        async with open_wire(runtime, config) as line.wire:
            task_status.started()
            await trio.sleep(1.9)
            view.failure = StoreError("the host was killed")
            await trio.sleep(0.2)
        line.wire = None
    async with host(store, answer("told anew"), clock=clock, seed=1) as runtime:
        [record] = (await runtime.sessions.list_sessions()).records
        lost = OrphanFailed(id=record.id, ended_at=record.started_at, error="no heartbeat")
        await apply_transition(store, lost)
        if is_taken_over:
            await runtime.recover(record.id)
        async with open_wire(runtime, config) as line.wire:
            await trio.sleep_forever()
