"""The turnstile: a crowd goes through a few at a time, and the rest of the program between."""

import trio

from midstream.doors.turnstile import Turnstile


async def test_a_crowd_goes_through_a_few_at_a_time() -> None:
    turnstile = Turnstile(per_turn=4)
    through: list[int] = []

    async def sender(number: int) -> None:
        await turnstile.pass_through()
        through.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turnstile.run)
        async with trio.open_nursery() as crowd:
            for number in range(100):
                crowd.start_soon(sender, number)
            most = turns = seen = 0
            while len(through) < 100:
                await trio.lowlevel.checkpoint()
                turns += 1
                most = max(most, len(through) - seen)
                seen = len(through)
        nursery.cancel_scope.cancel()
    assert most <= 8
    assert turns >= 100 / 8
    assert sorted(through) == list(range(100))


async def test_whoever_is_alone_does_not_wait() -> None:
    turnstile = Turnstile(per_turn=4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turnstile.run)
        for _ in range(50):
            with trio.fail_after(1):
                await turnstile.pass_through()
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_who_leaves_while_waiting_takes_nobodys_turn() -> None:
    turnstile = Turnstile(per_turn=1)
    await turnstile.pass_through()
    with trio.move_on_after(0):
        await turnstile.pass_through()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turnstile.run)
        with trio.fail_after(1):
            await turnstile.pass_through()
        nursery.cancel_scope.cancel()
