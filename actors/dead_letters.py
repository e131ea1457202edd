"""Messages that will not be handled: the last few of them, for whoever wants to look.

Each runtime has one `DeadLetters`. The kernel posts to it; operators and tests read it,
as a list or as a feed. Memory is bounded by the number of letters kept. A reader that is
slower than the letters come loses the oldest, and is told how many.
"""

from collections import deque
from typing import Any

import trio

from midstream.messages.lifecycle import Crashed, DeadLetter, LetterReason, LifecycleSink


class DeadLetters:
    """Keeps the newest `capacity` letters, and passes each on to `sink`."""

    def __init__(self, capacity: int = 256, sink: LifecycleSink | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._letters: deque[DeadLetter] = deque(maxlen=capacity)
        self._sink = sink
        self._posted = 0
        self._readers = trio.lowlevel.ParkingLot()

    @property
    def total(self) -> int:
        """How many letters were posted since the beginning."""
        return self._posted

    def recent(self) -> tuple[DeadLetter, ...]:
        """The letters that are kept, oldest first."""
        return tuple(self._letters)

    def post(
        self,
        who: str,
        incarnation: int,
        message: Any,
        reason: LetterReason,
        crash: Crashed | None = None,
    ) -> None:
        """Add one letter. Never waits."""
        self._posted += 1
        letter = DeadLetter(
            who=who,
            number=self._posted,
            incarnation=incarnation,
            message=message,
            reason=reason,
            error=crash.error if crash else "",
            traceback=crash.traceback if crash else "",
        )
        self._letters.append(letter)
        self._readers.unpark_all()
        if self._sink is not None:
            self._sink(letter)

    def follow(self, after: int | None = None) -> "DeadLetterFeed":
        """The letters with a number above `after`; from now on, if it is None."""
        return DeadLetterFeed(self, self._posted if after is None else after)

    async def wait_beyond(self, number: int) -> None:
        """Return when a letter with a higher number than `number` was posted."""
        await trio.lowlevel.checkpoint()
        while self._posted <= number:
            await self._readers.park()


class DeadLetterFeed:
    """An endless `async for` over letters. It needs no closing."""

    def __init__(self, letters: DeadLetters, after: int) -> None:
        self._source = letters
        self._seen = after
        self.missed = 0
        """How many letters were gone before this feed came to read them."""

    def __aiter__(self) -> "DeadLetterFeed":
        return self

    async def __anext__(self) -> DeadLetter:
        await self._source.wait_beyond(self._seen)
        kept = self._source.recent()
        oldest = kept[0].number
        self.missed += max(0, oldest - self._seen - 1)
        letter = kept[max(0, self._seen + 1 - oldest)]
        self._seen = letter.number
        return letter
