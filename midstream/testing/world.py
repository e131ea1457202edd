"""A whole runtime in a test: scripted streams, a store in memory, everything observed.

    async def test_my_rule(autojump_clock):
        async with open_world(answer("as any"), answer("as unknown"), rules=[NO_ANY]) as world:
            session = world.animate("hello")
            ended = await session.result()
            await world.check()

`check` holds what happened against the invariants of the design (`invariants.py`); it is
also called when the block ends. Time is trio's, so under `MockClock` nothing waits; chance
comes from one seed.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random  # noqa: TID251 - the one instance of a world

import trio

from midstream.actors.announcer import UnknownSession
from midstream.actors.clock import Clock, TrioClock
from midstream.actors.event_channel import GapError
from midstream.actors.prompt_hooks import Hook, Interceptor
from midstream.config import Config, RulesConfig
from midstream.handle import SessionHandle
from midstream.messages.conversation import AnyItem, ModelRequest, ToolSpec
from midstream.messages.events import LocalAnswer, SessionEnded, SessionEvent, Text
from midstream.messages.lifecycle import AnyLifecycleEvent
from midstream.messages.repair import repaired
from midstream.messages.segments import AnySegment
from midstream.providers.provider import Provider, StreamBatches
from midstream.providers.scripted import Script, ScriptedProvider
from midstream.rules.rule import Rule
from midstream.runtime import Runtime, open_runtime
from midstream.stores.memory import MemoryStore
from midstream.testing.invariants import (
    InvariantBroken,
    check_session,
    check_store,
    count_continuations,
)
from midstream.testing.screen import visible_text
from midstream.tools import Tool

START_MS = 1_767_225_600_000
"""Wall time at which a world begins: 2026-01-01."""


class ObservedProvider:
    """A provider that remembers the requests of one session."""

    def __init__(self, provider: Provider) -> None:
        self.name = provider.name
        self.format = provider.format
        self.abort_stops_billing = provider.abort_stops_billing
        self.requests: list[ModelRequest] = []
        self.live = 0
        """Streams of the session that are open."""
        self._provider = provider

    @asynccontextmanager
    async def open(self, request: ModelRequest) -> AsyncGenerator[StreamBatches]:
        """Remember the request, and let the provider answer it."""
        self.requests.append(request)
        self.live += 1
        try:
            async with self._provider.open(request) as batches:
                yield batches
        finally:
            self.live -= 1

    async def aclose(self) -> None:
        """Nothing of its own to close."""


class ObservedSession:
    """A session of a world, with all that was heard of it and all that it asked for."""

    def __init__(self, handle: SessionHandle, provider: ObservedProvider) -> None:
        self.handle = handle
        self.events: list[SessionEvent] = []
        self.requests_at_stop: int | None = None
        """How many requests had been made when a stop was accepted; None without one."""
        self.gaps: list[GapError | UnknownSession] = []
        """What was said and cannot be heard any more; empty unless the Announcer crashes."""
        self.continued_at_detach: int | None = None
        """How many continuations had been asked for when the client had gone; None if it
        has not."""
        self.was_stopped = False
        """Whether somebody has asked for a stop, accepted or not."""
        self._provider = provider

    @property
    def requests(self) -> Sequence[ModelRequest]:
        """What was asked of the provider for this session."""
        return self._provider.requests

    @property
    def prose(self) -> str:
        """What the model has said and what was not taken back."""
        answers = (e.event.text for e in self.events if isinstance(e.event, LocalAnswer))
        said = Text(0, visible_text(self.events) + "".join(answers))
        return repaired(said).text

    @property
    def live_streams(self) -> int:
        """How many streams the session has open now; never more than one."""
        return self._provider.live

    async def listen(self) -> None:
        """Collect the session's events to its end, also behind a gap."""
        after: int | None = 0
        while after is not None:
            try:
                async for event in self.handle.events(after):
                    self.events.append(event)
                return
            except GapError as error:
                self.gaps.append(error)
                after = error.after
            except UnknownSession as error:
                if self.handle.ended is None:
                    raise
                self.gaps.append(error)  # it left no record, and who knew of it has crashed
                return

    async def interrupt(self) -> None:
        """Interrupt, and remember what had been asked for by then."""
        self.was_stopped = self.was_stopped or self.handle.ended is None
        await self.handle.interrupt()
        self._note_stop()

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel, and remember what had been asked for by then."""
        self.was_stopped = self.was_stopped or self.handle.ended is None
        await self.handle.cancel(reason)
        self._note_stop()

    async def detach(self) -> None:
        """Say that the client has gone, and remember what had been continued by then."""
        await self.handle.detach()
        if self.continued_at_detach is None:
            self.continued_at_detach = count_continuations(self.requests)

    async def result(self) -> SessionEnded:
        """Wait for the outcome."""
        return await self.handle.result()

    def _note_stop(self) -> None:
        if self.requests_at_stop is None:
            self.requests_at_stop = len(self.requests)


class World:
    """See the module. `lifecycle` are the events of actors and supervisors so far."""

    def __init__(
        self,
        runtime: Runtime,
        provider: ScriptedProvider,
        store: MemoryStore,
        nursery: trio.Nursery,
    ) -> None:
        self.runtime = runtime
        self.provider = provider
        self.store = store
        self.sessions: list[ObservedSession] = []
        self.has_gaps = False
        """Whether events may be lost, because something crashes that numbers them."""
        self._nursery = nursery

    def animate(
        self,
        prompt: str | Sequence[AnySegment] | Sequence[AnyItem],
        *,
        conversation_id: str | None = None,
        tools: Sequence[Tool | ToolSpec] = (),
        auto_continue: bool = True,
    ) -> ObservedSession:
        """Start a session and listen to it."""
        observed = ObservedProvider(self.provider)
        handle = self.runtime.animate(
            prompt,
            conversation_id=conversation_id,
            provider=observed,
            tools=tools,
            auto_continue=auto_continue,
        )
        return self.observe(handle, observed)

    def observe(self, handle: SessionHandle, provider: ObservedProvider) -> ObservedSession:
        """Listen to a session that asks `provider`, such as one that was recovered."""
        session = ObservedSession(handle, provider)
        self.sessions.append(session)
        self._nursery.start_soon(session.listen)
        return session

    async def check(self) -> None:
        """Hold everything so far against the invariants. Raises `InvariantBroken`."""
        for session in self.sessions:
            if session.gaps and not self.has_gaps:
                raise InvariantBroken(11, f"{session.gaps[0]}, although nothing has crashed")
            check_session(
                session.events,
                ended=session.handle.ended,
                requests=session.requests,
                requests_at_stop=session.requests_at_stop,
                continued_at_detach=session.continued_at_detach,
                has_gaps=bool(session.gaps),
                format=self.provider.format,
                was_stopped=session.was_stopped,
            )
        conversations = {session.handle.conversation_id for session in self.sessions}
        for conversation_id in conversations:
            await check_store(self.store, conversation_id, self.provider.format)


@asynccontextmanager
async def open_world(
    *scripts: Script,
    rules: Iterable[Rule] = (),
    config: Config | None = None,
    provider: ScriptedProvider | None = None,
    store: MemoryStore | None = None,
    clock: Clock | None = None,
    seed: int = 0,
    cwd: Path | None = None,
    hooks: Sequence[Hook] = (),
    interceptors: Sequence[Interceptor] = (),
    lifecycle: list[AnyLifecycleEvent] | None = None,
) -> AsyncGenerator[World]:
    """Open a world whose provider plays `scripts`, one for each request.

    `store` may be one that an earlier world has filled, as after a restart; `clock` tells
    the time on the wall. The block ends with `check`, unless it is left by an exception.
    """
    provider = provider or ScriptedProvider(*scripts)
    store = store or MemoryStore()
    config = config or Config(rules=RulesConfig(discover=False))
    sink = lifecycle.append if lifecycle is not None else None
    async with (
        open_runtime(
            config,
            cwd=cwd,
            provider=provider,
            rules=rules,
            store=store,
            clock=clock or TrioClock(START_MS),
            random=Random(seed),
            on_lifecycle=sink,
            hooks=hooks,
            interceptors=interceptors,
        ) as runtime,
        trio.open_nursery() as nursery,
    ):
        world = World(runtime, provider, store, nursery)
        yield world
        await world.check()
        nursery.cancel_scope.cancel()
