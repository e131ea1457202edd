"""The runtime of a world, handed to the host that is under test.

A host starts its sessions itself. `host_runtime` gives it a runtime like any other, and the world
observes what the host starts with it: events, requests, stops. So the host's own races are
held against the invariants too.

    async with open_world(answer("hello")) as world:
        chat = Chat(host_runtime(world))   # the host
        await chat.ask("hi")
"""

from typing import Any

from midstream.handle import SessionHandle
from midstream.runtime import Runtime
from midstream.testing.world import ObservedProvider, ObservedSession, World


def host_runtime(world: World) -> Runtime:
    """The runtime of `world`, which observes every session that is started with it."""
    return _WatchedRuntime(world)


class _WatchedRuntime(Runtime):
    """Shares everything with the runtime of the world."""

    def __init__(self, world: World) -> None:
        self.__dict__.update(world.runtime.__dict__)
        self._world = world

    def animate(self, *arguments: Any, **options: Any) -> SessionHandle:
        """As `Runtime.animate`, observed."""
        provider = options.pop("provider", None) or self._world.provider
        observed = ObservedProvider(provider)
        handle = super().animate(*arguments, provider=observed, **options)
        return _WatchedHandle(self._world.observe(handle, observed))


class _WatchedHandle(SessionHandle):
    """Shares everything with the handle of the session; stops are noted when they are accepted."""

    def __init__(self, session: ObservedSession) -> None:
        self.__dict__.update(session.handle.__dict__)
        self._observed = session

    async def interrupt(self) -> None:
        await self._observed.interrupt()

    async def cancel(self, reason: str | None = None) -> None:
        await self._observed.cancel(reason)

    async def detach(self) -> None:
        await self._observed.detach()
