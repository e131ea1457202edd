"""Where the tests find Claude Code: MIDSTREAM_CLAUDE, a `claude` on the path, or npm.

From npm it is installed once, into the user's cache, in a version that was tried; without its
install scripts, which it does not need. Where that cannot be done in time, tests are skipped
and say why.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "2.1.197"
PACKAGE = "@anthropic-ai/claude-code"
INSTALL_LIMIT_S = 90.0
"""It took 25 seconds on a busy machine."""


class NoClaude(Exception):
    """There is none; the message says why."""


def claude_program() -> str:
    """The program. Raises `NoClaude`."""
    found, why = _looked_for()
    if found is None:
        raise NoClaude(why)
    return found


@functools.cache
def _looked_for() -> tuple[str | None, str]:
    """Once for each process, as an attempt to install it may take long."""
    known = os.environ.get("MIDSTREAM_CLAUDE") or shutil.which("claude")
    if known is not None:
        return known, ""
    try:
        return str(_from_npm()), ""
    except (NoClaude, OSError) as error:
        return None, f"there is no claude on the path, MIDSTREAM_CLAUDE names none, and {error}"


def _from_npm() -> Path:
    npm = shutil.which("npm")
    if npm is None or sys.platform == "win32":
        raise NoClaude("there is no npm to install it with")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "midstream-tests"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"claude-code-{VERSION}"
    with (cache / "claude-code.lock").open("w") as lock:
        _hold(lock.fileno())  # other workers wait, and find what the first one has installed
        if not place.exists():
            _install(npm, place)
    return _program_in(place)


def _hold(file: int) -> None:
    import fcntl  # not there on Windows

    fcntl.flock(file, fcntl.LOCK_EX)


def _install(npm: str, place: Path) -> None:
    """All of it, or nothing."""
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        options = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0"]
        command = [npm, "install", "--prefix", directory, *options, f"{PACKAGE}@{VERSION}"]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=INSTALL_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NoClaude(f"npm took more than {INSTALL_LIMIT_S:g} s") from None
        if done.returncode != 0:
            why = done.stderr.decode(errors="replace").strip().splitlines()
            raise NoClaude(f"npm could not install it: {why[0] if why else done.returncode}")
        _program_in(Path(directory))
        Path(directory).rename(place)
        Path(directory).mkdir()  # for the block to remove


def _program_in(place: Path) -> Path:
    """The program of this machine, which is a package of its own."""
    found = sorted(place.glob(f"node_modules/{PACKAGE}-*/claude"))
    if not found:
        raise NoClaude(f"{PACKAGE} has no program for this machine")
    return found[0]
