"""What the kernel says about processes: the one reader of /proc.

Used to tell whether a number still means the process that it meant, whether anybody of a
process group is left, and who descends from a child of ours. Linux only: elsewhere the
questions have the answers that make nobody signal a stranger, as each function says.
"""

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_DEAD = ("Z", "X", "x")
"""States of a process that does nothing any more (man 5 proc)."""


class ProcessEntry(NamedTuple):
    """One line of the process table. `start_ticks` counts clock ticks since the boot."""

    pid: int
    state: str
    ppid: int
    pgid: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        return self.state not in _DEAD


def entry(pid: int) -> ProcessEntry | None:
    """The entry of a process, also of one that waits to be reaped; None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name of the program stands in parentheses and may hold any character.
    fields = text[text.rindex(")") + 1 :].split()
    return ProcessEntry(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[19]))


def start_time(pid: int) -> str | None:
    """When a process started, as a text that no other process of that number ever has.

    It names the boot too, because ticks begin anew with each. None where nobody can say.
    """
    found = entry(pid)
    return None if found is None else f"{found.start_ticks}@{_boot_id()}"


def group_is_alive(pgid: int) -> bool:
    """Whether a process of the group lives; those that wait to be reaped do not count.

    Without /proc they do.
    """
    if _PROC.joinpath("self", "stat").exists():
        found = (entry(pid) for pid in _pids())
        return any(each.is_alive and each.pgid == pgid for each in found if each is not None)
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def carrying(variable: str, value: str) -> list[int]:
    """The living processes that were started with this variable in their environment.

    A variable is inherited, also by what leaves its group and its session, so this finds
    descendants that no signal to a group reaches. One that clears its environment is not
    found, and without /proc nobody is.
    """
    wanted = f"{variable}={value}".encode()
    found: list[int] = []
    for pid in _pids():
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if wanted in environment.split(b"\0"):
            state = entry(pid)
            if state is not None and state.is_alive:
                found.append(pid)
    return found


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]
    except OSError:
        return []


@cache
def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
