"""The program lets the garbage collector of Python come rarely."""

import subprocess
import sys

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
    command = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7, done.stderr
