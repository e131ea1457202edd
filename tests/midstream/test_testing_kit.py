"""The test kit as hosts use it: its fixtures, its documentation, and the worked example.

What is for users of pytest is run by pytest, in a directory of its own.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import midstream.testing
from midstream.messages.events import Retracted, SessionEvent, Text
from midstream.messages.record import SessionStatus
from midstream.providers.scripted import Hang, answer
from midstream.testing import (
    InvariantBroken,
    check_session,
    host_runtime,
    in_virtual_time,
    open_wire,
    open_world,
    visible_text,
)

ROOT = Path(__file__).parents[2]
PLUGINS = 'pytest_plugins = ["midstream.testing.pytest_plugin", "midstream.testing.races_plugin"]\n'
LIMIT_S = 120


def run_pytest(folder: Path, files: Mapping[str, str], *options: str) -> tuple[int, str]:
    """Run pytest over these files, in a directory of its own."""
    for name, text in files.items():
        (folder / name).write_text(text)
    if not (folder / "pytest.ini").exists():
        (folder / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
        (folder / "conftest.py").write_text(PLUGINS)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_what_the_kit_lists_is_there_and_described() -> None:
    for name in midstream.testing.__all__:
        assert getattr(midstream.testing, name).__doc__ or name in ("Script", "Step"), name


async def test_a_world_observes_what_the_host_starts(autojump_clock: MockClock) -> None:
    async with open_world([Hang()], answer("fine")) as world:
        runtime = host_runtime(world)
        handle = runtime.animate("hello")
        await trio.sleep(1)
        await handle.interrupt()
        assert (await handle.result()).status is SessionStatus.CANCELLED
        summoned = runtime.summon("hello", role="helper")
        assert (await summoned.result()).output == "fine"
        await trio.sleep(1)
        first, second = world.sessions
        assert (first.requests_at_stop, len(first.requests)) == (1, 1)
        assert len(second.events) > 3
        record = await runtime.sessions.session(summoned.session_id)
        assert (record.metadata or {})["role"] == "helper"


async def test_a_world_finds_a_host_whose_events_break_a_promise(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("fine")) as world:
        session = world.animate("hello")
        await session.result()
        await trio.sleep(1)
        session.events.append(session.events[3])  # as a host that replays events twice
        with pytest.raises(InvariantBroken, match="invariant 11"):
            check_session(
                session.events,
                ended=session.handle.ended,
                requests=session.requests,
                requests_at_stop=None,
                continued_at_detach=None,
                format="anthropic",
            )
        session.events.pop()


def test_virtual_time_costs_nothing() -> None:
    async def scenario() -> float:
        began_at = trio.current_time()
        await trio.sleep(86_400)
        return trio.current_time() - began_at

    assert in_virtual_time(scenario) == pytest.approx(86_400)


def test_the_screen_has_what_was_not_retracted() -> None:
    said = [Text(1, "a"), Text(1, "b"), Retracted(1, "rule"), Text(2, "c"), Text(3, "d")]
    events = [SessionEvent("ses", number, event) for number, event in enumerate(said, 1)]
    assert visible_text(events) == "cd"
    assert visible_text(events[:2]) == "ab"


async def test_a_wire_can_be_cut_and_taken_down(autojump_clock: MockClock) -> None:
    async with (
        open_world(answer("one"), answer("two")) as world,
        open_wire(world.runtime) as wire,
        wire.connect() as client,
    ):
        session = await client.animate("hello")
        wire.is_up = False
        wire.cut()
        with trio.move_on_after(30) as patience:
            await session.result()
        assert patience.cancelled_caught
        wire.is_up = True
        assert (await session.result()).output == "one"


TESTS = """
async def test_good(midstream_world, midstream_wire, autojump_clock):
    from midstream.testing import answer
    async with midstream_world(answer("fine")) as world, midstream_wire(world.runtime) as wire:
        async with wire.connect() as client:
            session = await client.animate("hello")
            assert (await session.result()).output == "fine"

def test_parts(midstream_provider, midstream_store, midstream_clock, midstream_run):
    from midstream.testing import answer, open_world
    midstream_provider.add(answer("fine"))

    async def scenario():
        options = {"provider": midstream_provider, "store": midstream_store}
        async with open_world(clock=midstream_clock, **options) as world:
            return (await world.animate("hello").result()).output

    assert midstream_run(scenario) == "fine"

async def test_bad(midstream_world, autojump_clock):
    from midstream.testing import answer
    async with midstream_world(answer("fine")) as world:
        session = world.animate("hello")
        await session.result()
        await __import__("trio").sleep(1)
        assert session.events == []
"""


def test_the_fixtures_work_and_a_failure_shows_what_happened(tmp_path: Path) -> None:
    code, report = run_pytest(tmp_path, {"test_host.py": TESTS})
    assert code == 1
    assert "1 failed, 2 passed" in report
    assert "midstream world 1" in report
    assert "1 requests" in report
    assert "outcome: completed" in report


def test_the_tests_of_the_documentation_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    tests = [block for block in blocks if "def test_" in block and "races" not in block]
    assert len(tests) == 3
    files = {f"test_{number}.py": block for number, block in enumerate(tests)}
    code, report = run_pytest(tmp_path, files)
    assert code == 0, report
    assert "3 passed" in report
    # The race test on the page is the one of the example.
    [shown] = [block for block in blocks if "pytest.mark.races" in block]
    example = (ROOT / "examples" / "testing" / "test_chat.py").read_text(encoding="utf-8")
    body = shown[shown.index("    texts = ") :].rstrip()
    assert body in example


RACY = """
import pytest
from midstream.testing import Race

@pytest.mark.races(seeds=120)
@pytest.mark.parametrize("kind", ["wild", "tame"])
async def test_of_kinds(race: Race, kind: str):
    race.pick(1000)
    assert kind == "tame" or race.pick(50) != 11
"""


def test_a_failing_seed_comes_with_the_command_that_repeats_it_alone(tmp_path: Path) -> None:
    code, report = run_pytest(tmp_path, {"test_racy.py": RACY}, "-rN")
    assert code == 1
    passed, failed = (int(re.findall(rf"(\d+) {how}", report)[0]) for how in ("passed", "failed"))
    assert passed + failed == 2 * 3, "the seeds are split"
    [(seed, command), *_] = re.findall(
        r"^seed (\d+): .*?^replay: pytest (.*?)$", report, re.M | re.S
    )
    [smaller, *_] = re.findall(r"^smaller: pytest (.*?)$", report, re.M)
    for arguments in (command, smaller):
        code, again = run_pytest(tmp_path, {}, *shlex.split(arguments))
        assert (code, "1 failed" in again, "passed" in again) == (1, True, False), again
        assert f"seed {seed}: " in again


ASKED_ON = "the chat asked on after the stop"
BUGS = {
    "none": ("", "", ""),
    "a stop in the pause is forgotten": (
        "if stops != self._stops:",
        "if False:",
        ASKED_ON,
    ),
    "what was taken back stays": ("case Retracted():", "case None:", "AssertionError"),
    "a stop does not reach the model": ("await handle.interrupt()", "pass", ASKED_ON),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_worked_example_finds_the_races_of_its_host(bug: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "testing", tmp_path, dirs_exist_ok=True)
    right, wrong, found = BUGS[bug]
    chat = (tmp_path / "chat.py").read_text(encoding="utf-8")
    assert right in chat
    few = ("--races-seeds", "50", "--races-shrinks", "20")
    code, report = run_pytest(
        tmp_path, {"chat.py": chat.replace(right, wrong) if right else chat}, *few
    )
    assert code == (1 if right else 0), report
    assert found in report
    assert bool(right) == ("--races-seed" in report)


SEEDS_SEEN = """
import pytest

seen = []

@pytest.mark.races(seeds=3)
async def test_race(race):
    seen.append(race.choices.seed)

def test_they_were_run():
    assert seen == list(range({first}, {end}))
"""


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        (("--races-from", "60"), 60, 63),
        (("--races-from", "60", "--races-seeds", "120"), 60, 180),
    ],
)
def test_an_exploration_goes_on_where_another_has_stopped(
    options: Sequence[str], first: int, end: int, tmp_path: Path
) -> None:
    files = {"test_host.py": SEEDS_SEEN.format(first=first, end=end)}
    code, report = run_pytest(tmp_path, files, *options)
    assert code == 0, report


COROUTINES_ARE_MINE = """
import inspect, pytest

pytest_plugins = ["midstream.testing.races_plugin"]

class Coroutine(pytest.Function):
    def runtest(self):
        assert inspect.iscoroutinefunction(self.obj), "a coroutine was expected"

@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name, obj):
    made = yield
    if not isinstance(made, list):
        return made
    return [
        Coroutine.from_parent(
            item.parent, name=item.name, callspec=getattr(item, "callspec", None),
            callobj=item.obj, fixtureinfo=item._fixtureinfo, originalname=item.originalname,
        )
        if inspect.iscoroutinefunction(item.obj) else item
        for item in made
    ]
"""

RACES = """
import pytest
from midstream.testing import answer

seen = []

@pytest.mark.parametrize("text", ["one", "two"])
@pytest.mark.races(seeds=3)
async def test_race(race, text, tmp_path):
    async with race.world(race.script(answer(text))) as world:
        await world.animate("hello").result()
    seen.append((text, tmp_path.exists()))

@pytest.mark.skip(reason="not now")
@pytest.mark.races(seeds=1)
async def test_not_now(race):
    raise AssertionError("it was run")

def test_they_were_run():
    assert seen == [("one", True)] * 3 + [("two", True)] * 3
"""


def test_race_tests_run_where_another_plugin_has_all_coroutines(tmp_path: Path) -> None:
    """As pytest-asyncio does in its automatic mode, of which hosts on asyncio are fond."""
    files = {"conftest.py": COROUTINES_ARE_MINE, "pytest.ini": "[pytest]\n", "test_host.py": RACES}
    code, report = run_pytest(tmp_path, files)
    assert code == 0, report
    assert "3 passed, 1 skipped" in report
