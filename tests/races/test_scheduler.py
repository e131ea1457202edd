"""The explorer itself: equal seeds give equal runs, and what is broken is found and made small."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from scenes import NO_FOO, always, any_answer, stop_sometime

from midstream.actors.stop_latch import StopLatch
from midstream.actors.turn_abort import when_settled
from midstream.actors.turn_effects import Effect
from midstream.actors.turn_phases import Settling, Wait
from midstream.actors.turn_state import TurnState
from midstream.testing.choices import Choices, dump, load
from midstream.testing.explore import Violation, explore, replay_schedule, run_once
from midstream.testing.faults import Faults
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race
from midstream.testing.shrink import shrink, size

EVERYTHING = Faults(crashing=("rule_matcher", "ledger"), store=True, wall_clock=True)


async def busy(race: Race) -> None:
    """A scenario in which a lot goes wrong."""
    scripts = [any_answer(race) for _ in range(12)]
    async with race.world(*scripts, rules=[NO_FOO]) as world:
        sessions = [world.animate(f"prompt {number}") for number in range(3)]
        for session in sessions:
            await stop_sometime(race, session, 0.1)


def trace_of(seed: int) -> str:
    run = run_once(busy, Choices(seed), EVERYTHING)
    assert run.error is None
    return run.trace.text()


@pytest.mark.parametrize("seed", range(6))
def test_equal_seeds_give_equal_traces(seed: int) -> None:
    assert trace_of(seed) == trace_of(seed)


def test_different_seeds_give_different_traces() -> None:
    assert len({trace_of(seed) for seed in range(6)}) == 6


@pytest.mark.parametrize("is_enabled", [True, False])
def test_python_s_collector_keeps_out_of_the_runs_and_is_left_as_it_was(
    *, is_enabled: bool
) -> None:
    seen: set[bool] = set()

    async def look(race: Race) -> None:
        seen.add(gc.isenabled())
        assert race.pick(1) == 0

    frozen, was_enabled = gc.get_freeze_count(), gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        explore(look, seeds=60)
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert seen == {False}
    assert gc.get_freeze_count() == frozen


def test_equal_seeds_give_equal_traces_in_other_processes() -> None:
    """Whatever the process's own chance is: hashes of strings, places in memory."""
    program = "import test_scheduler; print(test_scheduler.trace_of(3))"
    here = str(Path(__file__).parent)
    traces: set[str] = set()
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([here, *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(done.stdout)
    assert len(traces) == 1


def test_a_schedule_replays_the_run_that_it_was_taken_from() -> None:
    run = run_once(busy, Choices(5), EVERYTHING)
    again = replay_schedule(busy, 5, load(dump(run.choices.taken)), EVERYTHING)
    assert again.trace.text() == run.trace.text()


def test_trio_is_left_as_it_was() -> None:
    from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]

    before = dict(vars(trio_run))
    run_once(busy, Choices(0), EVERYTHING)
    assert vars(trio_run) == before


def test_a_retry_that_does_not_wait_for_the_settled_stream_is_found_and_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug: the delay alone decides about the retry."""

    async def scenario(race: Race) -> None:
        scripts = [race.script(any_answer(race)) for _ in range(8)]
        async with race.world(*scripts, rules=[NO_FOO], config=always(race)) as world:
            world.animate("hello")

    def impatient(turn: TurnState, phase: Settling, done: Wait) -> list[Effect]:
        waits = frozenset({done}) if done is Wait.DELAY else phase.waits
        return when_settled(turn, replace(phase, waits=waits), done)

    explore(scenario, seeds=20)
    monkeypatch.setattr("midstream.actors.turn.when_settled", impatient)
    with pytest.raises(Violation) as caught:
        explore(scenario, seeds=500, most_shrinks=100)
    violation = caught.value
    assert isinstance(violation.__cause__, InvariantBroken)
    assert violation.__cause__.number == 1
    assert "replay: explore(scenario, seeds=1, first_seed=" in str(violation)
    assert size(violation.schedule) < 30
    again = replay_schedule(scenario, violation.seed, violation.schedule)
    assert again.failure == violation.run.failure


def test_a_stop_that_does_not_reach_the_monitor_at_once_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by seed 62 when it was so: an order to start lay in the monitor's mailbox, the
    stop was accepted, and then the provider was asked."""
    monkeypatch.setattr(StopLatch, "set", lambda latch: None)  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]

    async def scenario(race: Race) -> None:
        async with (
            race.world(*[any_answer(race) for _ in range(30)], rules=[NO_FOO]) as world,
            trio.open_nursery() as nursery,
        ):
            for _ in range(4):
                nursery.start_soon(stop_sometime, race, world.animate("hello"), 0.2)

    with pytest.raises(Violation) as caught:
        explore(scenario, seeds=500, most_shrinks=60)
    assert isinstance(caught.value.__cause__, InvariantBroken)


def test_shrinking_finds_the_decisions_that_matter() -> None:
    def fails(schedule: dict[str, list[int]]) -> bool:
        numbers = schedule.get("a", [])
        return len(numbers) > 50 and numbers[50] >= 3

    schedule = {"a": [7] * 100, "b": [1] * 100}
    assert fails(schedule)
    small = shrink(schedule, fails)
    assert size(small) == 1
    assert small["a"][50] == 3
