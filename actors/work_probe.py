"""WorkProbe: asks the task list of a project, kept with `bd`, what work is left.

A session asks before it continues by stages (spec/stop_message.md 11). The command is a
real child process: it gets no terminal, has a deadline for all its queries together, and is
killed with everything that it started when the deadline or the end of the runtime comes
(architecture.md invariant 13). Answers hold for some seconds, and sessions that ask for the same
project at once are answered by one run. What cannot be asked is no answer; what that means
is decided by `bd_stage.py`, and never that the work is done (#93).
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.messages.bd_stage import (
    CACHE_S,
    TIMEOUT_S,
    Answer,
    next_query,
    parse_tasks,
)
from midstream.messages.reply import Reply

PROJECT_MARK = ".beads"
"""The directory that `bd init` makes; the project is what it stands in."""
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
"""A list that is longer than this is not read."""


class WorkAnswers(msgspec.Struct, frozen=True):
    """What the queries of `bd_stage.QUERIES` returned, as far as they were asked."""

    answers: tuple[Answer, ...] = ()
    has_project: bool = True


class AskWork(msgspec.Struct, frozen=True, tag=True):
    """What is left to do in the project around `cwd`, an absolute path?"""

    cwd: str
    reply: Reply[WorkAnswers]


class WorkAsked(msgspec.Struct, frozen=True, tag=True):
    """To itself: the list around `cwd` was asked."""

    cwd: str
    answers: WorkAnswers


WorkProbeMessage = AskWork | WorkAsked


class WorkProbe(Actor[WorkProbeMessage]):
    """See the module. `timeout_s` is for all queries of one question together; with a
    `directory`, that is asked about, whoever asks."""

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        cache_s: float = CACHE_S,
        directory: str | None = None,
    ) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._cache_s = cache_s
        self._known: dict[str, tuple[float, WorkAnswers]] = {}
        self._waiting: dict[str, list[Reply[WorkAnswers]]] = {}

    async def handle(self, message: WorkProbeMessage) -> None:
        now = trio.current_time()
        match message:
            case AskWork(cwd, reply):
                cwd = self._directory or cwd
                known = self._known.get(cwd)
                if known is not None and now < known[0]:
                    reply.send(known[1])
                    return
                self._waiting.setdefault(cwd, []).append(reply)
                if len(self._waiting[cwd]) == 1:
                    self.spawn(self._ask, cwd)
            case WorkAsked(cwd, answers):
                fresh = {at: entry for at, entry in self._known.items() if now < entry[0]}
                self._known = {**fresh, cwd: (now + self._cache_s, answers)}
                for reply in self._waiting.pop(cwd, ()):
                    reply.send(answers)

    async def _ask(self, cwd: str) -> None:
        answers: list[Answer] = []
        has_project = False
        with trio.move_on_after(self._timeout_s) as deadline:
            has_project = await trio.to_thread.run_sync(_has_project, cwd, abandon_on_cancel=True)
            while has_project and (command := next_query(answers)) is not None:
                answers.append(await _run_query(command, cwd))
        if deadline.cancelled_caught:
            answers.append(None)
        await self.address.tell(WorkAsked(cwd, WorkAnswers(tuple(answers), has_project)))


def _has_project(cwd: str) -> bool:
    """Whether there is a project at, or above, the directory."""
    path = Path(cwd)
    try:
        return any((place / PROJECT_MARK).is_dir() for place in (path, *path.parents))
    except OSError:
        return False


async def _run_query(command: tuple[str, ...], cwd: str) -> Answer:
    """Run one query. None if the command is missing, fails, or prints no list of tasks."""
    try:
        process = await trio.lowlevel.open_process(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    assert process.stdout is not None
    try:
        output = await _read(process.stdout)
        if output is None:
            return None
        code = await process.wait()
    finally:
        # Its own group, so that what it has started and left behind goes too.
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()
    return parse_tasks(output.decode("utf-8", "replace")) if code == 0 else None


async def _read(stream: trio.abc.ReceiveStream) -> bytes | None:
    """All that comes; None if it is too much."""
    output = bytearray()
    while piece := await stream.receive_some():
        output += piece
        if len(output) > OUTPUT_LIMIT_BYTES:
            return None
    return bytes(output)
