"""A host is killed with SIGKILL, and what the store had acknowledged is there."""

import subprocess
import sys
from pathlib import Path

import trio
from hosts import configuration

from midstream.books import open_session_book
from midstream.messages.conversation import AssistantItem, UserItem
from midstream.messages.record import SessionStatus
from midstream.providers.scripted import ScriptedProvider, answer
from midstream.runtime import open_runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.sqlite import open_sqlite

PROGRAM = """
import sys, trio
from pathlib import Path
from midstream.config import Config, RulesConfig
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.providers.scripted import Hang, ScriptedProvider
from midstream.runtime import open_runtime

async def main():
    speaking = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "well"), Hang()]
    config = Config(rules=RulesConfig(discover=False, builtin_rules=False))
    async with open_runtime(
        config, cwd=Path(sys.argv[1]), provider=ScriptedProvider(speaking), rules=()
    ) as runtime:
        handle = runtime.animate("hi")
        async for chunk in handle.chunks:
            print(handle.session_id, handle.conversation_id, flush=True)

trio.run(main)
"""


async def test_a_killed_host_leaves_a_session_that_can_be_cancelled_and_gone_on_with(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220 - it has to be killed, not awaited
        [sys.executable, "-P", "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = await trio.to_thread.run_sync(process.stdout.readline)
    process.kill()
    await trio.to_thread.run_sync(process.communicate)
    session_id, conversation_id = line.split()

    async with open_session_book(configuration(), tmp_path) as book:
        left = await book.session(session_id)
        assert left.status is SessionStatus.RUNNING
        cancelled = await book.cancel(session_id, "its host is gone")
        assert cancelled.status is SessionStatus.CANCELLED

    provider = ScriptedProvider(answer("here I am"))
    async with open_runtime(configuration(), cwd=tmp_path, provider=provider, rules=()) as runtime:
        ended = await runtime.animate("go on", conversation_id=conversation_id).result()
        assert ended.status is SessionStatus.COMPLETED
    assert [item for item in provider.requests[0].items if isinstance(item, UserItem)] == [
        UserItem("hi"),
        UserItem("go on"),
    ]
    async with await open_sqlite(tmp_path / ".midstream/midstream.sqlite3") as store:
        conversation = await load_conversation(store, conversation_id)
    assert isinstance(conversation.items[-1], AssistantItem)
