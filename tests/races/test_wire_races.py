"""Clients of the websocket whose connections break at any moment (invariants 3, 4 and 11).

Everything is real but the socket: client, door and runtime. What a client hears is held against
what a listener inside has heard.
"""

import itertools

import pytest
import trio
from scenes import NO_FOO, always, any_answer

from midstream.actors.announcer import UnknownSession
from midstream.actors.ended_sessions import KEPT_AFTER_END_S
from midstream.actors.event_channel import GapError
from midstream.actors.replay import GRACE_S
from midstream.client import RemoteSession
from midstream.messages.events import SessionEnded, SessionEvent, Text
from midstream.messages.record import SessionStatus
from midstream.messages.repair import repaired
from midstream.testing.host import host_runtime
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race
from midstream.testing.wire import Wire, open_wire
from midstream.testing.world import ObservedSession, World

CUTS_IN_A_ROW = 50

REST_S = 2 * GRACE_S
"""A client that is never let alone for so long may never hear that nothing more will come."""


async def break_connections(race: Race, wire: Wire) -> None:
    """Cut them now and then, sometimes so that nobody comes back for a while."""
    for cut in itertools.count(1):
        await trio.sleep(REST_S if cut % CUTS_IN_A_ROW == 0 else race.seconds(0.4) + 0.001)
        race.note("wire", "!! is cut")
        wire.cut()
        if race.pick(4) == 3:
            wire.is_up = False
            await trio.sleep(race.seconds(1.0))
            wire.is_up = True


async def stop(race: Race, remote: RemoteSession, session: ObservedSession) -> None:
    """Over the wire, at a moment that the run decides."""
    await trio.sleep(race.seconds(0.6))
    session.was_stopped = True
    await race.one_of((remote.interrupt, remote.cancel))()
    if session.requests_at_stop is None:
        session.requests_at_stop = len(session.requests)


async def hear(remote: RemoteSession, heard: list[SessionEvent]) -> None:
    """All events that are on record somewhere, to the end."""
    after = 0
    while not heard or not isinstance(heard[-1].event, SessionEnded):
        try:
            async for event in remote.events(after):
                heard.append(event)
        except GapError as gap:
            after = gap.after or 0
            await trio.sleep(0.1)


def compare(session: ObservedSession, heard: list[SessionEvent]) -> None:
    """A client may come late and get deltas as one; nothing else may differ."""
    numbers = [event.sequence for event in heard]
    if numbers != sorted(set(numbers)):
        raise InvariantBroken(11, f"a client has heard events twice: {numbers}")
    told = {event.sequence for event in session.events}
    if not told.issuperset(numbers) or words_in(heard) != words_in(session.events):
        raise InvariantBroken(11, f"a client has heard {words_in(heard)!r}, of {told}")


def words_in(events: list[SessionEvent]) -> str:
    """All that was said and shown, as a wire can carry it: without halves of characters."""
    words = "".join(str(getattr(event.event, "text", "")) for event in events)
    return repaired(Text(0, words)).text


@pytest.mark.races(seeds=500)
async def test_a_client_whose_connection_breaks_again_and_again(race: Race) -> None:
    scripts = [any_answer(race) for _ in range(12)]
    async with race.world(*scripts, rules=[NO_FOO], config=always(race)) as world:
        heard = await over_the_wire(race, world)
        [session] = world.sessions
        await session.result()
        await trio.sleep(1.0)
        if heard is not None:
            compare(session, heard)


@pytest.mark.races(seeds=500, crashing=("announcer", "event_recorder"), most_crashes=2)
async def test_a_client_whose_connection_breaks_while_events_are_lost(race: Race) -> None:
    scripts = [any_answer(race) for _ in range(12)]
    async with race.world(*scripts, rules=[NO_FOO], config=always(race)) as world:
        heard = await over_the_wire(race, world)
        [session] = world.sessions
        if heard and on_record(heard[-1].event) != on_record(await session.result()):
            raise InvariantBroken(4, f"a client was told {heard[-1]}")


def on_record(ended: object) -> tuple[SessionStatus, str, str | None]:
    """What of an end can be told when the event is lost: its record has no more."""
    assert isinstance(ended, SessionEnded)
    return ended.status, ended.output, ended.reason


async def over_the_wire(race: Race, world: World) -> list[SessionEvent] | None:
    """What a client hears of a session that it begins, and stops sooner or later; None if it came
    when nobody knew the session any more."""
    heard: list[SessionEvent] = []
    is_known = True
    try:
        async with (
            open_wire(host_runtime(world)) as wire,
            wire.connect(seed=race.choices.seed) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(break_connections, race, wire)
            remote = await client.animate("hello")
            [session] = world.sessions
            nursery.start_soon(stop, race, remote, session)
            await hear(remote, heard)
            nursery.cancel_scope.cancel()
    except* UnknownSession:
        # What ended before it was on record is known to the Announcer alone, and for a while.
        is_kept = trio.current_time() < KEPT_AFTER_END_S and not race.faults.crashing
        if is_kept or world.sessions[0].handle.session_id in race.records:
            raise
        is_known = False
    return heard if is_known else None
