"""Nothing goes on by itself for a client that has gone, and a break is not a leave."""

import trio
from raw_client import raw_client
from trio.testing import MockClock

from midstream.config import WebsocketConfig
from midstream.doors.attendance import GONE_AFTER_S, Attendance
from midstream.messages.record import SessionStatus
from midstream.providers.scripted import Pause, Script, answer
from midstream.testing.wire import HOST, open_wire
from midstream.testing.world import open_world

CONTINUE = 'work <**stopMessage:"go on",5**>'
CONFIG = WebsocketConfig(hosts=(HOST,), token_env="")


async def test_a_session_is_given_up_when_nobody_came_back(autojump_clock: MockClock) -> None:
    gone: list[str] = []

    async def on_gone(session_id: str) -> None:
        gone.append(session_id)

    async with trio.open_nursery() as nursery:
        attendance = Attendance(lambda function: nursery.start_soon(function), on_gone)
        attendance.begin("left", "a")
        attendance.begin("returned", "a")
        attendance.begin("followed", "a")
        attendance.begin("over", "a")
        attendance.join("followed", "b")
        attendance.join("of somebody else", "a")
        attendance.leave("a")
        await trio.sleep(GONE_AFTER_S / 2)
        attendance.join("returned", "a again")
        attendance.ended("over")
        assert gone == []
        await trio.sleep(GONE_AFTER_S)
        assert gone == ["left"]
        attendance.leave("b")
        attendance.leave("a again")
        await trio.sleep(GONE_AFTER_S * 2)
        assert sorted(gone) == ["followed", "left", "returned"]


def slowly(text: str) -> Script:
    """An answer that takes half a minute."""
    script = answer(text)
    return [*script[:-1], Pause(30), script[-1]]


async def test_a_client_that_has_gone_is_not_continued_for(autojump_clock: MockClock) -> None:
    async with (
        open_world(*[slowly(f"hop {n}") for n in range(6)]) as world,
        open_wire(world.runtime, CONFIG) as wire,
    ):
        async with raw_client(wire) as client:
            session = (await client.submit(CONTINUE))["result"]["session"]
            await client.hear()
        await trio.sleep(300)
        record = await world.runtime.sessions.session(session)
        assert record.status is SessionStatus.COMPLETED
        assert 1 <= len(world.provider.requests) <= 3


async def test_a_client_that_comes_back_in_time_is_continued_for(
    autojump_clock: MockClock,
) -> None:
    async with (
        open_world(*[slowly(f"hop {n}") for n in range(6)]) as world,
        open_wire(world.runtime, CONFIG) as wire,
        wire.connect() as client,
    ):
        session = await client.animate(CONTINUE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cut_every, wire.cut, 45.0)
            ended = await session.result()
            nursery.cancel_scope.cancel()
        assert ended.output == "hop 5"
        assert len(world.provider.requests) == 6


async def _cut_every(cut: object, every_s: float) -> None:
    assert callable(cut)
    while True:
        await trio.sleep(every_s)
        cut()
