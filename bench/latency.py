"""From the provider's byte to the closed connection, for 1 and for 100 sessions at once.

A server in a process of its own speaks Anthropic's wire format: for each request it sends
harmless deltas at an even pace, then the one that breaks a rule, and waits for the
connection to be closed. The time between the two is taken there, so it includes both
directions of the loopback, parsing, matching, and everything between the actors. The
runtime that watches runs in one process, on one core where the system lets it choose.

    python bench/latency.py [--json]
"""

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from subprocess import PIPE

import trio

from midstream.cli.garbage import spare_collections
from midstream.config import BudgetConfig, Config, ProviderConfig, RulesConfig
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

ROUNDS = {1: 20, 100: 5}
"""How often each number of sessions is run."""

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


@asynccontextmanager
async def server() -> AsyncGenerator[tuple[str, list[float]]]:
    """A server; the list is filled when the block ends."""
    latencies_us: list[float] = []
    command = [sys.executable, str(SERVER)]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, command, stdin=PIPE, stdout=PIPE, capture_stdout=False)
        )
        port = int((await process.stdout.receive_some()).decode())
        yield f"http://127.0.0.1:{port}", latencies_us
        await process.stdin.aclose()
        output = b"".join([chunk async for chunk in process.stdout])
        latencies_us.extend(json.loads(output))


async def _one(runtime: Runtime, delay_s: float) -> None:
    await trio.sleep(delay_s)
    ended = await runtime.animate("go").result()
    assert ended.status is SessionStatus.CAPPED, ended


async def measure(sessions: int) -> dict[str, str | int | float]:
    """Run `sessions` at once, `ROUNDS[sessions]` times."""
    config = Config(
        provider=ProviderConfig(model="m"),
        rules=RulesConfig(discover=False),
        budget=BudgetConfig(max_restarts=0),
    )
    async with server() as (url, latencies_us):
        provider = AnthropicProvider(base_url=url, max_connections=sessions)
        async with open_runtime(
            config, provider=provider, rules=RULES, store=MemoryStore()
        ) as runtime:
            spare_collections()  # as the program does
            for _ in range(ROUNDS[sessions]):
                async with trio.open_nursery() as nursery:
                    for number in range(sessions):
                        nursery.start_soon(_one, runtime, SPREAD_S * number / sessions)
    cuts = quantiles(latencies_us, n=100)
    return {
        "sessions": sessions,
        "aborts": len(latencies_us),
        "p50 µs": cuts[49],
        "p99 µs": cuts[98],
        "max µs": max(latencies_us),
    }


async def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:1])
    rows = [await measure(sessions) for sessions in ROUNDS]
    report("From the byte that breaks a rule to the closed connection", rows)


if __name__ == "__main__":
    trio.run(main)
