"""Who listens hears each event once and in order, or is told of a gap (invariant 11).

Against crashes of whoever numbers and keeps events, against readers who come, go and come
back, and against a ring that lets go of what they have not read (spec/lessons.md E 56).
"""

from collections import Counter
from functools import partial

import pytest
import trio
from scenes import CLEAN, NO_FOO, any_answer, stop_sometime

from midstream.actors.event_channel import GapError
from midstream.actors.subscription import Lagged
from midstream.messages.errors import StoreError
from midstream.messages.events import SessionEnded, SessionEvent, Text
from midstream.messages.record import SessionStatus
from midstream.messages.repair import repaired
from midstream.messages.stream import TextDelta
from midstream.providers.scripted import Step, answer
from midstream.testing.invariants import InvariantBroken, check_sequence
from midstream.testing.race import Race
from midstream.testing.screen import visible_text
from midstream.testing.world import ObservedSession

PARAGRAPHS = 60
PARAGRAPH = 6_000
"""Characters. The ring holds some forty of them."""


def check_heard(race: Race, session: ObservedSession) -> None:
    """The outcome, and every word of it unless there was a gap. A session that ended before it
    was on record is known to the Announcer alone."""
    ended = session.handle.ended
    assert ended is not None
    if session.handle.session_id not in race.records:
        return
    if not session.events or session.events[-1].event != ended:
        raise InvariantBroken(4, "the outcome was not heard")
    said = visible_text(session.events)
    whole = ended.status is SessionStatus.COMPLETED and not session.gaps
    # Deltas of two blocks may come in turns, and what makes no block is not in the output.
    if whole and said != ended.output and Counter(ended.output) - Counter(said):
        raise InvariantBroken(11, f"heard {said!r}, but {ended.output!r} was said")


@pytest.mark.races(seeds=500, crashing=("announcer",), most_crashes=2)
async def test_listeners_while_the_announcer_crashes(race: Race) -> None:
    scripts = [any_answer(race) for _ in range(6)] + [CLEAN] * 8
    async with race.world(*scripts, rules=[NO_FOO]) as world:
        session = world.animate("hello")
        if race.pick(2):
            await stop_sometime(race, session, 0.3)
        await race.end(world)
        check_heard(race, session)


def long_story(race: Race) -> list[Step]:
    begun, finished = answer("x")[:2], answer("")[-2:]
    paragraphs = [TextDelta(0, f"{number}".ljust(PARAGRAPH, ".")) for number in range(PARAGRAPHS)]
    return race.script([*begun, *paragraphs, *finished])


async def read_now_and_then(race: Race, session: ObservedSession) -> list[SessionEvent]:
    """All events, by a reader who is slow, goes away, and comes back for what he has missed."""
    heard: list[SessionEvent] = []
    while not heard or not isinstance(heard[-1].event, SessionEnded):
        after = heard[-1].sequence if heard else 0
        stays_for = 1 + race.pick(PARAGRAPHS)
        try:
            async with session.handle.events(after) as events:
                async for event in events:
                    heard.append(event)
                    if race.pick(8) == 7:
                        await trio.sleep(race.seconds(0.5))
                    stays_for -= 1
                    if not stays_for:
                        break
        except Lagged as lagged:
            if lagged.after != (heard[-1].sequence if heard else 0):
                raise InvariantBroken(11, "lagged behind a place that was not reached") from None
        except (StoreError, GapError) as error:
            race.note("reader", f"has to come back: {error}")  # the log is behind, or away
        await trio.sleep(race.seconds(1.0))
    return heard


def readable(events: list[SessionEvent]) -> str:
    """The text, as the log can hold it: without halves of characters."""
    return repaired(Text(0, visible_text(events))).text


@pytest.mark.races(
    seeds=500,
    crashing=("event_recorder", "ledger"),
    most_crashes=2,
    store=True,
    small_mailboxes=False,  # a recorder whose mailbox is full leaves a hole, rightly
)
async def test_readers_who_come_and_go_against_the_ring_and_the_log(race: Race) -> None:
    async with race.world(long_story(race), CLEAN, rules=[]) as world:
        session = world.animate("tell me a story")
        heard: list[list[SessionEvent]] = []

        async def read() -> None:
            await trio.sleep(race.seconds(3.0))
            heard.append(await read_now_and_then(race, session))

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(read)
            nursery.start_soon(partial(race.end, world))
        for events in heard:
            check_sequence(events)
            if readable(events) != readable(session.events):
                raise InvariantBroken(11, "a reader has missed something, or heard it twice")
