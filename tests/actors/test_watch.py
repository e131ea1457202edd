"""Who watches learns of every exit, in order, whatever the state of its mailbox.

What a watcher sees of actors that are restarted is in tests/supervisors.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.open_actor import open_actor
from midstream.messages.lifecycle import Crashed, Down, EndedNormally, ShutDown


class Line(msgspec.Struct, frozen=True):
    text: str


class Do(msgspec.Struct, frozen=True):
    what: "Callable[[Watcher], object]"


class Watcher(Actor[Line | Do | Down]):
    def __init__(self, pause_s: float = 0) -> None:
        self.log: list[str | Down] = []
        self._pause_s = pause_s

    async def handle(self, message: Line | Do | Down) -> None:
        match message:
            case Line(text):
                await trio.sleep(self._pause_s)
                self.log.append(text)
            case Do(what):
                what(self)
            case Down():
                self.log.append(message)


class Talker(Actor[Line]):
    """Passes its lines on, and obeys some of them."""

    def __init__(self, to: Address[Line]) -> None:
        self._to = to

    async def handle(self, message: Line) -> None:
        if message.text == "crash":
            raise ValueError("told to")
        if message.text == "end":
            self.end()
            return
        self._to.tell_nowait(message)


def watch(address: Address[Any]) -> Do:
    return Do(lambda watcher: watcher.watch(address))


def unwatch(address: Address[Any]) -> Do:
    return Do(lambda watcher: watcher.unwatch(address))


async def test_a_watcher_gets_down_when_the_actor_ends_after_all_that_it_has_said() -> None:
    watcher = Watcher()
    async with open_actor(watcher) as to, open_actor(Talker(to), who="talker") as talker:
        await to.tell(watch(talker))
        await wait_all_tasks_blocked()
        for text in ("one", "two", "end"):
            await talker.tell(Line(text))
        await wait_all_tasks_blocked()
    assert watcher.log == ["one", "two", Down("talker", EndedNormally())]


async def test_a_watcher_gets_down_when_the_actor_crashes() -> None:
    watcher = Watcher()
    async with open_actor(watcher) as to:
        with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
            async with open_actor(Talker(to), who="talker") as talker:
                await to.tell(watch(talker))
                await wait_all_tasks_blocked()
                await talker.tell(Line("crash"))
                await trio.sleep_forever()
        await wait_all_tasks_blocked()
    (down,) = watcher.log
    assert isinstance(down, Down)
    assert isinstance(down.reason, Crashed)
    assert (down.who, down.reason.error) == ("talker", "ValueError: told to")


async def test_watching_an_actor_that_has_ended_gives_down_at_once() -> None:
    watcher = Watcher()
    async with open_actor(watcher) as to:
        async with open_actor(Talker(to), who="talker") as talker:
            pass
        await to.tell(watch(talker))
        await wait_all_tasks_blocked()
    assert watcher.log == [Down("talker", ShutDown())]


async def test_watching_twice_gives_one_down_and_unwatching_none() -> None:
    watcher = Watcher()
    async with open_actor(watcher) as to:
        async with open_actor(Talker(to), who="a") as a, open_actor(Talker(to), who="b") as b:
            for message in (watch(a), watch(a), watch(b), unwatch(b)):
                await to.tell(message)
            await wait_all_tasks_blocked()
            assert (a.statistics().watchers, b.statistics().watchers) == (1, 0)
        await wait_all_tasks_blocked()
    assert watcher.log == [Down("a", ShutDown())]


async def test_down_neither_waits_nor_is_lost_when_the_mailbox_is_full(
    autojump_clock: MockClock,
) -> None:
    watcher = Watcher(pause_s=1)
    async with open_actor(watcher, mailbox_capacity=2) as to, trio.open_nursery() as nursery:
        async with open_actor(Talker(to), who="talker") as talker:
            await to.tell(watch(talker))
            await wait_all_tasks_blocked()
            for text in ("in hand", "waits", "waits too"):
                nursery.start_soon(to.tell, Line(text))
                await wait_all_tasks_blocked()
        ended_at = trio.current_time()
        nursery.start_soon(to.tell, Line("sent later"))
        await trio.sleep(10)
    assert ended_at == 0
    down = Down("talker", ShutDown())
    assert watcher.log == ["in hand", "waits", "waits too", down, "sent later"]


async def test_an_actor_that_has_ended_watches_no_more() -> None:
    async with open_actor(Watcher()) as watched:
        async with open_actor(Watcher()) as to:
            await to.tell(watch(watched))
            await wait_all_tasks_blocked()
            assert watched.statistics().watchers == 1
        assert watched.statistics().watchers == 0
