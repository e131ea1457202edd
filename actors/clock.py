"""Wall time and chance, as they are handed to whoever needs them.

Nothing in midstream reads the machine's clock or Python's shared random generator: it is
given a `Clock` and a `random.Random`, so that a run is reproducible from a start time and
a seed. Wall time is for records and for what crosses processes; for durations there is
`trio.current_time()`. Instants as text: `messages/timestamps.py`.
"""

import time
from random import Random  # noqa: TID251 - the type; the instance is always injected
from typing import Protocol

import trio


class Clock(Protocol):
    """Tells wall time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z. May jump, in both directions."""
        ...


class SystemClock:
    """The machine's own clock. The one place where it is read."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """Stands still until it is told otherwise."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        """Go on by `seconds`; back, if negative, as machines' clocks sometimes do."""
        self._now_ms += round(seconds * 1000)


class TrioClock:
    """Moves with trio's clock from `start_ms` on; under `MockClock`, with virtual time.

    Has to be made and read inside `trio.run`.
    """

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._started_at = trio.current_time()

    def now_ms(self) -> int:
        return self._start_ms + round((trio.current_time() - self._started_at) * 1000)


class Ids:
    """Makes identifiers that sort roughly by time and do not collide."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random

    def session_id(self) -> str:
        """`ses-{base 36 of the milliseconds}-{8 hex digits}` (spec/animator.md 3.1)."""
        return f"ses-{_base36(self._clock.now_ms())}-{self._random.getrandbits(32):08x}"


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _base36(number: int) -> str:
    if number < 0:
        raise ValueError(f"an instant before 1970 has no identifier: {number} ms")
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
