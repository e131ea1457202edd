"""What the event logs have not taken yet: events by session, bounded in bytes.

Filled and emptied by the EventRecorder alone; a Replay looks whether something of its session
is still to be written. Pure. Where the bound is reached, the oldest events are dropped: then the
log has a hole, which its readers see by the numbers.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from midstream.actors.subscription import event_bytes
from midstream.messages.event_log import Block, block_of
from midstream.messages.events import SessionEvent

BLOCK_LIMIT_BYTES = 65_536
"""What is put into a log at once."""

SESSION_LIMIT_BYTES = 1_048_576
"""What may wait of one session."""

TOTAL_LIMIT_BYTES = 33_554_432
"""What may wait of all."""


class _Queue:
    """The events of one session."""

    def __init__(self) -> None:
        self.events: deque[SessionEvent] = deque()
        self.size_bytes = 0

    def add(self, event: SessionEvent) -> None:
        self.events.append(event)
        self.size_bytes += event_bytes(event)

    def drop_first(self) -> None:
        self.size_bytes -= event_bytes(self.events.popleft())

    def block(self) -> Block:
        """The oldest events that can be one block."""
        taken: list[SessionEvent] = []
        size_bytes = 0
        for event in self.events:
            size_bytes += event_bytes(event)
            if taken and (size_bytes > BLOCK_LIMIT_BYTES or not _follows(taken[-1], event)):
                break
            taken.append(event)
        return block_of(taken)


class EventBacklog:
    """See the module."""

    def __init__(
        self,
        session_limit_bytes: int = SESSION_LIMIT_BYTES,
        total_limit_bytes: int = TOTAL_LIMIT_BYTES,
    ) -> None:
        self._session_limit_bytes = session_limit_bytes
        self._total_limit_bytes = total_limit_bytes
        self._queues: dict[str, _Queue] = {}
        self.size_bytes = 0
        """What waits, in bytes."""

    def __len__(self) -> int:
        """Of how many sessions something waits."""
        return len(self._queues)

    def __contains__(self, session_id: object) -> bool:
        """Whether something of this session waits."""
        return session_id in self._queues

    @property
    def has_full_block(self) -> bool:
        """Whether so much waits of a session that there is no point in gathering more."""
        return any(queue.size_bytes >= BLOCK_LIMIT_BYTES for queue in self._queues.values())

    def add(self, events: Iterable[SessionEvent]) -> None:
        """Take events; those of a session are in order."""
        for event in events:
            queue = self._queues.setdefault(event.session_id, _Queue())
            self.size_bytes -= queue.size_bytes
            queue.add(event)
            while queue.size_bytes > self._session_limit_bytes and len(queue.events) > 1:
                queue.drop_first()
            self.size_bytes += queue.size_bytes
        while self.size_bytes > self._total_limit_bytes and len(self._queues) > 1:
            self.drop(next(iter(self._queues)))

    def waiting(self, sessions: int) -> tuple[str, ...]:
        """So many sessions, of those that have waited longest."""
        return tuple(islice(self._queues, sessions))

    def block(self, session_id: str) -> Block | None:
        """The next block of a session; None if nothing waits."""
        queue = self._queues.get(session_id)
        return None if queue is None else queue.block()

    def kept(self, session_id: str, block: Block) -> None:
        """The log has taken this block. The session's turn comes again after the others'."""
        queue = self._queues.pop(session_id, None)
        if queue is None:
            return
        self.size_bytes -= queue.size_bytes
        while queue.events and _is_within(queue.events[0], block):
            queue.drop_first()
        self._put_back(session_id, queue)

    def postpone(self, session_id: str) -> None:
        """The log cannot take it yet; the others first."""
        if (queue := self._queues.pop(session_id, None)) is not None:
            self.size_bytes -= queue.size_bytes
            self._put_back(session_id, queue)

    def drop(self, session_id: str) -> None:
        """Nothing more of this session is to be kept."""
        if (queue := self._queues.pop(session_id, None)) is not None:
            self.size_bytes -= queue.size_bytes

    def _put_back(self, session_id: str, queue: _Queue) -> None:
        if queue.events:
            self._queues[session_id] = queue
            self.size_bytes += queue.size_bytes


def _follows(before: SessionEvent, after: SessionEvent) -> bool:
    return after.epoch == before.epoch and after.sequence == before.sequence + 1


def _is_within(event: SessionEvent, block: Block) -> bool:
    return event.epoch == block.epoch and event.sequence <= block.last
