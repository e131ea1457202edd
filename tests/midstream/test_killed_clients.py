"""Clients and servers that are killed at random, over real sockets and real processes.

Connections break after some bytes, clients are killed and come back knowing only the last event
that they have seen, and servers are stopped and killed under them. Each client sees every
event once, in order. When and where things break comes from seeds; nothing depends on how fast
the machine is. `MIDSTREAM_KILL_ROUNDS=40` takes about a minute.
"""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from socket import SO_LINGER, SOL_SOCKET
from struct import pack

import pytest
import trio

from midstream.client import CannotConnect, Client, EventsLost, RemoteEvents, connect
from midstream.messages.events import SessionEnded, SessionEvent, Text
from midstream.messages.record import SessionStatus
from midstream.messages.wire_codec import JSON_PROTOCOL, MSGPACK_PROTOCOL

ROUNDS = int(os.environ.get("MIDSTREAM_KILL_ROUNDS", "3"))
SESSIONS = 2
READERS = 5
"""Of each session."""
WORDS = 500
"""Of a story that is told to its end; the others would go on for long."""
LIMIT_S = 60 + 30 * ROUNDS

SERVER = f"""
import sys, trio
from pathlib import Path
from midstream.config import Config, RulesConfig, WebsocketConfig
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.providers.scripted import Pause, ScriptedProvider, answer
from midstream.runtime import open_runtime
from midstream.websocket import open_websocket

def story():
    yield from (StreamStarted(), BlockStarted(0, "text"))
    for number in range(int(sys.argv[2])):
        yield from (TextDelta(0, f"<{{number}}>"), Pause(0.002))
    yield from answer("")[1:]

async def main():
    config = Config(
        rules=RulesConfig(discover=False, builtin_rules=False),
        websocket=WebsocketConfig(port=0, token_env=""),
    )
    provider = ScriptedProvider(*[story() for _ in range({SESSIONS})])
    async with (
        open_runtime(config, cwd=Path(sys.argv[1]), provider=provider, rules=()) as runtime,
        open_websocket(runtime) as door,
    ):
        print(door.urls[0], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


class Server:
    """The server of now, if there is one. Each has the store of the one before."""

    def __init__(self, folder: Path) -> None:
        self.port: int | None = None
        self._folder = folder

    @asynccontextmanager
    async def running(self, *, words: int, is_killed: bool) -> AsyncGenerator[None]:
        """A server for as long as the block lasts; then it is stopped, or killed. It tells
        stories of so many words."""
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-c", SERVER, str(self._folder), str(words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = (await process.stdout.receive_some()).decode()
            self.port = int(said.rpartition(":")[2].partition("/")[0])
            yield
            self.port = None
            if is_killed:
                process.kill()
            await process.stdin.aclose()
            assert (await process.wait() == 0) is not is_killed
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()


class Fragile(trio.abc.Stream):
    """A connection that breaks, without a goodbye, when so many bytes have come."""

    def __init__(self, stream: trio.SocketStream, left_bytes: int) -> None:
        self._stream = stream
        self._left_bytes = left_bytes

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self._left_bytes -= len(data)
        if self._left_bytes <= 0:
            self.break_off()
            raise trio.BrokenResourceError
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def break_off(self) -> None:
        """As the machine of a process that is killed does it: at once, with a reset."""
        if self._stream.socket.fileno() < 0:
            return  # it has broken by itself
        self._stream.setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
        self._stream.socket.close()


class Reader:
    """Follows one session over any number of lives. `seen` is what it keeps between them."""

    def __init__(self, server: Server, session: str, seed: int) -> None:
        self.session = session
        self.seen: list[SessionEvent] = []
        self.lives = 0
        self.has_heard_enough = trio.Event()
        self.over = trio.Event()
        self._words = 0
        self._enough_words = Random(seed).randint(1, WORDS)
        self._server = server
        self._random = Random(seed)
        self._streams: list[Fragile] = []

    @property
    def text(self) -> str:
        return "".join(event.event.text for event in self.seen if isinstance(event.event, Text))

    @property
    def has_ended(self) -> bool:
        return bool(self.seen) and isinstance(self.seen[-1].event, SessionEnded)

    async def run(self) -> None:
        while not self.has_ended:
            self.lives += 1
            with trio.CancelScope() as life:
                await self._live(life)
        self.over.set()

    async def _live(self, life: trio.CancelScope) -> None:
        try:
            async with opened(self._server, self._random, self._streams) as client:
                last = self.seen[-1] if self.seen else None
                after, epoch = (last.sequence, last.epoch) if last else (0, None)
                events = client.session(self.session).events(after, epoch)
                for _ in range(self._random.randint(1, 60)):
                    await self._read(events)
                    if self.has_ended:
                        return
                for stream in self._streams:
                    stream.break_off()
                life.cancel()
                await trio.lowlevel.checkpoint()
        except CannotConnect:
            await trio.sleep(0.05)  # it is nobody's fault: there is no server now

    async def _read(self, events: RemoteEvents) -> None:
        try:
            event = await anext(events)
            self.seen.append(event)
            self._words += _words_of(event)
        except EventsLost as lost:
            kept = lost.position.sequence
            self.seen = [event for event in self.seen if event.sequence <= kept]
            self._words = sum(map(_words_of, self.seen))
        if self._words >= self._enough_words:
            self.has_heard_enough.set()


def _words_of(event: SessionEvent) -> int:
    return event.event.text.count("<") if isinstance(event.event, Text) else 0


def story(words: int) -> str:
    return "".join(f"<{number}>" for number in range(words))


@asynccontextmanager
async def opened(
    server: Server, random: Random, streams: list[Fragile] | None = None
) -> AsyncGenerator[Client]:
    """A client whose connections break, each after some kilobytes."""
    streams = [] if streams is None else streams

    async def open_stream() -> trio.abc.Stream:
        if server.port is None:
            raise ConnectionRefusedError("there is no server")
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        streams[:] = [Fragile(stream, random.randint(300, 20_000))]
        return streams[0]

    protocol = random.choice([JSON_PROTOCOL, MSGPACK_PROTOCOL])
    url = "ws://127.0.0.1"
    async with connect(url, open_stream=open_stream, random=random, protocol=protocol) as client:
        yield client


async def ask(server: Server, random: Random) -> str:
    """Hand in a prompt, over as many connections as it takes; the session that answers it."""
    while True:
        with suppress(CannotConnect):
            async with opened(server, random) as client:
                return (await client.animate("tell me a story")).session_id


async def cancel(server: Server, random: Random, session: str) -> None:
    while True:
        with suppress(CannotConnect):
            async with opened(server, random) as client:
                await client.session(session).cancel()
                return


@pytest.mark.parametrize("seed", range(1))
async def test_killed_clients_of_killed_servers_see_every_event_once_in_order(
    seed: int, tmp_path: Path
) -> None:
    random = Random(seed)
    server = Server(tmp_path)
    readers: list[Reader] = []
    left: list[str] = []
    begun: list[str] = []
    ids: list[str] = []
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for number in range(ROUNDS):
                is_last = number == ROUNDS - 1
                is_killed = not is_last and number % 2 == 1
                words = WORDS if is_last else 100 * WORDS
                async with server.running(words=words, is_killed=is_killed):
                    for session in left:  # whose server was killed
                        await cancel(server, random, session)
                    begun = [await ask(server, random) for _ in range(SESSIONS)]
                    new = [
                        Reader(server, session, random.getrandbits(32))
                        for session in begun
                        for _ in range(READERS)
                    ]
                    for reader in new:
                        nursery.start_soon(reader.run)
                    readers += new
                    await random.choice(new).has_heard_enough.wait()
                    left = begun if is_killed else []
                    if is_last:
                        await wait_until_all_have_ended(readers)
                        ids = await all_sessions(server, random)
    assert sorted(ids) == sorted({reader.session for reader in readers})
    assert sum(reader.lives for reader in readers) > len(readers)
    for reader in readers:
        first = next(other for other in readers if other.session == reader.session)
        numbers = [(event.epoch, event.sequence) for event in reader.seen]
        assert numbers == sorted(set(numbers))
        assert reader.text == first.text
        assert story(100 * WORDS).startswith(reader.text)
        assert reader.seen[-1] == first.seen[-1]
        [ended] = [e.event for e in reader.seen if isinstance(e.event, SessionEnded)]
        if reader.session in begun:
            assert (ended.status, reader.text) == (SessionStatus.COMPLETED, story(WORDS))
        else:
            assert ended.status is SessionStatus.CANCELLED


async def wait_until_all_have_ended(readers: list[Reader]) -> None:
    for reader in readers:
        await reader.over.wait()


async def all_sessions(server: Server, random: Random) -> list[str]:
    while True:
        with suppress(CannotConnect):
            async with opened(server, random) as client:
                page = await client.list_sessions(limit=500)
                return [record.id for record in page.sessions]
