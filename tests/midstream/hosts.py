"""Hosts in a test: runtimes on one store, under one clock, that can be killed.

    async with host(store, answer("hello"), clock=clock) as runtime: ...

A host that is killed writes nothing more: its store is cut off before its block is left.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import trio

from midstream.actors.clock import Clock, TrioClock
from midstream.config import Config, RateLimitConfig, RulesConfig
from midstream.messages.backoff import BackoffSettings
from midstream.messages.errors import StoreError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.notices import AnyNotice
from midstream.messages.record import SessionRecord
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.providers.scripted import Hang, Script, ScriptedProvider, Step
from midstream.rules.rule import Rule
from midstream.runtime import Runtime, open_runtime
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import load_session
from midstream.stores.store import Operation, Receipt, Store

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""

SPEAKING: list[Step] = [
    StreamStarted(),
    BlockStarted(0, "text"),
    TextDelta(0, "I am thinking"),
    Hang(),
]
"""A stream that has begun and goes on for ever."""

RATE_LIMITED: list[Step] = [
    ProviderFailure(FailureKind.RATE_LIMITED, "429 Too Many Requests", status=429)
]


def limited(kind: FailureKind = FailureKind.RATE_LIMITED, after_s: float | None = None) -> Script:
    """A stream that fails because the provider has had enough."""
    return [ProviderFailure(kind, f"the provider says {kind}", retry_after_s=after_s)]


def configuration(**backoff: float) -> Config:
    """A configuration for tests, with these settings of the back-off."""
    settings = BackoffSettings(**backoff)  # pyright: ignore[reportArgumentType]  # mixed numbers
    return Config(
        rules=RulesConfig(discover=False, builtin_rules=False),
        rate_limit=RateLimitConfig(backoff=settings),
    )


def wall_clock() -> TrioClock:
    """The wall time of all hosts of a test."""
    return TrioClock(START_MS)


FATES = ("kept and said", "kept", "refused")


class Mumbling(MemoryStore):
    """A store that does not say what it keeps, or not at once, or does not even keep it. `fates`
    says what becomes of the next commits that it `concerns`, one by one, where a number is the
    seconds that they take; all others are kept and said."""

    def __init__(
        self, concerns: Callable[[Sequence[Operation]], bool], fates: Sequence[str | float] = ()
    ) -> None:
        super().__init__()
        self.fates = list(fates)
        self._concerns = concerns

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        fate = self.fates.pop(0) if self.fates and self._concerns(operations) else FATES[0]
        if isinstance(fate, float):
            await trio.sleep(fate)
        if fate == "refused":
            raise StoreError("try again later")
        receipt = await super().commit(operations, key=key, durable=durable)
        if fate == "kept":
            raise StoreError("the answer was lost")
        return receipt


@asynccontextmanager
async def host(
    store: Store,
    *scripts: Script,
    clock: Clock,
    config: Config | None = None,
    provider: ScriptedProvider | None = None,
    rules: Sequence[Rule] = (),
    seed: int = 0,
) -> AsyncGenerator[Runtime]:
    """One host of the store. Hosts that run at the same time need different seeds."""
    async with open_runtime(
        config or configuration(),
        provider=provider or ScriptedProvider(*scripts),
        rules=rules,
        store=store,
        clock=clock,
        random=Random(seed),
    ) as runtime:
        yield runtime


@asynccontextmanager
async def doomed_host(
    store: MemoryStore, *scripts: Script, clock: Clock, seed: int = 0
) -> AsyncGenerator[Runtime]:
    """A host that is killed at the end of its block."""
    view = store.reopen()
    async with host(view, *scripts, clock=clock, seed=seed) as runtime:
        yield runtime
        view.failure = StoreError("the host was killed")


async def record_of(store: Store, session_id: str) -> SessionRecord:
    """The session's record, as it is kept."""
    kept = await load_session(store, session_id)
    assert kept is not None, f"{session_id} is not on record"
    return kept.record


async def notices_so_far(runtime: Runtime) -> list[AnyNotice]:
    """Everything that has become known in this runtime."""
    heard: list[AnyNotice] = []
    stream = await runtime.notices()
    with trio.move_on_after(0.001):
        async for notice in stream:
            heard.append(notice.notice)
    stream.close()
    return heard


async def until_it_speaks(runtime: Runtime, session_id: str) -> None:
    """Wait until a session's first words were shown."""
    chunks = await runtime.follow(session_id)
    assert chunks is not None
    await anext(aiter(chunks))
