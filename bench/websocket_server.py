"""The server of bench/websocket.py: a runtime with its websocket door, in a process of its own.

The model is a script: each answer is an even flow of deltas, each of which holds the instant at
which it was said (nanoseconds of the machine's monotonic clock, which all processes share).
Prints the port, then serves until its standard input is closed.
"""

import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import trio

from midstream.cli.garbage import spare_collections
from midstream.config import BudgetConfig, Config, ProviderConfig, RulesConfig, WebsocketConfig
from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    StopReason,
    StreamFinished,
    StreamStarted,
    TextDelta,
)
from midstream.providers.provider import StreamBatches
from midstream.runtime import open_runtime
from midstream.stores.memory import MemoryStore
from midstream.websocket import open_websocket


class StampingProvider:
    """Says `count` stamps, `pause_s` apart, after `delay_s`; the prompt is the three numbers."""

    name = "stamping"
    format = "anthropic"
    abort_stops_billing = True

    @asynccontextmanager
    async def open(self, request: ModelRequest) -> AsyncGenerator[StreamBatches]:
        [prompt] = [item.text for item in request.items if isinstance(item, UserItem)]
        count, pause_s, delay_s = prompt.split()
        yield _stamps(int(count), float(pause_s), float(delay_s))

    async def aclose(self) -> None:
        """Nothing is kept."""


async def _stamps(
    count: int, pause_s: float, delay_s: float
) -> AsyncGenerator[Sequence[AnyStreamMessage]]:
    yield [StreamStarted(), BlockStarted(0, "text")]
    began_at = trio.current_time() + delay_s
    for number in range(count):
        await trio.sleep_until(began_at + number * pause_s)
        yield [TextDelta(0, f"{number}:{time.monotonic_ns()};")]
    yield [BlockFinished(0), StreamFinished(StopReason.END_TURN, "end_turn")]


async def main() -> None:
    spare_collections()  # as the program does
    config = Config(
        provider=ProviderConfig(model="m"),
        rules=RulesConfig(discover=False, builtin_rules=False),
        budget=BudgetConfig(max_restarts=0),
        websocket=WebsocketConfig(port=0, token_env="", connections=5_000, half_open=1_000),
    )
    async with (
        open_runtime(config, provider=StampingProvider(), store=MemoryStore()) as runtime,
        open_websocket(runtime) as door,
    ):
        sys.stdout.write(door.urls[0].rpartition(":")[2].partition("/")[0] + "\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(main)
