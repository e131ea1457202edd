"""Tools, and reminders about calls, against abort, stop and crash (spec/lessons.md E 1 to 12)."""

from dataclasses import dataclass, field

import msgspec
import pytest
import trio
from scenes import CLEAN, NO_FOO, always, any_answer, frugal, stop_sometime

from midstream.config import Config, ToolsConfig
from midstream.messages.conversation import ToolSpec
from midstream.messages.events import ToolWanted
from midstream.providers.scripted import Call, Step, answer
from midstream.rules.rule import InterruptMode, Rule, ScopeToken, Source
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race
from midstream.testing.world import ObservedSession
from midstream.tools import Tool

IN_CALLS = Rule(
    name="no-rm",
    conditions=("rm -rf",),
    scope=(ScopeToken(Source.TOOL),),
    body="Do not remove everything.",
)
GENTLE = Rule(
    name="gently",
    conditions=("sudo",),
    scope=(ScopeToken(Source.TOOL),),
    body="You are no root.",
    interrupt_mode=InterruptMode.NEVER,
)
RULES = [NO_FOO, IN_CALLS, GENTLE]


@dataclass
class Shell:
    """A tool that takes its time, fails now and then, and is stubborn when it is stopped."""

    race: Race
    ran: list[str] = field(default_factory=list[str])
    running: int = 0

    def __post_init__(self) -> None:
        self.race.always(self._check)

    @property
    def tool(self) -> Tool:
        return Tool(self.run)

    async def run(self, command: str) -> str:
        """Run a command."""
        race = self.race
        self.ran.append(command)
        self.running += 1
        try:
            await trio.sleep(race.seconds(0.2))
            if race.pick(4) == 3:
                raise RuntimeError("the command failed")
            if race.pick(4) == 3:
                with trio.CancelScope(shield=True):
                    await trio.sleep(race.seconds(0.2))
        finally:
            self.running -= 1
        return f"done: {command}"

    def ends_with(self, session: ObservedSession) -> None:
        """Hold that no call is under way when the session has its outcome."""

        def check() -> None:
            if self.running and session.handle.ended is not None:
                raise InvariantBroken(13, f"{session.handle.ended}, and {self.running} calls run")

        self.race.always(check)

    def _check(self) -> None:
        assert "rm -rf /" not in self.ran, "a call that breaks an interrupting rule has run"


def bounded(race: Race, config: Config) -> Config:
    """Calls wait for each other, or take too long."""
    tools = ToolsConfig(
        parallel=race.one_of((8, 8, 1)), deadline_s=race.one_of((120.0, 120.0, 0.1))
    )
    return msgspec.structs.replace(config, tools=tools)


def a_call(race: Race, name: str, number: int) -> Call:
    commands = ("ls", "rm -rf /", "sudo ls", "echo foo")
    arguments = msgspec.json.encode({"command": race.one_of(commands)}).decode()
    return Call(name, arguments, f"call_{number}")


def calling(race: Race, name: str = "run") -> list[Step]:
    calls = [a_call(race, name, number) for number in range(1 + race.pick(3))]
    return race.script(answer(race.one_of(("I look", "", "foo it")), *calls), 0.05)


@pytest.mark.races(seeds=500)
async def test_calls_against_abort_and_stop(race: Race) -> None:
    shell = Shell(race)
    scripts = [calling(race), calling(race), *(any_answer(race) for _ in range(8))]
    async with race.world(*scripts, rules=RULES, config=bounded(race, always(race))) as world:
        session = world.animate("hello", tools=[shell.tool])
        shell.ends_with(session)
        await stop_sometime(race, session, 0.5)


@pytest.mark.races(
    seeds=500,
    crashing=("tool_runner", "rule_matcher", "stream_monitor"),
    most_crashes=2,
    store=True,
)
async def test_calls_while_everything_goes_wrong(race: Race) -> None:
    shell = Shell(race)
    scripts = [calling(race) for _ in range(4)] + [any_answer(race) for _ in range(14)]
    async with race.world(*scripts, rules=RULES, config=bounded(race, frugal(race))) as world:
        session = world.animate("hello", conversation_id="con-1", tools=[shell.tool])
        shell.ends_with(session)
        if race.pick(2):
            await stop_sometime(race, session, 0.5)
        await trio.sleep(3.0)
        await session.cancel("enough")
        await session.result()
        world.animate("and then", conversation_id="con-1", tools=[Shell(race).tool])


@pytest.mark.races(seeds=500)
async def test_calls_that_the_host_answers_against_stop_and_deadline(race: Race) -> None:
    scripts = [calling(race, "ask"), calling(race, "ask"), CLEAN, CLEAN, CLEAN, CLEAN]

    async def answer_what_is_wanted(session: ObservedSession) -> None:
        async for event in session.handle.events():
            if isinstance(event.event, ToolWanted):
                await trio.sleep(race.seconds(0.1))
                if race.pick(3):
                    await session.handle.answer(event.event.call_id, "the answer")

    async with race.world(*scripts, rules=RULES) as world, trio.open_nursery() as nursery:
        session = world.animate("hello", tools=[ToolSpec("ask", "Ask somebody.", {})])
        nursery.start_soon(answer_what_is_wanted, session)
        await stop_sometime(race, session, 0.5)
        await session.result()
