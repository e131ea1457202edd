"""The outcome of a session, once: what a handle waits for."""

import trio

from midstream.messages.events import SessionEnded


class Outcome:
    """Settled by the session's actor; the first outcome counts."""

    def __init__(self) -> None:
        self._settled = trio.Event()
        self._ended: SessionEnded | None = None

    def settle(self, ended: SessionEnded) -> None:
        """The session has ended like this."""
        if self._ended is None:
            self._ended = ended
            self._settled.set()

    @property
    def ended(self) -> SessionEnded | None:
        """How the session has ended, or None while it has not."""
        return self._ended

    async def wait(self) -> SessionEnded:
        """Wait for the end. May be called by any number of tasks."""
        await self._settled.wait()
        assert self._ended is not None
        return self._ended
