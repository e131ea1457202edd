"""Finds the files of a directory that are worth scanning, and reads them.

In a git work tree the files are those that git would commit, so that what `.gitignore`
hides is left alone; elsewhere all. Links are not followed. Files that are not text, or
larger than asked for, are left out and counted.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

PROBE_BYTES = 8 * 1024
"""How much of a file is looked at to tell whether it is text (spec/ttsr.md 2)."""

MAX_BYTES = 5 * 1024 * 1024
"""Larger files are left out by default (spec/ttsr.md 2)."""

_GIT_DEADLINE_S = 60.0


class SourceFiles(msgspec.Struct):
    """The files below `root`, or `root` itself. `skipped` counts, by reason, those that
    were not read; `note` says why git could not be asked, if it should have been."""

    root: Path
    max_bytes: int = MAX_BYTES
    heeds_gitignore: bool = True
    skipped: Counter[str] = msgspec.field(default_factory=Counter[str])
    note: str = ""

    def find(self) -> list[Path]:
        """All candidates, sorted."""
        if not self.root.is_dir():
            return [self.root]
        listed = self._listed_by_git() if self.heeds_gitignore else None
        return sorted(_walk(self.root) if listed is None else listed)

    def read(self, path: Path) -> str | None:
        """The text of a file; None, and counted, where there is none to read."""
        try:
            if path.is_symlink() or not path.is_file():
                return self._skip("not a regular file")
            if path.stat().st_size > self.max_bytes:
                return self._skip("too large")
            data = path.read_bytes()
        except OSError:
            return self._skip("unreadable")
        if b"\0" in data[:PROBE_BYTES]:
            return self._skip("binary")
        return data.decode("utf-8", "replace")

    def _skip(self, reason: str) -> None:
        self.skipped[reason] += 1

    def _listed_by_git(self) -> list[Path] | None:
        """What git knows or would add; None outside of a work tree, or without git."""
        # A repository can name programs for git to run. Listing files must not run any.
        command = ["git", "-c", "core.fsmonitor=false", "-C", str(self.root), "ls-files"]
        command += ["-z", "--cached", "--others", "--exclude-standard"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_GIT_DEADLINE_S, check=True)
        except FileNotFoundError:
            return None
        except subprocess.TimeoutExpired:
            self.note = f"git took longer than {_GIT_DEADLINE_S:.0f} s; all files are scanned"
            return None
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode("utf-8", "replace").strip().splitlines()
            if said and "not a git repository" not in said[0]:
                self.note = f"{said[0]}; all files are scanned"
            return None
        names = (os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
        return list(self._with_submodules(names))

    def _with_submodules(self, names: Iterator[str]) -> Iterator[Path]:
        for name in dict.fromkeys(names):
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                # One that was not checked out has no files; git would answer for ours.
                if os.path.lexists(path / ".git"):
                    yield from SourceFiles(path, self.max_bytes).find()
            elif os.path.lexists(path):  # git still lists what was just deleted
                yield path


def _walk(root: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(root):
        directories[:] = sorted(name for name in directories if name != ".git")
        for name in files:
            yield Path(directory) / name
