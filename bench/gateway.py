"""What the gateway costs, beside a bare pass-through in the same run.

The provider, each proxy and the clients are processes of their own that talk over loopback
sockets. The bare pass-through is Starlette and httpx2 on the same server as the gateway
(bench/gateway_bare.py); the gateway is the program as a user starts it, with its records.
Rounds of the proxies alternate, and the best of each counts for CPU.

- CPU for each delta of the stream, as fast as the sockets go, and at a delta each 20 ms in 40
  streams at once, where most reads hold one; and for a request that is hardly more than that,
  with which the gateway writes a record and the pass-through does not.
- When the first token comes: one stream at a time through each in turn, so that what else the
  machine does meets all of them alike; and of the very first request after the start.
- How late each delta is, for a role chunk and 64 deltas at 20 ms, several streams at once.
- How long after a client has left its provider sees the connection close.
- 200 streams at once of which half are left at random, again and again: what stays open, what
  stays in memory.

    python bench/gateway.py [--json] [first] [cpu] [latency] [leave] [memory]
"""

import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from random import Random
from statistics import median, quantiles

import msgspec
import trio
from gateway_proxies import EVERYTHING, KEY, Proxy, all_proxies, provider

from tables import Row, report

CHAT = "/v1/chat/completions"
FULL_SPEED = 20_000
"""Deltas of one stream that comes as fast as it can."""
PACED_STREAMS, LONG_DELTAS, PACE_MS = 40, 250, 20
PACED_DELTAS = 64
REQUESTS = 100
ROUNDS = 5
LATENCY_ROUNDS, LATENCY_STREAMS = 12, 4
FIRST_STREAMS, FIRST_DELTAS = 300, 2
LEAVERS = 200
CROWD = 200
CROWD_DELTAS, CROWD_PACE_MS = 20, 100
"""So slow that a machine that runs all of them at once is not the limit."""
PATIENCE_S = 20.0
"""How long a client waits that does not leave."""
CROWD_ROUNDS = 12
CROWD_ROWS = (1, 2, 4, 6, 8, 10, 12)
"""Rounds after which memory is told: the last ones say whether it has levelled off."""

_STAMP = re.compile(rb"(\d+):(\d+);")
_ids = count()


def _body(path: str, deltas: int, pause_ms: int, stream_id: str) -> bytes:
    plan = f"plan:{deltas}:{pause_ms}:{stream_id}"
    asks = [{"role": "user", "content": plan}]
    key = "input" if path.endswith("responses") else "messages"
    return msgspec.json.encode({"model": "m", "stream": True, "max_tokens": 9, key: asks})


@asynccontextmanager
async def asked(
    port: int, path: str, deltas: int, pause_ms: int, stream_id: str = ""
) -> AsyncGenerator[trio.SocketStream]:
    """A stream that was asked for; nothing of it is read yet."""
    body = _body(path, deltas, pause_ms, stream_id or f"s{next(_ids)}")
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head += f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
        await stream.send_all(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield stream


async def _answer(stream: trio.SocketStream) -> AsyncGenerator[bytes]:
    """What comes, up to the last chunk: not every server closes its connection then."""
    tail = b""
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        piece = await stream.receive_some()
        if not piece:
            return
        yield piece
        tail = (tail + piece)[-7:]


async def ask_proxy(port: int, path: str) -> int:
    """A figure that the provider knows."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nconnection: close\r\n\r\n".encode())
        said = b""
        while not (found := re.search(rb"\r\n\r\n(\d+)$", said)):
            said += await stream.receive_some()
        return int(found[1])


# --- CPU


class Incomplete(Exception):
    """An answer of which something is missing."""


async def _take(port: int, path: str, deltas: int, pause_ms: int) -> None:
    """Read a stream to its end, and see that nothing of it is missing."""
    async with asked(port, path, deltas, pause_ms) as stream:
        pieces = [piece async for piece in _answer(stream)]
    answer = b"".join(pieces)
    received = _without_chunk_heads(answer).count(b"data: ")
    if received < deltas:
        raise Incomplete(f"{received} of {deltas} deltas: {answer[:300]!r}")


def _without_chunk_heads(answer: bytes) -> bytes:
    """The body: a chunk may begin in the middle of an event."""
    at = answer.find(b"\r\n\r\n") + 4
    body: list[bytes] = []
    while (end := answer.find(b"\r\n", at)) > 0 and (size := int(answer[at:end], 16)):
        body.append(answer[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(body)


async def _full_speed(port: int, path: str) -> int:
    await _take(port, path, FULL_SPEED, 0)
    return FULL_SPEED


async def _paced(port: int, path: str) -> int:
    async with trio.open_nursery() as nursery:
        for _ in range(PACED_STREAMS):
            nursery.start_soon(_take, port, path, LONG_DELTAS, PACE_MS)
            await trio.sleep(PACE_MS / 1000 / PACED_STREAMS)
    return PACED_STREAMS * LONG_DELTAS


async def _requests(port: int, path: str) -> int:
    for _ in range(REQUESTS):
        await _take(port, path, 1, 0)
    return REQUESTS


@dataclass
class Cost:
    """CPU for each delta, and deltas in a second, of each round."""

    cpu_us: list[float] = field(default_factory=list[float])
    per_s: list[float] = field(default_factory=list[float])


async def _cpu(
    proxies: Sequence[Proxy],
    path: str,
    load: Callable[[int, str], Awaitable[int]],
    each: str = "delta",
) -> list[Row]:
    able = [proxy for proxy in proxies if path in proxy.paths]
    costs = {proxy.name: Cost() for proxy in able}
    for number in range(ROUNDS + 1):
        for proxy in able:
            before_s, began_s = proxy.cpu_s(), time.perf_counter()
            deltas = await load(proxy.port, path)
            took_s, used_s = time.perf_counter() - began_s, proxy.cpu_s() - before_s
            if number:  # the first one warms up
                costs[proxy.name].cpu_us.append(used_s / deltas * 1e6)
                costs[proxy.name].per_s.append(deltas / took_s)
    bare = min(costs[able[0].name].cpu_us)
    return [
        {
            "proxy": name,
            f"CPU µs/{each}": min(cost.cpu_us),
            "median": median(cost.cpu_us),
            "added": min(cost.cpu_us) - bare,
            "ratio": min(cost.cpu_us) / bare,
            f"{each}s/s": round(max(cost.per_s)),
        }
        for name, cost in costs.items()
    ]


async def cpu(proxies: Sequence[Proxy], upstream: int) -> None:
    for path in sorted(EVERYTHING):
        title = f"CPU, {path}, {FULL_SPEED} deltas at full speed, best of {ROUNDS}"
        report(title, await _cpu(proxies, path, _full_speed))
    title = f"CPU, {CHAT}, {PACED_STREAMS} streams of {LONG_DELTAS} deltas at {PACE_MS} ms"
    report(f"{title}, best of {ROUNDS}", await _cpu(proxies, CHAT, _paced))
    title = f"CPU, {CHAT}, {REQUESTS} requests of one delta, best of {ROUNDS}"
    report(title, await _cpu(proxies, CHAT, _requests, "request"))


# --- latency


@dataclass
class Times:
    """Milliseconds, of many streams."""

    first: list[float] = field(default_factory=list[float])
    late: list[float] = field(default_factory=list[float])
    gaps: list[float] = field(default_factory=list[float])
    """How far the time between two deltas is from that between their sendings."""


async def _time(port: int, times: Times, after_s: float) -> None:
    await trio.sleep(after_s)
    late: list[float] = []
    rest = b""
    async with asked(port, CHAT, PACED_DELTAS, PACE_MS) as stream:
        began_ns = time.monotonic_ns()
        async for piece in _answer(stream):
            now_ns = time.monotonic_ns()
            rest += piece
            read = 0
            for stamp in _STAMP.finditer(rest):
                if not late:
                    times.first.append((now_ns - began_ns) / 1e6)
                late.append((now_ns - int(stamp[2])) / 1e6)
                read = stamp.end()
            rest = rest[read:]
    assert len(late) == PACED_DELTAS, len(late)
    times.late += late
    times.gaps += [abs(b - a) for a, b in pairwise(late)]


async def first(proxies: Sequence[Proxy], upstream: int) -> None:
    """The order changes from round to round, so that none comes always behind the same."""
    ports = {"no proxy": upstream} | {proxy.name: proxy.port for proxy in proxies}
    measured = {name: list[float]() for name in ports}
    random = Random(1)
    for _ in range(FIRST_STREAMS + 1):
        for name in random.sample(list(ports), len(ports)):
            measured[name].append(await _first_token(ports[name]))
    bare = measured[proxies[0].name][1:]
    rows: list[Row] = []
    for name, (very_first, *others) in measured.items():
        cuts = _cuts(others)
        added = _cuts([one - other for one, other in zip(others, bare, strict=True)])
        rows.append(
            {
                "proxy": name,
                "very first ms": very_first,
                "p50": cuts[49],
                "p90": cuts[89],
                "p99": cuts[98],
                "max": max(others),
                "added p50": cuts[49] - _cuts(bare)[49],
                "added p99": cuts[98] - _cuts(bare)[98],
                "p90 of pairs": added[89],
            }
        )
    report(f"Time to the first token, {FIRST_STREAMS} streams each, one at a time", rows)


async def _first_token(port: int) -> float:
    """In milliseconds, from when all of the request is sent."""
    came_ms = 0.0
    async with asked(port, CHAT, FIRST_DELTAS, 1) as stream:
        began_ns, said = time.monotonic_ns(), b""
        async for piece in _answer(stream):
            said += piece
            if not came_ms and _STAMP.search(said):
                came_ms = (time.monotonic_ns() - began_ns) / 1e6
    assert came_ms, said
    return came_ms


async def latency(proxies: Sequence[Proxy], upstream: int) -> None:
    ports = {"no proxy": upstream} | {proxy.name: proxy.port for proxy in proxies}
    measured = {name: Times() for name in ports}
    for number in range(LATENCY_ROUNDS + 1):
        for name, port in ports.items():
            times = measured[name] if number else Times()
            async with trio.open_nursery() as nursery:
                for stream in range(LATENCY_STREAMS):
                    nursery.start_soon(_time, port, times, stream * 0.0137)
    bare = measured[proxies[0].name]
    rows: list[Row] = []
    for name, times in measured.items():
        first, late, gaps = _cuts(times.first), _cuts(times.late), _cuts(times.gaps)
        rows.append(
            {
                "proxy": name,
                "first ms p50": first[49],
                "p99": first[98],
                "added p99": first[98] - _cuts(bare.first)[98],
                "late ms p50": late[49],
                "late p99": late[98],
                "added late p99": late[98] - _cuts(bare.late)[98],
                "gap ms p50": gaps[49],
                "gap p99": gaps[98],
                "added gap p99": gaps[98] - _cuts(bare.gaps)[98],
            }
        )
    streams = LATENCY_ROUNDS * LATENCY_STREAMS
    report(f"Latency, {streams} streams of {PACED_DELTAS} deltas at {PACE_MS} ms", rows)


def _cuts(values: Sequence[float]) -> list[float]:
    return quantiles(values, n=100)


# --- clients that leave


async def _leave(port: int, upstream: int, took_ms: list[float], random: Random) -> None:
    stream_id = f"leave{next(_ids)}"
    async with asked(port, CHAT, 3000, PACE_MS, stream_id) as stream:
        await stream.receive_some()
        await trio.sleep(random.uniform(0.0, 0.1))
    left_ns = time.monotonic_ns()
    closed_ns = await ask_proxy(upstream, f"/closed/{stream_id}")
    took_ms.append((closed_ns - left_ns) / 1e6)


async def leave(proxies: Sequence[Proxy], upstream: int) -> None:
    rows: list[Row] = []
    for proxy in proxies:
        took_ms: list[float] = []
        random = Random(1)
        for _ in range(LEAVERS):
            with trio.move_on_after(10.0):
                await _leave(proxy.port, upstream, took_ms, random)
        cuts = _cuts(took_ms) if len(took_ms) > 1 else [float("nan")] * 99
        rows.append(
            {
                "proxy": proxy.name,
                "closed": f"{len(took_ms)}/{LEAVERS}",
                "ms p50": cuts[49],
                "p99": cuts[98],
                "max": max(took_ms, default=float("nan")),
            }
        )
    report("From a client that leaves to the provider that sees it", rows)


# --- a crowd


async def _stay_or_leave(port: int, leaves_after_s: float | None, broken: list[str]) -> None:
    with trio.move_on_after(leaves_after_s or PATIENCE_S) as scope:
        try:
            await _take(port, CHAT, CROWD_DELTAS, CROWD_PACE_MS)
        except Incomplete as error:
            broken.append(str(error))
    if scope.cancelled_caught and leaves_after_s is None:
        broken.append("nothing came")


async def _crowd(proxy: Proxy, upstream: int) -> Row:
    random = Random(1)
    broken: list[str] = []
    memory_mib = [proxy.memory_mib()]
    for _ in range(CROWD_ROUNDS):
        async with trio.open_nursery() as nursery:
            for number in range(CROWD):
                leaves_after_s = random.uniform(0.01, 2.0) if number % 2 else None
                nursery.start_soon(_stay_or_leave, proxy.port, leaves_after_s, broken)
                await trio.sleep(0.002)
        await trio.sleep(0.5)
        memory_mib.append(proxy.memory_mib())
    for problem in set(broken):
        print(f"{proxy.name}: {problem}", file=sys.stderr)
    return {
        "proxy": proxy.name,
        "left open": await ask_proxy(upstream, "/open"),
        "not answered": f"{len(broken)}/{CROWD * CROWD_ROUNDS // 2}",
        "MiB before": memory_mib[0],
        **{f"after {number}": memory_mib[number] for number in CROWD_ROWS},
        "last 4 rounds": memory_mib[-1] - memory_mib[-5],
    }


async def memory(proxies: Sequence[Proxy], upstream: int) -> None:
    rows = [await _crowd(proxy, upstream) for proxy in proxies]
    report(f"{CROWD} streams at once, half of them left at random, {CROWD_ROUNDS} rounds", rows)


MEASURES = {"first": first, "cpu": cpu, "latency": latency, "leave": leave, "memory": memory}


async def main() -> None:
    wanted = [name for name in MEASURES if name in sys.argv[1:]] or list(MEASURES)
    with tempfile.TemporaryDirectory() as scratch:
        async with provider() as upstream, all_proxies(upstream, Path(scratch)) as proxies:
            await trio.sleep(1.0)
            idle: list[Row] = [{"proxy": p.name, "MiB": p.memory_mib()} for p in proxies]
            report("Memory before the first request", idle)
            for name in wanted:
                await MEASURES[name](proxies, upstream)


if __name__ == "__main__":
    trio.run(main)
