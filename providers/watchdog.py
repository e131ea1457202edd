"""What ends a child's descendants when nobody else is left to do it.

A watchdog is a shell that waits for the end of a pipe which the owner of a child holds. If
the owner dies without having called it off, it kills the child's group and all processes
that carry the child's mark, a variable in their environment. It does nothing before.
"""

import itertools
import os
import subprocess

from midstream.providers import process_table

MARK = "MIDSTREAM_CHILD"
"""The variable by which descendants are known."""

_SCRIPT = """
read -r group
read -r _
[ -n "$group" ] && kill -KILL -- "-$group" 2>/dev/null
for round in 1 2 3 4 5; do
  found=
  for file in $(grep -lasF -- "$1" /proc/[0-9]*/environ 2>/dev/null); do
    found=1; process=${file#/proc/}; kill -KILL "${process%/environ}" 2>/dev/null
  done
  [ -n "$found" ] || break
done
"""
_children = itertools.count(1)


def new_mark() -> tuple[str, str]:
    """A variable that no other child of any process has. The point at its end keeps one
    from being the beginning of another."""
    own = os.getpid()
    return MARK, f"{own}:{process_table.start_time(own)}:{next(_children)}."


def start_watchdog(mark: tuple[str, str], lifeline: int) -> "subprocess.Popen[bytes]":
    """Start one that waits for the end of `lifeline`; the first line there is the group.

    Its own session keeps the terminal's Ctrl-C from it, its empty environment any mark.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "midstream-watchdog", "=".join(mark)],
        stdin=lifeline,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath},
        cwd="/",
        start_new_session=True,
    )


def end_watchdog(watchdog: "subprocess.Popen[bytes]") -> None:
    """Before the lifeline is closed, or it would bark. It only sleeps, so it ends at once."""
    watchdog.kill()
    watchdog.wait()
