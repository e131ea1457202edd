"""Tools, and reminders about calls, against abort, stop and crash (spec/lessons.md E 1 to 12)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
import trio
from scenes import CLEAN, NO_FOO, always, any_answer, frugal, saying, stop_sometime

from midstream.actors.turn_settings import ContextMode, OnExhausted
from midstream.config import BudgetConfig, Config, RulesConfig, StopMessageConfig, ToolsConfig
from midstream.messages.conversation import ToolSpec
from midstream.messages.events import ToolResult, ToolUse, ToolWanted
from midstream.messages.stream import ThinkingSigned
from midstream.providers.scripted import Call, Hang, SlowClose, Step, answer
from midstream.rules.rule import InterruptMode, RepeatMode, Rule, ScopeToken, Source
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
IN_THOUGHT = Rule(
    name="no-bar",
    conditions=("bar",),
    scope=(ScopeToken(Source.THINKING),),
    body="Do not think of bar.",
)
RULES = [NO_FOO, IN_CALLS, GENTLE]


LATE_S = 3.0
"""Seconds by which a call may outlast its deadline: actors are slow, and tools stubborn."""


@dataclass
class Shell:
    """A tool that takes its time, fails now and then, and is stubborn when it is stopped.

    It knows which calls have begun and returned, and holds what is said of them against that. A
    command ends with the id of its call; ids are those of one call each.
    """

    race: Race
    deadline_s: float = 120.0
    began: dict[str, float] = field(default_factory=dict[str, float])
    returned: dict[str, str] = field(default_factory=dict[str, str])
    results: dict[str, str] = field(default_factory=dict[str, str])
    """What was said of calls, by id."""
    running: set[str] = field(default_factory=set[str])
    heard: int = 0
    broken: InvariantBroken | None = None
    """What was found in a call, where it would only be the result of that."""

    def __post_init__(self) -> None:
        self.race.always(self._check)

    @property
    def tool(self) -> Tool:
        return Tool(self.run)

    async def run(self, command: str) -> str:
        """Run a command."""
        call_id = command.rsplit(" ", 1)[-1]
        self._begin(command, call_id)
        self.running.add(call_id)
        try:
            await self._work()
        finally:
            self.running.discard(call_id)
            if trio.current_time() - self.began[call_id] > self.deadline_s + LATE_S:
                self._break(13, f"{call_id} has run longer than {self.deadline_s} s")
        self.returned[call_id] = f"done: {command}"
        return self.returned[call_id]

    async def _work(self) -> None:
        race = self.race
        hangs = self.deadline_s < LATE_S and race.pick(4) == 3
        await trio.sleep(60.0 if hangs else race.seconds(0.2))
        if race.pick(4) == 3:
            raise RuntimeError("the command failed")
        if race.pick(4) == 3:
            with trio.CancelScope(shield=True):
                await trio.sleep(race.seconds(0.2))

    def ends_with(self, session: ObservedSession) -> None:
        """Hold that no call is under way when the session has its outcome. One that does not stop
        when its runner has crashed is waited for by nobody."""
        runner = f"runtime/sessions/{session.handle.session_id}/tool_runner"

        def check() -> None:
            if self.running and session.handle.ended is not None and runner not in self.race.lost:
                raise InvariantBroken(13, f"{session.handle.ended}, and {sorted(self.running)} run")

        self.race.always(check)

    def _begin(self, command: str, call_id: str) -> None:
        self._listen()
        if command.startswith("rm -rf"):
            self._break(6, f"{command} has run, and breaks an interrupting rule")
        if call_id in self.began:
            self._break(6, f"{command} is run twice")
        if call_id in self.results:
            self._break(6, f"{command} is run, and was {self.results[call_id]}")
        self.began[call_id] = trio.current_time()

    def _break(self, invariant: int, what: str) -> None:
        self.broken = self.broken or InvariantBroken(invariant, what)

    def _check(self) -> None:
        self._listen()
        if self.broken is not None:
            raise self.broken

    def _listen(self) -> None:
        """Somebody may be told now what has become of a call."""
        for event in self.race.announced[self.heard :]:
            if isinstance(event, ToolResult):
                self._hear(event)
        self.heard = len(self.race.announced)

    def _hear(self, result: ToolResult) -> None:
        call_id = result.call_id
        self.results[call_id] = result.content
        if call_id in self.running:
            raise InvariantBroken(6, f"{call_id} still runs: {result}")
        if "was not run" in result.content and call_id in self.began:
            raise InvariantBroken(6, f"{call_id} has begun: {result}")
        returned = self.returned.get(call_id, result.content)
        if returned != result.content and not self.race.faults.crashing:
            raise InvariantBroken(6, f"{call_id} has returned {returned!r}: {result}")


def bounded(race: Race, config: Config, shell: Shell) -> Config:
    """Calls wait for each other, or take too long."""
    shell.deadline_s = race.one_of((120.0, 120.0, 0.1))
    tools = ToolsConfig(parallel=race.one_of((8, 8, 1)), deadline_s=shell.deadline_s)
    return msgspec.structs.replace(config, tools=tools)


def a_call(race: Race, name: str, call_id: str) -> Call:
    commands = ("ls", "rm -rf /", "sudo ls", "echo foo")
    command = f"{race.one_of(commands)} # {call_id}"
    return Call(name, msgspec.json.encode({"command": command}).decode(), call_id)


def calling(race: Race, script: int, names: Sequence[str] = ("run",)) -> list[Step]:
    """An answer with calls; `script` tells those of several answers apart."""
    ids = [f"call_{script}_{number}" for number in range(1 + race.pick(3))]
    calls = [a_call(race, race.one_of(names), call_id) for call_id in ids]
    return race.script(answer(race.one_of(("I look", "", "foo it")), *calls), 0.05)


@pytest.mark.races(seeds=500)
async def test_calls_against_abort_and_stop(race: Race) -> None:
    shell = Shell(race)
    scripts = [calling(race, 0), calling(race, 1), *(any_answer(race) for _ in range(8))]
    config = bounded(race, always(race), shell)
    async with race.world(*scripts, rules=RULES, config=config) as world:
        session = world.animate("hello", tools=[shell.tool])
        shell.ends_with(session)
        if race.pick(4):
            await stop_sometime(race, session, 0.5)


@pytest.mark.races(
    seeds=500,
    crashing=("tool_runner", "rule_matcher", "stream_monitor", "session"),
    most_crashes=2,
    store=True,
)
async def test_calls_while_everything_goes_wrong(race: Race) -> None:
    shell = Shell(race)
    scripts = [calling(race, n) for n in range(4)] + [any_answer(race) for _ in range(14)]
    config = bounded(race, frugal(race), shell)
    async with race.world(*scripts, rules=RULES, config=config) as world:
        session = world.animate("hello", conversation_id="con-1", tools=[shell.tool])
        shell.ends_with(session)
        if race.pick(2):
            await stop_sometime(race, session, 0.5)
        await trio.sleep(3.0)
        await session.cancel("enough")
        await session.result()
        other = Shell(race, shell.deadline_s)
        world.animate("and then", conversation_id="con-1", tools=[other.tool])


async def answer_what_is_wanted(race: Race, session: ObservedSession) -> None:
    """As a host does that forgets calls, or answers them before it is asked, until it is heard."""
    answer = session.handle.answer
    async for event in session.handle.events():
        match event.event:
            case ToolUse(call_id=call_id) if race.pick(2):
                for _ in range(8):
                    await trio.sleep(race.seconds(0.02))
                    if await answer(call_id, "the answer that you will want"):
                        break
            case ToolWanted(call_id=call_id):
                await trio.sleep(race.seconds(0.1))
                if race.pick(3):
                    await answer(call_id, "the answer")
            case _:
                pass


@pytest.mark.races(
    seeds=500,
    crashing=("tool_runner",),
    most_crashes=3,
    laggards=("session", "tool_runner") * 3,
)
async def test_calls_that_the_host_answers_against_stop_and_deadline(race: Race) -> None:
    shell = Shell(race)
    scripts = [calling(race, n, ("run", "ask", "run")) for n in range(3)] + [CLEAN] * 4
    async with race.world(*scripts, rules=RULES) as world, trio.open_nursery() as nursery:
        ask = ToolSpec("ask", "Ask somebody.", {})
        session = world.animate("hello", tools=[ask, shell.tool])
        shell.ends_with(session)
        nursery.start_soon(answer_what_is_wanted, race, session)
        if race.pick(3):
            await stop_sometime(race, session, 0.5)
        with trio.move_on_after(2.0):
            await session.result()
        await session.interrupt()  # a call may wait for an answer that nobody gives
        await session.result()


def tight(race: Race, shell: Shell) -> Config:
    """Any of the limits of a session may be reached, in any mode."""
    one_of = race.one_of
    shell.deadline_s = one_of((120.0, 0.1))
    return Config(
        rules=RulesConfig(
            discover=False,
            repeat_mode=RepeatMode.ALWAYS,
            context_mode=one_of((ContextMode.KEEP, ContextMode.DISCARD)),
            on_exhausted=one_of((OnExhausted.DELIVER, OnExhausted.FAIL)),
            max_retries_per_rule=one_of((3, 1)),
            retry_delay_ms=one_of((50, 0)),
        ),
        budget=BudgetConfig(
            max_restarts=one_of((16, 3, 1)),
            max_output_tokens=one_of((None, 12, 6)),
            max_s=one_of((900.0, 900.0, 0.2)),
            max_tool_rounds=one_of((200, 1)),
        ),
        tools=ToolsConfig(deadline_s=shell.deadline_s, host_deadline_s=one_of((600.0, 0.1))),
        stop_message=StopMessageConfig(
            single_hop=one_of((False, False, True)),
            warn_after_identical=one_of((3, 1)),
            stop_after_identical=one_of((10, 2)),
            stop_after_s=one_of((900.0, 0.1)),
            follow_up_deadline_s=one_of((300.0, 0.1)),
        ),
    )


@pytest.mark.races(
    seeds=500,
    crashing=("tool_runner", "rule_matcher", "stream_monitor", "retry_scheduler"),
    laggards=("session", "tool_runner", "retry_scheduler"),
)
async def test_calls_and_a_chain_within_all_limits(race: Race) -> None:
    """Some streams never close when they are told to, and nobody waits for them for ever."""
    shell = Shell(race)
    stubborn = saying("foo", SlowClose(race.one_of((0.3, 15.0))), Hang())
    names = ("run", "ask", "nobody knows it")
    thought = race.one_of(("let me see", "let me bar and see"))
    unsigned = [
        step
        for step in answer("so it is foo", thinking=thought)
        if not isinstance(step, ThinkingSigned)
    ]
    kinds = (CLEAN, answer("it is foo indeed"), stubborn, unsigned)
    scripts = [race.one_of((*[calling(race, n, names)] * 3, *kinds)) for n in range(14)]
    config = tight(race, shell)
    async with (
        race.world(*scripts, rules=[*RULES, IN_THOUGHT], config=config) as world,
        trio.open_nursery() as nursery,
    ):
        ask = ToolSpec("ask", "Ask somebody.", {})
        prompt = race.one_of(("hello", 'work <**stopMessage:"go on",3**>'))
        session = world.animate(prompt, tools=[ask, shell.tool])
        shell.ends_with(session)
        nursery.start_soon(answer_what_is_wanted, race, session)
        if not race.pick(3):
            await stop_sometime(race, session, 0.5)
        with trio.move_on_after(3.0):
            await session.result()
        await session.interrupt()
        await session.result()
