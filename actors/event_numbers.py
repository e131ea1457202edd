"""Where the numbering of each session's events, and of the notices, stands. Used by the
Announcer alone.

It is no actor and outlives the Announcer's incarnations, so that after a crash the numbers
go on where they were: a number is never given twice in one epoch, and what a crash has lost
is a hole that whoever reads on is told of (spec/lessons.md 56).
"""

from collections.abc import Iterable, Mapping

from midstream.messages.event_log import BEGINNING, Position
from midstream.messages.events import AnyEvent, SessionEnded


class EventNumbers:
    """See the module. `notices` is the number of the last notice."""

    def __init__(self) -> None:
        self.notices = 0
        self._positions: dict[str, Position] = {}
        self._ended: set[str] = set()
        self._lost: dict[str, SessionEnded | None] = {}

    def __getitem__(self, session_id: str) -> Position:
        """Behind which place the session's next event is numbered."""
        return self._positions.get(session_id, BEGINNING)

    def __contains__(self, session_id: str) -> bool:
        """Whether the session is known and goes on."""
        return session_id in self._positions and session_id not in self._ended

    @property
    def ended(self) -> frozenset[str]:
        """The sessions whose outcome is numbered."""
        return frozenset(self._ended)

    def has_ended(self, session_id: str) -> bool:
        """Whether the session's outcome is numbered."""
        return session_id in self._ended

    def advance(self, session_id: str, position: Position, *, ended: bool = False) -> None:
        """Everything up to this place is numbered."""
        self._positions[session_id] = position
        if ended:
            self._ended.add(session_id)
        else:
            self._ended.discard(session_id)

    def lose(self, session_id: str, events: Iterable[AnyEvent]) -> None:
        """Nobody will hear these events; their numbers are not given to others."""
        events = tuple(events)
        epoch, sequence = self[session_id].epoch, self[session_id].sequence
        self._positions[session_id] = Position(epoch, sequence + len(events))
        ends = (event for event in events if isinstance(event, SessionEnded))
        self._lost[session_id] = next(ends, self._lost.get(session_id))

    def take_lost(self) -> Mapping[str, SessionEnded | None]:
        """Of which sessions events were lost since the last time; with the outcome, if that
        was among them."""
        lost, self._lost = self._lost, {}
        return lost

    def forget(self, session_id: str) -> None:
        """The session is over and nobody will hear of it from here."""
        self._positions.pop(session_id, None)
        self._ended.discard(session_id)
