"""Abort and retry against interrupt, cancel, a second verdict, a late settle, broken streams.

The seeds decide the order of tasks, the pace of streams and stops, and what goes wrong.
(spec/lessons.md E 20 to 28, 31.)
"""

from contextlib import suppress

import pytest
import trio
from scenes import CLEAN, NO_BAR, NO_FOO, always, any_answer, saying, soon, stop_sometime

from midstream.config import Config, RulesConfig
from midstream.messages.errors import RecordError
from midstream.messages.events import AttemptStarted
from midstream.messages.record import SessionStatus
from midstream.messages.stream import TextDelta
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import Cancel
from midstream.providers.scripted import Hang, Pause, SlowClose
from midstream.rules.rule import InterruptMode, RepeatMode
from midstream.stores.conversations import ConversationBusy
from midstream.stores.sessions import apply_transition
from midstream.testing.explore import replay_schedule
from midstream.testing.faults import Faults, FaultyStore
from midstream.testing.race import Race
from midstream.testing.world import ObservedSession

RETRY_DELAY_S = 0.05
ALWAYS = Config(rules=RulesConfig(discover=False, repeat_mode=RepeatMode.ALWAYS))

HELPERS = ("rule_matcher", "stream_monitor", "retry_scheduler")


@pytest.mark.races(seeds=500)
async def test_a_stop_against_abort_and_retry(race: Race) -> None:
    scripts = [any_answer(race) for _ in range(10)]
    async with race.world(*scripts, rules=[NO_FOO, NO_BAR], config=always(race)) as world:
        session = world.animate("hello")
        await stop_sometime(race, session, 0.4)


@pytest.mark.races(
    seeds=500, crashing=(*HELPERS, "session", "session"), most_crashes=4, laggards=HELPERS
)
async def test_a_stop_against_abort_and_retry_while_actors_crash(race: Race) -> None:
    scripts = [any_answer(race) for _ in range(16)]
    async with race.world(*scripts, rules=[NO_FOO, NO_BAR], config=always(race)) as world:
        session = world.animate("hello")
        await stop_sometime(race, session, 0.4)


@pytest.mark.races(seeds=500, crashing=(*HELPERS, "session"), store=True)
async def test_abort_and_retry_while_everything_goes_wrong(race: Race) -> None:
    scripts = [any_answer(race) for _ in range(16)]
    async with race.world(*scripts, rules=[NO_FOO, NO_BAR], config=always(race)) as world:
        world.animate("hello")


@pytest.mark.races(
    seeds=500, crashing=("retry_scheduler",), most_crashes=4, laggards=("retry_scheduler",) * 6
)
async def test_a_second_verdict_before_the_first_abort_has_landed(race: Race) -> None:
    """Of a model that insists, and while who counts the time to the next attempt crashes."""
    slow = SlowClose(race.seconds(race.one_of((0.0, 0.04, 0.3))))
    late = saying("foo and bar and foo again bar", slow)
    scripts = [race.script(late), *[saying("foo", slow)] * race.pick(6), CLEAN, CLEAN]
    async with race.world(*scripts, rules=[NO_FOO, NO_BAR], config=ALWAYS) as world:
        world.animate("hello")


@pytest.mark.races(seeds=500)
async def test_the_retry_waits_for_a_late_settle_and_for_the_delay(race: Race) -> None:
    scripts = [saying("foo", SlowClose(race.seconds(0.3)), Hang()), CLEAN]
    async with race.world(*scripts, rules=[NO_FOO]) as world:
        session = world.animate("hello")
        asked_at: list[float] = []

        def note_requests() -> None:
            if len(session.requests) > len(asked_at):
                asked_at.append(trio.current_time())

        race.always(note_requests)
        ended = await session.result()
        assert ended.status is SessionStatus.COMPLETED
        assert ended.output == "a clean answer"
        assert ended.attempts == len(asked_at) == 2
        assert asked_at[1] - asked_at[0] >= RETRY_DELAY_S - 1e-9, (
            "the rule was broken behind the first"
        )


async def stop_in_a_later_attempt(race: Race, session: ObservedSession) -> None:
    """As soon as it is announced, or a little later."""
    async for said in session.handle.events():
        if isinstance(said.event, AttemptStarted) and said.event.attempt > 1:
            await trio.sleep(race.seconds(0.06))
            race.note("user", "cancels")
            await session.cancel()


@pytest.mark.races(
    seeds=500,
    crashing=("rule_matcher",),
    most_crashes=3,
    laggards=("session", "rule_matcher") * 3,
)
async def test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt(race: Race) -> None:
    """A stream has ended, and its end waits in a mailbox when the attempt is lost by a crash. It
    must not stand for the end of the next stream, which closes slowly and is stopped."""
    rules = RulesConfig(
        discover=False, repeat_mode=RepeatMode.ALWAYS, retry_delay_ms=race.one_of((0, 10))
    )
    words = [step for word in ["so", "it", "goes"] for step in (Pause(0.01), TextDelta(0, word))]
    brief, slow = [*CLEAN[:2], *words, *CLEAN[-3:]], saying("fine", SlowClose(0.3), Hang())
    scripts = [brief, race.one_of((brief, slow)), *[slow] * 6]
    async with race.world(*scripts, rules=[NO_FOO], config=Config(rules=rules)) as world:
        await stop_in_a_later_attempt(race, world.animate("hello"))


@pytest.mark.races(
    seeds=500, crashing=("retry_scheduler",), most_crashes=3, laggards=("session",) * 6
)
async def test_a_restart_that_is_heard_of_when_the_next_stream_is_open(race: Race) -> None:
    """A slow session asks for the next stream before it hears that the reader was restarted: the
    new reader has opened that stream, and the end of the old one says nothing of it."""
    slow = saying("foo", SlowClose(0.3), Hang())
    async with race.world(*[slow] * 3, *[CLEAN] * 6, rules=[NO_FOO], config=ALWAYS) as world:
        world.animate("hello")


async def cancel_from_elsewhere(race: Race, store: FaultyStore, session: ObservedSession) -> None:
    """On record, as another host does it; this one hears of it when it looks."""
    await trio.sleep(soon(race, 0.2))
    view = race.entrust(store.reopen())
    view.choices = None
    now = format_timestamp(race.clock().now_ms())
    try:
        await apply_transition(view, Cancel(id=session.handle.session_id, ended_at=now))
    except RecordError:  # its prompt is not accepted yet
        await session.cancel()


@pytest.mark.races(seeds=500)
async def test_a_cancel_on_record_against_the_end_of_the_session(race: Race) -> None:
    """Of two ends that come at once the one on record counts, and is the one that is told."""
    scripts, store = [any_answer(race) for _ in range(8)], race.store()
    async with race.world(*scripts, rules=[NO_FOO], config=always(race), store=store) as world:
        await cancel_from_elsewhere(race, store, world.animate("hello"))


@pytest.mark.races(seeds=500, store=True)
async def test_the_next_prompt_of_a_conversation_that_was_stopped(race: Race) -> None:
    """E 23, 24: a stop hits the prompt that it was for, and nothing of it hits the next."""
    scripts = [any_answer(race) for _ in range(14)]
    async with race.world(*scripts, rules=[NO_FOO], config=always(race)) as world:
        first = world.animate("one", conversation_id="con-1")
        await stop_sometime(race, first, 0.2)
        if race.pick(3):
            await first.result()
            await trio.sleep(race.seconds(0.05))
        with suppress(ConversationBusy):
            world.animate("two", conversation_id="con-1")


@pytest.mark.races(seeds=500)
async def test_a_deferred_reminder_against_abort_and_stop(race: Race) -> None:
    quiet = NO_BAR.__class__(
        name="quiet",
        conditions=("well",),
        scope=NO_BAR.scope,
        body="Do not say well.",
        interrupt_mode=InterruptMode.NEVER,
    )
    steps = race.one_of((saying("well then"), saying("well foo"), saying("well", *CLEAN[-2:])))
    scripts = [race.script(steps), *(any_answer(race) for _ in range(8))]
    async with race.world(*scripts, rules=[NO_FOO, quiet]) as world:
        session = world.animate("hello")
        if race.pick(2):
            await stop_sometime(race, session, 0.3)


def test_a_client_whose_question_lay_with_a_crashed_announcer_is_answered() -> None:
    """Found by seed 12: the client got the crash of the Announcer. The schedule lets it crash
    over its second message, which is the question."""

    async def scenario(race: Race) -> None:
        async with race.world(CLEAN, rules=[NO_FOO]) as world:
            world.animate("hello")

    faults = Faults(crashing=("announcer",))
    run = replay_schedule(scenario, 12, {"crash": [1, 0, 1, 0]}, faults)
    assert run.error is None
    said = [line.what for line in run.trace.lines if line.who == "runtime/announcer"]
    crash = next(number for number, what in enumerate(said) if "crashes" in what)
    assert said[crash - 1].startswith("Subscribe(")
    assert said[crash + 1].startswith("Subscribe(")


@pytest.mark.parametrize("victim", HELPERS)
@pytest.mark.parametrize("message", range(10))
def test_a_session_whose_helpers_have_crashed_ends_by_itself(victim: str, message: int) -> None:
    """Found by seed 13: with the timers went the retry that waited for them, or the stream that
    had begun before its reader was restarted with them, and nobody noticed. The schedule lets a
    helper crash over one of its messages, before or after it has handled it."""

    async def scenario(race: Race) -> None:
        scripts = [saying("well foo"), saying("foo again"), CLEAN, CLEAN]
        async with race.world(*scripts, rules=[NO_FOO], config=ALWAYS) as world:
            ended = await world.animate("hello").result()
            assert ended.output == "a clean answer"
            assert trio.current_time() < 1.0

    faults = Faults(crashing=(victim,))
    for late in range(2):
        run = replay_schedule(scenario, 13, {"crash": [1, 0, message, late]}, faults)
        assert run.error is None, run.trace.text()


def test_a_session_that_crashes_while_its_helpers_start_asks_nobody() -> None:
    """Found by seed 2309: a matcher that was slow to start held up the reader behind it, which then
    found the order for a stream in its mailbox, when the outcome had been told."""

    async def scenario(race: Race) -> None:
        async with race.world(CLEAN, rules=[NO_FOO]) as world:
            session = world.animate("hello")
            assert (await session.result()).status is SessionStatus.FAILED
            await trio.sleep(1.0)
            assert not session.requests

    faults = Faults(crashing=("session",), laggards=("rule_matcher",))
    run = replay_schedule(scenario, 2309, {"laggard": [0, 3, 3], "crash": [1, 0, 1, 1]}, faults)
    assert run.error is None, run.trace.text()
