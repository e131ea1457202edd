"""A pytest plugin for race tests: `pytest -p midstream.testing.races_plugin`.

    @pytest.mark.races(seeds=200, crashing=("rule_matcher",))
    async def test_a_stop_around_the_retry(race: Race) -> None:
        async with race.world(...) as world: ...

The test is run once for each seed, in a world of its own under virtual time
(`midstream.testing.explore`); further arguments of the marker are those of `Faults`.
The seeds are split into tests of `SEEDS_TOGETHER`, so that pytest-xdist can share them out.
`--races-seeds N` explores N seeds of each scenario, `--races-from S` from seed S on, where an
earlier exploration has stopped. `--races-seed S` replays one, and `--races-schedule WORD` the
small schedule that a failure names; `--races-shrinks 0` leaves failures as large as they are.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from midstream.testing.choices import load
from midstream.testing.explore import Violation, explore, replay_schedule
from midstream.testing.faults import Faults
from midstream.testing.race import Race

DEFAULT_SEEDS = 100

SEEDS_TOGETHER = 50
"""Seeds of one test: some seconds at most, so that no core waits long for another."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("races", "schedule exploration")
    group.addoption("--races-seeds", type=int, default=None, help="seeds for each scenario")
    group.addoption("--races-from", type=int, default=0, help="the first seed")
    group.addoption("--races-seed", type=int, default=None, help="replay this seed")
    group.addoption(
        "--races-shrinks", type=int, default=200, help="runs spent on making a failure small"
    )
    group.addoption("--races-schedule", default=None, help="replay this schedule of a failure")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "races(seeds, **faults): run the test under many schedules, see Faults"
    )


@pytest.fixture
def race() -> None:
    """The `Race` of each run; the plugin puts it in this place."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each part of the seeds."""
    marker = metafunc.definition.get_closest_marker("races")
    if marker is None or "race" not in metafunc.fixturenames:
        return
    seeds = list(_parts(metafunc.config, marker.kwargs.get("seeds", DEFAULT_SEEDS)))
    metafunc.parametrize("race", seeds, ids=_name_of)


def _parts(config: pytest.Config, wanted: int) -> Iterator[range]:
    seed = _option(config, "--races-seed")
    if seed is None and _option(config, "--races-schedule") is not None:
        seed = 0
    if seed is not None:
        yield range(seed, seed + 1)
        return
    begin = _option(config, "--races-from")
    end = begin + (_option(config, "--races-seeds") or wanted)
    for first in range(begin, end, SEEDS_TOGETHER):
        yield range(first, min(first + SEEDS_TOGETHER, end))


def _name_of(seeds: range) -> str:
    return f"seed-{seeds[0]}" if len(seeds) == 1 else f"seeds-{seeds[0]}-{seeds[-1]}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replace race tests by the exploration of them, before pytest-trio sees coroutines."""
    for number, item in enumerate(items):
        marker = item.get_closest_marker("races")
        if marker is not None and isinstance(item, pytest.Function):
            items[number] = _plain(item, _explored(item, item.obj, faults_of(marker)))


def faults_of(marker: pytest.Mark) -> Faults:
    """What may go wrong in a scenario that is marked so."""
    return Faults(**{name: value for name, value in marker.kwargs.items() if name != "seeds"})


def _plain(item: pytest.Function, run: Callable[..., None]) -> pytest.Function:
    """The same item with another function, and nobody's but pytest's: where pytest-asyncio has
    every coroutine of a project, it has made the item one that wants a coroutine."""
    vars(run)["pytestmark"] = getattr(item.obj, "pytestmark", [])
    make = cast("Callable[..., pytest.Function]", pytest.Function.from_parent)  # pyright: ignore[reportUnknownMemberType]
    return make(
        item.parent,
        name=item.name,
        callspec=getattr(item, "callspec", None),
        callobj=run,
        originalname=item.originalname,
        # Parameters are fixtures in it, which the function alone does not tell.
        fixtureinfo=item._fixtureinfo,  # pyright: ignore[reportPrivateUsage]
    )


def _explored(
    item: pytest.Function, scenario: Callable[..., Any], faults: Faults
) -> Callable[..., None]:
    def run(*, race: range, **arguments: Any) -> None:
        __tracebackhide__ = True
        violation = find(race, arguments)
        if violation is not None:
            pytest.fail(str(violation), pytrace=False)

    def find(seeds: range, arguments: dict[str, Any]) -> Violation | None:
        async def one(race: Race) -> None:
            await scenario(race=race, **arguments)

        def replay(seed: int, word: str | None) -> str:
            command = f"pytest '{_replayed(item.nodeid, seeds, seed)}' --races-seed {seed}"
            return command if word is None else f"{command} --races-schedule {word}"

        word = _option(item.config, "--races-schedule")
        if word is not None:
            seed = seeds[0]
            again = replay_schedule(one, seed, load(word), faults)
            return Violation(again, replay(seed, word)) if again.error else None
        try:
            explore(
                one,
                seeds=len(seeds),
                first_seed=seeds[0],
                faults=faults,
                replay=replay,
                most_shrinks=_option(item.config, "--races-shrinks"),
            )
        except Violation as violation:
            return violation
        return None

    return run


def _replayed(node: str, seeds: range, seed: int) -> str:
    """The name that the test of `seeds` has when only `seed` is replayed."""
    name = re.escape(_name_of(seeds))
    alone = re.sub(rf"\[{name}\]$", "", node)
    if alone != node:
        return alone
    return re.sub(rf"(?<=[\[-]){name}(?=[\]-])", _name_of(range(seed, seed + 1)), node)


def _option(config: pytest.Config, name: str) -> Any:
    return cast(Callable[[str], Any], config.getoption)(name)
