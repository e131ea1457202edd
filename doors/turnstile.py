"""Lets those who send events go on a few at a time, so that a crowd does not hold up the rest.

A word of a model that a thousand clients follow is a thousand sends. All tasks that can run do
so within one turn of the scheduler, so without this a rule that has matched would wait for
all of them before the stream is cut. Whoever passes here gives way after so many others.
Nothing is lost in throughput, and what waits is joined meanwhile.
"""

import trio

PER_TURN = 16
"""Sends for each turn of the scheduler: about two milliseconds."""


class Turnstile:
    """See the module. `run` has to run beside those who pass."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._left = per_turn
        self._waiting = trio.lowlevel.ParkingLot()
        self._is_used = trio.Event()

    async def pass_through(self) -> None:
        """Go on, at once or when it is one's turn. A checkpoint only if one has to wait."""
        self._is_used.set()
        if self._left > 0:
            self._left -= 1
        else:
            await self._waiting.park()

    async def run(self) -> None:
        """Let the next ones through, turn by turn; for ever."""
        while True:
            await self._is_used.wait()
            await trio.lowlevel.checkpoint()
            let_through = len(self._waiting.unpark(count=self._per_turn))
            self._left = self._per_turn - let_through
            if not let_through:
                self._is_used = trio.Event()
