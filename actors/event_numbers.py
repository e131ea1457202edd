"""Where the numbering of each session's events stands. Used by the Announcer alone.

It is no actor and outlives the Announcer's incarnations, so that after a crash the numbers
go on where they were: a number is never given twice in one epoch (spec/lessons.md 56).
"""

from midstream.messages.event_log import BEGINNING, Position


class EventNumbers:
    """See the module."""

    def __init__(self) -> None:
        self._positions: dict[str, Position] = {}

    def __getitem__(self, session_id: str) -> Position:
        """Behind which place the session's next event is numbered."""
        return self._positions.get(session_id, BEGINNING)

    def advance(self, session_id: str, position: Position) -> None:
        """Everything up to this place is numbered."""
        self._positions[session_id] = position

    def forget(self, session_id: str) -> None:
        """The session is over and nobody will hear of it from here."""
        self._positions.pop(session_id, None)
