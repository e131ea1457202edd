"""A thousand clients: on one session, and on a session each. What they cost, and what they get.

The server is a process of its own (bench/websocket_server.py), the clients share another. Each
delta holds the instant at which the model said it; a client notes how late it was, and in the
end that it got every one, in order. One more client subscribes and never reads. Reported are
the server's memory for each client while nothing is said, and at its peak; how late deltas
came; whether anything was missed; and by how much the session itself was slowed, which is
what nobody may do to it.

    python bench/websocket.py [--json] [clients]
"""

import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from subprocess import PIPE

import msgspec
import trio

from tables import report

SERVER = Path(__file__).with_name("websocket_server.py")
SESSIONS_PER_S = 50
"""So many begin in a second; all are there before the first says a word."""

HANDSHAKE = (
    "GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Protocol: midstream.v1+json\r\n\r\n"
)


class Said(msgspec.Struct):
    event: str
    text: str = ""
    duration_ms: int = 0


class Result(msgspec.Struct):
    session: str | None = None


class Frame(msgspec.Struct):
    type: str
    event: Said | None = None
    result: Result | None = None


_decoder = msgspec.json.Decoder(Frame)


class Client:
    """As light as can be: a thousand of them share the machine with the server."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def open(self) -> None:
        await self._stream.send_all(HANDSHAKE.encode())
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await self._stream.receive_some()
        self._buffer = self._buffer.partition(b"\r\n\r\n")[2]
        await self.say(type="hello", capabilities=["deltas"])
        assert (await self.hear()).type == "welcome"

    async def say(self, **fields: object) -> None:
        payload = json.dumps(fields).encode()
        size = len(payload)
        head = bytes([0x81, 0x80 | size]) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
        await self._stream.send_all(head + b"\0\0\0\0" + payload)

    async def hear(self) -> Frame:
        while True:
            opcode, payload = await self._frame()
            if opcode == 1:
                return _decoder.decode(payload)
            if opcode == 9:
                head = bytes([0x8A, 0x80 | len(payload)])
                await self._stream.send_all(head + b"\0\0\0\0" + payload)

    async def session(self, prompt: str, *, follow: bool) -> str:
        segments = [{"kind": "text", "content": prompt}]
        await self.say(type="submit", id=1, segments=segments, follow=follow)
        while (frame := await self.hear()).type != "ack":
            pass
        assert frame.result is not None
        assert frame.result.session is not None
        return frame.result.session

    async def follow(self, session: str) -> None:
        await self.say(type="subscribe", id=2, session=session)
        while (await self.hear()).type != "ack":
            pass

    async def close(self) -> None:
        await self._stream.aclose()

    async def _frame(self) -> tuple[int, bytes]:
        while True:
            data = self._buffer
            if len(data) >= 2:
                start, size = 2, data[1] & 0x7F
                if size == 126 and len(data) >= 4:
                    start, size = 4, int.from_bytes(data[2:4], "big")
                elif size == 127 and len(data) >= 10:
                    start, size = 10, int.from_bytes(data[2:10], "big")
                if (size < 126 or start > 2) and len(data) >= start + size:
                    self._buffer = data[start + size :]
                    return data[0] & 0x0F, data[start : start + size]
            more = await self._stream.receive_some(65_536)
            if not more:
                raise RuntimeError("the server has closed the connection")
            self._buffer += more


@dataclass
class Heard:
    """What all clients have got."""

    late_ns: list[int] = field(default_factory=list[int])
    frames: int = 0
    exact: int = 0
    longest_ms: int = 0


@dataclass
class Memory:
    """Of the server."""

    before_kib: int
    idle_kib: int = 0
    peak_kib: int = 0


async def _listen(client: Client, count: int, heard: Heard) -> None:
    stamps: list[str] = []
    while True:
        said = (await client.hear()).event
        if said is None:
            continue
        now = time.monotonic_ns()
        if said.event == "text":
            heard.frames += 1
            new = said.text.split(";")[:-1]
            heard.late_ns += [now - int(stamp.partition(":")[2]) for stamp in new]
            stamps += new
        elif said.event == "session.ended":
            heard.longest_ms = max(heard.longest_ms, said.duration_ms)
            numbers = [int(stamp.partition(":")[0]) for stamp in stamps]
            heard.exact += numbers == list(range(count))
            return


@asynccontextmanager
async def server() -> AsyncGenerator[tuple[int, int]]:
    """The server's port and process id."""
    command = [sys.executable, str(SERVER)]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, command, stdin=PIPE, stdout=PIPE, capture_stdout=False)
        )
        yield int((await process.stdout.receive_some()).decode()), process.pid
        await process.stdin.aclose()
        async for _ in process.stdout:
            pass


def _memory_kib(pid: int, name: str = "VmRSS") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))


async def _connect(port: int) -> Client:
    client = Client(await trio.open_tcp_stream("127.0.0.1", port))
    await client.open()
    return client


async def _connect_all(port: int, count: int) -> list[Client]:
    clients: list[Client] = []

    async def connect() -> None:
        clients.append(await _connect(port))

    for first in range(0, count, 50):
        async with trio.open_nursery() as nursery:
            for _ in range(min(50, count - first)):
                nursery.start_soon(connect)
    return clients


async def _settle() -> None:
    await trio.sleep(1.0)


async def one_session(clients: int, deltas: int, pause_s: float) -> dict[str, str | int | float]:
    """All clients follow one session, and one more that never reads."""
    async with server() as (port, pid):
        warm = await _connect(port)
        await _listen_to_own(warm, 10, 0.001)
        memory = Memory(before_kib=_memory_kib(pid))
        connected = await _connect_all(port, clients)
        silent = await _connect(port)
        delay_s = 2.0 + clients / 50
        session = await warm.session(f"{deltas} {pause_s} {delay_s}", follow=False)
        async with trio.open_nursery() as nursery:
            for client in [*connected, silent]:
                nursery.start_soon(client.follow, session)
        await _settle()
        memory.idle_kib = _memory_kib(pid)
        heard = Heard()
        async with trio.open_nursery() as nursery:
            for client in connected:
                nursery.start_soon(_listen, client, deltas, heard)
        memory.peak_kib = _memory_kib(pid, "VmHWM")
        for client in [*connected, silent, warm]:
            await client.close()
    nominal_s = delay_s + (deltas - 1) * pause_s
    return _row("one session", clients, 1, pause_s, memory, nominal_s, heard)


async def a_session_each(clients: int, deltas: int, pause_s: float) -> dict[str, str | int | float]:
    """Each client follows a session of its own."""
    async with server() as (port, pid):
        warm = await _connect(port)
        await _listen_to_own(warm, 10, 0.001)
        memory = Memory(before_kib=_memory_kib(pid))
        connected = await _connect_all(port, clients)
        await _settle()
        memory.idle_kib = _memory_kib(pid)
        heard = Heard()
        delay_s = clients / SESSIONS_PER_S
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(connected):
                starts_s = number / SESSIONS_PER_S
                nursery.start_soon(
                    _ask_and_listen, client, deltas, pause_s, delay_s, heard, starts_s
                )
        memory.peak_kib = _memory_kib(pid, "VmHWM")
        for client in [*connected, warm]:
            await client.close()
    nominal_s = delay_s + (deltas - 1) * pause_s
    return _row("a session each", clients, clients, pause_s, memory, nominal_s, heard)


async def _ask_and_listen(
    client: Client,
    deltas: int,
    pause_s: float,
    delay_s: float,
    heard: Heard,
    starts_s: float = 0.0,
) -> None:
    await trio.sleep(starts_s)
    await client.session(f"{deltas} {pause_s} {delay_s}", follow=True)
    await _listen(client, deltas, heard)


async def _listen_to_own(client: Client, deltas: int, pause_s: float) -> None:
    """Once around, so that what is loaded and cached once is not counted for clients."""
    await _ask_and_listen(client, deltas, pause_s, 0.0, Heard())


def _row(
    what: str,
    clients: int,
    sessions: int,
    pause_s: float,
    memory: Memory,
    nominal_s: float,
    heard: Heard,
) -> dict[str, str | int | float]:
    cuts = quantiles(heard.late_ns, n=100)
    return {
        "clients": what,
        "number": clients,
        "deltas/s": round(clients / pause_s),
        "exact": f"{heard.exact}/{clients}",
        "frames for a delta": heard.frames / len(heard.late_ns),
        "late p50 ms": cuts[49] / 1e6,
        "late p99 ms": cuts[98] / 1e6,
        "idle KiB a client": (memory.idle_kib - memory.before_kib) / clients,
        "peak KiB a client": (memory.peak_kib - memory.before_kib) / clients,
        "slowed by ms": heard.longest_ms - nominal_s * 1000,
        "sessions": sessions,
    }


async def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    clients = numbers[0] if numbers else 1_000
    rows = [
        await one_session(1, deltas=250, pause_s=0.02),
        await one_session(clients, deltas=250, pause_s=0.02),
        await a_session_each(clients, deltas=20, pause_s=1.0),
    ]
    report("Clients of the websocket", rows)


if __name__ == "__main__":
    trio.run(main)
