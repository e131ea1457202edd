"""Sessions on the provider `claude_code`: rules, retries and conversations with real processes."""

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from claude_code_lines import (
    INIT,
    SESSION,
    assistant,
    block_start,
    call,
    delta,
    failed,
    json_delta,
    message_start,
    result,
    synthetic,
    text,
    tool_result,
)
from process_watch import PATIENCE_S, gone, is_alive, written
from stand_in_claude import stand_in

from midstream.assembly import build_provider
from midstream.config import Config, ProviderConfig
from midstream.config_file import config_from
from midstream.handle import SessionHandle
from midstream.messages.errors import ConfigError
from midstream.messages.events import (
    AnyEvent,
    ReminderInjected,
    Retracted,
    Text,
    ToolResult,
    ToolUse,
)
from midstream.messages.record import SessionStatus
from midstream.providers.claude_code import ClaudeCodeProvider
from midstream.providers.claude_code_request import DEFAULT_COMMAND
from midstream.rules.rule import InterruptMode, Rule, ScopeToken, Source
from midstream.runtime import Runtime, open_runtime
from midstream.stores.memory import MemoryStore

Steps = list[list[Any]]

NO_ANY = Rule(
    name="no-any",
    conditions=(r"\bas any\b",),
    scope=(ScopeToken(Source.TOOL, "write", "*.ts"),),
    body="Give it its type.",
)
NO_CLAIM = Rule(
    name="no-claim",
    conditions=(r"tests pass",),
    scope=(ScopeToken(Source.TEXT),),
    interrupt_mode=InterruptMode.NEVER,
    body="Say so only if you have run them.",
)


def say(*lines: dict[str, Any]) -> Steps:
    return [["say", line] for line in lines]


def noted(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def provider(tmp_path: Path, *steps: list[Any]) -> ClaudeCodeProvider:
    command = (*stand_in(["note", str(tmp_path / "noted")], *steps), *DEFAULT_COMMAND[1:])
    return ClaudeCodeProvider(command=command, cwd=tmp_path, grace_s=0.1)


def opened(
    tmp_path: Path, *steps: list[Any], rules: Sequence[Rule] = ()
) -> AbstractAsyncContextManager[Runtime]:
    return open_runtime(
        Config(provider=ProviderConfig(model="m")),
        cwd=tmp_path,
        provider=provider(tmp_path, *steps),
        rules=rules,
        store=MemoryStore(),
    )


async def heard(handle: SessionHandle) -> list[AnyEvent]:
    with trio.fail_after(PATIENCE_S):
        return [event.event async for event in handle.events()]


async def test_a_call_that_breaks_a_rule_is_cut_before_it_is_complete_and_tried_again(
    tmp_path: Path,
):
    first, tool = tmp_path / "first", tmp_path / "tool"
    breaking: Steps = [
        ["ignore_term"],
        ["spawn", str(tool)],
        ["wait_for", str(tool)],
        *say(
            INIT,
            message_start(),
            block_start(0, "tool_use", id="toolu_1", name="Write", input={}),
            json_delta(0, '{"file_path": "a.ts", "content": "x as an'),
            json_delta(0, "y;"),
        ),
        ["hang"],
    ]
    clean = say(INIT, assistant(text("I write."), call("Write", file_path="a.ts", content="x;")))
    clean += say(tool_result("written"), assistant(text("Done."), message_id="m2"), result())
    steps: Steps = [["once", str(first), *breaking], *clean]
    async with opened(tmp_path, *steps, rules=[NO_ANY]) as runtime:
        handle = runtime.animate("write it")
        events = await heard(handle)
        ended = await handle.result()
    assert ended.status is SessionStatus.COMPLETED
    assert ended.attempts == 2
    assert ended.output == "Done.", "of the last message alone"
    assert [e.arguments for e in events if isinstance(e, ToolUse)] == [
        '{"file_path":"a.ts","content":"x;"}'
    ]
    assert any(isinstance(e, Retracted) for e in events)
    assert [e.content for e in events if isinstance(e, ToolResult)] == ["written"]
    one, two = noted(tmp_path / "noted")
    assert one["stdin"] == "write it"
    assert two["stdin"].startswith("write it\n\n")
    assert "Give it its type." in two["stdin"]
    assert not any("--resume" in argument for argument in two["arguments"])
    assert not is_alive(one["pid"])
    await gone(int(await written(tool)))


async def test_a_retry_in_a_later_turn_goes_on_from_the_turn_before_it(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    breaking = say(INIT, assistant(call("Write", file_path="a.ts", content="x as any;")))
    steps: Steps = [
        ["once", str(first), *say(INIT, assistant(text("Hello.")), result()), ["leave", 0]],
        ["once", str(second), *breaking, ["hang"]],
        *say({**INIT, "session_id": "ses-3"}, assistant(text("So.")), result()),
    ]
    async with opened(tmp_path, *steps, rules=[NO_ANY]) as runtime:
        handle = runtime.animate("hello")
        await heard(handle)
        again = runtime.animate("write it", conversation_id=handle.conversation_id)
        await heard(again)
        ended = await again.result()
    assert (ended.status, ended.attempts) == (SessionStatus.COMPLETED, 2)
    _, aborted, retried = noted(tmp_path / "noted")
    assert aborted["arguments"][-2:] == [f"--resume={SESSION}", "--fork-session"]
    assert retried["arguments"][-2:] == aborted["arguments"][-2:]
    assert aborted["stdin"] == "write it"
    assert retried["stdin"].startswith("write it\n\n")


async def test_a_reminder_that_does_not_interrupt_comes_behind_the_whole_run(tmp_path: Path):
    first = tmp_path / "first"
    calling = say(INIT, assistant(text("All tests pass."), call()), tool_result("ok"))
    calling += [*say(assistant(text("Done."), message_id="m2"), result()), ["leave", 0]]
    steps: Steps = [
        ["once", str(first), *calling],
        *say(INIT, assistant(text("Not run.")), result()),
    ]
    async with opened(tmp_path, *steps, rules=[NO_CLAIM]) as runtime:
        handle = runtime.animate("go")
        events = await heard(handle)
        ended = await handle.result()
    assert (ended.status, ended.attempts) == (SessionStatus.COMPLETED, 2)
    assert any(isinstance(e, ReminderInjected) for e in events)
    _, two = noted(tmp_path / "noted")
    assert f"--resume={SESSION}" in two["arguments"]
    assert "Say so only if you have run them." in two["stdin"]
    assert "go" not in two["stdin"].split()


async def test_b15_a_call_that_the_program_ran_is_watched_and_its_reminder_comes_behind_the_run(
    tmp_path: Path,
):
    first = tmp_path / "first"
    breaking = say(INIT, assistant(call("Write", file_path="a.ts", content="x as any;")))
    breaking += say(tool_result("written"), assistant(text("Done."), message_id="m2"), result())
    steps: Steps = [["once", str(first), *breaking, ["leave", 0]]]
    steps += say(INIT, assistant(text("Mended.")), result())
    gentle = msgspec.structs.replace(NO_ANY, interrupt_mode=InterruptMode.NEVER)
    async with opened(tmp_path, *steps, rules=[gentle]) as runtime:
        handle = runtime.animate("write it")
        events = await heard(handle)
        ended = await handle.result()
    assert (ended.status, ended.attempts, ended.output) == (SessionStatus.COMPLETED, 2, "Mended.")
    assert sum(isinstance(e, ReminderInjected) for e in events) == 1
    assert "Give it its type." in noted(tmp_path / "noted")[1]["stdin"]


async def test_what_a_run_has_cost_and_the_programs_session_are_on_record(tmp_path: Path):
    first = tmp_path / "first"
    calling = [*say(INIT, assistant(text("All tests pass.")), result()), ["leave", 0]]
    steps: Steps = [["once", str(first), *calling]]
    steps += say({**INIT, "session_id": "ses-2"}, assistant(text("Not run.")), result())
    async with opened(tmp_path, *steps, rules=[NO_CLAIM]) as runtime:
        record = await runtime.animate("go").record()
    assert record.cost_usd == 0.5, "of both runs"
    assert record.provider_session_id == "ses-2", "the last"
    assert record.token_usage is not None
    assert (record.token_usage.input_tokens, record.token_usage.output_tokens) == (14, 10)


async def test_an_interrupt_ends_the_program_and_the_next_prompt_tells_what_it_did(
    tmp_path: Path,
):
    first = tmp_path / "first"
    busy: Steps = [*say(INIT, assistant(text("Working."), call(command="make"))), ["hang"]]
    steps: Steps = [["once", str(first), *busy], *say(INIT, assistant(text("Fine.")), result())]
    async with opened(tmp_path, *steps) as runtime:
        handle = runtime.animate("build it")
        with trio.fail_after(PATIENCE_S):
            async for event in handle.events():
                if isinstance(event.event, Text):
                    await handle.interrupt()
        assert (await handle.result()).status is SessionStatus.CANCELLED
        again = runtime.animate("and now?", conversation_id=handle.conversation_id)
        assert (await again.result()).output == "Fine."
    one, two = noted(tmp_path / "noted")
    assert not is_alive(one["pid"])
    assert "assistant: Working." in two["stdin"]
    assert 'assistant called Bash: {"command":"make"}' in two["stdin"]
    assert "not known; the call may have had effects" in two["stdin"]
    assert two["stdin"].endswith("and now?")


async def test_when_the_runtime_goes_the_program_and_its_tools_go(tmp_path: Path):
    tool = tmp_path / "tool"
    steps: Steps = [
        ["ignore_term"],
        ["spawn", str(tool)],
        *say(INIT, assistant(text("Hi"))),
        ["hang"],
    ]
    async with opened(tmp_path, *steps) as runtime:
        runtime.animate("go")
        grandchild = int(await written(tool))
        assert is_alive(grandchild)
    await gone(grandchild)


async def test_14_7_a_spent_quota_pauses_everybody(tmp_path: Path):
    steps = say(INIT, synthetic("API Error", error="rate_limit"), failed("API Error"))
    async with opened(tmp_path, *steps) as runtime:
        ended = await runtime.animate("go").result()
        assert ended.status is SessionStatus.RATE_LIMITED
        assert not runtime.is_dispatchable()
        assert (await runtime.animate("again").result()).attempts == 0
    assert len(noted(tmp_path / "noted")) == 1


async def test_streamed_text_reaches_the_handle_while_it_is_written(tmp_path: Path):
    go_on = tmp_path / "go-on"
    steps: Steps = say(INIT, message_start(), block_start(0), delta(0, "first"))
    steps += [["wait_for", str(go_on)]]
    steps += say(assistant(text("first")), result())
    async with opened(tmp_path, *steps) as runtime:
        handle = runtime.animate("go")
        with trio.fail_after(PATIENCE_S):
            async for event in handle.events():
                if isinstance(event.event, Text):
                    go_on.touch()
        assert (await handle.result()).output == "first"


def test_the_configuration_names_the_provider_and_its_command(tmp_path: Path):
    config = config_from(
        {"provider": {"name": "claude_code", "command": ["cc", ["--r", "{resume}"], "--x"]}}
    )
    assert config.provider.command == ("cc", ("--r", "{resume}"), "--x")
    assert build_provider(config.provider, tmp_path).format == "claude_code"
    with pytest.raises(ConfigError, match="claude_code, replay"):
        build_provider(ProviderConfig(name="nothing"), tmp_path)
