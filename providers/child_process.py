"""One child process and all that it starts, for as long as a block lasts.

`open_child` runs a command in a session and group of its own. When its block is left, by
whatever way, the child and its descendants are gone and reaped, within a bounded time:
SIGTERM to the group, SIGKILL after a grace, and SIGKILL to descendants that left the group
(Claude Code runs each shell command in a session of its own), which are known by a variable
in their environment. Nobody is signalled by a number that may mean somebody else: the child
is reaped last, and until then its number is taken.

If this process dies without a chance to clean up, the kernel kills the child (PDEATHSIG,
where `setpriv` is there to ask for it), and a watchdog the rest: a shell that waits for the
end of a pipe that we hold, and does nothing before. Both standard streams are read all the
time, so that a child can block on neither. POSIX only. Sources: spec/lessons.md 55, architecture.md
invariant 13.
"""

import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import trio

from midstream.providers import process_table
from midstream.providers.child_start import ChildCommand, Pipes, start_child
from midstream.providers.exit_notice import exit_code, wait_exited
from midstream.providers.process_group import KILL_S, CancelHandle
from midstream.providers.text_tail import TextTail
from midstream.providers.watchdog import end_watchdog, new_mark, start_watchdog

_log = logging.getLogger("midstream.processes")

GRACE_S = 2.0
"""Seconds from SIGTERM to SIGKILL. Claude Code stops its tools and ends within tenths."""
DRAIN_S = 1.0
"""How long more output is waited for when the child has ended, but a descendant of it holds
the pipe open."""
STDERR_LIMIT_CHARS = 200
"""How much of the end of stderr is kept (spec/animator.md 14.17)."""

_READ_BYTES = 65_536
_LEFT_BEHIND_BYTES = 1_048_576
"""What a pipe can hold at most without privileges (man 7 pipe)."""
_MARKED_ROUNDS = 5
_ROUND_S = 0.01


class ChildProcess:
    """A child that runs. Made by `open_child`.

    `handle` is what another process needs to stop it.
    """

    def __init__(self, command: ChildCommand, stderr_limit_chars: int) -> None:
        self._mark = new_mark()
        self._stderr = TextTail(stderr_limit_chars)
        self._stderr_ended = trio.Event()
        self._exited = trio.Event()
        self._life = trio.CancelScope(shield=True)
        self._wait_until = float("inf")
        self._waiting: trio.CancelScope | None = None
        self._left_bytes = _LEFT_BEHIND_BYTES
        with Pipes() as pipes:
            self._watchdog = start_watchdog(self._mark, pipes.lifeline_read)
            try:
                self._process = start_child(command, self._mark, pipes)
            except BaseException:
                end_watchdog(self._watchdog)
                raise
            os.write(pipes.lifeline_write, b"%d\n" % self._process.pid)
            self._stdin, self._stdout, self._stderr_fd, self._lifeline = pipes.keep()
        self.handle = CancelHandle.of_leader(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative number of a signal if that has ended it."""
        return exit_code(self._process)

    @property
    def stderr_tail(self) -> str:
        """The end of what it has written to stderr, as far as it has been read."""
        return self._stderr.text

    async def read(self) -> bytes:
        """The next bytes of its output, empty at the end.

        The end is that of the pipe, or that of the child if a descendant goes on holding
        the pipe; nothing of what the child itself has written is lost.
        """
        await trio.lowlevel.checkpoint()
        while self._left_bytes > 0:
            with suppress(BlockingIOError):
                data = os.read(self._stdout, _READ_BYTES)
                if self._exited.is_set():
                    self._left_bytes -= len(data)
                return data
            with trio.CancelScope(deadline=self._wait_until) as self._waiting:
                await trio.lowlevel.wait_readable(self._stdout)
            if self._waiting.cancelled_caught:
                break
        return b""

    async def wait(self) -> int:
        """Wait until the child has ended and its stderr was read. Returns its exit code."""
        await self._exited.wait()
        with trio.move_on_after(DRAIN_S):
            await self._stderr_ended.wait()
        code = self.exit_code
        assert code is not None
        return code

    async def live(self, stdin: bytes) -> None:
        """For `open_child`: see to the child until `end`. Shielded, because what sees to its
        end has to go on while everything else is cancelled."""
        with self._life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed_stdin, stdin)
                nursery.start_soon(self._drain_stderr)
                nursery.start_soon(self._notice_exit)

    async def end(self, grace_s: float) -> None:
        """For `open_child`: stop everything and reap. Takes `grace_s` and seconds at most."""
        if not self._exited.is_set():
            self._signal_group(signal.SIGTERM)
            with trio.move_on_after(grace_s):
                await self._exited.wait()
        self._signal_group(signal.SIGKILL)
        await self._kill_marked()
        with trio.move_on_after(KILL_S):
            await self._exited.wait()
        with trio.move_on_after(DRAIN_S):
            await self._stderr_ended.wait()
        if self._process.poll() is None:
            _log.error("process %d does not end, not even by SIGKILL", self._process.pid)
        end_watchdog(self._watchdog)
        self._life.cancel()

    def close(self) -> None:
        """For `open_child`: let go of the pipes. Nothing reads them any more."""
        for fd in (self._stdout, self._stderr_fd, self._lifeline):
            os.close(fd)

    async def _feed_stdin(self, data: bytes) -> None:
        """Write everything, then close. A child may decline to read."""
        async with trio.lowlevel.FdStream(self._stdin) as stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(data)

    async def _drain_stderr(self) -> None:
        while True:
            try:
                data = os.read(self._stderr_fd, _READ_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._stderr_fd)
                continue
            if not data:
                break
            self._stderr.feed(data)
            await trio.lowlevel.checkpoint()  # a flood must not hold up everybody else
        self._stderr_ended.set()

    async def _notice_exit(self) -> None:
        await wait_exited(self._process)
        self._wait_until = trio.current_time() + DRAIN_S
        if self._waiting is not None:
            self._waiting.deadline = self._wait_until
        self._exited.set()

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            _log.warning("process group %d may not be signalled", self._process.pid)

    async def _kill_marked(self) -> None:
        """What left the group. More than one round, since one may be starting another."""
        name, value = self._mark
        for _ in range(_MARKED_ROUNDS):
            pids = await trio.to_thread.run_sync(process_table.carrying, name, value)
            if pids in ([], [self.pid]):
                return
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await trio.sleep(_ROUND_S)


@asynccontextmanager
async def open_child(
    command: ChildCommand,
    *,
    grace_s: float = GRACE_S,
    stderr_limit_chars: int = STDERR_LIMIT_CHARS,
) -> AsyncGenerator[ChildProcess]:
    """Run a command for as long as the block lasts, then end it and all its descendants.

    Leaving takes at most `grace_s` and four seconds, under cancellation too. Raises
    `ChildNotStarted` before the block is entered.
    """
    await trio.lowlevel.checkpoint_if_cancelled()  # nothing is started for who is cancelled
    child = ChildProcess(command, stderr_limit_chars)
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.live, command.stdin)
            try:
                yield child
            except Exception as error:  # noqa: BLE001 - raised again, outside the nursery
                raised = error
            finally:
                with trio.CancelScope(shield=True):
                    await child.end(grace_s)
    finally:
        child.close()
    if raised is not None:
        raise raised
