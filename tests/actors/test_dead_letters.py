"""Dead letters are kept within bounds, and can be followed without loss of count."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from midstream.actors.dead_letters import DeadLetters
from midstream.messages.lifecycle import AnyLifecycleEvent, DeadLetter, LetterReason


def post(letters: DeadLetters, *messages: int) -> None:
    for message in messages:
        letters.post("runtime/ledger", 1, message, LetterReason.UNREAD)


def test_only_the_newest_letters_are_kept() -> None:
    letters = DeadLetters(capacity=2)
    post(letters, 1, 2, 3)
    assert [(letter.number, letter.message) for letter in letters.recent()] == [(2, 2), (3, 3)]
    assert letters.total == 3


def test_every_letter_goes_to_the_sink() -> None:
    events: list[AnyLifecycleEvent] = []
    letters = DeadLetters(capacity=1, sink=events.append)
    post(letters, 1, 2)
    assert events == [
        DeadLetter("runtime/ledger", 1, 1, 1, LetterReason.UNREAD),
        DeadLetter("runtime/ledger", 2, 1, 2, LetterReason.UNREAD),
    ]


async def test_a_feed_waits_for_new_letters() -> None:
    letters = DeadLetters()
    post(letters, 1)
    got: list[object] = []

    async def follow() -> None:
        async for letter in letters.follow():
            got.append(letter.message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        post(letters, 2, 3)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert got == [2, 3]


async def test_a_feed_can_begin_with_letters_that_are_kept() -> None:
    letters = DeadLetters()
    post(letters, 1, 2, 3)
    feed = letters.follow(after=1)
    assert [(await anext(feed)).message, (await anext(feed)).message] == [2, 3]


async def test_a_slow_feed_learns_how_many_it_has_missed() -> None:
    letters = DeadLetters(capacity=2)
    feed = letters.follow()
    post(letters, 1)
    assert (await anext(feed)).message == 1
    post(letters, 2, 3, 4, 5)
    assert (await anext(feed)).message == 4
    assert feed.missed == 2
    assert (await anext(feed)).message == 5
    assert feed.missed == 2


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DeadLetters(capacity=0)
