"""Explore: run a scenario under many schedules, and hold every step against the invariants.

    async def scenario(race: Race) -> None:
        async with race.world(breaking(), CLEAN, rules=[NO_FOO]) as world:
            session = world.animate("hello")
            await trio.sleep(race.seconds(0.2))
            await session.interrupt()

    explore(scenario, seeds=500, faults=Faults(crashing=("rule_matcher",)))

One seed decides everything: the order of tasks, extra yields, durations, faults
(`scheduler.py`, `faults.py`, `choices.py`). Time is virtual. The first violation ends the
exploration as `Violation`, whose text has the seed, the messages in order, and how to replay
it; before that the schedule is made small. In a test: `@pytest.mark.races(seeds=500)`.
"""

import gc
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import trio

from midstream.testing.choices import Choices, Schedule, dump
from midstream.testing.faults import Faults, faulty_kernel
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race
from midstream.testing.scheduler import StepLimit, run_seeded
from midstream.testing.shrink import shrink, size
from midstream.testing.trace import Trace

Scenario = Callable[[Race], Awaitable[object]]

LAST_LINES = 80
"""Of the trace, in the text of a violation."""

RUNS_BETWEEN_COLLECTIONS = 25
"""Each leaves some thousand objects."""


@dataclass(frozen=True)
class Run:
    """What came of one run."""

    choices: Choices
    trace: Trace
    error: BaseException | None

    @property
    def failure(self) -> str | None:
        """What kind of failure it was, so that another run can be compared; None if none."""
        if self.error is None:
            return None
        root = root_of(self.error)
        number = f" {root.number}" if isinstance(root, InvariantBroken) else ""
        return f"{type(root).__name__}{number}"


class Violation(AssertionError):
    """A scenario broke an invariant, or failed, under some schedule."""

    def __init__(self, run: Run, replay: str, *, shrunk_from: int | None = None) -> None:
        self.run = run
        self.seed = run.choices.seed
        self.schedule = run.choices.taken
        assert run.error is not None
        root = root_of(run.error)
        decisions = f"{size(self.schedule)} decisions that matter"
        if shrunk_from is not None:
            decisions += f", of {shrunk_from}"
        super().__init__(
            f"seed {self.seed}: {type(root).__name__}: {root}\n\n"
            f"{run.trace.text(LAST_LINES)}\n\n{decisions}\nreplay: {replay}"
        )


def explore(
    scenario: Scenario,
    *,
    seeds: int,
    first_seed: int = 0,
    faults: Faults | None = None,
    replay: Callable[[int, str | None], str] | None = None,
    most_shrinks: int = 200,
) -> int:
    """Run `scenario` once for each seed. Returns how many schedules were run.

    `replay` makes the command that runs a seed again, or a schedule given as a word. Raises
    `Violation` at the first run that fails, made as small as `most_shrinks` runs allow.
    """
    faults = faults or Faults()
    with _collector_kept_out():
        for number, seed in enumerate(range(first_seed, first_seed + seeds), 1):
            if number % RUNS_BETWEEN_COLLECTIONS == 0:
                gc.collect()
            run = run_once(scenario, Choices(seed), faults)
            if run.error is not None:
                raise _violation(scenario, run, faults, replay or _replay_here, most_shrinks)
    return seeds


def replay_schedule(
    scenario: Scenario, seed: int, schedule: Schedule, faults: Faults | None = None
) -> Run:
    """Run a schedule again that was made small."""
    return run_once(scenario, Choices(seed, schedule), faults or Faults())


def run_once(scenario: Scenario, choices: Choices, faults: Faults) -> Run:
    """One run: what the choices decide, and nothing else."""
    trace = Trace()
    race = Race(choices, trace, faults)

    async def main() -> None:
        trace.began_at = trio.current_time()
        await scenario(race)

    error: BaseException | None = None
    with faulty_kernel(choices, trace, faults, race), _no_log():
        try:
            run_seeded(main, choices, race.after_step)
        except (Exception, BaseExceptionGroup) as caught:  # noqa: BLE001 - it is the result
            error = caught
    return Run(choices, trace, error)


@contextmanager
def _collector_kept_out() -> Generator[None]:
    """Runs leave garbage by the thousand. Python would look for it in the middle of them, which
    is a tenth of their cost, and among all objects of the test process, which is another."""
    was_enabled, had_frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    if not had_frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not had_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _no_log() -> Generator[None]:
    """Faults fill logs, and the trace says more."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def root_of(error: BaseException) -> BaseException:
    """The first thing that went wrong, below groups; a broken invariant before others."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, InvariantBroken):
            return leaf
    return leaves[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for inner in group.exceptions for leaf in _leaves(inner)]


def _violation(
    scenario: Scenario,
    run: Run,
    faults: Faults,
    replay: Callable[[int, str | None], str],
    most_shrinks: int,
) -> Violation:
    small = _shrunk(scenario, run, faults, most_shrinks)
    seed = run.choices.seed
    command = replay(seed, None)
    before = None
    if small is not run:
        command += f"\nsmaller: {replay(seed, dump(small.choices.taken))}"
        before = size(run.choices.taken)
    violation = Violation(small, command, shrunk_from=before)
    violation.__cause__ = small.error
    return violation


def _shrunk(scenario: Scenario, run: Run, faults: Faults, most_runs: int) -> Run:
    best = run

    def fails(schedule: Schedule) -> bool:
        nonlocal best
        again = run_once(scenario, Choices(run.choices.seed, schedule), faults)
        if again.failure != run.failure:
            return False
        best = again
        return True

    if not isinstance(run.error, StepLimit):
        shrink(run.choices.taken, fails, most_runs)
    return best


def _replay_here(seed: int, schedule: str | None) -> str:
    if schedule is None:
        return f"explore(scenario, seeds=1, first_seed={seed})"
    return f"replay_schedule(scenario, {seed}, load({schedule!r}))"
