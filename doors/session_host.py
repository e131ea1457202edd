"""What a door needs of the runtime behind it. The front door has it made to measure
(`midstream/session_host.py`), so that doors know frames and nothing of runtimes.
"""

from typing import Protocol

from midstream.actors.replay import Replay
from midstream.messages import wire
from midstream.messages.errors import MidstreamError
from midstream.messages.wire import ErrorCode


class Refusal(MidstreamError):
    """A request cannot be carried out; what the client is told."""

    def __init__(self, code: ErrorCode, message: str, after: int | None = None) -> None:
        self.code = code
        self.after = after
        super().__init__(message)


class HostStatus(Protocol):
    """How a host is; see `wire.ServerStatus`."""

    @property
    def live_sessions(self) -> int: ...
    @property
    def dispatchable(self) -> bool: ...
    @property
    def paused_until(self) -> str | None: ...


class SessionHost(Protocol):
    """Every method raises `Refusal` for what cannot be done."""

    async def submit(self, prompt: wire.Submit) -> wire.Submitted:
        """Hand in a prompt; returns when its session was let in."""
        ...

    async def interrupt(self, session_id: str) -> None:
        """Let the model of a session stop."""
        ...

    async def detach(self, session_id: str) -> None:
        """Say that nobody is there any more for a session that was submitted here. Never
        raises: the session may be over."""
        ...

    async def cancel(self, session_id: str, reason: str | None) -> None:
        """End a session as cancelled; returns when that is on record."""
        ...

    async def answer(self, result: wire.ToolResult) -> bool:
        """Answer a tool call; whether the answer was taken."""
        ...

    async def list_sessions(self, which: wire.List) -> wire.Listed:
        """A page of records."""
        ...

    async def record(self, session_id: str) -> wire.Record:
        """The record of a session."""
        ...

    async def status(self) -> HostStatus:
        """How the host is."""
        ...

    def replay(self, session_id: str, after: int, epoch: int | None, limit_bytes: int) -> Replay:
        """The events of a session behind a place."""
        ...

    def refusal_for(self, error: MidstreamError) -> Refusal:
        """What a client is told of an error that a replay has raised."""
        ...
