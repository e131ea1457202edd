"""What clients were answered, so that a request which is sent again is done once.

A client whose connection breaks does not know whether its last request arrived. It sends it
again under the same name and number, and gets the same answer, or waits for the one that is
on its way (spec/lessons.md 57). Bounded: the oldest answers are forgotten first.
"""

from collections.abc import Awaitable, Callable

import trio

from midstream.messages import wire

Answer = wire.Ack | wire.Error

ANSWERS_KEPT = 10_000
"""Of all clients. Each is a few hundred bytes."""


class _Pending:
    """An answer that is there, or comes."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.arrived = trio.Event()


class AnswerBook:
    """See the module. `spawn` runs what must not end with a connection."""

    def __init__(
        self, spawn: Callable[[Callable[[], Awaitable[None]]], None], kept: int = ANSWERS_KEPT
    ) -> None:
        self._spawn = spawn
        self._kept = kept
        self._answers: dict[tuple[str, int], _Pending] = {}

    async def once(
        self, client: str, id: int, carry_out: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """The answer to this request, which is carried out unless it was before. If cancelled,
        it is carried out all the same."""
        key = client, id
        pending = self._answers.get(key)
        if pending is None:
            pending = self._answers[key] = _Pending()
            self._forget_oldest()
            self._spawn(lambda: self._carry_out(pending, carry_out))
        await pending.arrived.wait()
        assert pending.answer is not None
        return pending.answer

    async def _carry_out(
        self, pending: _Pending, carry_out: Callable[[], Awaitable[Answer]]
    ) -> None:
        pending.answer = await carry_out()
        pending.arrived.set()

    def _forget_oldest(self) -> None:
        if len(self._answers) > self._kept:
            del self._answers[next(iter(self._answers))]
