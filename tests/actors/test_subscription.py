"""A subscriber's queue: bounded, exact, and cheap for whoever fills it."""

import pytest
import trio

from midstream.actors.subscription import Lagged, Subscription, event_bytes
from midstream.messages.events import AttemptStarted, SessionEnded, SessionEvent, Text
from midstream.messages.record import SessionStatus

LIMIT_BYTES = 20_000


def texts(first: int, count: int) -> list[SessionEvent]:
    return [SessionEvent("ses", n, Text(1, f"<{n}>")) for n in range(first, first + count)]


async def test_a_slow_consumer_gets_joined_deltas_and_misses_nothing() -> None:
    subscription = Subscription(0, LIMIT_BYTES)
    everything = texts(1, 2_000)
    for event in everything:
        subscription.push([event])
    events = await subscription.take()
    assert len(events) < 200
    assert "".join(e.event.text for e in events if isinstance(e.event, Text)) == "".join(
        e.event.text for e in everything if isinstance(e.event, Text)
    )
    assert events[-1].sequence == 2_000


async def test_what_waits_never_takes_more_than_the_limit() -> None:
    subscription = Subscription(0, LIMIT_BYTES)
    subscription.push(texts(1, 3))
    assert [event.sequence for event in await subscription.take()] == [1, 2, 3]
    for number in range(4, 4_000):
        subscription.push([SessionEvent("ses", number, AttemptStarted(number))])
    with pytest.raises(Lagged) as lagged:
        await subscription.take()
    assert lagged.value.after == 3
    assert subscription.is_closed


async def test_a_consumer_that_never_reads_costs_whoever_pushes_no_more_with_time() -> None:
    """Joining costs as much as waits, so it must not happen at every push."""
    subscription = Subscription(0, 4_000_000)
    joins = 0
    size_before = 0
    for number in range(1, 40_000):
        event = SessionEvent("ses", number, Text(1, "x" * 10))
        subscription.push([event])
        size = subscription.waiting_bytes
        joins += size < size_before + event_bytes(event)
        size_before = size
    assert 0 < joins < 20


async def test_an_end_comes_behind_what_waits() -> None:
    subscription = Subscription(0)
    ended = SessionEvent("ses", 2, SessionEnded(SessionStatus.COMPLETED, "<1>"))
    subscription.push([*texts(1, 1), ended])
    assert [event.sequence async for event in subscription] == [1, 2]
    with trio.fail_after(1):
        assert await subscription.take() == []
