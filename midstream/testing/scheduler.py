"""The seeded scheduler: trio runs its tasks in an order that a run's choices decide.

This is the one place that reaches into trio. trio sorts and shuffles each batch of ready
tasks when its private `_ALLOW_DETERMINISTIC_SCHEDULING` is set (made for Hypothesis), with a
random generator that is private too; both are put back when a run is over. Deadlines that
are equal are ordered by the address of their scope in memory, which differs from run to
run, so trio's module gets an `id` that counts instead. `tests/races/test_scheduler.py`
holds that equal seeds give equal traces, in other processes too.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from itertools import count
from random import Random  # noqa: TID251 - the generator that trio is handed
from typing import Any, cast
from weakref import WeakKeyDictionary

import trio
import trio.abc
from trio._core import _run as run_module  # pyright: ignore[reportPrivateUsage]
from trio.testing import MockClock

from midstream.testing.choices import Choices

ORDER = "order"
"""The stream of choices about the order of tasks."""

MOST_STEPS = 100_000
"""Steps of tasks after which a run counts as one that does not end."""


class _Shuffler(Random):
    """What trio takes for its random generator; only `shuffle` decides about order."""

    def __init__(self, choices: Choices) -> None:
        super().__init__(choices.seed)
        self._choices = choices

    def shuffle(self, x: Any) -> None:
        for last in range(len(x) - 1, 0, -1):
            # 0 leaves an element where it is.
            other = last - self._choices.pick(ORDER, last + 1)
            x[last], x[other] = x[other], x[last]


class StepLimit(AssertionError):
    """A run went on and on."""


class _AfterEachStep(trio.abc.Instrument):
    """Calls `check` after each step of any task; the first error ends the run."""

    def __init__(self, check: Callable[[], None], stop: trio.CancelScope) -> None:
        self.error: BaseException | None = None
        self._check = check
        self._stop = stop
        self._steps = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.error is not None:
            return
        self._steps += 1
        try:
            self._check()
            if self._steps > MOST_STEPS:
                raise StepLimit(f"the run did not end within {MOST_STEPS} steps")
        except BaseException as error:  # noqa: BLE001 - raised again when the run has ended
            # trio would log what an instrument raises, and go on without it.
            self.error = error
            self._stop.cancel()


def run_seeded(
    main: Callable[[], Awaitable[object]], choices: Choices, after_step: Callable[[], None]
) -> None:
    """Run `main` under virtual time, in an order that `choices` decides.

    `after_step` is called after each step of any task. What it raises ends the run, and is
    raised here in place of what came of it.
    """
    stop = trio.CancelScope()
    steps = _AfterEachStep(after_step, stop)

    async def within_scope() -> None:
        with stop:
            await main()

    with _seeded(choices):
        try:
            clock = MockClock(autojump_threshold=0)
            trio.run(within_scope, clock=clock, instruments=[steps])
        except BaseException:
            if steps.error is None:
                raise
    if steps.error is not None:
        raise steps.error


@contextmanager
def _seeded(choices: Choices) -> Generator[None]:
    names: WeakKeyDictionary[object, int] = WeakKeyDictionary()
    numbers = count(1)

    def counted_id(thing: object) -> int:
        if thing not in names:
            names[thing] = next(numbers)
        return names[thing]

    trio_module = cast(Any, run_module)
    kept = trio_module._ALLOW_DETERMINISTIC_SCHEDULING, trio_module._r
    trio_module._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_module._r = _Shuffler(choices)
    trio_module.id = counted_id
    try:
        yield
    finally:
        trio_module._ALLOW_DETERMINISTIC_SCHEDULING, trio_module._r = kept
        del trio_module.id
