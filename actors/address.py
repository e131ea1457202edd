"""What others hold of an actor: where to send messages and questions.

An address outlives the incarnations of its actor, and so does its mail (`Cell`). Anybody
may hold one, hand it on, and send to it from any task of the runtime.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import msgspec
import trio

from midstream.actors.cell import ActorStatistics, Cell
from midstream.actors.errors import ActorDied, ActorEnded, MailboxFull, QuestionFailed
from midstream.actors.question import Question
from midstream.messages.lifecycle import AnyExit, Crashed, LetterReason
from midstream.messages.reply import Reply

M_contra = TypeVar("M_contra", bound=msgspec.Struct, contravariant=True)
R = TypeVar("R")

ASKS = 3
"""How often an actor is asked that crashes before it has answered."""


class Address(Generic[M_contra]):
    """Where to send messages of type `M_contra`.

    It stays valid when its actor is restarted, and may be given away before the actor is
    first started: mail waits. When the actor has ended for good, `tell` posts to the dead
    letters and does not raise, so that the end of one actor is never the crash of those
    that still speak to it; who has to know asks, or watches.

    All methods belong to the runtime's thread.
    """

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell[M_contra]) -> None:
        self._cell = cell

    @property
    def who(self) -> str:
        """The actor's path from the root of its tree, such as `runtime/ledger`."""
        return self._cell.who

    @property
    def crash(self) -> Crashed | None:
        """How the last incarnation has crashed; None if one runs, or the last has not crashed."""
        last = self._cell.last_exit
        return last if isinstance(last, Crashed) and not self._cell.alive else None

    async def tell(self, message: M_contra) -> None:
        """Send `message`. Waits while the mailbox is full; if cancelled, nothing was sent."""
        if self._cell.ended.is_set():
            self._cell.bury((message,), LetterReason.ENDED)
            await trio.lowlevel.checkpoint()
            return
        await self._cell.mailbox.put(message)

    async def pass_on(self, message: M_contra) -> None:
        """`tell`, but a checkpoint only if it has to wait for room.

        For the path of a token, which leads through four actors: a needless switch at each
        would cost more than the handling. Only for callers that wait elsewhere anyway, as
        an actor does for its mail.
        """
        try:
            self.tell_nowait(message)
        except MailboxFull:
            await self._cell.mailbox.put(message)

    def tell_nowait(self, message: M_contra) -> None:
        """Send `message` without waiting, or raise `MailboxFull`."""
        if self._cell.ended.is_set():
            self._cell.bury((message,), LetterReason.ENDED)
            return
        try:
            self._cell.mailbox.put_nowait(message)
        except trio.WouldBlock:
            raise MailboxFull(self.who, self._cell.mailbox.capacity) from None

    async def ask(self, make_message: Callable[[Reply[R]], M_contra], deadline_s: float) -> R:
        """Send the message that `make_message` makes around a reply, and wait for the answer.

        `deadline_s` seconds cover everything, room in the mailbox too. Raises `AskTimeout`
        at the deadline; `ActorDied` at once when the actor crashes or is stopped, and
        `ActorEnded` if it will not come back; and whatever the actor fails the reply with.
        A question that was not read when its asker left is never handled.

        An actor that asks itself waits in vain: it cannot handle while it waits.
        """
        cell = self._cell
        question: Question[R] = Question(cell.who)
        message = make_message(question)
        if cell.ended.is_set():
            raise ActorEnded(cell.who, cell.last_exit, picked_up=False)
        cell.questions[question] = None
        try:
            return await question.wait(cell.mailbox, message, deadline_s)
        finally:
            del cell.questions[question]

    async def ask_through_crashes(
        self, make_message: Callable[[Reply[R]], M_contra], deadline_s: float
    ) -> R:
        """`ask`, and ask again where the actor crashes before it has answered, or fails over
        this question alone, `ASKS` times in all.

        For what may be handled twice: a question that changes nothing, or a change that is the
        same the second time. `deadline_s` seconds cover everything. Raises what `ask` raises.
        """
        until = trio.current_time() + deadline_s
        for _ in range(ASKS - 1):
            # If it will not come back, the next ask says so at once.
            with suppress(ActorDied, QuestionFailed):
                return await self.ask(make_message, until - trio.current_time())
        return await self.ask(make_message, until - trio.current_time())

    @property
    def has_ended(self) -> bool:
        """Whether the actor will not come back, so that nothing reaches it any more."""
        return self._cell.ended.is_set()

    async def wait_ended(self) -> AnyExit:
        """Wait until the actor has ended for good. Returns how its last incarnation ended."""
        await self._cell.ended.wait()
        return self._cell.last_exit

    def statistics(self) -> ActorStatistics:
        """Figures of this moment."""
        return self._cell.statistics()

    def watched_by(self, watcher: Cell[Any]) -> None:
        """For the kernel: see `Actor.watch`."""
        watcher.watch(self._cell)

    def unwatched_by(self, watcher: Cell[Any]) -> None:
        """For the kernel: see `Actor.unwatch`."""
        watcher.unwatch(self._cell)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Address):
            return NotImplemented
        return cast("Address[Any]", other)._cell is self._cell

    def __hash__(self) -> int:
        return hash(self._cell)

    def __repr__(self) -> str:
        return f"<Address {self.who}>"
