"""What stays of an actor between its incarnations: mailbox, questions, watchers, counters.

Each `Address` leads to one `Cell`. It is changed by the actor's run and by its
supervisor, and used by nobody else. It guarantees that no message that was accepted
vanishes: each is handled, waits for the next incarnation, or is posted to the dead
letters.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import trio

from midstream.actors.dead_letters import DeadLetters
from midstream.actors.mailbox import Mailbox
from midstream.actors.question import Asked, Question
from midstream.messages.lifecycle import AnyExit, Crashed, Down, LetterReason, ShutDown

M = TypeVar("M", bound=msgspec.Struct)

DEFAULT_MAILBOX_CAPACITY = 64
"""Messages. Enough for a burst; small enough that back-pressure is felt early."""


class ActorStatistics(msgspec.Struct, frozen=True):
    """A snapshot of one actor. Counts are of all incarnations, since the address exists."""

    who: str
    alive: bool
    """Whether an incarnation runs that can still answer."""
    ended: bool
    """Whether it has ended for good."""
    incarnation: int
    """The number of the newest one, so 0 before the first start."""
    handled: int
    """Messages whose handling is finished."""
    crashes: int
    mailbox_depth: int
    mailbox_capacity: int
    senders_waiting: int
    open_questions: int
    watchers: int

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.incarnation - 1)


class Cell(Generic[M]):
    """The lasting part of one actor."""

    def __init__(self, who: str, capacity: int = DEFAULT_MAILBOX_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"{who}: the mailbox capacity must be at least 1, not {capacity}")
        self.who = who
        self.mailbox: Mailbox[M | Asked[M]] = Mailbox(capacity)
        self.dead_letters = DeadLetters()
        self.questions: dict[Question[Any], None] = {}
        self.alive = False
        self.incarnation = 0
        self.handled = 0
        self.crashes = 0
        self.last_exit: AnyExit = ShutDown()
        self.ended = trio.Event()
        self._watchers: dict[Cell[Any], None] = {}
        self._watched: dict[Cell[Any], None] = {}

    def adopt(self, who: str, dead_letters: DeadLetters) -> None:
        """Take the place `who` in a tree. An address that had ended begins anew."""
        self.who = who
        self.dead_letters = dead_letters
        if self.ended.is_set():
            self.ended = trio.Event()

    def begin(self, incarnation: int) -> None:
        """An incarnation begins. They count from 1."""
        if self.alive:
            raise RuntimeError(f"{self.who} is running already; one address has one actor")
        self.alive = True
        self.incarnation = incarnation

    def go_down(self, reason: AnyExit) -> None:
        """The running incarnation cannot answer any more: tell askers and watchers, once."""
        if not self.alive:
            return
        self.alive = False
        self.last_exit = reason
        self.crashes += isinstance(reason, Crashed)
        for question in tuple(self.questions):
            question.actor_down(reason)
        for watched in self._watched:
            watched._watchers.pop(self, None)
        self._watched.clear()
        for watcher in self._watchers:
            watcher._signal_down(self)

    def retire(self) -> None:
        """No incarnation will follow: what is unread becomes dead letters, nobody waits on."""
        if self.ended.is_set():
            return
        self.ended.set()
        for question in tuple(self.questions):
            question.actor_down(self.last_exit, for_good=True)
        for message in self._drain():
            self.bury((message,), LetterReason.UNREAD)
        self._watchers.clear()

    def bury(
        self, messages: Sequence[M], reason: LetterReason, crash: Crashed | None = None
    ) -> None:
        """Post `messages` to the dead letters."""
        for message in messages:
            self.dead_letters.post(self.who, self.incarnation, message, reason, crash)

    async def take(self) -> M | None:
        """The next message; waits for one. None if there is another reason to look up."""
        item = await self.mailbox.take()
        return None if item is None else self._open(item)

    async def take_batch(self) -> tuple[M, ...]:
        """All that waits, at most a mailbox full; waits for the first. May be empty."""
        batch: list[M] = []
        item = await self.mailbox.take()
        while item is not None:
            message = self._open(item)
            if message is not None:
                batch.append(message)
            if len(batch) >= self.mailbox.capacity:
                break
            item = self.mailbox.take_nowait()
        return tuple(batch)

    def watch(self, other: "Cell[Any]") -> None:
        """From now on a `Down` comes at each exit of `other`; at once if it has ended."""
        if other.ended.is_set():
            self._signal_down(other)
            return
        other._watchers[self] = None
        self._watched[other] = None

    def unwatch(self, other: "Cell[Any]") -> None:
        """End a watch. A `Down` that is in the mailbox already stays there."""
        other._watchers.pop(self, None)
        self._watched.pop(other, None)

    def statistics(self) -> ActorStatistics:
        return ActorStatistics(
            who=self.who,
            alive=self.alive,
            ended=self.ended.is_set(),
            incarnation=self.incarnation,
            handled=self.handled,
            crashes=self.crashes,
            mailbox_depth=self.mailbox.depth,
            mailbox_capacity=self.mailbox.capacity,
            senders_waiting=self.mailbox.senders_waiting,
            open_questions=len(self.questions),
            watchers=len(self._watchers),
        )

    def _signal_down(self, other: "Cell[Any]") -> None:
        # An actor that watches takes Down, which the type of `Actor.watch` demands.
        down: Any = Down(other.who, other.last_exit)
        self.mailbox.put_signal(other.who, down)

    def _open(self, item: M | Asked[M]) -> M | None:
        if not isinstance(item, Asked):
            return item
        if not item.question.waits:
            self.bury((item.message,), LetterReason.ASKER_GONE)
            return None
        item.question.picked_up = True
        return item.message

    def _drain(self) -> Iterator[M]:
        while (item := self.mailbox.take_nowait()) is not None:
            message = item.message if isinstance(item, Asked) else item
            if not isinstance(message, Down):
                yield message
