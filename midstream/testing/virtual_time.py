"""Virtual time for test suites without pytest-trio: a scenario in which waiting costs nothing."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")


def in_virtual_time(scenario: Callable[[], Awaitable[T]]) -> T:
    """Run an async function on trio, under a clock that jumps whenever everybody waits.

    An hour of back-off takes a millisecond, and nothing depends on how fast the machine is.
    """

    async def run() -> T:
        return await scenario()

    return trio.run(run, clock=MockClock(autojump_threshold=0))
