"""The provider `claude_code` with a stand-in for the program, in real processes."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from claude_code_lines import (
    INIT,
    SESSION,
    Line,
    assistant,
    block_start,
    call,
    delta,
    failed,
    message_start,
    result,
    text,
)
from process_watch import PATIENCE_S, gone, is_alive, written
from stand_in_claude import stand_in

from midstream.messages.accumulate import PartialTranscript, StreamState, accumulate
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ModelRequest,
    TextPart,
    ToolSpec,
    UserItem,
)
from midstream.messages.errors import ConfigError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.settle import Ending, Outcome, settle
from midstream.messages.stream import AnyStreamMessage, StreamFailed, TextDelta
from midstream.providers import process_table
from midstream.providers.claude_code import ClaudeCodeProvider
from midstream.providers.claude_code_request import DEFAULT_COMMAND, Template
from midstream.providers.process_group import CancelHandle, GroupEnd, kill_group

FLAGS = DEFAULT_COMMAND[1:]
Make = Callable[..., ClaudeCodeProvider]


@pytest.fixture
def provider(tmp_path: Path) -> Make:
    """Makes a provider whose program does these steps."""

    def make(*steps: list[Any], **settings: Any) -> ClaudeCodeProvider:
        command: Template = (*stand_in(*steps), *FLAGS)
        settings.setdefault("grace_s", 0.1)
        return ClaudeCodeProvider(command=command, cwd=tmp_path, **settings)

    return make


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No child and no zombie of ours outlives a test."""
    yield
    for each in filter(str.isdecimal, os.listdir("/proc")):
        found = process_table.entry(int(each))
        assert found is None or found.ppid != os.getpid(), f"{found} was not reaped"


def request(
    *items: AnyItem,
    system: str | None = None,
    tools: tuple[ToolSpec, ...] = (),
    options: Mapping[str, Any] | None = None,
    cwd: str = "",
) -> ModelRequest:
    said = items or (UserItem("hello"),)
    return ModelRequest("opus", said, system, tools, options=options or {}, cwd=cwd)


async def played(
    provider: ClaudeCodeProvider, asked: ModelRequest | None = None
) -> PartialTranscript:
    """What a stream says from beginning to end."""
    messages: list[AnyStreamMessage] = []
    with trio.fail_after(PATIENCE_S):
        async with provider.open(asked or request()) as batches:
            async for batch in batches:
                assert batch
                messages += batch
    return accumulate(messages, "claude_code")


def failure(partial: PartialTranscript) -> ProviderFailure:
    assert partial.state is StreamState.FAILED
    assert partial.failure is not None
    return partial.failure


def say(*lines: Line) -> list[list[Any]]:
    return [["say", line] for line in lines]


def noted(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- the protocol


async def test_a_run_is_streamed_from_a_real_process(provider: Make):
    partial = await played(provider(*say(INIT, assistant(text("Grüße")), result("Grüße"))))
    assert partial.text == "Grüße"
    assert partial.state is StreamState.FINISHED
    assert partial.model == "claude-x"


async def test_prompt_system_prompt_model_directory_and_environment_arrive(
    provider: Make, tmp_path: Path
):
    path = tmp_path / "noted"
    environment = {"PATH": os.environ["PATH"], "TOKEN": "t", "CLAUDECODE": "1"}
    run = provider(["note", str(path)], *say(result("ok")), environment=environment)
    await played(run, request(UserItem("Wie geht's?"), system="Be brief. ✓"))
    [seen] = noted(path)
    assert seen["stdin"] == "Wie geht's?"
    assert seen["system"] == "Be brief. ✓"
    assert seen["cwd"] == str(tmp_path)
    assert "--model=opus" in seen["arguments"]
    assert "--output-format=stream-json" in seen["arguments"]
    assert seen["environment"]["TOKEN"] == "t"
    assert "CLAUDECODE" not in seen["environment"]
    system_file = next(a for a in seen["arguments"] if a.startswith("--system-prompt-file="))
    assert not await trio.Path(system_file.partition("=")[2]).exists(), "it goes with the stream"


async def test_a_request_may_name_its_directory(provider: Make, tmp_path: Path):
    path, inner = tmp_path / "noted", tmp_path / "inner"
    inner.mkdir()
    run = provider(["note", str(path)], *say(result("ok")))
    await played(run, request(cwd="inner"))
    await played(run, request(cwd="/"))
    assert [seen["cwd"] for seen in noted(path)] == [str(inner), "/"]


async def test_deltas_come_while_the_program_goes_on(provider: Make, tmp_path: Path):
    path = tmp_path / "go-on"
    steps = say(INIT, message_start(), block_start(0), delta(0, "first"))
    steps += [["wait_for", str(path)], *say(assistant(text("first")), result("first"))]
    with trio.fail_after(PATIENCE_S):
        async with provider(*steps).open(request()) as batches:
            async for batch in batches:
                if any(isinstance(m, TextDelta) for m in batch):
                    path.touch()  # until now the program has been waiting for this
                    break
            else:
                pytest.fail("no text came")
            rest = [message async for batch in batches for message in batch]
    assert rest


@pytest.mark.parametrize("size", [1, 3, 64, 100_000])
async def test_b14_output_cut_anywhere_is_the_same(provider: Make, tmp_path: Path, size: int):
    path = tmp_path / "run.ndjson"
    lines = [INIT, assistant(text("Grüße 🎈"), call(q="ß")), result("x")]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    assert (await played(provider(["replay", str(path), size]))).text == "Grüße 🎈"


async def test_b14_a_result_without_its_line_feed_is_a_result(provider: Make):
    steps = [*say(INIT, assistant(text("Hi"))), ["raw", json.dumps(result("Hi"))]]
    assert (await played(provider(*steps))).state is StreamState.FINISHED


async def test_what_is_no_json_is_skipped(provider: Make):
    noise = [["raw", "npm warn deprecated\n\n[1, 2]\n"], ["data", "fffe0a"]]
    partial = await played(provider(*noise, *say(assistant(text("Hi")), result("Hi"))))
    assert partial.text == "Hi"


async def test_a_huge_line_is_read(provider: Make):
    partial = await played(provider(["flood", 5_000_000], *say(assistant(text("Hi")), result())))
    assert partial.text == "Hi"


@pytest.mark.parametrize("name", ["tool-roundtrip", "result-529-final", "api-retry-429"])
async def test_recorded_runs_come_through_a_process(provider: Make, recordings: Path, name: str):
    path = recordings / "claude-code-ndjson" / f"{name}.ndjson"
    partial = await played(provider(["replay", str(path), 97]))
    assert partial.state is not StreamState.RUNNING
    assert bool(partial.text) is (name != "result-529-final")


# --- the conversation


async def test_the_next_prompt_goes_on_from_the_session_of_the_last(provider: Make, tmp_path: Path):
    path = tmp_path / "noted"
    run = provider(["note", str(path)], *say(INIT, assistant(text("One.")), result("One.")))
    first = await played(run, request(UserItem("one")))
    items = settle(first, Outcome(Ending.FINISHED), "claude_code")
    await played(run, request(UserItem("one"), *items, UserItem("two")))
    _, second = noted(path)
    assert second["arguments"][-2:] == [f"--resume={SESSION}", "--fork-session"]
    assert second["stdin"] == "two"


async def test_when_the_session_is_lost_the_program_is_told_everything_instead(
    provider: Make, tmp_path: Path
):
    path, lost = tmp_path / "noted", tmp_path / "lost"
    no_session = failed("", subtype="error_during_execution", result=None)
    no_session["errors"] = ["No conversation found with session ID: x"]
    run = provider(
        ["note", str(path)],
        ["once", str(lost), *say(no_session), ["leave", 1]],
        *say(INIT, assistant(text("Two.")), result("Two.")),
    )
    answered = AssistantItem((TextPart("One."),), "claude_code")
    asked = request(UserItem("one"), answered, UserItem("two"), options={"resume": "x"})
    partial = await played(run, asked)
    assert partial.text == "Two."
    assert partial.state is StreamState.FINISHED
    first, second = noted(path)
    assert "--resume=x" in first["arguments"]
    assert not any(argument.startswith("--resume") for argument in second["arguments"])
    assert "user: one\nassistant: One." in second["stdin"]


async def test_a_session_that_is_lost_twice_is_a_failure(provider: Make):
    no_session = failed("", subtype="error_during_execution", result=None)
    no_session["errors"] = ["No conversation found with session ID: x"]
    partial = await played(provider(*say(no_session)), request(options={"resume": "x"}))
    assert failure(partial).code == "session_not_found"


# --- what goes wrong


async def test_a_program_that_is_not_there_is_a_failure():
    run = ClaudeCodeProvider(command=("no-such-claude", *FLAGS))
    found = failure(await played(run))
    assert found.kind is FailureKind.INVALID_REQUEST
    assert "no-such-claude" in found.message


async def test_a_directory_that_is_not_there_is_a_failure(tmp_path: Path):
    run = ClaudeCodeProvider(command=("true",), cwd=tmp_path / "nowhere")
    assert "nowhere" in failure(await played(run)).message


def test_a_command_without_a_program_is_refused():
    with pytest.raises(ConfigError, match="program"):
        ClaudeCodeProvider(command=([], "x"))


async def test_a_request_that_cannot_be_launched_is_a_failure(provider: Make):
    asked = request(tools=(ToolSpec("look", "", {}),))
    assert failure(await played(provider(), asked)).kind is FailureKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("last", "kind", "said"),
    [
        ([["leave", 0]], FailureKind.PROTOCOL, "code 0"),
        ([["stderr", "Segfault in é", 1], ["leave", 3]], FailureKind.SERVER, "Segfault in é"),
        ([["die"]], FailureKind.SERVER, "SIGKILL"),
        ([["raw", '{"type":"result","subty'], ["die"]], FailureKind.SERVER, "SIGKILL"),
    ],
)
async def test_dying_without_a_result_is_a_failure_that_keeps_what_was_said(
    provider: Make, last: list[list[Any]], kind: FailureKind, said: str
):
    partial = await played(provider(*say(INIT, assistant(text("Hi"))), *last))
    assert partial.text == "Hi"
    assert failure(partial).kind is kind
    assert said in failure(partial).message


async def test_closing_the_output_and_living_on_is_a_failure(provider: Make):
    steps = [*say(INIT), ["ignore_term"], ["close_output"], ["hang"]]
    assert "closed its output" in failure(await played(provider(*steps))).message


async def test_a_flood_on_stderr_blocks_nobody_and_only_its_end_is_told(provider: Make):
    steps = [["stderr", "noise\n", 300_000], ["stderr", "the reason", 1], ["leave", 1]]
    message = failure(await played(provider(*steps))).message
    assert message.endswith("the reason")
    assert len(message) < 300


async def test_silence_has_an_end(provider: Make):
    run = provider(["ignore_term"], ["hang"], start_s=0.05)
    found = failure(await played(run))
    assert found.kind is FailureKind.TIMEOUT
    assert "silent for 0.05 s" in found.message


async def test_silence_after_the_start_has_an_end_of_its_own(provider: Make):
    run = provider(*say(INIT), ["hang"], idle_s=0.05)
    assert failure(await played(run)).kind is FailureKind.TIMEOUT


async def test_a_program_that_lives_on_behind_its_result_is_ended(provider: Make, tmp_path: Path):
    path = tmp_path / "noted"
    steps = [["note", str(path)], ["ignore_term"], *say(result("x")), ["hang"]]
    partial = await played(provider(*steps, linger_s=0.05))
    assert partial.state is StreamState.FINISHED
    assert not is_alive(noted(path)[0]["pid"])


async def test_a_program_may_write_its_session_down_behind_its_result(
    provider: Make, tmp_path: Path
):
    go_on, path = tmp_path / "go-on", tmp_path / "noted"
    steps = [*say(result("x")), ["wait_for", str(go_on)], ["note", str(path)]]
    with trio.fail_after(PATIENCE_S):
        async with provider(*steps, linger_s=PATIENCE_S).open(request()) as batches:
            async for _ in batches:
                pass
            go_on.touch()
    assert noted(path)


# --- aborting


async def until_text(batches: Any) -> None:
    async for batch in batches:
        if any(isinstance(message, TextDelta) for message in batch):
            return
    pytest.fail("no text came")


def busy(path: Path) -> Sequence[list[Any]]:
    """A run in the middle of its work: a stubborn tool, in a session of its own, is running."""
    return [["spawn", str(path)], *say(INIT, assistant(text("Working."))), ["hang"]]


@pytest.mark.parametrize("stubborn", [True, False])
async def test_leaving_ends_the_program_and_its_tools(
    provider: Make, tmp_path: Path, stubborn: bool
):
    path = tmp_path / "tool"
    steps: list[list[Any]] = [["ignore_term"]] if stubborn else []
    async with provider(*steps, *busy(path)).open(request()) as batches:
        await until_text(batches)
        tool = int(await written(path))
        assert is_alive(tool)
    await gone(tool)


async def test_cancelling_ends_the_program_and_its_tools(provider: Make, tmp_path: Path):
    path = tmp_path / "tool"
    with trio.CancelScope() as scope:
        async with provider(["ignore_term"], *busy(path)).open(request()) as batches:
            await until_text(batches)
            await written(path)
            scope.cancel()
            await anext(batches)
    assert scope.cancelled_caught
    await gone(int(path.read_text()))


async def test_an_error_of_the_reader_ends_the_program_and_comes_out_as_it_is(
    provider: Make, tmp_path: Path
):
    path = tmp_path / "tool"
    with pytest.raises(LookupError, match="mine"):  # noqa: PT012 - raised inside the block
        async with provider(*busy(path)).open(request()) as batches:
            await until_text(batches)
            await written(path)
            raise LookupError("mine")
    await gone(int(path.read_text()))


async def test_a_program_that_obeys_is_asked_before_it_is_killed(provider: Make, tmp_path: Path):
    path = tmp_path / "told"
    steps = [["touch_when_told", str(path)], *say(INIT, assistant(text("Hi"))), ["hang"]]
    async with provider(*steps, grace_s=PATIENCE_S).open(request()) as batches:
        await until_text(batches)
    assert path.read_text() == "told\n"


async def test_stopped_from_another_process_the_stream_fails(provider: Make, tmp_path: Path):
    path = tmp_path / "noted"
    steps = [["note", str(path)], *say(INIT, assistant(text("Hi"))), ["hang"]]
    async with provider(*steps).open(request()) as batches:
        await until_text(batches)
        handle = CancelHandle.of_leader(noted(path)[0]["pid"])
        assert await kill_group(handle) is GroupEnd.ENDED
        rest = [message async for batch in batches for message in batch]
    last = rest[-1]
    assert isinstance(last, StreamFailed)
    assert "SIGTERM" in last.failure.message


async def test_many_runs_at_once_do_not_get_into_each_others_way(provider: Make, tmp_path: Path):
    texts: list[str] = []

    async def play(number: int) -> None:
        run = provider(["stderr", "x", 100_000], *say(assistant(text(str(number))), result()))
        texts.append((await played(run)).text)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(play, number)
    assert sorted(texts) == [str(number) for number in range(6)]


# --- billing


@pytest.mark.parametrize(
    ("environment", "stops"),
    [
        ({}, True),
        ({"ANTHROPIC_BASE_URL": "https://api.anthropic.com"}, True),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080/x"}, True),
        ({"ANTHROPIC_BASE_URL": "https://gateway.example"}, False),
        ({"CLAUDE_CODE_USE_BEDROCK": "1"}, False),
        ({"CLAUDE_CODE_USE_VERTEX": "1"}, False),
    ],
)
def test_whether_an_abort_stops_the_billing_is_believed_of_anthropic_alone(
    environment: dict[str, str], stops: bool
):
    assert ClaudeCodeProvider(environment=environment).abort_stops_billing is stops
