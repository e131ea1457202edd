"""The shared pause, signs of life, and two hosts on one store, under any order of things.

Invariants 8, 10 and 12; spec/lessons.md E 45 to 54.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import pytest
import trio
from hosts import SPEAKING, configuration, limited
from scenes import NO_FOO, a_host, always, any_answer, taken_over

from midstream.actors.ledger_messages import NotRecoverable
from midstream.handle import SessionHandle
from midstream.messages.errors import MidstreamError, StoreError
from midstream.messages.failure import FailureKind
from midstream.messages.record import SessionStatus
from midstream.messages.settle import settle_history
from midstream.providers.scripted import Call, Hang, Pause, ScriptedProvider, Step, answer
from midstream.runtime import Runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.conversations import ConversationBusy
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race
from midstream.testing.transcript_rules import violations
from midstream.tools import Tool

SHORT = {"initial_ms": 2_000, "max_ms": 8_000, "probe_limit": 1}
"""Windows of 2, 4 and 8 seconds."""


def with_quota(race: Race) -> list[Step]:
    """An answer, or a provider that has had enough, sooner or later."""
    kind = race.one_of((FailureKind.RATE_LIMITED, FailureKind.OVERLOADED))
    asked_s = race.one_of((None, None, 1.0, 5.0, 20.0))
    ends = (answer("hello"), [*limited(kind, asked_s)])
    late: list[Step] = [Pause(race.seconds(race.one_of((4.0, 12.0)))), *race.one_of(ends)]
    return race.script(race.one_of((*ends, late)), 1.0)


def no_trace_of(race: Race, refused: list[SessionHandle]) -> None:
    for handle in refused:
        if handle.session_id in race.records:
            raise InvariantBroken(8, f"{handle.session_id} was refused, and is on record")


def no_news_is_lost(race: Race, begun: list[SessionHandle]) -> None:
    for handle in begun:
        is_spent = handle.ended is not None and handle.ended.status is SessionStatus.RATE_LIMITED
        if is_spent and handle.session_id in race.records.keys() - race.pause.blamed:
            raise InvariantBroken(8, f"{handle.session_id}: {handle.ended}, and nobody pauses")


async def dispatch_now_and_then(
    race: Race, runtime: Runtime, begun: list[SessionHandle], refused: list[SessionHandle]
) -> None:
    """Begin sessions, and cancel some of them."""
    for _ in range(4):
        was_open = runtime.is_dispatchable()
        handle = runtime.animate("hi")
        if handle.ended is not None:
            refused.append(handle)
        else:
            assert was_open, "a session was let in while the window is open"
            begun.append(handle)
        await trio.sleep(race.seconds(3.0))
        if race.pick(4) == 3:
            await handle.cancel()


@pytest.mark.races(seeds=500, wall_clock=True)
async def test_the_pause_against_dispatches_stragglers_and_restarts(race: Race) -> None:
    """Hosts that follow each other, or share the store for a while."""
    store, clock, config = race.store(), race.clock(), configuration(**SHORT)
    race.pause.probe_limit = config.rate_limit.backoff.probe_limit
    begun: list[SessionHandle] = []
    refused: list[SessionHandle] = []

    async def live(numbers: Sequence[int]) -> None:
        for number in numbers:
            provider = ScriptedProvider(*[with_quota(race) for _ in range(14)])
            async with a_host(race, store.reopen(), provider, clock, number, config) as runtime:
                mine = len(begun)
                await dispatch_now_and_then(race, runtime, begun, refused)
                if race.pick(2):
                    with trio.move_on_after(5.0):
                        for handle in begun[mine:]:
                            await handle.result()
            no_trace_of(race, refused)
            no_news_is_lost(race, begun)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(race.trouble, clock)
        async with trio.open_nursery() as hosts:
            for numbers in race.one_of((((0, 1, 2),), ((0, 1), (2,)))):
                hosts.start_soon(live, numbers)
        nursery.cancel_scope.cancel()


@contextmanager
def seldom_looks() -> Generator[None]:
    """Hosts look for what others have done every 15 seconds, not every second: in minutes of
    waiting most of a seed is these looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("midstream.actors.heartbeat.LOOK_EVERY_S", 15.0)
        yield


@pytest.mark.races(seeds=500, store=True)
async def test_a_host_that_beats_is_not_taken_for_dead_by_one_that_boots(race: Race) -> None:
    with seldom_looks():
        await beat_while_others_boot(race)


async def beat_while_others_boot(race: Race) -> None:
    store, clock = race.store(), race.clock()
    speaking = ScriptedProvider([Pause(260.0), *answer("done at last")])
    async with trio.open_nursery() as nursery:
        async with a_host(race, store.reopen(), speaking, clock, 1) as owner:
            handle = owner.animate("think hard")

            async def boot(number: int) -> None:
                await trio.sleep(race.seconds(60.0))
                async with a_host(race, store.reopen(), ScriptedProvider(), clock, number):
                    await trio.sleep(60.0 + race.seconds(120.0))

            nursery.start_soon(boot, 2)
            nursery.start_soon(boot, 3)
            ended = await handle.result()
            # Without its prompt on record there is nothing to go on with.
            if not (ended.reason or "").startswith(("injected", "not recorded")):
                assert ended.status is SessionStatus.COMPLETED, ended
        nursery.cancel_scope.cancel()


@pytest.mark.races(seeds=500)
async def test_two_hosts_against_cancel_stall_and_recovery(race: Race) -> None:
    with seldom_looks():
        await stall_and_recover(race)


async def stall_and_recover(race: Race) -> None:
    store, clock = race.store(), race.clock()
    scripts: list[list[Step]] = [
        SPEAKING,
        SPEAKING,
        [Pause(race.seconds(20.0)), *answer("I was slow")],
    ]
    old, stalled = ScriptedProvider(race.one_of(scripts)), store.reopen()
    heirs = [ScriptedProvider(*[answer("here I am")] * 4) for _ in range(2)]
    async with (
        a_host(race, stalled, old, clock, 1) as owner,
        a_host(race, store.reopen(), heirs[0], clock, 2) as second,
        a_host(race, store.reopen(), heirs[1], clock, 3) as third,
    ):
        handle = owner.animate("hi")
        session_id = handle.session_id
        await trio.sleep(0.5)

        async def stall() -> None:
            await trio.sleep(race.seconds(40.0))
            race.note("host 1", "!! its store is away")
            stalled.failure = StoreError("injected: the network is gone")
            await trio.sleep(60.0 + race.seconds(80.0))
            race.note("host 1", "its store is back")
            stalled.failure = None

        async def take_over(runtime: Runtime) -> None:
            await trio.sleep(60.0 + race.seconds(80.0))
            for _ in range(4):
                try:
                    again = await runtime.recover(session_id)
                except (NotRecoverable, ConversationBusy, MidstreamError) as error:
                    race.note("recovery", f"refused: {error}")
                    await trio.sleep(race.seconds(20.0))
                else:
                    race.note("recovery", "goes on")
                    await again.result()
                    return

        async def cancel(runtime: Runtime) -> None:
            await trio.sleep(race.seconds(160.0))
            try:
                await runtime.cancel(session_id, "from elsewhere")
            except MidstreamError as error:
                race.note("cancel", f"refused: {error}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stall)
            nursery.start_soon(take_over, second)
            nursery.start_soon(take_over, third)
            if race.pick(2):
                nursery.start_soon(cancel, race.one_of((owner, second, third)))
        await trio.sleep(60.0)
        if handle.ended is None:
            await handle.cancel("enough")
            await handle.result()
        live = old.live + sum(provider.live for provider in heirs)
        if live:
            raise InvariantBroken(1, f"{live} streams are open when everybody is done")
        record = race.records.get(session_id)
        if record is None:
            # It was stopped, or its store was away, before its prompt was on record.
            ended = handle.ended
            assert ended is not None
            is_stopped = ended.status is SessionStatus.CANCELLED
            assert is_stopped or (ended.reason or "").startswith(("injected", "not recorded"))
            assert not old.requests
            return
        if not record.is_terminal:
            raise InvariantBroken(4, f"{session_id} is {record.status} when everybody is done")
        asked = sum(len(provider.requests) for provider in heirs)
        if record.fence is not None and asked > record.fence.token - 1:
            raise InvariantBroken(10, f"asked {asked} times, but taken over {record.fence}")
        conversation = await load_conversation(store, handle.conversation_id)
        if problems := violations(conversation.items, "anthropic"):
            raise InvariantBroken(6, "; ".join(problems))


GONE = StoreError("injected: the host was killed")


@pytest.mark.races(seeds=500)
async def test_a_session_that_is_taken_over_again_and_again(race: Race) -> None:
    """Each host dies with the session in hand, at any moment; the next one goes on with it."""
    store, clock, config = race.store(), race.clock(), always(race)
    race.watch_attempts(config)
    session_id = conversation_id = ""

    async def look() -> str:
        """Look around."""
        await trio.sleep(race.seconds(0.1))
        return "nothing"

    calling = answer("I look", Call("look", "{}"))
    is_silent = race.pick(4) == 3
    for number in range(8 if is_silent else 2 + race.pick(6)):
        view = store.reopen()
        answers = [race.one_of((any_answer(race), calling)) for _ in range(18)]
        scripts = [[Hang()]] * 18 if is_silent else answers
        provider, tools = ScriptedProvider(*scripts), [Tool(look)]
        async with a_host(race, view, provider, clock, number, config, [NO_FOO]) as runtime:
            if not number:
                handle = runtime.animate("hi", tools=tools)
                session_id, conversation_id = handle.session_id, handle.conversation_id
            else:
                record = race.records.get(session_id)
                if race.pick(4) == 3 and record is not None and not record.is_terminal:
                    other = runtime.animate("me first", conversation_id=conversation_id)
                    assert (await other.result()).status is SessionStatus.FAILED, "it is answered"
                handle = await taken_over(race, runtime, session_id, tools)
                if handle is None:
                    break
            await trio.sleep(race.seconds(0.2))
            view.failure = GONE
        if race.pick(4) == 3:
            await trio.sleep(race.seconds(400.0))  # nobody is up
    if session_id in race.records:
        conversation = await load_conversation(store, conversation_id)
        healed = settle_history(conversation.items, "anthropic")
        if problems := violations(healed, "anthropic"):
            raise InvariantBroken(6, "; ".join(problems))


BOOKS = ("ledger", "ledger", "backoff_machine", "heartbeat", "event_recorder", "file_ref_resolver")
"""Those of a runtime that sessions ask, or that write for them."""


@pytest.mark.races(seeds=500, crashing=BOOKS, most_crashes=2, wall_clock=True)
async def test_sessions_whose_books_crash(race: Race) -> None:
    """No session fails because of that, and no news of a spent quota is lost."""
    await sessions_and_their_books(race)


@pytest.mark.races(seeds=500, store_has_bugs=True)
async def test_sessions_whose_store_has_bugs(race: Race) -> None:
    """Likewise. A bug costs the question that meets it, which is asked again; the machine and the
    Heartbeat read by themselves, and crash."""
    await sessions_and_their_books(race)


async def sessions_and_their_books(race: Race) -> None:
    scripts = [race.one_of((any_answer(race), with_quota(race))) for _ in range(12)]
    config = configuration(**SHORT)
    async with race.world(*scripts, rules=[NO_FOO], config=config) as world:
        for _ in range(3):
            session = world.animate("hi")
            await trio.sleep(race.seconds(1.0))
            if race.pick(4) == 3:
                await session.cancel()
    begun = [session.handle for session in world.sessions]
    for handle in begun:
        ended = handle.ended
        reason = (ended.reason or "") if ended is not None else ""
        if any(f"runtime/{book}" in reason for book in BOOKS):
            raise InvariantBroken(4, f"{handle.session_id}: {ended}")
    no_news_is_lost(race, begun)
