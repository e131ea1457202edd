"""A stand-in for the Claude Code program: it does what its first argument says, a JSON list
of steps, and so replays what was recorded and misbehaves on demand.

Run as a program, in tests/providers/test_claude_code.py and elsewhere; `stand_in(...)` makes
the beginning of its command line.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(line: dict[str, Any]) -> None:
    """Print a line of JSON."""
    raw(json.dumps(line, ensure_ascii=False) + "\n")


def raw(text: str) -> None:
    """Write text as it is."""
    os.write(1, text.encode())


def data(hexadecimal: str) -> None:
    """Write bytes."""
    os.write(1, bytes.fromhex(hexadecimal))


def replay(path: str, size: int) -> None:
    """Write a file in pieces of `size` bytes."""
    content = Path(path).read_bytes()
    for start in range(0, len(content), size):
        os.write(1, content[start : start + size])


def flood(limit_bytes: int) -> None:
    """One line of JSON of this length."""
    remaining = memoryview(b'{"type":"flood","x":"' + b"x" * limit_bytes + b'"}\n')
    while remaining:
        remaining = remaining[os.write(1, remaining) :]


def stderr(text: str, times: int) -> None:
    """Write to stderr."""
    remaining = memoryview(text.encode() * times)
    while remaining:
        remaining = remaining[os.write(2, remaining) :]


def note(path: str) -> None:
    """Write down how it was started, and what came through stdin."""
    system = next((a.partition("=")[2] for a in sys.argv if a.startswith("--system-prompt")), None)
    noted = {
        "pid": os.getpid(),
        "arguments": sys.argv[2:],
        "stdin": sys.stdin.read(),
        "cwd": str(Path.cwd()),
        "environment": dict(os.environ),
        "system": Path(system).read_text() if system else None,
    }
    with Path(path).open("a") as file:
        file.write(json.dumps(noted) + "\n")


def ignore_term() -> None:
    """Do not end by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def spawn(path: str) -> None:
    """Start a stubborn process in a session of its own, as Claude Code runs its tools."""
    script = f"trap '' TERM HUP; echo $$ > {path}; exec sleep 600"
    subprocess.Popen(["sh", "-c", script], start_new_session=True)


def touch_when_told(path: str) -> None:
    """Obey SIGTERM, and say so in a file."""

    def obey(number: int, frame: object) -> None:
        Path(path).write_text("told\n")
        os._exit(0)

    signal.signal(signal.SIGTERM, obey)


def wait_for(path: str) -> None:
    """Go on when the file is there."""
    while not Path(path).exists():
        time.sleep(0.005)


def close_output() -> None:
    """Close stdout and stderr, and live on."""
    os.close(1)
    os.close(2)


def hang() -> None:
    """Say nothing more."""
    while True:
        time.sleep(600)


def leave(code: int) -> None:
    """End with this exit code."""
    os._exit(code)


def die() -> None:
    """End by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def once(path: str, *steps: list[Any]) -> None:
    """Do these steps the first time only; the file remembers."""
    if not Path(path).exists():
        Path(path).touch()
        run(list(steps))


def run(steps: list[list[Any]]) -> None:
    for name, *arguments in steps:
        globals()[name](*arguments)


def stand_in(*steps: list[Any]) -> list[str]:
    """The beginning of a command line that carries out the steps."""
    return [sys.executable, "-S", "-E", __file__, json.dumps(steps)]


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
