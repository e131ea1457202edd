"""The stopMessage chain against disconnect, cancel, quota and broken follow-ups (invariant 7)."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import pytest
import trio
from scenes import CLEAN, NO_FOO, any_answer, frugal, soon

from midstream.actors.submit import Submit
from midstream.actors.work_probe import WorkAnswers, WorkAsked, WorkProbe
from midstream.messages.bd_stage import Answer, BdTask
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.providers.scripted import Step, answer
from midstream.testing.invariants import InvariantBroken, count_continuations
from midstream.testing.race import Race
from midstream.testing.world import ObservedSession

CHAINED = 'work <**stopMessage:"go on",2**>'
QUOTA: list[Step] = [ProviderFailure(FailureKind.RATE_LIMITED, "come back later", status=429)]
EMPTY = answer("")
FOO = answer("foo")


def replies(race: Race, number: int = 14) -> list[list[Step]]:
    first = race.script(answer("reply"))
    later = [
        race.script(
            race.one_of((answer(f"more {n}"), answer(f"{n} more"), CLEAN, FOO, EMPTY, QUOTA))
        )
        for n in range(number)
    ]
    return [first, *later]


def never_beyond_n(session: ObservedSession, most: int = 2) -> None:
    if count_continuations(session.requests) > most:
        raise InvariantBroken(7, "continued more often than asked")


async def leave_sometime(race: Race, session: ObservedSession) -> None:
    """The client goes, is gone already, or stops the session; or stays."""
    await trio.sleep(soon(race, 0.4))
    if session.handle.ended is None:
        await race.one_of((session.detach, session.interrupt, session.cancel, _stay))()


async def _stay() -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.races(seeds=500)
async def test_a_chain_against_disconnect_stop_and_quota(race: Race) -> None:
    async with race.world(*replies(race), rules=[NO_FOO], config=frugal(race)) as world:
        session = world.animate(CHAINED)
        race.always(lambda: never_beyond_n(session))
        await leave_sometime(race, session)


@pytest.mark.races(
    seeds=500, crashing=("rule_matcher", "stream_monitor", "retry_scheduler"), store=True
)
async def test_a_chain_while_everything_goes_wrong(race: Race) -> None:
    async with race.world(*replies(race), rules=[NO_FOO], config=frugal(race)) as world:
        session = world.animate(CHAINED, conversation_id="con-1")
        race.always(lambda: never_beyond_n(session))
        await leave_sometime(race, session)
        await trio.sleep(5.0)
        await session.cancel("enough")
        await session.result()
        again = world.animate("and then", conversation_id="con-1")
        race.always(lambda: never_beyond_n(again))


@contextmanager
def task_list(race: Race) -> Generator[None]:
    """What `bd` is asked, it answers after a while, or not at all; the texts of the stages are
    there. No process is started for that, and no file is read."""
    task = (BdTask("a-1"),)
    answers: Sequence[Sequence[Answer]] = ((task,), (task,), ((), (), ()), (None,))

    async def ask(probe: WorkProbe, cwd: str) -> None:
        await trio.sleep(race.seconds(race.one_of((0.02, 0.3, 12.0))))
        found = WorkAnswers(tuple(race.one_of(answers)), has_project=True)
        await probe.address.tell(WorkAsked(cwd, found))

    async def read(submit: Submit, path: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"{path}: {{{{BASE_STOP_MESSAGE}}}}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("midstream.actors.work_probe.WorkProbe._ask", ask)
        patch.setattr("midstream.actors.submit.Submit._user_file", read)
        yield


STAGED = 'work <**stopMessage:"go on",2**> <**stopMessage:on,2**>'


@pytest.mark.races(seeds=500, crashing=("work_probe", "session", "stream_monitor"), store=True)
async def test_a_chain_that_asks_the_task_list_against_disconnect_and_stop(race: Race) -> None:
    """A reply waits for the answer, and nothing is asked behind a stop that comes meanwhile."""
    with task_list(race):
        async with race.world(*replies(race), rules=[NO_FOO], config=frugal(race)) as world:
            session = world.animate(STAGED)
            race.always(lambda: never_beyond_n(session))
            await leave_sometime(race, session)


@pytest.mark.races(seeds=500)
async def test_two_conversations_of_one_runtime_do_not_share_a_chain(race: Race) -> None:
    scripts = [any_answer(race) for _ in range(24)]
    async with race.world(*scripts, rules=[NO_FOO]) as world:
        chained = world.animate(CHAINED)
        plain = world.animate("only once")
        race.always(lambda: never_beyond_n(chained))
        race.always(lambda: never_beyond_n(plain, 0))
        await leave_sometime(race, chained)


@pytest.mark.races(seeds=500, crashing=("stream_monitor", "session"))
async def test_a_chain_beside_sessions_that_run_out_of_quota(race: Race) -> None:
    """A follow-up does not wait for the end of a pause, and an attempt of the user's does."""
    scripts = [race.script(race.one_of((answer(f"more {n}"), QUOTA)), 0.2) for n in range(14)]
    async with race.world(*scripts, rules=[NO_FOO], config=frugal(race)) as world:
        chained = world.animate(CHAINED)
        race.always(lambda: never_beyond_n(chained))
        for _ in range(2):
            await trio.sleep(soon(race, 0.4))
            world.animate("only once")
        await leave_sometime(race, chained)
