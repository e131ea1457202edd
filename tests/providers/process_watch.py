"""For tests with real processes: waiting for what the process table says, with a bound."""

import sys
from collections.abc import Callable
from pathlib import Path

import trio

from midstream.providers import process_table

PATIENCE_S = 20.0
"""How long a test waits for what should take milliseconds, on a machine that is busy."""


async def until(happened: Callable[[], bool]) -> None:
    """Return when it is so; fail when it is not within `PATIENCE_S`."""
    with trio.fail_after(PATIENCE_S):
        while not happened():  # noqa: ASYNC110 - the process table tells nobody
            await trio.sleep(0.01)


def is_alive(pid: int) -> bool:
    found = process_table.entry(pid)
    return found is not None and found.is_alive


async def gone(*pids: int) -> None:
    await until(lambda: not any(map(is_alive, pids)))


async def written(path: Path) -> str:
    """What a process has written to a file, once it ends with a line feed."""

    def text() -> str:
        return path.read_text() if path.exists() else ""

    await until(lambda: text().endswith("\n"))
    return text()


def python(script: str, *arguments: str) -> list[str]:
    """The command line of a small program; `-S -E` because it should start fast."""
    return [sys.executable, "-S", "-E", "-c", script, *arguments]
