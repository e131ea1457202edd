"""Hearing of the end of a child without reaping it.

A child that has ended and is not reaped keeps its number, and so that of its group, from
being given to anybody else; only that makes it safe to signal the group afterwards. Linux
tells through a pidfd, other systems through a thread that waits.
"""

import os
import subprocess

import trio


async def wait_exited(process: "subprocess.Popen[bytes]") -> None:
    """Wait until the child has ended. It is reaped only where the system cannot do without."""
    if process.returncode is not None:
        await trio.lowlevel.checkpoint()
        return
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        await trio.to_thread.run_sync(_wait_in_thread, process, abandon_on_cancel=True)
        return
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)


def exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """The exit code of a child that has ended, reaped or not; None while it runs.

    Negative for a signal, as in `subprocess`.
    """
    if process.returncode is not None:
        return process.returncode
    if not hasattr(os, "waitid"):
        return process.poll()
    try:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ended = os.waitid(os.P_PID, process.pid, options)
    except ChildProcessError:  # somebody else has reaped it
        return process.poll()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _wait_in_thread(process: "subprocess.Popen[bytes]") -> None:
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()
