"""Claude Code through the gateway: the real program (`claude_program.py` says which).

It talks to a scripted upstream on loopback only, from a home of its own.
"""

import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from claude_program import NoClaude, claude_program
from gateway_streams import Call, anthropic_stream
from gateway_world import Reply, World, gateway_rules, gateway_world, rule

from midstream.messages.record import SessionStatus

PATIENCE_S = 120.0
"""It takes seconds to start, and more on a machine that is busy."""
SECRET = rule(r"SECRET-\d+")
BAD_CALL: Call = ("toolu_bad", "Bash", '{"command":"echo SECRET-1 >bad","description":"Write"}')
GOOD_CALL: Call = ("toolu_good", "Bash", '{"command":"echo fine >good","description":"Write"}')


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        claude_program()
    except NoClaude as error:
        pytest.skip(str(error))


@asynccontextmanager
async def claude(url: str, home: Path, prompt: str = "Say it") -> AsyncGenerator[trio.Process]:
    """The program with a prompt, in print mode."""
    command = [claude_program(), "-p", prompt, "--output-format", "stream-json", "--verbose"]
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-ant-loopback",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }
    more = ["--include-partial-messages", "--dangerously-skip-permissions"]
    process = await trio.lowlevel.open_process(
        [*command, *more],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        with trio.fail_after(PATIENCE_S):
            yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def result_of(
    world: World, home: Path, prompt: str = "Say it"
) -> tuple[str, list[dict[str, Any]]]:
    """What it says in the end, and all lines of its output."""
    async with claude(world.url, home, prompt) as process:
        assert process.stdout is not None
        output = b"".join([piece async for piece in process.stdout])
    lines = [msgspec.json.decode(line) for line in output.splitlines()]
    assert b"SECRET" not in output
    assert lines[-1]["type"] == "result", lines[-1]
    assert not lines[-1]["is_error"], lines[-1]
    return lines[-1]["result"], lines


async def test_a_violation_and_its_correction_are_one_answer(tmp_path: Path) -> None:
    bad = anthropic_stream("The word is SECRET-1234, they say.", size=4)
    good = anthropic_stream("nothing that I would tell.", size=4)
    replies = Reply(bad, hold=True), Reply(good)
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        said, lines = await result_of(world, tmp_path)
        assert (await world.finished()).exchange.attempts == 2
    assert said == "The word is nothing that I would tell."
    messages = [line["message"] for line in lines if line["type"] == "assistant"]
    assert {message["id"] for message in messages} == {"msg_1"}


async def test_it_runs_the_call_that_is_clean_and_never_sees_the_other(tmp_path: Path) -> None:
    replies = (
        Reply(anthropic_stream("I will write. ", calls=[BAD_CALL])),
        Reply(anthropic_stream("Then so. ", calls=[GOOD_CALL])),
        Reply(anthropic_stream("Done.")),
    )
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        said, _ = await result_of(world, tmp_path)
        asked = [request.json["messages"] for request in world.upstream.asked]
    assert said == "Done."
    assert (tmp_path / "good").read_text() == "fine\n"
    assert not (tmp_path / "bad").exists()
    assert "toolu_good" in repr(asked[-1])
    assert "toolu_bad" not in repr(asked)


async def test_the_second_request_after_a_broken_stream_is_watched_too(tmp_path: Path) -> None:
    """It asks again without `stream` then."""
    replies = (
        Reply(anthropic_stream("Let me say it all")[:6], breaks=True),
        Reply(anthropic_stream("It is SECRET-99.")),
        Reply(anthropic_stream("I am not telling.")),
    )
    async with gateway_world(*replies, rules=gateway_rules(SECRET)) as world:
        said, _ = await result_of(world, tmp_path)
        broken, again = await world.finished(), await world.finished()
    assert said == "I am not telling."
    assert broken.status is SessionStatus.FAILED
    assert again.status is SessionStatus.COMPLETED
    assert not again.begun.body.get("stream")


async def test_an_interrupt_closes_the_connection_to_the_provider(tmp_path: Path) -> None:
    begun = anthropic_stream("Let me say it all")[:6]
    async with gateway_world(Reply(begun, hold=True), rules=gateway_rules(SECRET)) as world:
        async with claude(world.url, tmp_path) as process:
            assert process.stdout is not None
            heard = b""
            while b"text_delta" not in heard:
                heard += await process.stdout.receive_some()
            process.send_signal(signal.SIGINT)
            await world.upstream.closed.wait()
        assert (await world.finished()).status is SessionStatus.CANCELLED


async def test_it_takes_the_hops_of_a_chain_for_one_answer(tmp_path: Path) -> None:
    replies = (
        Reply(anthropic_stream("I look. ", calls=[GOOD_CALL])),
        Reply(anthropic_stream("First this.", message_id="msg_2")),
        Reply(anthropic_stream("Then that.", message_id="msg_3")),
        Reply(anthropic_stream("All done.", message_id="msg_4")),
    )
    prompt = 'Work. <**stopMessage:"Go on.",2**>'
    async with gateway_world(*replies) as world:
        said, lines = await result_of(world, tmp_path, prompt)
        asked = [request.json["messages"] for request in world.upstream.asked]
    assert said == "All done."
    assert len(asked) == 4
    assert "stopMessage" not in repr(asked)
    assert repr(asked[-1]).count("Go on.") == 2
    texts = [
        block["text"]
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
        if block["type"] == "text"
    ]
    assert texts == ["I look. ", "First this.", "Then that.", "All done."]
