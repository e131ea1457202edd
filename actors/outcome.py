"""The outcome of a session, once: what a handle waits for."""

import trio

from midstream.messages.events import SessionEnded
from midstream.messages.record import SessionRecord


class Outcome:
    """Settled by the session's actor; the first outcome counts."""

    def __init__(self) -> None:
        self._settled = trio.Event()
        self._outcome: tuple[SessionEnded, SessionRecord] | None = None

    def settle(self, ended: SessionEnded, record: SessionRecord) -> None:
        """The session has ended like this, and this is its record: as it is kept, or as it
        would be if it could have been."""
        if self._outcome is None:
            self._outcome = (ended, record)
            self._settled.set()

    @property
    def ended(self) -> SessionEnded | None:
        """How the session has ended, or None while it has not."""
        return self._outcome[0] if self._outcome else None

    async def wait(self) -> SessionEnded:
        """Wait for the end. May be called by any number of tasks."""
        return (await self._wait())[0]

    async def record(self) -> SessionRecord:
        """Wait for the end, and give the record."""
        return (await self._wait())[1]

    async def _wait(self) -> tuple[SessionEnded, SessionRecord]:
        await self._settled.wait()
        assert self._outcome is not None
        return self._outcome
