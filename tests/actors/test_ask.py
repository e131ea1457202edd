"""One question, one answer, and a prompt word when there will be none."""

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.dead_letters import DeadLetters
from midstream.actors.errors import ActorDied, ActorEnded, AlreadyAnswered, AskTimeout
from midstream.actors.open_actor import open_actor
from midstream.messages.lifecycle import AnyExit, Crashed, EndedNormally, LetterReason, ShutDown
from midstream.messages.reply import Reply


class Double(msgspec.Struct, frozen=True):
    number: int
    reply: Reply[int]


class Busy(msgspec.Struct, frozen=True):
    for_s: float


class Crash(msgspec.Struct, frozen=True):
    pass


class End(msgspec.Struct, frozen=True):
    pass


class Clerk(Actor[Double | Busy | Crash | End]):
    """Doubles numbers, refuses negative ones, and is sometimes busy."""

    def __init__(self, answer_after_s: float = 0) -> None:
        self.seen: list[int] = []
        self.reached: list[bool] = []
        self._answer_after_s = answer_after_s

    async def handle(self, message: Double | Busy | Crash | End) -> None:
        match message:
            case Double(number, reply):
                self.seen.append(number)
                await trio.sleep(self._answer_after_s)
                if number < 0:
                    self.reached.append(reply.fail(ValueError("not below zero")))
                else:
                    self.reached.append(reply.send(2 * number))
            case Busy(for_s):
                await trio.sleep(for_s)
            case Crash():
                raise RuntimeError("crash")
            case End():
                self.end()


async def double(address: Address[Double], number: int, deadline_s: float = 10) -> int:
    return await address.ask(lambda reply: Double(number, reply), deadline_s)


async def test_the_asker_gets_the_answer() -> None:
    async with open_actor(Clerk()) as address:
        assert await double(address, 21) == 42


async def test_a_failed_reply_is_raised_by_the_ask_and_the_actor_lives_on() -> None:
    async with open_actor(Clerk()) as address:
        with pytest.raises(ValueError, match="not below zero"):
            await double(address, -1)
        assert await double(address, 1) == 2


async def test_no_answer_by_the_deadline_is_a_timeout(autojump_clock: MockClock) -> None:
    clerk = Clerk(answer_after_s=30)
    async with open_actor(clerk, who="clerk") as address:
        with pytest.raises(AskTimeout) as caught:
            await double(address, 1, deadline_s=5)
        assert trio.current_time() == pytest.approx(5)
        assert str(caught.value) == (
            "clerk did not answer Double within 5 s; it had begun to handle it"
        )
        assert caught.value.picked_up
        await trio.sleep(30)
        assert clerk.reached == [False], "the actor learns that nobody waits any more"


async def test_a_question_that_was_not_read_in_time_is_never_handled(
    autojump_clock: MockClock,
) -> None:
    clerk, letters = Clerk(), DeadLetters()
    async with open_actor(clerk, dead_letters=letters) as address:
        await address.tell(Busy(30))
        with pytest.raises(AskTimeout) as caught:
            await double(address, 1, deadline_s=5)
        assert not caught.value.picked_up
        await trio.sleep(60)
    assert clerk.seen == []
    (letter,) = letters.recent()
    assert letter.reason is LetterReason.ASKER_GONE
    assert letter.message.number == 1


async def test_an_asker_that_is_cancelled_withdraws_its_question(
    autojump_clock: MockClock,
) -> None:
    clerk = Clerk()
    async with open_actor(clerk) as address:
        await address.tell(Busy(30))
        with trio.move_on_after(1):
            await double(address, 1)
        await trio.sleep(60)
        assert address.statistics().open_questions == 0
    assert clerk.seen == []


async def test_the_deadline_covers_the_wait_for_room(autojump_clock: MockClock) -> None:
    async with open_actor(Clerk(), mailbox_capacity=1) as address:
        await address.tell(Busy(30))
        await wait_all_tasks_blocked()
        await address.tell(Busy(0))
        with pytest.raises(AskTimeout):
            await double(address, 1, deadline_s=5)
        assert trio.current_time() == pytest.approx(5)


async def expect_death(
    address: Address[Double], number: int, deaths: list[tuple[float, ActorDied]]
) -> None:
    with pytest.raises(ActorDied) as caught:
        await double(address, number, deadline_s=1000)
    deaths.append((trio.current_time(), caught.value))


async def test_all_askers_learn_at_once_that_the_actor_has_crashed(
    autojump_clock: MockClock,
) -> None:
    class CrashLater(Clerk):
        async def handle(self, message: Double | Busy | Crash | End) -> None:
            await trio.sleep(3)
            raise RuntimeError("crash")

    deaths: list[tuple[float, ActorDied]] = []
    async with trio.open_nursery() as askers:
        with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
            async with open_actor(CrashLater(), who="clerk") as address:
                askers.start_soon(expect_death, address, 1, deaths)
                await wait_all_tasks_blocked()
                askers.start_soon(expect_death, address, 2, deaths)
                await trio.sleep_forever()
    assert [at for at, _ in deaths] == [3, 3]
    assert all(isinstance(error.reason, Crashed) for _, error in deaths)
    assert {(error.picked_up, str(error)) for _, error in deaths} == {
        (True, "clerk crashed with RuntimeError: crash; it had begun to handle it"),
        (False, "clerk crashed with RuntimeError: crash; it had not read it"),
    }


async def test_askers_do_not_wait_for_the_clean_up_of_a_crashed_actor(
    autojump_clock: MockClock,
) -> None:
    class SlowToGo(Clerk):
        async def started(self) -> None:
            self.spawn(self.linger)

        async def linger(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(4)

        async def stopped(self, reason: AnyExit) -> None:
            await trio.sleep(4)

    deaths: list[tuple[float, ActorDied]] = []
    async with trio.open_nursery() as askers:
        with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
            async with open_actor(SlowToGo()) as address:
                await address.tell(Busy(2))
                await address.tell(Crash())
                askers.start_soon(expect_death, address, 1, deaths)
                await trio.sleep_forever()
    assert [at for at, _ in deaths] == [2]
    assert trio.current_time() == pytest.approx(10)


async def test_an_asker_learns_that_the_actor_has_ended_normally(
    autojump_clock: MockClock,
) -> None:
    deaths: list[tuple[float, ActorDied]] = []
    async with open_actor(Clerk()) as address, trio.open_nursery() as askers:
        await address.tell(Busy(2))
        await address.tell(End())
        askers.start_soon(expect_death, address, 1, deaths)
    assert [(at, error.reason, error.picked_up) for at, error in deaths] == [
        (2, EndedNormally(), False)
    ]


async def test_stopped_may_still_answer() -> None:
    class LastWord(Actor[Double]):
        def __init__(self) -> None:
            self.open: list[Double] = []

        async def handle(self, message: Double) -> None:
            self.open.append(message)
            self.end()

        async def stopped(self, reason: AnyExit) -> None:
            for question in self.open:
                question.reply.send(0)

    async with open_actor(LastWord()) as address:
        assert await double(address, 7) == 0


async def test_an_ask_to_an_actor_that_has_ended_raises_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_actor(Clerk()) as address:
        pass
    with pytest.raises(ActorEnded) as caught:
        await double(address, 1)
    assert isinstance(caught.value, ActorDied)
    assert caught.value.reason == ShutDown()
    assert trio.current_time() == 0


async def test_a_second_answer_is_an_error_of_the_actor() -> None:
    class Twice(Actor[Double]):
        async def handle(self, message: Double) -> None:
            message.reply.send(1)
            message.reply.send(2)

    with pytest.RaisesGroup(AlreadyAnswered, flatten_subgroups=True):
        async with open_actor(Twice()) as address:
            assert await double(address, 1) == 1
            await trio.sleep_forever()


async def test_many_askers_each_get_their_own_answer() -> None:
    answers: dict[int, int] = {}

    async def ask(address: Address[Double], number: int) -> None:
        answers[number] = await double(address, number)

    async with open_actor(Clerk(), mailbox_capacity=3) as address, trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(ask, address, number)
    assert answers == {number: 2 * number for number in range(50)}
