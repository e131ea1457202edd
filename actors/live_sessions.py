"""The sessions that live in this process: who they are, and how to reach them.

The runtime alone enters and removes them; the Heartbeat beats for them and watches their
records, and whoever cancels one looks here first. It is no actor, so that a restart of one
forgets no session.
"""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from midstream.actors.address import Address
from midstream.actors.outcome import Outcome
from midstream.actors.stop_latch import StopLatch
from midstream.messages.enrolment import Enrolment
from midstream.messages.work import Cancel


class LiveSession(Protocol):
    """One session of this process. It has no record before its prompt is accepted."""

    @property
    def enrolment(self) -> Enrolment: ...

    @property
    def outcome(self) -> Outcome: ...

    async def cancel(self, reason: str | None) -> None:
        """Tell it to end as cancelled; from now on it asks the provider for nothing more."""
        ...


class ActorSession(msgspec.Struct, frozen=True):
    """One that is a Session of this runtime's tree."""

    enrolment: Enrolment
    address: Address[Cancel]
    outcome: Outcome
    stop: StopLatch

    async def cancel(self, reason: str | None) -> None:
        """Tell it to end as cancelled; from now on it asks the provider for nothing more."""
        await self.address.tell(Cancel(reason))
        self.stop.set()


class LiveSessions:
    """See the module."""

    def __init__(self) -> None:
        self._sessions: dict[str, LiveSession] = {}

    def enter(self, session: LiveSession) -> None:
        """The session has been admitted."""
        self._sessions[session.enrolment.session_id] = session

    def remove(self, session_id: str) -> None:
        """The session is over."""
        self._sessions.pop(session_id, None)

    def get(self, session_id: str) -> LiveSession | None:
        """The session, if it lives here."""
        return self._sessions.get(session_id)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __iter__(self) -> Iterator[LiveSession]:
        """Those of this moment; they may come and go meanwhile."""
        return iter(tuple(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)
