"""From the provider's byte to the closed connection, for 1 and for 100 sessions at once.

A server in a process of its own (`latency_server.py`) speaks Anthropic's wire format: for each
request it sends harmless deltas, 50 in a second, then the one that breaks a rule, and waits
for the connection to be closed. The time between the two is taken there, so it includes both
directions of the loopback, parsing, matching, and everything between the actors. The runtime
that watches runs in one process on one core, and the server on another where there is one.

    python bench/latency.py [--json]

A row for each kind of load; `together` is the worst case, where the deltas of all streams
come at the same instant and the last has to wait until all are read. The columns:

- `p50`, `p99`, `max`: from the byte that breaks the rule to the closed connection.
- `decided p50`, `decided p99`: the part of it between the host's reading of that byte and its
  decision to abort. The rest is the way to the host, and closing.
- `loop p99`: how late the host's event loop was for a timer. A byte waits as long.
- `busy %` of the core while sessions run; `CPU/delta`: of the host, in all, set-up included.
"""

import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from subprocess import PIPE

import trio

from midstream.cli.garbage import spare_collections
from midstream.config import BudgetConfig, Config, ProviderConfig, RulesConfig
from midstream.handle import SessionHandle
from midstream.messages.events import RuleTriggered
from midstream.messages.record import SessionStatus
from midstream.providers.anthropic import AnthropicProvider
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.runtime import Runtime, open_runtime
from midstream.stores.memory import MemoryStore
from tables import report

SERVER = Path(__file__).with_name("latency_server.py")
SPREAD_S = 1.0
"""Sessions begin one after the other within this time, so that all of them are streaming
when the first is cut, and none is cut while others are still being set up."""

TICK_S = 0.005
"""How often the delay of the event loop is measured."""


@dataclass(frozen=True)
class Load:
    """`sessions` at once, `rounds` times; each says `deltas` (least, most) before it is cut."""

    name: str
    sessions: int
    rounds: int
    deltas: tuple[int, int]
    together: bool = False


LOADS = (
    Load("1", 1, 100, (4, 8)),
    Load("100", 100, 5, (64, 128)),
    Load("100 together", 100, 5, (64, 128), together=True),
)

RULES = [
    Rule(
        name=f"never-{number}",
        body="b",
        conditions=(rf"never\s+said\s+{number}\b",),
        scope=(ScopeToken(Source.TEXT),),
    )
    for number in range(19)
] + [
    Rule(
        name="forbidden",
        body="b",
        conditions=("FORBIDDEN",),
        scope=(ScopeToken(Source.TEXT),),
    )
]


@dataclass
class Measured:
    """What was seen under one load: microseconds, and seconds of the host."""

    latencies_us: list[float] = field(default_factory=list[float])
    decided_us: list[float] = field(default_factory=list[float])
    late_us: list[float] = field(default_factory=list[float])
    deltas: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def row(self, load: Load) -> dict[str, str | int | float]:
        total, decided = quantiles(self.latencies_us, n=100), quantiles(self.decided_us, n=100)
        return {
            "sessions": load.name,
            "aborts": len(self.latencies_us),
            "p50 µs": total[49],
            "p99 µs": total[98],
            "max µs": max(self.latencies_us),
            "decided p50 µs": decided[49],
            "decided p99 µs": decided[98],
            "loop p99 µs": quantiles(self.late_us, n=100)[98],
            "busy %": 100 * self.cpu_s / self.wall_s,
            "CPU/delta µs": 1e6 * self.cpu_s / self.deltas,
        }


@asynccontextmanager
async def server(load: Load, measured: Measured) -> AsyncGenerator[str]:
    """A server; its part of `measured` is there when the block has ended."""
    phase = "together" if load.together else "apart"
    command = [sys.executable, str(SERVER), *map(str, load.deltas), phase]
    run = partial(trio.run_process, command, stdin=PIPE, stdout=PIPE, capture_stdout=False)
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(run)
        assert process.stdin is not None
        assert process.stdout is not None
        _use_core(-1, process.pid)
        port = int((await process.stdout.receive_some()).decode())
        yield f"http://127.0.0.1:{port}"
        await process.stdin.aclose()
        seen = json.loads(b"".join([chunk async for chunk in process.stdout]))
    measured.latencies_us += seen["latencies_us"]
    measured.deltas = seen["deltas"]


def _use_core(number: int, process_id: int = 0) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process_id, [CORES[number]])


CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


async def _one(runtime: Runtime, delay_s: float) -> SessionHandle:
    await trio.sleep(delay_s)
    handle = runtime.animate("go")
    ended = await handle.result()
    assert ended.status is SessionStatus.CAPPED, ended
    return handle


async def _watch_loop(late_us: list[float]) -> None:
    while True:
        due = trio.current_time() + TICK_S
        await trio.sleep_until(due)
        late_us.append((trio.current_time() - due) * 1e6)


async def _decisions_us(handle: SessionHandle) -> list[float]:
    events = [each.event async for each in handle.events()]
    return [
        event.latency_us
        for event in events
        if isinstance(event, RuleTriggered) and event.latency_us is not None
    ]


async def _round(runtime: Runtime, load: Load, measured: Measured) -> None:
    handles: list[SessionHandle] = []

    async def run(delay_s: float) -> None:
        handles.append(await _one(runtime, delay_s))

    cpu_s, wall_s = time.process_time(), time.perf_counter()
    async with trio.open_nursery() as watching:
        watching.start_soon(_watch_loop, measured.late_us)
        async with trio.open_nursery() as nursery:
            for number in range(load.sessions):
                nursery.start_soon(run, SPREAD_S * number / load.sessions)
        watching.cancel_scope.cancel()
    measured.cpu_s += time.process_time() - cpu_s
    measured.wall_s += time.perf_counter() - wall_s
    for handle in handles:
        measured.decided_us += await _decisions_us(handle)


async def measure(load: Load) -> dict[str, str | int | float]:
    """Run one load."""
    config = Config(
        provider=ProviderConfig(model="m"),
        rules=RulesConfig(discover=False),
        budget=BudgetConfig(max_restarts=0),
    )
    measured = Measured()
    async with server(load, measured) as url:
        provider = AnthropicProvider(base_url=url, max_connections=load.sessions)
        async with open_runtime(
            config, provider=provider, rules=RULES, store=MemoryStore()
        ) as runtime:
            spare_collections()  # as the program does
            for _ in range(load.rounds):
                await _round(runtime, load, measured)
    return measured.row(load)


async def main() -> None:
    _use_core(0)
    rows = [await measure(load) for load in LOADS]
    report("From the byte that breaks a rule to the closed connection", rows)


if __name__ == "__main__":
    trio.run(main)
