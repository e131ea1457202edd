"""Who listens hears each event once and in order, or is told of a gap (invariant 11).

Against crashes of whoever numbers and keeps events, against readers who come, go and come
back, and against a ring that lets go of what they have not read (spec/lessons.md E 56).
"""

from collections import Counter
from functools import partial

import pytest
import trio
from scenes import CLEAN, NO_FOO, a_host, any_answer, stop_sometime, taken_over

from midstream.actors.announcer import UnknownSession
from midstream.actors.event_channel import GapError
from midstream.actors.replay import Replay
from midstream.actors.subscription import Lagged
from midstream.handle import SessionHandle
from midstream.messages.errors import StoreError
from midstream.messages.events import SessionEnded, SessionEvent, Text
from midstream.messages.record import SessionStatus
from midstream.messages.repair import repaired
from midstream.messages.stream import TextDelta
from midstream.providers.scripted import Pause, ScriptedProvider, Step, answer
from midstream.runtime import Runtime
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
            if not race.faults.store:
                raise InvariantBroken(11, f"{error}, and nothing is lost") from error
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
    await read_a_long_story(race)


@pytest.mark.races(seeds=500, small_mailboxes=False)
async def test_readers_who_come_and_go_while_the_log_is_on_its_way(race: Race) -> None:
    """Nothing is lost and nobody crashes: what the ring has let go of is waited for."""
    await read_a_long_story(race)


async def read_a_long_story(race: Race) -> None:
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


class Follower:
    """Somebody who follows a session on whichever host is there, and comes back to another."""

    def __init__(self, race: Race) -> None:
        self.heard: list[SessionEvent] = []
        self._race = race

    @property
    def knows_the_end(self) -> bool:
        return bool(self.heard) and isinstance(self.heard[-1].event, SessionEnded)

    @property
    def said(self) -> tuple[str, int, SessionStatus | None]:
        """The text, the number of the last event, and how the session ended."""
        last = self.heard[-1]
        status = last.event.status if isinstance(last.event, SessionEnded) else None
        return readable(self.heard), last.sequence, status

    async def follow(self, runtime: Runtime, session_id: str) -> None:
        """To the end, with breaks."""
        while not self.knows_the_end:
            place = (self.heard[-1].sequence, self.heard[-1].epoch) if self.heard else (0, None)
            replay = runtime.replay(session_id, *place)
            try:
                await self._listen(replay)
            except (GapError, UnknownSession) as error:
                self._race.note("follower", f"has to come back: {error}")
            finally:
                replay.close()
            await trio.sleep(self._race.seconds(1.0))

    async def _listen(self, replay: Replay) -> None:
        start = await replay.begin()
        if start.reset:
            self._race.note("follower", f"forgets what is behind {start.position}")
            self.heard = [each for each in self.heard if each.sequence <= start.position.sequence]
        for _ in range(1 + self._race.pick(20)):
            events = await replay.take()
            self.heard += events
            check_sequence(self.heard)
            if self.knows_the_end:
                return
            if self._race.pick(4) == 3:
                await trio.sleep(self._race.seconds(0.5))


def slow_story(race: Race) -> list[Step]:
    """Some words with pauses between them, that may break a rule; the log is on its way."""
    words = [race.one_of(("so ", "it ", "goes ", "foo ")) for _ in range(6)]
    steps = [step for word in words for step in (Pause(race.seconds(0.4)), TextDelta(0, word))]
    return [*answer("x")[:2], *steps, *answer("")[-2:]]


@pytest.mark.races(seeds=500, small_mailboxes=False)  # as above
async def test_followers_of_a_session_whose_hosts_die(race: Race) -> None:
    """What a host had said and not kept goes down with it: whoever has heard it is told to forget
    it, and misses nothing of what is on record. Who had heard all of it does not come back."""
    store, clock, near, far = race.store(), race.clock(), Follower(race), Follower(race)
    session_id, lives, had_heard = "", 1 + race.pick(5), False
    handle: SessionHandle | None = None
    async with (
        a_host(race, store.reopen(), ScriptedProvider(), clock, 15) as onlooker,
        trio.open_nursery() as nursery,
    ):
        for number in range(lives):
            view, provider = store.reopen(), ScriptedProvider(*[slow_story(race)] * 12)
            async with a_host(race, view, provider, clock, number, rules=[NO_FOO]) as runtime:
                if number:
                    handle = await taken_over(race, runtime, session_id)
                else:
                    handle = runtime.animate("tell me a story")
                    session_id = handle.session_id
                    nursery.start_soon(far.follow, onlooker, session_id)
                if handle is None:
                    break
                async with trio.open_nursery() as clients:
                    clients.start_soon(near.follow, runtime, session_id)
                    if number < lives - 1:
                        await trio.sleep(race.seconds(2.0))
                        view.failure = StoreError("injected: the host was killed")
                        clients.cancel_scope.cancel()
                        had_heard = near.knows_the_end
        if session_id not in race.records:
            nursery.cancel_scope.cancel()
            return
        await near.follow(onlooker, session_id)
    late, told = Follower(race), handle.ended if handle is not None else None
    async with a_host(race, store.reopen(), ScriptedProvider(), clock, 14) as runtime:
        await late.follow(runtime, session_id)
    for follower in (far,) if had_heard else (near, far):
        if follower.said != late.said:
            raise InvariantBroken(11, f"{follower.said} was heard, and {late.said} is on record")
    if told is not None and told.status is SessionStatus.COMPLETED and late.said[0] != told.output:
        raise InvariantBroken(2, f"{late.said} is on record, and {told.output!r} was told")
