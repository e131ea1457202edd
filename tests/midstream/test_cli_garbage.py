"""The program lets the garbage collector of Python come rarely."""

import subprocess
import sys

import pytest


def run(program: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


PROGRAM = """
import gc
from midstream.cli.command import run_command

full = []
gc.callbacks.append(lambda phase, about: full.append(phase) if about["generation"] == 2 else None)

async def command():
    full.clear()
    lives = [[] for _ in range(1_000_000)]
    assert len(full) == 0, f"{len(full) // 2} full collections"
    for _ in range(100_000):
        lives.append(lives)  # a cycle, which only the collector can undo
        lives = []
    assert gc.get_count()[0] < 10_000, "what is young is looked at"
    return 7

run_command(command)
"""


def test_a_million_objects_that_live_are_not_looked_at_again_and_again() -> None:
    done = run(PROGRAM)
    assert done.returncode == 7, done.stderr


IDLE = """
import gc
import trio
import trio.testing
from midstream.cli.garbage import collect_when_idle, spare_collections

full, speaking = [], True
gc.callbacks.append(lambda phase, about: full.append(phase) if about["generation"] == 2 else None)

async def server():
    global speaking
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_when_idle, lambda: not speaking)
        for _ in range(10_000):
            cycle = []
            cycle.append(cycle)
        await trio.sleep(60.0)
        assert not full, "somebody would have had to wait"
        speaking = False
        await trio.sleep(60.0)
        assert 1 <= len(full) // 2 <= 6, len(full) // 2
        nursery.cancel_scope.cancel()

spare_collections()
trio.run(server, clock=trio.testing.MockClock(autojump_threshold=0))
"""


def test_a_server_collects_what_its_connections_left_while_nobody_speaks() -> None:
    done = run(IDLE)
    assert done.returncode == 0, done.stderr


def test_what_serves_http_is_not_loaded_for_commands_that_serve_nothing() -> None:
    loaded = run("import sys, midstream.cli.app; print(*sys.modules)")
    assert loaded.returncode == 0, loaded.stderr
    server = {"hypercorn", "starlette", "httpx2", "prometheus_client"}
    assert not server & set(loaded.stdout.split())


@pytest.mark.parametrize("command", ["exit_with(work)", "run_command(async_work)"])
def test_every_command_collects_again_what_it_leaves(command: str) -> None:
    done = run(f"""
import gc
from midstream.cli.command import exit_with, run_command
from midstream.cli.garbage import postpone_collections

def work():
    return 7 if gc.isenabled() else 1

async def async_work():
    return work()

postpone_collections()
{command}
""")
    assert done.returncode == 7, done.stderr
