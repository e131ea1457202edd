"""A pytest plugin for race tests: `pytest -p midstream.testing.races_plugin`.

    @pytest.mark.races(seeds=200, crashing=("rule_matcher",))
    async def test_a_stop_around_the_retry(race: Race) -> None:
        async with race.world(...) as world: ...

The test is run once for each seed, in a world of its own under virtual time
(`midstream.testing.explore`); further arguments of the marker are those of `Faults`.
`--races-seeds N` explores N seeds in each test, `--races-seed S` replays one, and
`--races-schedule WORD` the small schedule that a failure names.
"""

from collections.abc import Callable
from typing import Any, cast

import pytest

from midstream.testing.choices import load
from midstream.testing.explore import Violation, explore, replay_schedule
from midstream.testing.faults import Faults
from midstream.testing.race import Race

DEFAULT_SEEDS = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("races", "schedule exploration")
    group.addoption("--races-seeds", type=int, default=None, help="seeds for each race test")
    group.addoption("--races-seed", type=int, default=None, help="replay this seed")
    group.addoption("--races-schedule", default=None, help="replay this schedule of a failure")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "races(seeds, **faults): run the test under many schedules, see Faults"
    )


@pytest.fixture
def race() -> None:
    """The `Race` of each run; the plugin puts it in this place."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replace race tests by the exploration of them, before pytest-trio sees coroutines."""
    for item in items:
        marker = item.get_closest_marker("races")
        if marker is not None and isinstance(item, pytest.Function):
            item.obj = _explored(item, item.obj, dict(marker.kwargs))


def _explored(
    item: pytest.Function, scenario: Callable[..., Any], marked: dict[str, Any]
) -> Callable[..., None]:
    seeds = marked.pop("seeds", DEFAULT_SEEDS)
    faults = Faults(**marked)
    option = cast(Callable[[str], Any], item.config.getoption)

    def replay(seed: int, word: str | None) -> str:
        command = f"pytest '{item.nodeid}' --races-seed {seed}"
        return command if word is None else f"{command} --races-schedule {word}"

    def run(**arguments: Any) -> None:
        __tracebackhide__ = True
        violation = find(arguments)
        if violation is not None:
            pytest.fail(str(violation), pytrace=False)

    def find(arguments: dict[str, Any]) -> Violation | None:
        arguments.pop("race")

        async def one(race: Race) -> None:
            await scenario(race=race, **arguments)

        seed, word = option("--races-seed"), option("--races-schedule")
        try:
            if word is not None:
                again = replay_schedule(one, seed or 0, load(word), faults)
                return Violation(again, replay(seed or 0, word)) if again.error else None
            if seed is not None:
                explore(one, seeds=1, first_seed=seed, faults=faults, replay=replay)
            else:
                explore(one, seeds=option("--races-seeds") or seeds, faults=faults, replay=replay)
        except Violation as violation:
            return violation
        return None

    return run
