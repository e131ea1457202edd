"""Who is there for the sessions that were begun through a door, so that none goes on by itself
when everybody has left.

A session is attended while a connection is open that has begun it or follows it. A break
is not a leave: only when nobody came back within a minute the session is told that its client
has gone. It finishes its answer, and is not continued by itself (architecture.md invariant 7).
Sessions that were begun elsewhere are none of its business.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

GONE_AFTER_S = 60.0
"""Seconds in which a client may come back; reconnects take at most ten."""


class Attendance:
    """See the module. `spawn` runs what must not end with a connection; `on_gone` is called
    with a session that nobody attends any more."""

    def __init__(
        self,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        on_gone: Callable[[str], Awaitable[None]],
    ) -> None:
        self._spawn = spawn
        self._on_gone = on_gone
        self._attended: dict[str, set[object]] = {}

    def begin(self, session_id: str, who: object) -> None:
        """`who` has begun this session."""
        self._attended.setdefault(session_id, set()).add(who)

    def join(self, session_id: str, who: object) -> None:
        """`who` follows this session."""
        if session_id in self._attended:
            self._attended[session_id].add(who)

    def ended(self, session_id: str) -> None:
        """The session is over; nobody has to be there for it."""
        self._attended.pop(session_id, None)

    def leave(self, who: object) -> None:
        """`who` is not there any more."""
        for session_id, there in self._attended.items():
            if who in there:
                there.remove(who)
                if not there:
                    self._spawn(partial(self._wait, session_id))

    async def _wait(self, session_id: str) -> None:
        await trio.sleep(GONE_AFTER_S)
        if self._attended.get(session_id) == set():
            del self._attended[session_id]
            await self._on_gone(session_id)
