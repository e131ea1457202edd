"""What a supervisor is told about a child: how to run it, and what to do when it exits.

A spec describes one child for good, with the address under which it is known; the
incarnations are made from it. `ActorSpec` describes an actor. A `Supervisor` and a
`DynamicSupervisor` are specs themselves, so that trees nest.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random  # noqa: TID251 - the type; the instance is injected
from typing import Generic, Protocol, TypeVar

import msgspec

from midstream.actors.actor import DEFAULT_CLEANUP_S, Actor, ActorRun
from midstream.actors.address import Address
from midstream.actors.cell import DEFAULT_MAILBOX_CAPACITY, ActorStatistics, Cell
from midstream.actors.dead_letters import DeadLetters
from midstream.messages.lifecycle import AnyLifecycleEvent, EndedNormally, LifecycleSink, ShutDown
from midstream.supervisors.errors import ChildSpecError
from midstream.supervisors.restart import Restart

M = TypeVar("M", bound=msgspec.Struct)

DEFAULT_SHUTDOWN_S = 5.0
"""Seconds that an actor has to stop; OTP's default for workers."""


class Surroundings:
    """What a whole tree shares: chance, the sink of its events, its dead letters.

    `random` draws the jitter of restarts. `sink` gets every lifecycle event. The newest
    `letters_kept` dead letters can be read from `dead_letters`.
    """

    def __init__(
        self, random: Random, sink: LifecycleSink | None = None, letters_kept: int = 256
    ) -> None:
        self.random = random
        self.dead_letters = DeadLetters(letters_kept, self.emit)
        self._sink = sink

    def emit(self, event: AnyLifecycleEvent) -> None:
        """Pass `event` to the sink."""
        if self._sink is not None:
            self._sink(event)


class Life(Protocol):
    """One incarnation of a child."""

    for_good: bool
    """Set before a stop or a cut after which no incarnation will follow."""

    async def run(self, on_started: Callable[[], None]) -> EndedNormally | ShutDown:
        """Live until it ends, crashes (raises), is asked to stop or is cancelled."""
        ...

    def request_stop(self) -> None:
        """Stop soon, by itself."""
        ...


class ChildSpec(ABC):
    """Base of all specs.

    `significant`: when this child has ended by itself and is not restarted, its supervisor
    ends normally and takes the others with it (OTP's `any_significant`).
    `shutdown_s`: seconds to stop before it is cancelled; 0 cancels at once.
    """

    def __init__(self, id: str, *, restart: Restart, significant: bool, shutdown_s: float) -> None:
        if not id or "/" in id:
            raise ChildSpecError(f"a child's id must be a name without '/', not {id!r}")
        if significant and restart is Restart.PERMANENT:
            raise ChildSpecError(
                f"{id}: a permanent child never ends, so it cannot be significant; "
                "make it transient or temporary"
            )
        if shutdown_s < 0 or math.isnan(shutdown_s):
            raise ChildSpecError(f"{id}: shutdown_s must not be negative, not {shutdown_s}")
        self.id = id
        self.who = id
        """Its path from the root of the tree that it belongs to."""
        self.restart = restart
        self.significant = significant
        self.shutdown_s = shutdown_s
        self.incarnation = 0
        """The number of the newest incarnation; it counts on through restarts of parents."""

    def adopt(self, parent: str, surroundings: Surroundings) -> None:
        """Become a child of `parent`, a path. Comes before each life of the parent."""
        self.who = f"{parent}/{self.id}" if parent else self.id

    @abstractmethod
    def incarnate(self) -> Life:
        """Make the next incarnation."""

    @abstractmethod
    def retire(self) -> None:
        """There will be no further incarnation: end the addresses that belong to it."""


class ActorSpec(ChildSpec, Generic[M]):
    """One actor. `make` makes a new instance for each incarnation.

    `address` is valid at once: it can be given to other actors of the tree, in any order.

    >>> ledger = ActorSpec("ledger", lambda: Ledger(store))
    >>> session = ActorSpec("session", lambda: Session(ledger.address))
    """

    def __init__(
        self,
        id: str,
        make: Callable[[], Actor[M]],
        *,
        restart: Restart = Restart.PERMANENT,
        significant: bool = False,
        shutdown_s: float = DEFAULT_SHUTDOWN_S,
        cleanup_s: float = DEFAULT_CLEANUP_S,
        mailbox_capacity: int = DEFAULT_MAILBOX_CAPACITY,
    ) -> None:
        super().__init__(id, restart=restart, significant=significant, shutdown_s=shutdown_s)
        self._make = make
        self._cleanup_s = cleanup_s
        self._cell: Cell[M] = Cell(id, mailbox_capacity)

    @property
    def address(self) -> Address[M]:
        """Where to send its mail, whatever incarnation reads it."""
        return Address(self._cell)

    def statistics(self) -> ActorStatistics:
        """Figures of this moment."""
        return self._cell.statistics()

    def adopt(self, parent: str, surroundings: Surroundings) -> None:
        super().adopt(parent, surroundings)
        self._cell.adopt(self.who, surroundings.dead_letters)

    def incarnate(self) -> ActorRun[M]:
        return ActorRun(
            self._make(), self._cell, incarnation=self.incarnation, cleanup_s=self._cleanup_s
        )

    def retire(self) -> None:
        self._cell.retire()
