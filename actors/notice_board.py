"""The notices of a runtime, numbered, and those who follow them. Used by the Announcer alone.

Bounded like everything that is kept for others: the board remembers the last notices, and a
subscriber that falls as far behind gets `Lagged`, which says from where to resume. A replay
is a suffix of the live sequence, or a gap; it never guesses (architecture.md invariant 11).
"""

from collections import deque
from collections.abc import Iterable

import trio

from midstream.actors.subscription import Lagged
from midstream.messages.notices import AnyNotice, Notice

NOTICES_KEPT = 1_024
"""Notices remembered for those who come back; each is below a kilobyte. Two for each session:
a subscriber that was away while five hundred of them ran reads the book of sessions instead."""

NOTICES_WAITING = 4_096
"""How many may wait for one subscriber: a burst of two thousand ends, as after an outage of
the store."""


class NoticeStream:
    """An async iterator over notices. It ends only when it is closed.

    Raises `Lagged` when notices had to be dropped. One task may iterate at a time.
    """

    def __init__(self, after: int) -> None:
        self._waiting: deque[Notice] = deque()
        self._seen = after
        self._lagged = False
        self._closed = False
        self._arrival = trio.Event()

    def push(self, notices: Iterable[Notice]) -> None:
        """Take notices, in order. For the board; never blocks."""
        if self.is_closed:
            return
        self._waiting.extend(notices)
        if len(self._waiting) > NOTICES_WAITING:
            self._lagged = True
            self._waiting.clear()
        self._arrival.set()

    def close(self) -> None:
        """Nothing will come any more; what waits is still delivered."""
        self._closed = True
        self._arrival.set()

    @property
    def is_closed(self) -> bool:
        """Whether pushing to it is of no use any more."""
        return self._closed or self._lagged

    def __aiter__(self) -> "NoticeStream":
        return self

    async def __anext__(self) -> Notice:
        while not self._waiting:
            if self._lagged:
                raise Lagged(self._seen)
            if self._closed:
                raise StopAsyncIteration
            self._arrival = trio.Event()
            await self._arrival.wait()
        notice = self._waiting.popleft()
        self._seen = notice.sequence
        return notice


class NoticeBoard:
    """See the module. Numbers go on behind `last`."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self._kept: deque[Notice] = deque(maxlen=NOTICES_KEPT)
        self._streams: list[NoticeStream] = []

    def post(self, notices: Iterable[AnyNotice]) -> None:
        """Number the notices, keep them, and tell everybody."""
        numbered = [Notice(number, notice) for number, notice in enumerate(notices, self.last + 1)]
        self.last += len(numbered)
        self._kept.extend(numbered)
        for stream in self._streams:
            stream.push(numbered)
        self._streams = [stream for stream in self._streams if not stream.is_closed]

    def follow(self, after: int) -> NoticeStream | None:
        """Everything behind number `after`; None if that is not remembered any more, or has
        not been said yet."""
        first = self._kept[0].sequence if self._kept else self.last + 1
        if not first - 1 <= after <= self.last:
            return None
        stream = NoticeStream(after)
        stream.push(notice for notice in self._kept if notice.sequence > after)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        """End everybody's stream."""
        for stream in self._streams:
            stream.close()
