"""The model calls, the calls are run, the model goes on: seen from the host."""

from random import Random
from threading import Event
from typing import Annotated, Any

import msgspec
import pytest
import trio
from tool_loop import BODIES, FORMATS, Loop, assert_valid, events_of, open_loop, rule
from trio.testing import MockClock

from midstream.actors.actor import Actor
from midstream.actors.rule_matcher import RuleMatcher
from midstream.actors.tool_runner import ToolRunner
from midstream.config import BudgetConfig, RulesConfig, ToolsConfig
from midstream.messages.conversation import AssistantItem, SystemItem, ToolSpec
from midstream.messages.events import (
    AnyEvent,
    AttemptStarted,
    ReminderInjected,
    RuleTriggered,
    ToolResult,
    ToolUse,
    ToolWanted,
)
from midstream.messages.lifecycle import ChildCrashed
from midstream.messages.record import SessionStatus
from midstream.messages.settle import NOT_STARTED, OUTCOME_UNKNOWN
from midstream.messages.stream import StopReason
from midstream.messages.verdict import VerdictAction
from midstream.providers.scripted import Call, Hang, Pause, Script, answer
from midstream.rules.rule import DEFAULT_SCOPE, InterruptMode, Source
from midstream.stores.conversation_load import load_conversation
from midstream.testing.transcript_rules import violations
from midstream.tools import Tool

NEVER = InterruptMode.NEVER
SPEC = ToolSpec("approve", "Ask a person.", {"type": "object", "properties": {}})


def calls(*names: str, text: str = "Let me see.") -> Script:
    """An answer that calls these tools; the ids are c1, c2, ..."""
    made = [Call(name, "{}", f"c{number}") for number, name in enumerate(names, 1)]
    return answer(text, *made)


@Tool
async def quick() -> str:
    """Take a second."""
    await trio.sleep(1)
    return "quick result"


@Tool
async def slow() -> str:
    """Take a minute."""
    await trio.sleep(60)
    return "slow result"


@Tool
async def broken() -> str:
    """Fail."""
    raise ValueError("no such city")


@Tool
async def stubborn() -> str:
    """Not stop when it is told to."""
    with trio.CancelScope(shield=True):
        await trio.sleep(1000)
    return "too late"


@Tool
async def finishing() -> str:
    """Need two seconds to finish, also when it is told to stop."""
    with trio.CancelScope(shield=True):
        await trio.sleep(2)
    return "finished all the same"


written: list[str] = []


@pytest.fixture(autouse=True)
def nothing_written() -> None:
    written.clear()


@Tool
async def write(path: str, content: str) -> str:
    """Write a file."""
    await trio.lowlevel.checkpoint()
    written.append(path)
    return f"wrote {content}"


def write_call(content: str, call_id: str = "c1", path: str = "a.ts") -> Call:
    arguments = msgspec.json.encode({"path": path, "content": content}).decode()
    return Call("write", arguments, call_id)


# --- calls are run


@pytest.mark.parametrize("format", FORMATS)
async def test_a_call_is_run_and_the_model_goes_on_with_its_result(
    autojump_clock: MockClock, format: str
) -> None:
    async with open_loop(calls("quick"), answer("Done."), format=format) as loop:
        handle = loop.animate([quick])
        ended = await handle.result()
        events = await events_of(handle)
        (result,) = await loop.results()
    assert ended.status is SessionStatus.COMPLETED
    assert ended.output == "Done."
    assert ended.attempts == 2
    assert (result.content, result.is_error) == ("quick result", False)
    assert loop.provider.requests[1].items[-1] == result
    assert [e for e in events if isinstance(e, ToolUse | ToolResult)] == [
        ToolUse(1, "c1", "quick", "{}"),
        ToolResult("c1", "quick", "quick result"),
    ]


async def test_the_model_is_shown_the_tools_with_every_request(autojump_clock: MockClock) -> None:
    async with open_loop(calls("quick"), answer("Done.")) as loop:
        await loop.run(quick, SPEC)
    assert [request.tools for request in loop.provider.requests] == [(quick.spec, SPEC)] * 2


async def test_calls_of_one_message_run_side_by_side_and_their_results_keep_its_order(
    autojump_clock: MockClock,
) -> None:
    async with open_loop(calls("slow", "quick", "slow"), answer("Done.")) as loop:
        began_at = trio.current_time()
        await loop.run(quick, slow)
        assert trio.current_time() - began_at == pytest.approx(60)
        contents = [result.content for result in await loop.results()]
    assert contents == ["slow result", "quick result", "slow result"]


async def test_no_more_calls_run_at_once_than_the_limit(autojump_clock: MockClock) -> None:
    script = calls(*["quick"] * 5)
    async with open_loop(script, answer("Done."), tools=ToolsConfig(parallel=2)) as loop:
        began_at = trio.current_time()
        await loop.run(quick)
        assert trio.current_time() - began_at == pytest.approx(3)
        assert len(await loop.results()) == 5


async def test_a_call_runs_when_its_message_is_on_record(autojump_clock: MockClock) -> None:
    seen: list[AssistantItem] = []

    async def look() -> str:
        """Look at the record."""
        conversation = await load_conversation(loop.store, "con")
        seen.extend(item for item in conversation.items if isinstance(item, AssistantItem))
        return "seen"

    async with open_loop(calls("look"), answer("Done.")) as loop:
        await loop.run(Tool(look))
    assert len(seen) == 1


async def test_the_model_may_call_round_after_round(autojump_clock: MockClock) -> None:
    scripts = [calls("quick") for _ in range(30)]
    async with open_loop(*scripts, answer("Done.")) as loop:
        ended = await loop.run(quick)
        assert len(await loop.results()) == 30
    assert ended.status is SessionStatus.COMPLETED  # more rounds than restarts are allowed


async def test_rounds_of_calls_have_a_limit_of_their_own(autojump_clock: MockClock) -> None:
    scripts = [calls("quick") for _ in range(3)]
    async with open_loop(*scripts, budget=BudgetConfig(max_tool_rounds=2)) as loop:
        handle = loop.animate([quick])
        ended = await handle.result()
        contents = [result.content for result in await loop.results()]
        shown = [e.content for e in await events_of(handle) if isinstance(e, ToolResult)]
    assert ended.status is SessionStatus.CAPPED
    assert ended.reason == "2 rounds of tool calls were run"
    assert contents == shown == ["quick result", "quick result", NOT_STARTED]


async def test_time_in_which_tools_run_does_not_count_against_the_prompt(
    autojump_clock: MockClock,
) -> None:
    scripts = [calls("slow"), answer("as any"), answer("Done.")]
    budget = BudgetConfig(max_s=30)
    no_any = rule("no-any", "as any", source=Source.TEXT)
    async with open_loop(*scripts, budget=budget, rules=[no_any]) as loop:
        ended = await loop.run(slow)
    assert ended.status is SessionStatus.COMPLETED


async def test_without_runs_tools_the_session_ends_with_the_calls(
    autojump_clock: MockClock,
) -> None:
    async with open_loop(calls("quick")) as loop:
        handle = loop.animate([quick], runs_tools=False)
        ended = await handle.result()
        assert not [e for e in await events_of(handle) if isinstance(e, ToolResult)]
    assert (ended.status, ended.stop_reason) == (SessionStatus.COMPLETED, StopReason.TOOL_USE)


async def test_a_later_prompt_continues_the_conversation(autojump_clock: MockClock) -> None:
    async with open_loop(calls("quick"), answer("Done."), calls("quick"), answer("Ok.")) as loop:
        await loop.run(quick)
        await loop.run(quick)
        assert len(await loop.results()) == 2


# --- what can go wrong with a call


async def test_what_a_tool_raises_is_a_result_without_a_traceback(
    autojump_clock: MockClock,
) -> None:
    async with open_loop(calls("broken", "quick"), answer("Done.")) as loop:
        ended = await loop.run(broken, quick)
        failed, fine = await loop.results()
    assert ended.status is SessionStatus.COMPLETED
    assert (failed.content, failed.is_error) == ("ValueError: no such city", True)
    assert fine.content == "quick result"
    assert not [e for e in loop.lifecycle if isinstance(e, ChildCrashed)]


async def test_a_tool_that_wants_to_leave_the_program_does_not(autojump_clock: MockClock) -> None:
    async def leave() -> str:
        """Leave."""
        await trio.lowlevel.checkpoint()
        raise SystemExit(3)

    async with open_loop(calls("leave"), answer("Done.")) as loop:
        ended = await loop.run(Tool(leave))
        (result,) = await loop.results()
    assert ended.status is SessionStatus.COMPLETED
    assert result.content == "SystemExit: 3"


async def test_what_a_tools_own_nursery_raises_is_told_by_its_cause(
    autojump_clock: MockClock,
) -> None:
    async def fan_out() -> str:
        """Do several things."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            raise LookupError("nothing there")

    async with open_loop(calls("fan_out"), answer("Done.")) as loop:
        await loop.run(Tool(fan_out))
        (result,) = await loop.results()
    assert result.content == "LookupError: nothing there"


async def test_arguments_that_do_not_fit_go_back_with_the_place(autojump_clock: MockClock) -> None:
    async def forecast(days: Annotated[int, msgspec.Meta(ge=1)]) -> str:
        """Tell the weather."""
        raise AssertionError("must not be run")

    script = answer("Hm.", Call("forecast", '{"days": "three"}', "c1"))
    async with open_loop(script, answer("Done.")) as loop:
        await loop.run(Tool(forecast))
        (result,) = await loop.results()
    assert result.is_error
    assert "Expected `int`, got `str` - at `$.days`" in result.content


async def test_an_unknown_tool_is_answered_with_the_known_ones(autojump_clock: MockClock) -> None:
    async with open_loop(calls("qick"), answer("Done.")) as loop:
        await loop.run(slow, quick, SPEC)
        (result,) = await loop.results()
    assert result.is_error
    assert "no tool of the name qick" in result.content
    assert "approve, quick, slow" in result.content


async def test_calls_that_are_no_json_are_not_run_and_the_model_is_told(
    autojump_clock: MockClock,
) -> None:
    script = answer("Hm.", Call("quick", '{"a": ', "c1"))
    async with open_loop(script, answer("Done.")) as loop:
        ended = await loop.run(quick)
        items = await loop.items()
    assert ended.output == "Done."
    told = [item.text for item in items if isinstance(item, SystemItem)]
    assert told == ["[interrupted] A call of quick was not complete and was not run."]


async def test_a_broken_call_beside_a_sound_one_is_told_behind_the_result(
    autojump_clock: MockClock,
) -> None:
    script = answer("Hm.", Call("quick", '{"a": ', "c1"), Call("quick", "{}", "c2"))
    async with open_loop(script, answer("Done.")) as loop:
        await loop.run(quick)
        items = await loop.items()
    assert [type(item).__name__ for item in items[1:4]] == [
        "AssistantItem",
        "ToolResultItem",
        "SystemItem",
    ]


async def test_a_model_that_only_makes_broken_calls_is_capped(autojump_clock: MockClock) -> None:
    script = answer("Hm.", Call("quick", '{"a": ', "c1"))
    async with open_loop(*[script] * 4, budget=BudgetConfig(max_restarts=3)) as loop:
        ended = await loop.run(quick)
    assert ended.status is SessionStatus.CAPPED


async def test_a_long_result_is_cut_in_the_middle_with_a_note(autojump_clock: MockClock) -> None:
    async def dump() -> str:
        """Say much."""
        await trio.lowlevel.checkpoint()
        return "a" * 500 + "b" * 500

    limit = ToolsConfig(result_limit_chars=100)
    async with open_loop(calls("dump"), answer("Done."), tools=limit) as loop:
        await loop.run(Tool(dump))
        (result,) = await loop.results()
    assert result.content == ("a" * 50 + "\n[... 900 of 1000 characters left out ...]\n" + "b" * 50)


async def test_results_that_are_too_much_to_be_remembered_are_on_record(
    autojump_clock: MockClock,
) -> None:
    async def dump() -> str:
        """Say much."""
        await trio.lowlevel.checkpoint()
        return "a" * 40_000

    async with open_loop(*[calls("dump")] * 10, answer("Done.")) as loop:
        handle = loop.animate([Tool(dump)])
        await handle.result()
        events = await events_of(handle)
        results = [event for event in events if isinstance(event, ToolResult)]
        assert [len(result.content) for result in results] == [40_000] * 10


async def test_a_tool_that_takes_too_long_is_stopped_and_the_model_is_told(
    autojump_clock: MockClock,
) -> None:
    config = ToolsConfig(deadline_s=10)
    async with open_loop(calls("slow", "quick"), answer("Done."), tools=config) as loop:
        began_at = trio.current_time()
        await loop.run(slow, quick)
        assert trio.current_time() - began_at == pytest.approx(10)
        late, fine = await loop.results()
    assert late.is_error
    assert "slow was stopped because it took longer than 10 seconds" in late.content
    assert fine.content == "quick result"


async def test_a_tool_may_have_a_deadline_of_its_own(autojump_clock: MockClock) -> None:
    async def nap() -> str:
        """Nap."""
        await trio.sleep(20)
        return "refreshed"

    config = ToolsConfig(deadline_s=10)
    async with open_loop(calls("nap"), answer("Done."), tools=config) as loop:
        await loop.run(Tool(nap, deadline_s=30))
        (result,) = await loop.results()
    assert result.content == "refreshed"


async def test_a_tool_that_does_not_stop_is_of_unknown_outcome(autojump_clock: MockClock) -> None:
    config = ToolsConfig(deadline_s=10)
    async with open_loop(calls("stubborn"), answer("Done."), tools=config) as loop:
        began_at = trio.current_time()
        ended = await loop.run(stubborn)
        assert trio.current_time() - began_at == pytest.approx(15)
        (result,) = await loop.results()
    assert ended.output == "Done."
    assert result.content == OUTCOME_UNKNOWN


# --- sync functions (real threads, so no virtual time)


async def test_a_function_that_is_not_async_runs_in_a_thread() -> None:
    def where(city: str) -> dict[str, float]:
        """Find a city."""
        with pytest.raises(RuntimeError):
            trio.lowlevel.current_task()
        return {"lat": 50.45, "length": float(len(city))}

    script = answer("Hm.", Call("where", '{"city": "Kyiv"}', "c1"))
    async with open_loop(script, answer("Done.")) as loop:
        await loop.run(Tool(where))
        (result,) = await loop.results()
    assert result.content == '{"lat":50.45,"length":4.0}'


async def test_a_thread_is_left_behind_at_the_deadline() -> None:
    released = Event()
    went_on: list[bool] = []

    def block() -> str:
        """Block."""
        went_on.append(released.wait(60))
        return "too late"

    async with open_loop(calls("block"), answer("Done.")) as loop:
        ended = await loop.run(Tool(block, deadline_s=0.05))
        (result,) = await loop.results()
        assert not went_on
        released.set()
    assert ended.output == "Done."
    assert "took longer than 0.05 seconds" in result.content


# --- calls that the host answers


async def answering(loop: Loop, content: str, *, is_error: bool = False) -> list[bool]:
    """Run a session whose calls are answered twice each; says what was taken."""
    taken: list[bool] = []
    handle = loop.animate([SPEC])
    async for chunk in handle.chunks:
        if isinstance(chunk, ToolWanted):
            for _ in range(2):
                taken.append(await handle.answer(chunk.call_id, content, is_error=is_error))
    return taken


async def test_a_call_is_answered_by_the_host(autojump_clock: MockClock) -> None:
    async with open_loop(calls("approve", "approve"), answer("Done.")) as loop:
        taken = await answering(loop, "granted")
        contents = [result.content for result in await loop.results()]
    assert contents == ["granted", "granted"]
    assert taken == [True, False, True, False]


async def test_the_host_may_answer_with_an_error(autojump_clock: MockClock) -> None:
    async with open_loop(calls("approve"), answer("Done.")) as loop:
        await answering(loop, "denied", is_error=True)
        (result,) = await loop.results()
    assert (result.content, result.is_error) == ("denied", True)


async def test_the_host_is_not_asked_for_a_call_that_may_still_be_retracted(
    autojump_clock: MockClock,
) -> None:
    early: list[bool] = []
    no_any = rule("no-any", "as any", source=Source.TEXT)
    script = [*answer("Hm.", Call("approve", "{}", "c1"))[:-2], *answer("as any")[1:]]
    async with open_loop(script, calls("approve"), answer("Done."), rules=[no_any]) as loop:
        handle = loop.animate([SPEC])
        wanted: list[ToolWanted] = []
        async for chunk in handle.chunks:
            if isinstance(chunk, ToolUse) and chunk.attempt == 1:
                early.append(await handle.answer(chunk.call_id, "granted"))
            if isinstance(chunk, ToolWanted):
                wanted.append(chunk)
                await handle.answer(chunk.call_id, "granted", attempt=chunk.attempt)
    assert early == [False]
    assert [call.attempt for call in wanted] == [2]


async def test_an_answer_for_another_attempt_is_not_taken(autojump_clock: MockClock) -> None:
    async with open_loop(calls("approve"), answer("Done.")) as loop:
        handle = loop.animate([SPEC])
        async for chunk in handle.chunks:
            if isinstance(chunk, ToolWanted):
                assert not await handle.answer("c1", "old", attempt=chunk.attempt + 1)
                assert await handle.answer("c1", "new", attempt=chunk.attempt)
        (result,) = await loop.results()
    assert result.content == "new"


async def test_a_call_that_the_host_never_answers_times_out(autojump_clock: MockClock) -> None:
    config = ToolsConfig(host_deadline_s=100)
    async with open_loop(calls("approve"), answer("Done."), tools=config) as loop:
        handle = loop.animate([SPEC])
        ended = await handle.result()
        (result,) = await loop.results()
        assert not await handle.answer("c1", "too late")
    assert ended.output == "Done."
    assert "approve was not answered within 100 seconds" in result.content


# --- stopping


async def test_user_interrupt_tells_calls_that_finished_from_those_that_did_not(
    autojump_clock: MockClock,
) -> None:
    """spec/lessons.md E 1, 6, 12."""
    script = calls("quick", "slow", "slow", "approve")
    async with open_loop(script, answer("Hello."), tools=ToolsConfig(parallel=2)) as loop:
        handle = loop.animate([quick, slow, SPEC])
        await trio.sleep(0.5)
        await handle.interrupt()
        ended = await handle.result()
        assert [result.content for result in await loop.results()] == [
            OUTCOME_UNKNOWN,
            OUTCOME_UNKNOWN,
            NOT_STARTED,
            OUTCOME_UNKNOWN,
        ]
        assert ended.status is SessionStatus.CANCELLED
        assert trio.current_time() == pytest.approx(0.5)
        shown = [e.call_id for e in await events_of(handle) if isinstance(e, ToolResult)]
        assert sorted(shown) == ["c1", "c2", "c3", "c4"]
        assert (await loop.run()).status is SessionStatus.COMPLETED


async def test_what_returned_before_the_interrupt_keeps_its_result(
    autojump_clock: MockClock,
) -> None:
    """spec/lessons.md E 7; and the turn is closed with a marker, E 4."""
    async with open_loop(calls("quick", "slow")) as loop:
        handle = loop.animate([quick, slow])
        await trio.sleep(2)
        await handle.cancel("enough")
        ended = await handle.result()
        items = await loop.items()
        done, lost = await loop.results()
    assert (ended.status, ended.reason) == (SessionStatus.CANCELLED, "enough")
    assert (done.content, lost.content) == ("quick result", OUTCOME_UNKNOWN)
    assert items[-1] == SystemItem("[interrupted] The user interrupted this answer.", "interrupted")


async def test_a_tool_that_finishes_while_it_is_being_stopped_has_returned(
    autojump_clock: MockClock,
) -> None:
    async with open_loop(calls("finishing", "broken")) as loop:
        handle = loop.animate([finishing, broken])
        await trio.sleep(0.5)
        await handle.interrupt()
        await handle.result()
        assert trio.current_time() == pytest.approx(2)
        contents = [result.content for result in await loop.results()]
    assert contents == ["finished all the same", "ValueError: no such city"]


async def test_a_tool_that_does_not_stop_keeps_the_session_for_its_grace_alone(
    autojump_clock: MockClock,
) -> None:
    async with open_loop(calls("stubborn")) as loop:
        handle = loop.animate([stubborn])
        await trio.sleep(1)
        await handle.interrupt()
        await handle.result()
        assert trio.current_time() == pytest.approx(6)
        (result,) = await loop.results()
    assert result.content == OUTCOME_UNKNOWN


async def test_nothing_is_asked_of_the_model_after_an_interrupt_in_the_calls(
    autojump_clock: MockClock,
) -> None:
    async with open_loop(calls("quick"), answer("never")) as loop:
        handle = loop.animate([quick])
        await trio.sleep(0.5)
        await handle.interrupt()
        await handle.result()
        await trio.sleep(100)
    assert len(loop.provider.requests) == 1


async def test_a_runtime_that_ends_leaves_a_valid_conversation_and_asks_nothing_more(
    autojump_clock: MockClock,
) -> None:
    async with open_loop(calls("quick", "slow"), answer("never")) as loop:
        handle = loop.animate([quick, slow])
        await trio.sleep(2)
    assert handle.ended
    assert handle.ended.status is SessionStatus.CANCELLED
    assert len(loop.provider.requests) == 1
    contents = [result.content for result in await loop.results()]
    assert contents == ["quick result", OUTCOME_UNKNOWN]


# --- a crash of the runner


def crash_at(
    monkeypatch: pytest.MonkeyPatch, *times_s: float, actor: type[Actor[Any]] = ToolRunner
) -> None:
    """Make an actor crash at these times, in a task of its own."""
    due = list(times_s)

    async def crash_when_due(self: Actor[Any]) -> None:
        async def crash() -> None:
            await trio.sleep_until(due[0])
            del due[0]
            raise RuntimeError("a bug of ours")

        if due:
            self.spawn(crash)

    monkeypatch.setattr(actor, "started", crash_when_due)


async def test_a_crash_of_the_runner_costs_the_running_calls_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, 5.0)
    async with open_loop(calls("quick", "slow"), calls("quick"), answer("Done.")) as loop:
        ended = await loop.run(quick, slow)
        contents = [result.content for result in await loop.results()]
        assert [e for e in loop.lifecycle if isinstance(e, ChildCrashed)]
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "Done.")
    assert contents == ["quick result", OUTCOME_UNKNOWN, "quick result"]


async def test_a_crash_of_the_matcher_while_calls_run_costs_these_calls_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is restarted with all that stand behind it in the session's tree."""
    crash_at(monkeypatch, 5.0, actor=RuleMatcher)
    no_any = rule("no-any", ": any")
    scripts = [calls("slow"), answer("I write.", write_call("x: any")), answer("Done.")]
    async with open_loop(*scripts, rules=[no_any]) as loop:
        ended = await loop.run(slow, write)
        contents = [result.content for result in await loop.results()]
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "Done.")
    assert contents == [OUTCOME_UNKNOWN]
    assert not written


async def test_to_go_on_after_a_crash_of_the_runner_draws_on_the_budget(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, 5.0)
    async with open_loop(calls("slow"), budget=BudgetConfig(max_restarts=0)) as loop:
        ended = await loop.run(slow)
        (result,) = await loop.results()
    assert ended.status is SessionStatus.CAPPED
    assert result.content == OUTCOME_UNKNOWN


async def test_a_crash_of_the_runner_while_the_model_talks_costs_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, 5.0)
    async with open_loop([*answer("Hm.")[:3], Pause(10), *answer("Hm.")[3:]]) as loop:
        ended = await loop.run(quick)
    assert (ended.status, ended.attempts) == (SessionStatus.COMPLETED, 1)


async def test_a_stop_is_finished_when_the_runner_crashes_over_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, 5.0)
    async with open_loop(calls("stubborn")) as loop:
        handle = loop.animate([stubborn])
        await trio.sleep(4)
        await handle.interrupt()
        ended = await handle.result()
        (result,) = await loop.results()
    assert ended.status is SessionStatus.CANCELLED
    assert result.content == OUTCOME_UNKNOWN


# --- rules


def verdicts_of(events: list[AnyEvent]) -> list[VerdictAction]:
    return [event.verdict.action for event in events if isinstance(event, RuleTriggered)]


async def test_b14_a_call_whose_arguments_break_an_interrupting_rule_never_runs(
    autojump_clock: MockClock,
) -> None:
    scripts = [
        answer("I write.", write_call("x: any")),
        answer("Again.", write_call("x: unknown")),
        answer("Done."),
    ]
    async with open_loop(*scripts, rules=[rule("no-any", ": any")]) as loop:
        ended = await loop.run(write)
        (result,) = await loop.results()
    assert ended.status is SessionStatus.COMPLETED
    assert result.content == "wrote x: unknown"
    assert len(written) == 1


async def test_a_call_does_not_run_when_what_is_said_behind_it_breaks_a_rule(
    autojump_clock: MockClock,
) -> None:
    first = [*answer("Hm.", write_call("fine"))[:-2], *answer("as any", piece_chars=1)[1:]]
    no_any = rule("no-any", "as any", source=Source.TEXT)
    async with open_loop(first, answer("Done."), rules=[no_any]) as loop:
        await loop.run(write)
        assert not await loop.results()
    assert not written


async def test_a_call_that_breaks_a_rule_is_refused_when_the_retries_are_spent(
    autojump_clock: MockClock,
) -> None:
    bad = answer("I write.", write_call("x: any"), write_call("fine", "c2", "b.ts"))
    config = RulesConfig(discover=False, max_retries_per_rule=0)
    async with open_loop(
        bad, answer("Done."), rules=[rule("no-any", ": any")], rules_config=config
    ) as loop:
        handle = loop.animate([write])
        ended = await handle.result()
        refused, fine = await loop.results()
        (reminder,) = await loop.reminders()
        verdicts = [
            e.verdict.action for e in await events_of(handle) if isinstance(e, RuleTriggered)
        ]
    assert verdicts == [VerdictAction.EXHAUSTED]
    assert written == ["b.ts"]
    assert refused.is_error
    assert fine.content == "wrote fine"
    assert reminder.call_id == "c1"
    assert "so the call was not run" in reminder.text
    assert "Keep no-any." in reminder.text
    assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "Done.")


async def test_a_model_that_insists_after_a_reminder_does_not_get_its_call_run(
    autojump_clock: MockClock,
) -> None:
    """The rule is injected once, and goes on to hold."""
    bad = answer("I write.", write_call("x: any"))
    async with open_loop(bad, bad, bad, answer("Done."), rules=[rule("no-any", ": any")]) as loop:
        ended = await loop.run(write)
        contents = [result.content for result in await loop.results()]
        assert len(await loop.reminders()) == 1
    refused = "[refused] This call was not run, because it breaks a rule of the user: no-any."
    assert contents == [refused, refused]
    assert not written
    assert ended.output == "Done."


async def test_a_rule_for_tools_alone_that_matched_prose_before_still_holds_for_calls(
    autojump_clock: MockClock,
) -> None:
    tools_only = msgspec.structs.replace(
        rule("no-any", ": any", mode=InterruptMode.TOOL_ONLY), scope=DEFAULT_SCOPE
    )
    script = answer("I write x: any.", write_call("x: any"))
    async with open_loop(script, answer("Done."), rules=[tools_only]) as loop:
        await loop.run(write)
        assert len(await loop.reminders()) == 1
    assert not written


async def test_a_reminder_about_a_call_goes_into_its_result(autojump_clock: MockClock) -> None:
    """spec/ttsr.md 4.6: in front of the content, on record with the result."""
    no_any = rule("no-any", ": any", mode=NEVER)
    script = answer("I write.", write_call("fine", "c1"), write_call("x: any", "c2", "b.ts"))
    async with open_loop(script, answer("Done."), rules=[no_any]) as loop:
        handle = loop.animate([write])
        await handle.result()
        (reminder,) = await loop.reminders()
        injected = [e for e in await events_of(handle) if isinstance(e, ReminderInjected)]
        assert await loop.recorded() == {"no-any": 1}
    assert sorted(written) == ["a.ts", "b.ts"]
    assert reminder.call_id == "c2"
    assert not reminder.interrupted
    assert [event.rules for event in injected] == [("no-any",)]
    assert loop.provider.requests[1].items[-1] == reminder


@pytest.mark.parametrize("format", FORMATS)
async def test_a_provider_is_sent_the_reminder_in_front_of_the_result(
    autojump_clock: MockClock, format: str
) -> None:
    no_any = rule("no-any", ": any", mode=NEVER)
    script = answer("I write.", write_call("x: any"))
    async with open_loop(script, answer("Done."), rules=[no_any], format=format) as loop:
        await loop.run(write)
        (reminder,) = await loop.reminders()
    body = msgspec.json.encode(BODIES[format](loop.provider.requests[1])).decode()
    in_front = msgspec.json.encode(f"{reminder.text}\n\nwrote x: any").decode()
    assert in_front in body
    assert body.count("system-reminder reason") == 1


async def test_reminders_of_several_rules_about_one_call_are_one(
    autojump_clock: MockClock,
) -> None:
    rules = [rule("no-any", ": any", mode=NEVER), rule("no-var", "var ", mode=NEVER)]
    script = answer("I write.", write_call("var x: any"))
    async with open_loop(script, answer("Done."), rules=rules) as loop:
        await loop.run(write)
        (reminder,) = await loop.reminders()
    assert set(reminder.rules) == {"no-any", "no-var"}


async def test_b6_a_rule_that_matches_again_on_its_way_is_injected_once(
    autojump_clock: MockClock,
) -> None:
    no_any = rule("no-any", ": any", mode=NEVER)
    script = answer("I write.", write_call("x: any", "c1"), write_call("y: any", "c2", "b.ts"))
    again = answer("Again.", write_call("z: any"))
    async with open_loop(script, again, answer("Done."), rules=[no_any]) as loop:
        handle = loop.animate([write])
        await handle.result()
        (reminder,) = await loop.reminders()
        verdicts = [
            e.verdict.action for e in await events_of(handle) if isinstance(e, RuleTriggered)
        ]
    assert reminder.call_id == "c1"
    assert verdicts == [VerdictAction.FOLD, VerdictAction.SUPPRESSED, VerdictAction.SUPPRESSED]


async def test_b20_a_reminder_that_was_never_delivered_is_not_spent(
    autojump_clock: MockClock,
) -> None:
    """A cut attempt takes its folded reminders with it; the rule is open again."""
    rules = [rule("no-any", ": any", mode=NEVER), rule("no-eval", "eval", source=Source.TEXT)]
    first = [*answer("Hm.", write_call("x: any"))[:-2], *answer("eval()")[1:]]
    second = answer("Again.", write_call("x: any"))
    async with open_loop(first, second, answer("Done."), rules=rules) as loop:
        await loop.run(write)
        reminders = await loop.reminders()
        recorded = await loop.recorded()
    assert [(item.rules, item.call_id) for item in reminders] == [
        (("no-eval",), None),
        (("no-any",), "c1"),
    ]
    assert recorded == {"no-eval": 1, "no-any": 2}


async def test_b20_a_call_that_is_stopped_without_a_result_releases_its_reminder(
    autojump_clock: MockClock,
) -> None:
    async def write(path: str, content: str) -> str:
        """Write slowly."""
        await trio.sleep(60)
        return path + content

    tool = Tool(write)
    no_any = rule("no-any", ": any", mode=NEVER)
    script = answer("I write.", write_call("x: any"))
    async with open_loop(script, script, answer("Done."), rules=[no_any]) as loop:
        handle = loop.animate([tool])
        await trio.sleep(1)
        await handle.interrupt()
        await handle.result()
        assert not await loop.recorded()
        await loop.run(tool)
        assert list(await loop.recorded()) == ["no-any"]


async def test_a_call_that_had_returned_brings_its_reminder_though_the_session_is_stopped(
    autojump_clock: MockClock,
) -> None:
    no_any = rule("no-any", ": any", mode=NEVER)
    script = answer("I write.", write_call("x: any"), Call("slow", "{}", "c2"))
    async with open_loop(script, rules=[no_any]) as loop:
        handle = loop.animate([write, slow])
        await trio.sleep(1)
        await handle.interrupt()
        await handle.result()
        (reminder,) = await loop.reminders()
        assert list(await loop.recorded()) == ["no-any"]
    assert reminder.call_id == "c1"


async def test_a_reminder_about_prose_goes_along_with_the_results(
    autojump_clock: MockClock,
) -> None:
    """spec/ttsr.md 4.5: the results go to the model anyway, so no follow-up is started."""
    no_sorry = rule("no-sorry", "sorry", mode=NEVER, source=Source.TEXT)
    script = calls("quick", text="I am sorry. So sorry.")
    async with open_loop(script, answer("Done."), rules=[no_sorry]) as loop:
        handle = loop.animate([quick])
        ended = await handle.result()
        (reminder,) = await loop.reminders()
        started = [e for e in await events_of(handle) if isinstance(e, AttemptStarted)]
    assert reminder.call_id is None
    assert loop.provider.requests[1].items[-1] == reminder
    assert len(started) == ended.attempts == 2


async def test_an_interrupt_releases_a_deferred_reminder(autojump_clock: MockClock) -> None:
    no_sorry = rule("no-sorry", "sorry", mode=NEVER, source=Source.TEXT)
    script = calls("slow", text="I am sorry.")
    async with open_loop(script, rules=[no_sorry]) as loop:
        handle = loop.animate([slow])
        await trio.sleep(1)
        await handle.interrupt()
        await handle.result()
        assert not await loop.reminders()
        assert not await loop.recorded()


async def test_reminders_go_along_when_the_runner_has_crashed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, 5.0)
    no_sorry = rule("no-sorry", "sorry", mode=NEVER, source=Source.TEXT)
    script = calls("slow", text="I am sorry.")
    async with open_loop(script, answer("Done."), rules=[no_sorry]) as loop:
        await loop.run(slow)
        assert list(await loop.recorded()) == ["no-sorry"]


async def test_a_stream_that_breaks_off_behind_a_call_never_runs_it(
    autojump_clock: MockClock,
) -> None:
    """spec/lessons.md E 9: no terminal event, no call."""
    cut = answer("I write.", write_call("fine"))[:-1]
    async with open_loop(cut) as loop:
        ended = await loop.run(write)
        (result,) = await loop.results()
    assert ended.status is SessionStatus.FAILED
    assert result.content == NOT_STARTED
    assert not written


async def test_an_interrupt_behind_a_call_in_the_stream_leaves_it_unrun(
    autojump_clock: MockClock,
) -> None:
    hanging = [*answer("I write.", write_call("fine"))[:-2], Hang()]
    async with open_loop(hanging) as loop:
        handle = loop.animate([write])
        await trio.sleep(1)
        await handle.interrupt()
        await handle.result()
        (result,) = await loop.results()
    assert result.content == NOT_STARTED
    assert not written


# --- whatever comes when


@pytest.mark.parametrize("seed", range(60))
async def test_no_order_of_results_stops_and_crashes_leaves_an_invalid_conversation(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)

    def nap_s() -> float:
        return random.choice([0, 0.01, 0.5, 1, 2, 20])

    async def work() -> str:
        """Work for a while."""
        await trio.sleep(nap_s())
        if random.random() < 0.2:
            raise ValueError("failed")
        with trio.CancelScope(shield=random.random() < 0.3):
            await trio.sleep(nap_s())
        return "worked"

    crash_at(monkeypatch, *sorted(random.uniform(0, 4) for _ in range(random.choice([0, 0, 1, 2]))))
    names = ["work", "work", "approve", "unknown"]
    rounds = [
        calls(*random.choices(names, k=random.randint(1, 5))) for _ in range(random.randint(1, 4))
    ]
    limits = ToolsConfig(parallel=random.randint(1, 3), deadline_s=10, host_deadline_s=10)
    requests_at_stop: int | None = None

    async def stop() -> None:
        nonlocal requests_at_stop
        await trio.sleep(random.uniform(0, 6))
        await random.choice([handle.interrupt, handle.cancel])()
        requests_at_stop = len(loop.provider.requests)

    async with (
        open_loop(*rounds, answer("Done."), answer("Hello."), tools=limits) as loop,
        trio.open_nursery() as nursery,
    ):
        handle = loop.animate([Tool(work), SPEC])
        if random.random() < 0.7:
            nursery.start_soon(stop)
        events: list[AnyEvent] = []
        async for event in handle.events():
            events.append(event.event)
            if isinstance(event.event, ToolWanted) and random.random() < 0.7:
                await trio.sleep(nap_s())
                await handle.answer(event.event.call_id, "granted")
        ended = await handle.result()
        assert requests_at_stop is None or len(loop.provider.requests) == requests_at_stop
        results = await loop.results()
        nursery.cancel_scope.cancel()
    shown = [event for event in events if isinstance(event, ToolResult)]
    assert len(shown) == len(results)
    assert ended.status in (SessionStatus.COMPLETED, SessionStatus.CANCELLED)
    for request in loop.provider.requests:
        assert_valid(request.items)
        for format, body_of in BODIES.items():
            assert not violations(body_of(request), format)
