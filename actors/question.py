"""One ask that is under way: the reply token on the actor's side, the wait on the asker's.

`Address.ask` makes it, the kernel fails it when the actor goes down. Exactly one of three
things ends it: an answer, the death of the actor, or the asker's leaving (deadline,
cancellation). What comes later finds it closed.
"""

from typing import Any, Generic, TypeVar

import trio

from midstream.actors.errors import ActorDied, ActorEnded, AlreadyAnswered, AskTimeout
from midstream.actors.mailbox import Mailbox
from midstream.messages.lifecycle import AnyExit

M = TypeVar("M")
R = TypeVar("R")


class Asked(Generic[M]):
    """A question in a mailbox: the message, and whether anybody still waits."""

    __slots__ = ("message", "question")

    def __init__(self, message: M, question: "Question[Any]") -> None:
        self.message = message
        self.question = question


class _Answer(Generic[R]):
    __slots__ = ("value",)

    def __init__(self, value: R) -> None:
        self.value = value


class Question(Generic[R]):
    """A `midstream.messages.reply.Reply` to one asker."""

    __slots__ = ("_answered", "_outcome", "_scope", "picked_up", "waits", "who")

    def __init__(self, who: str) -> None:
        self.who = who
        self.picked_up = False
        """Whether the actor has begun to handle it."""
        self.waits = True
        """Whether the asker still waits and nothing has ended the wait."""
        self._answered = False
        self._outcome: _Answer[R] | Exception | None = None
        self._scope = trio.CancelScope()

    def send(self, value: R) -> bool:
        return self._answer(_Answer(value))

    def fail(self, error: Exception) -> bool:
        return self._answer(error)

    def actor_down(self, reason: AnyExit, *, for_good: bool = False) -> None:
        """The actor will not answer any more: the asker gets `ActorDied`."""
        error = ActorEnded if for_good else ActorDied
        self._settle(error(self.who, reason, picked_up=self.picked_up))

    async def wait(self, mailbox: Mailbox[Any], message: object, deadline_s: float) -> R:
        """Put the message into the mailbox and wait; room in the mailbox counts as waiting.

        Raises `AskTimeout`, `ActorDied`, or what the actor failed it with.
        """
        self._scope.deadline = trio.current_time() + deadline_s
        try:
            with self._scope:
                await mailbox.put(Asked(message, self))
                await trio.sleep_forever()
        finally:
            self.waits = False
            outcome, self._outcome = self._outcome, None
        if isinstance(outcome, _Answer):
            return outcome.value
        if outcome is None:
            problem = f"did not answer {type(message).__name__} within {deadline_s} s"
            raise AskTimeout(self.who, problem, picked_up=self.picked_up)
        try:
            raise outcome
        finally:
            del outcome  # an error refers to the frames that it came through: no cycle is left

    def _answer(self, outcome: "_Answer[R] | Exception") -> bool:
        if self._answered:
            raise AlreadyAnswered(f"{self.who} has answered this question before")
        self._answered = True
        return self._settle(outcome)

    def _settle(self, outcome: "_Answer[R] | Exception") -> bool:
        if not self.waits:
            return False
        self.waits = False
        self._outcome = outcome
        self._scope.cancel()
        return True
