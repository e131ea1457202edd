"""Starting a child: its pipes, its program, and that the kernel kills it when we die."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from midstream.messages.errors import MidstreamError


class ChildNotStarted(MidstreamError):
    """The command could not be started: the message says why."""


class ChildCommand(msgspec.Struct, frozen=True):
    """What to run; `argv` is not empty. `environment` is the whole of it, `stdin` is written
    and closed."""

    argv: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    stdin: bytes = b""


class Pipes:
    """The pipes to one child. What is not kept is closed when the block is left."""

    def __enter__(self) -> "Pipes":
        self._open: set[int] = set()
        self.stdin_read, self.stdin_write = self._pipe()
        self.stdout_read, self.stdout_write = self._pipe()
        self.stderr_read, self.stderr_write = self._pipe()
        self.lifeline_read, self.lifeline_write = self._pipe()
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open:
            os.close(fd)

    def keep(self) -> tuple[int, int, int, int]:
        """Our ends: of stdin, stdout, stderr and the lifeline."""
        ours = (self.stdin_write, self.stdout_read, self.stderr_read, self.lifeline_write)
        self._open -= set(ours)
        for fd in (self.stdout_read, self.stderr_read):
            os.set_blocking(fd, False)
        return ours

    def _pipe(self) -> tuple[int, int]:
        pair = os.pipe()
        self._open |= set(pair)
        return pair


def start_child(
    command: ChildCommand, mark: tuple[str, str], pipes: Pipes
) -> "subprocess.Popen[bytes]":
    """Start the child from this very thread: PDEATHSIG is about the thread that forks, and
    one of a pool would end while the child is in use."""
    environment = {**command.environment, mark[0]: mark[1]}
    program, *arguments = command.argv
    try:
        return subprocess.Popen(
            [*_dying_with_us(), _located(program, command), *arguments],
            stdin=pipes.stdin_read,
            stdout=pipes.stdout_write,
            stderr=pipes.stderr_write,
            cwd=command.cwd,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ChildNotStarted(f"{program} cannot be started in {command.cwd}: {error}") from error


def _located(program: str, command: ChildCommand) -> str:
    """The path of the program, looked up as a shell in the child's directory would."""
    place = command.cwd / program if os.sep in program else program
    found = shutil.which(place, path=command.environment.get("PATH", os.defpath))
    if found is None:
        raise ChildNotStarted(f"{program} is no program that can be run here")
    return str(found)


def _dying_with_us() -> list[str]:
    """The beginning of a command line that has the kernel kill what follows when we die."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
