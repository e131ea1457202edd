"""The dead-letter queue: what the store could not take waits here, and arrives exactly once.

The Ledger is its only reader; it puts, tries again in the order of names, removes what has
arrived, and puts aside what never will. Every envelope carries its idempotency key, which
the store keeps with the outcome, so that nothing is written twice when the process dies
between the write and the removal. `FileQueue` (dlq_files.py) is for stores that outlive the
process; the one here is for those that do not.
"""

from typing import Protocol

from midstream.messages.envelope import AnyEnvelope
from midstream.messages.errors import MidstreamError


class PoisonEnvelope(MidstreamError):
    """What lies in the queue under this name is no envelope. It will never arrive."""


class DeadLetterQueue(Protocol):
    """A queue. Every method raises `StoreError` when the queue itself cannot be used."""

    async def put(self, envelope: AnyEnvelope) -> None:
        """Keep `envelope`; when this returns it survives the loss of power, if anything
        here does. One of the same name is replaced."""
        ...

    async def names(self) -> list[str]:
        """The names of what waits, in the order in which it has to be written."""
        ...

    async def read(self, name: str) -> AnyEnvelope | None:
        """The envelope; None if it is gone, because another process was faster.

        Raises `PoisonEnvelope`.
        """
        ...

    async def remove(self, name: str) -> None:
        """It has arrived."""
        ...

    async def reject(self, name: str, reason: str) -> None:
        """It never will arrive: put it aside with the reason, out of the way of others."""
        ...


class MemoryQueue(DeadLetterQueue):
    """A queue that ends with its process. `rejected` has the reasons, by name."""

    def __init__(self) -> None:
        self.rejected: dict[str, str] = {}
        self._waiting: dict[str, AnyEnvelope] = {}

    async def put(self, envelope: AnyEnvelope) -> None:
        self._waiting[envelope.name] = envelope

    async def names(self) -> list[str]:
        return sorted(self._waiting)

    async def read(self, name: str) -> AnyEnvelope | None:
        return self._waiting.get(name)

    async def remove(self, name: str) -> None:
        self._waiting.pop(name, None)

    async def reject(self, name: str, reason: str) -> None:
        del self._waiting[name]
        self.rejected[name] = reason
