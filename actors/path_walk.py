"""The way from `/` to what a path means, one pinned directory after the other.

`walk` is the part of `ScopedFs` that makes it safe. Each component is looked up relative to
the open descriptor of its directory, never follows a link by itself, and links are resolved
here, so that renaming or swapping anything on the way changes nothing that was already
decided (spec/file_ref.md B5). `..` goes back to the descriptor that was pinned, not to
wherever the directory has been moved.

What lies outside the scope is not entered. A name there is looked at for one purpose only,
whether it is a link that leads into the scope; every other outcome is the same
`OUT_OF_SCOPE`, so that nobody learns what exists (decision 10). POSIX only.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress

import msgspec

from midstream.actors.ref_failure import RefError, RefReason
from midstream.actors.scope import Components, Permission, Scope

_PIN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""Opens a directory to look things up in it; with O_PATH without the right to list it."""
_MOST_LINKS = 40
"""As many links as Linux itself follows in one path."""
_RACES = 8
"""How often a component may change its kind under our hands before we give up."""


class Place(msgspec.Struct, frozen=True):
    """Where a walk ended: a name in a pinned directory, or (`name` is ".") the directory.

    `path` is canonical. `through_link` says whether a symbolic link was followed.
    """

    directory_fd: int
    name: str
    path: Components
    mode: int
    through_link: bool

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


@contextmanager
def walk(scope: Scope, reference: str, path: str) -> Generator[Place, None, None]:
    """Walk to the absolute `path`; the descriptor of the place lives as long as the context.

    The place may be read under `scope`. `reference` is what errors call it. Raises
    `RefError` with one of the reasons of the file system.
    """
    walker = _Walker(scope, reference)
    try:
        yield walker.run(path)
    finally:
        walker.close()


class _Walker:
    def __init__(self, scope: Scope, reference: str) -> None:
        self.scope = scope
        self.reference = reference
        self.fds = [os.open("/", _PIN)]
        self.names: list[str] = []
        self.pending: deque[str] = deque()
        self.link: tuple[str, str] | None = None
        """The first link within the scope that was followed: its path and its target."""
        self.links = 0

    def close(self) -> None:
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)
        self.fds.clear()

    def run(self, path: str) -> Place:
        self.pending.extend(path.split("/"))
        while self.pending:
            name = self.pending.popleft()
            if name == "..":
                self._leave()
            elif name not in ("", ".") and (place := self._step(name)):
                return place
        if not self._may_read(tuple(self.names)):
            raise self._out_of_scope()
        mode = os.fstat(self.fds[-1]).st_mode
        return Place(self.fds[-1], ".", tuple(self.names), mode, self.links > 0)

    def _step(self, name: str) -> Place | None:
        """Go into one component; the place if it is the last and no directory."""
        for _ in range(_RACES):
            here = (*self.names, name)
            mode = self._look(name, here)
            if stat.S_ISLNK(mode):
                if self._follow(name, here):
                    return None
                continue
            if not self._may_pass(here):
                raise self._out_of_scope()
            if not stat.S_ISDIR(mode):
                return self._arrive(name, here, mode)
            if self._enter(name):
                return None
        raise RefError(RefReason.IO, self.reference, "the path keeps changing")

    def _look(self, name: str, here: Components) -> int:
        try:
            return os.stat(name, dir_fd=self.fds[-1], follow_symlinks=False).st_mode
        except FileNotFoundError:
            raise self._missing(here) from None
        except OSError as error:
            raise self._failed(here, error) from error

    def _follow(self, name: str, here: Components) -> bool:
        """Put a link's target in the place of the link; False if it is none any more."""
        try:
            target = os.readlink(name, dir_fd=self.fds[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return False
            raise self._failed(here, error) from error
        self.links += 1
        if self.link is None and self._may_read(here):
            self.link = ("/" + "/".join(here), target)
        if self.links > _MOST_LINKS:
            raise self._failed(here, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
        self.pending.extendleft(reversed(target.split("/")))
        if target.startswith("/"):
            while self.names:
                self._leave()
        return True

    def _enter(self, name: str) -> bool:
        """Pin a directory; False if it is none any more."""
        try:
            self.fds.append(os.open(name, _PIN, dir_fd=self.fds[-1]))
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
                return False
            raise self._failed((*self.names, name), error) from error
        self.names.append(name)
        return True

    def _leave(self) -> None:
        """`..`: back to the pinned parent; `/` is its own parent."""
        if self.names:
            os.close(self.fds.pop())
            self.names.pop()

    def _arrive(self, name: str, here: Components, mode: int) -> Place:
        if not self._may_read(here):
            raise self._out_of_scope()
        if self.pending:
            raise RefError(RefReason.NOT_FOUND, self.reference, "a part of it is no directory")
        return Place(self.fds[-1], name, here, mode, self.links > 0)

    def _may_read(self, path: Components) -> bool:
        return self.scope.permission(path) >= Permission.READ

    def _may_pass(self, path: Components) -> bool:
        return self._may_read(path) or self.scope.leads_into(path)

    def _missing(self, here: Components) -> RefError:
        """Scope first: that something is missing is said only of what could be read."""
        if not self._may_pass(here):
            return self._out_of_scope()
        rest = list(here)
        for name in self.pending:
            if name == "..":
                del rest[-1:]
            elif name not in ("", "."):
                rest.append(name)
        if not self._may_read(tuple(rest)):
            return self._out_of_scope()
        if self.link:
            link, target = self.link
            detail = f"the link {link} points to {target}, which does not exist"
            return RefError(RefReason.BROKEN_SYMLINK, self.reference, detail)
        return RefError(RefReason.NOT_FOUND, self.reference, "no such file or directory")

    def _failed(self, here: Components, error: OSError) -> RefError:
        if not self._may_pass(here):
            return self._out_of_scope()
        return RefError(RefReason.IO, self.reference, error.strerror or "the system refused")

    def _out_of_scope(self) -> RefError:
        if self.link:
            link, target = self.link
            detail = f"the link {link} points to {target}; the scope would have to let it be read"
            return RefError(RefReason.SYMLINK_OUT_OF_SCOPE, self.reference, detail)
        return RefError(RefReason.OUT_OF_SCOPE, self.reference, "outside of what may be read")
