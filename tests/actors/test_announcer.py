"""What the Announcer keeps of sessions that are over is bounded, however many there are."""

import gc
import tracemalloc
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import pytest
import trio
from trio.testing import MockClock

from midstream.actors.address import Address
from midstream.actors.announcer import (
    Announce,
    Announcer,
    AnnouncerMessage,
    Continue,
    CountRules,
    Notify,
    Subscribe,
    UnknownSession,
)
from midstream.actors.ended_sessions import (
    ENDED_LIMIT_BYTES,
    KEPT_AFTER_END_S,
    SESSION_BYTES,
)
from midstream.actors.open_actor import open_actor
from midstream.actors.subscription import Subscription
from midstream.messages.event_log import Position
from midstream.messages.events import SessionEnded, SessionStarted
from midstream.messages.notices import Revived
from midstream.messages.record import SessionStatus

MANY = ENDED_LIMIT_BYTES // (2 * SESSION_BYTES)
"""More short sessions than there is room for, and more notices than are kept."""


GROWTH_BYTES = 200_000
"""What may come and go by chance; `MANY` sessions that are kept take twenty times as much."""

PATIENCE_S = 60.0

Announcing = Address[AnnouncerMessage]


async def run_sessions(announcer: Announcing, numbers: Iterable[int]) -> None:
    """They begin and end, and a notice is given of each; returns when that is handled."""
    for number in numbers:
        name = f"ses-{number}"
        ended = SessionEnded(SessionStatus.COMPLETED, f"answer {number} " * 40)
        begun = SessionStarted(name, "scripted", "m")
        await announcer.tell(Announce(name, (begun, ended)))
        await announcer.tell(Notify((Revived(session_id=name),)))
    await announcer.ask(CountRules, PATIENCE_S)


async def subscribe(announcer: Announcing, name: str, after: int = 0) -> Subscription:
    return await announcer.ask(lambda reply: Subscribe(name, after, reply), PATIENCE_S)


@contextmanager
def traced_memory() -> Generator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def memory_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def test_memory_does_not_grow_with_the_number_of_sessions_that_have_ended() -> None:
    with traced_memory():
        async with open_actor(Announcer()) as announcer:
            await run_sessions(announcer, range(MANY))
            before_bytes = memory_bytes()
            await run_sessions(announcer, range(MANY, 2 * MANY))
            assert memory_bytes() < before_bytes + GROWTH_BYTES
            await subscribe(announcer, f"ses-{2 * MANY - 1}")
            with pytest.raises(UnknownSession):
                await subscribe(announcer, "ses-0")


async def test_a_session_that_has_ended_costs_no_task() -> None:
    async with open_actor(Announcer()) as announcer:
        await run_sessions(announcer, range(1))
        tasks = trio.lowlevel.current_statistics().tasks_living
        await run_sessions(announcer, range(1, 200))
        assert trio.lowlevel.current_statistics().tasks_living == tasks


async def test_each_session_is_remembered_for_its_time_after_its_end(
    autojump_clock: MockClock,
) -> None:
    async with open_actor(Announcer()) as announcer:
        for number in range(4):
            await run_sessions(announcer, [number])
            await trio.sleep(KEPT_AFTER_END_S / 4)
        await trio.sleep(1)
        await subscribe(announcer, "ses-1")
        with pytest.raises(UnknownSession):
            await subscribe(announcer, "ses-0")
        await trio.sleep(KEPT_AFTER_END_S)
        for number in range(4):
            with pytest.raises(UnknownSession):
                await subscribe(announcer, f"ses-{number}")
        await run_sessions(announcer, [9])
        await trio.sleep(KEPT_AFTER_END_S + 1)
        with pytest.raises(UnknownSession):
            await subscribe(announcer, "ses-9")


async def test_a_session_that_goes_on_is_not_forgotten(autojump_clock: MockClock) -> None:
    async with open_actor(Announcer()) as announcer:
        await run_sessions(announcer, [0])
        await announcer.tell(Continue("ses-0", Position(2, 2)))
        await run_sessions(announcer, range(1, MANY))
        await trio.sleep(KEPT_AFTER_END_S * 2)
        assert (await subscribe(announcer, "ses-0", after=2)).epoch == 2
