"""Streams, rules, hosts and clients that several scenarios share."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import trio
from hosts import host

from midstream.actors.ledger_messages import NotRecoverable
from midstream.config import BudgetConfig, Config, RulesConfig
from midstream.handle import SessionHandle
from midstream.messages.errors import RecordError
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import OrphanFailed
from midstream.providers.scripted import Hang, ScriptedProvider, Step, answer
from midstream.rules.rule import RepeatMode, Rule, ScopeToken, Source
from midstream.runtime import Runtime
from midstream.testing.faults import FaultyStore, JumpingClock
from midstream.testing.race import Race
from midstream.testing.store_watch import BURIED
from midstream.testing.world import ObservedSession
from midstream.tools import Tool

NO_FOO = Rule(
    name="no-foo",
    conditions=("foo",),
    scope=(ScopeToken(Source.TEXT),),
    body="Do not say foo.",
)
NO_BAR = Rule(
    name="no-bar",
    conditions=("bar",),
    scope=(ScopeToken(Source.TEXT),),
    body="Do not say bar.",
)
CLEAN = answer("a clean answer")


def frugal(race: Race, mode: RepeatMode = RepeatMode.ONCE) -> Config:
    """A budget of what is started by itself that may be spent soon."""
    return Config(
        rules=RulesConfig(discover=False, repeat_mode=mode),
        budget=BudgetConfig(max_restarts=race.one_of((16, 16, 1, 2, 3))),
    )


def always(race: Race) -> Config:
    """Rules fire again and again, within the budget of their retries."""
    return frugal(race, RepeatMode.ALWAYS)


def saying(text: str, *after: Step) -> list[Step]:
    """A stream that says `text` word by word and does not end by itself."""
    words = [TextDelta(0, word) for word in text.split(" ")]
    return [StreamStarted(), BlockStarted(0, "text"), *words, *(after or (Hang(),))]


def any_answer(race: Race) -> list[Step]:
    """An answer that may break a rule, may call nothing, may be as broken as streams are."""
    steps = race.one_of(
        (
            CLEAN,
            saying("well foo and"),
            saying("bar then foo"),
            answer("it is foo indeed"),
            answer("bar", thinking="let me see"),
            saying("fine so far"),
        )
    )
    return race.script(steps)


def soon(race: Race, within_s: float) -> float:
    """Some seconds: most things happen at once, or between the first and the next attempt."""
    return race.seconds(race.one_of((within_s, 0.08, 0.02)))


async def stop_sometime(race: Race, session: ObservedSession, within_s: float) -> None:
    """Interrupt or cancel the session, once or twice, at a moment that the run decides."""
    for _ in range(1 + race.pick(2)):
        await trio.sleep(soon(race, within_s))
        if session.handle.ended is None:
            verb = race.one_of((session.interrupt, session.cancel))
            race.note("user", f"{verb.__name__}s")
            await verb()


@asynccontextmanager
async def a_host(
    race: Race,
    view: FaultyStore,
    provider: ScriptedProvider,
    clock: JumpingClock,
    number: int,
    config: Config | None = None,
    rules: Sequence[Rule] = (),
) -> AsyncGenerator[Runtime]:
    """A host, whose handle on the store is faulty until the block ends."""
    race.entrust(view)
    seed = race.choices.seed * 16 + number
    async with host(
        view, provider=provider, clock=clock, seed=seed, config=config, rules=rules
    ) as runtime:
        with race.never_asked_while_paused(runtime, provider):
            yield runtime
        view.choices = None


async def taken_over(
    race: Race, runtime: Runtime, session_id: str, tools: Sequence[Tool] = ()
) -> SessionHandle | None:
    """The session, whose host is dead, goes on here; None if it is over, or was never on record."""
    now = format_timestamp(race.clock().now_ms())
    try:
        await runtime.put_on_record(OrphanFailed(id=session_id, ended_at=now, error=BURIED))
        return await runtime.recover(session_id, tools=tools)
    except (NotRecoverable, RecordError) as error:
        race.note("recovery", f"refused: {error}")
        return None
