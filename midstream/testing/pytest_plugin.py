"""A pytest plugin with fixtures for hosts: worlds, wires, and what they are made of.

    # conftest.py
    pytest_plugins = ["midstream.testing.pytest_plugin"]

When a test fails, what was heard and asked in its worlds is part of the report. Race tests have
a plugin of their own (`races_plugin`), which goes well with this one.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import pytest

from midstream.actors.clock import ManualClock
from midstream.providers.scripted import Script, ScriptedProvider
from midstream.stores.memory import MemoryStore
from midstream.testing.virtual_time import in_virtual_time
from midstream.testing.wire import Wire, open_wire
from midstream.testing.world import START_MS, World, open_world

OpenWire = Callable[..., AbstractAsyncContextManager[Wire]]

_WORLDS = pytest.StashKey[list[World]]()

LAST_EVENTS = 60
"""Of each session, in the report of a failure."""


class OpenWorld(Protocol):
    """What `midstream_world` gives: `open_world`, whose worlds are shown when the test fails."""

    def __call__(self, *scripts: Script, **options: Any) -> AbstractAsyncContextManager[World]: ...


@pytest.fixture
def midstream_world(request: pytest.FixtureRequest) -> OpenWorld:
    """Opens worlds: `async with midstream_world(answer("hello"), rules=[...]) as world`."""
    worlds = request.node.stash.setdefault(_WORLDS, list[World]())

    @asynccontextmanager
    async def opened(*scripts: Script, **options: Any) -> AsyncGenerator[World]:
        async with open_world(*scripts, **options) as world:
            worlds.append(world)
            yield world

    return opened


@pytest.fixture
def midstream_wire() -> OpenWire:
    """Opens wires: `async with midstream_wire(world.runtime) as wire, wire.connect() as client`."""
    return open_wire


@pytest.fixture
def midstream_provider() -> ScriptedProvider:
    """A provider without scripts; `add` some."""
    return ScriptedProvider()


@pytest.fixture
def midstream_store() -> MemoryStore:
    """A store in memory; `reopen` gives another handle on it, as after a restart."""
    return MemoryStore()


@pytest.fixture
def midstream_clock() -> ManualClock:
    """A clock on the wall that stands still until it is told otherwise."""
    return ManualClock(START_MS)


@pytest.fixture
def midstream_run() -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Runs an async function in virtual time, for suites without pytest-trio."""
    return in_virtual_time


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what happened in its worlds to the report of a test that failed."""
    report = yield
    worlds = item.stash.get(_WORLDS, list[World]())
    if report.when == "call" and report.failed:
        for number, world in enumerate(worlds, 1):
            report.sections.append((f"midstream world {number}", "\n".join(_told(world))))
    return report


def _told(world: World) -> Iterator[str]:
    for session in world.sessions:
        yield f"{session.handle.session_id}: {len(session.requests)} requests"
        hidden = len(session.events) - LAST_EVENTS
        if hidden > 0:
            yield f"  ... {hidden} events before"
        for event in session.events[-LAST_EVENTS:]:
            yield f"  {event.sequence}  {event.event}"
        ended = session.handle.ended
        yield f"  outcome: {ended.status if ended is not None else 'none yet'}"
