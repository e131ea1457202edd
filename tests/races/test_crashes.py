"""Real processes, a real SQLite file, SIGKILL at any moment under load; then an audit.

What a client was told must be in the store afterwards: a prompt that was begun, an outcome
that was announced, with the very words. Whatever the moment, what is left is a conversation
that a provider takes, and one that can be gone on with (architecture.md invariants 4, 6 and 10).
`MIDSTREAM_CRASHES=200` kills more often than the few times of every day.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from midstream.config import Config, RulesConfig
from midstream.messages.events import SessionEnded, SessionStarted
from midstream.messages.record import SessionStatus
from midstream.providers.scripted import ScriptedProvider, answer
from midstream.runtime import open_runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.sessions import load_session
from midstream.stores.sqlite import open_sqlite
from midstream.testing.transcript_rules import violations

CRASHES = int(os.environ.get("MIDSTREAM_CRASHES", "3"))

HOST = """
import sys, trio
from pathlib import Path
import msgspec
from midstream.config import Config, RulesConfig
from midstream.messages.events import SessionEnded, SessionStarted
from midstream.providers.scripted import Call, Pause, ScriptedProvider, answer
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.runtime import open_runtime
from midstream.tools import Tool

NO_FOO = Rule(name="no-foo", conditions=("foo",), scope=(ScopeToken(Source.TEXT),), body="No foo.")

async def look(path: str) -> str:
    '''Look at a file.'''
    await trio.sleep(0.002)
    return "nothing"

def scripts():
    while True:
        yield [*answer("I look", Call("look", '{"path": "x"}')), Pause(0.001)]
        yield answer("foo it is", piece_chars=2)
        yield answer("a clean answer", piece_chars=2)

async def main():
    plays = scripts()
    class Endless(ScriptedProvider):
        def open(self, request):
            self.add(next(plays))
            return super().open(request)
    config = Config(rules=RulesConfig(discover=False, builtin_rules=False))
    async with open_runtime(
        config, cwd=Path(sys.argv[1]), provider=Endless(), rules=[NO_FOO]
    ) as runtime, trio.open_nursery() as nursery:
        async def client(number):
            while True:
                handle = runtime.animate("hello", tools=[Tool(look)])
                async for event in handle.events():
                    if isinstance(event.event, SessionStarted | SessionEnded):
                        kind = type(event.event).__name__
                        ids = [handle.session_id, handle.conversation_id]
                        line = msgspec.json.encode([kind, *ids, event.event])
                        sys.stdout.buffer.write(line + b"\\n")
                        sys.stdout.buffer.flush()
        for number in range(6):
            nursery.start_soon(client, number)

trio.run(main)
"""


def load_then_kill(place: Path, after_s: float) -> list[bytes]:
    """Run a host under load, kill it after a while, and return what its clients were told."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOST, str(place)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
    lines = (first + rest).split(b"\n")
    return [line for line in lines[:-1] if line]  # the last may be cut


@pytest.mark.parametrize("number", range(CRASHES))
async def test_what_clients_were_told_survives_a_kill_at_any_moment(
    number: int, tmp_path: Path
) -> None:
    moments = random.Random(number)
    told: list[bytes] = []
    for _ in range(2):
        told += load_then_kill(tmp_path, moments.random() * 0.4)
    conversations: set[str] = set()
    async with await open_sqlite(tmp_path / ".midstream/midstream.sqlite3") as store:
        for line in told:
            kind, session_id, conversation_id, event = msgspec.json.decode(
                line, type=tuple[str, str, str, msgspec.Raw]
            )
            conversations.add(conversation_id)
            kept = await load_session(store, session_id)
            assert kept is not None, f"{session_id} was announced, and is not on record"
            if kind == SessionStarted.__name__:
                continue
            ended = msgspec.json.decode(event, type=SessionEnded)
            assert kept.record.status is ended.status
            assert kept.record.output == ended.output
        for conversation_id in conversations:
            conversation = await load_conversation(store, conversation_id)
            assert conversation.items
            reminders = [item for item in conversation.items if hasattr(item, "rules")]
            assert len(reminders) == len(conversation.injections)
    assert told

    # and it can be gone on with, where nobody is left who answers
    provider = ScriptedProvider(answer("here I am"))
    config = Config(rules=RulesConfig(discover=False, builtin_rules=False))
    async with open_runtime(config, cwd=tmp_path, provider=provider, rules=()) as runtime:
        _, session_id, conversation_id, _ = msgspec.json.decode(
            told[-1], type=tuple[str, str, str, msgspec.Raw]
        )
        await runtime.cancel(session_id, "its host was killed")
        again = await runtime.animate("go on", conversation_id=conversation_id).result()
        assert again.status is SessionStatus.COMPLETED
    assert not violations(provider.requests[0].items, "anthropic")
