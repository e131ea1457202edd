"""The file system as far as a scope lets it be read.

`FileRefResolver` and everything else that reads files for a session goes through here. The
functions block and are meant for a worker thread; they share nothing that changes but the
scope, of which each call takes one snapshot. Guarantees (spec/file_ref.md 4, B3-B5): not a
byte from outside the scope, whatever is renamed or swapped meanwhile; only regular files
are read, never waited for, and never more than asked; nothing is said of what lies outside.
"""

import errno
import fcntl
import heapq
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from copy import copy
from enum import IntEnum

import msgspec

from midstream.actors.path_walk import Place, walk
from midstream.actors.ref_failure import RefError, RefReason
from midstream.actors.scope import (
    Permission,
    Scope,
    ScopeError,
    ScopeRule,
    components_of,
)

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FILE = _READ | os.O_NONBLOCK | os.O_NOCTTY
_READ_DIRECTORY = _READ | os.O_DIRECTORY
_LOOKAHEAD_BYTES = 4
"""Read beyond a limit, so that a cut within a character can be told from the end (B4)."""
_CHUNK_BYTES = 1 << 20
_PATH_LIMIT_BYTES = 4096
_ENTRIES_SCANNED_AT_MOST = 100_000
_REOPENED_AT_MOST = 4
_DELETED = " (deleted)"
"""What Linux appends to the path of a file that has none any more."""


class EntryKind(IntEnum):
    """Kinds of directory entries, in the order in which they are listed."""

    DIRECTORY = 0
    SYMLINK = 1
    OTHER = 2


class Listing(msgspec.Struct, frozen=True):
    """The first entries of a directory and how many there are; names as the system has
    them, undecodable bytes as lone surrogates."""

    entries: tuple[tuple[EntryKind, str], ...]
    total: int


class OpenFile(msgspec.Struct, frozen=True):
    """A regular file within the scope; `path` is canonical."""

    path: str
    fd: int

    def read(self, limit_bytes: int) -> tuple[bytes, int]:
        """Up to `limit_bytes` + 4 bytes from the start, and the size of the whole in bytes.

        The size is that of the open file and, where the system does not know it, at least
        what was read.
        """
        wanted = limit_bytes + _LOOKAHEAD_BYTES
        chunks: list[bytes] = []
        while wanted > 0:
            chunk = os.read(self.fd, min(wanted, _CHUNK_BYTES))
            if not chunk:
                data = b"".join(chunks)
                return data, len(data)
            chunks.append(chunk)
            wanted -= len(chunk)
        data = b"".join(chunks)
        return data, max(os.fstat(self.fd).st_size, len(data))


class OpenDirectory(msgspec.Struct, frozen=True):
    """A directory within the scope, reached without a link; `path` is canonical."""

    path: str
    fd: int
    scope: Scope

    def list(self, limit: int, *, prefix: str = "") -> Listing:
        """The first `limit` entries that may be read: directories, links, the rest, each by
        the bytes of their names. Only those whose names begin with `prefix` count.

        An entry that cannot be examined counts as the rest (B9).
        """
        total = 0

        def readable() -> Iterator[tuple[EntryKind, bytes, str]]:
            nonlocal total
            here = components_of(self.path)
            with os.scandir(self.fd) as entries:
                for _, entry in zip(range(_ENTRIES_SCANNED_AT_MOST), entries, strict=False):
                    if not entry.name.startswith(prefix):
                        continue
                    if self.scope.permission((*here, entry.name)) >= Permission.READ:
                        total += 1
                        yield _kind(entry), os.fsencode(entry.name), entry.name

        first = heapq.nsmallest(limit, readable())
        return Listing(tuple((kind, name) for kind, _, name in first), total)


class ScopedFs:
    """Reads within a scope.

    `base` is the absolute directory that relative references start from; without one they
    fail. `strict` refuses absolute references, `..` and backslashes (decision 7). Targets
    of the scope and `base` are canonicalised when they are set. Raises `ScopeError` where
    the system cannot look names up relative to a directory.
    """

    def __init__(self, scope: Scope, base: str | None, *, strict: bool = False) -> None:
        if os.open not in os.supports_dir_fd:
            raise ScopeError("scope: this system cannot open files relative to a directory")
        if base is not None and not base.startswith("/"):
            raise ScopeError(f"scope: the base `{base}` has to be an absolute path")
        self._scope = _canonical(scope)
        self._base = None if base is None else os.path.realpath(base)
        self._strict = strict

    def set_scope(self, scope: Scope) -> None:
        """Replace the scope; calls that have begun keep the old one."""
        self._scope = _canonical(scope)

    def based_at(self, base: str) -> "ScopedFs":
        """The same view with another directory for relative references, an absolute one.

        Blocks. It has the scope of this moment and does not follow later changes.
        """
        other = copy(self)
        other._base = os.path.realpath(base)
        return other

    @contextmanager
    def open(self, reference: str) -> Generator[OpenFile | OpenDirectory, None, None]:
        """Open what a reference means, for reading. Raises `RefError`."""
        scope = self._scope
        fd, path = self._open(scope, reference)
        try:
            is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
            yield OpenDirectory(path, fd, scope) if is_directory else OpenFile(path, fd)
        finally:
            os.close(fd)

    def exists(self, reference: str) -> bool:
        """Whether a reference means something within the scope, readable or not."""
        try:
            with walk(self._scope, reference, self._absolute(reference)):
                return True
        except RefError:
            return False

    def permission(self, path: str) -> Permission:
        """What the scope lets be done at an absolute path, existing or not.

        Links are resolved as far as the path exists. A relative path has no permission.
        """
        if not path.startswith("/") or "\0" in path:
            return Permission.NONE
        return self._scope.permission(components_of(os.path.realpath(path)))

    def _open(self, scope: Scope, reference: str) -> tuple[int, str]:
        path = self._absolute(reference)
        for _ in range(_REOPENED_AT_MOST):
            with walk(scope, reference, path) as place:
                fd = _open_place(place, reference)
            if fd is None:
                continue
            try:
                if _is_still_there(scope, fd, place, reference):
                    return fd, "/" + "/".join(place.path)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        raise RefError(RefReason.IO, reference, "the path keeps changing")

    def _absolute(self, reference: str) -> str:
        if problem := _problem_of(reference, strict=self._strict):
            raise RefError(RefReason.INVALID_PATH, reference, problem)
        if reference.startswith("/"):
            return reference
        if self._base is None:
            raise RefError(RefReason.RELATIVE_PATH, reference, "relative to no directory")
        return f"{self._base}/{reference}"


def _open_place(place: Place, reference: str) -> int | None:
    """Open the end of a walk for reading; None if it has changed its kind meanwhile."""
    if place.is_directory and place.through_link:
        detail = "a link to a directory is not listed"
        raise RefError(RefReason.SYMLINK_TARGET_IS_DIRECTORY, reference, detail)
    if not place.is_directory and not stat.S_ISREG(place.mode):
        raise RefError(RefReason.IO, reference, "not a regular file")
    flags = _READ_DIRECTORY if place.is_directory else _READ_FILE
    try:
        return os.open(place.name, flags, dir_fd=place.directory_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.ENXIO):
            return None
        detail = error.strerror or "the system refused"
        raise RefError(RefReason.IO, reference, detail) from error


def _is_still_there(scope: Scope, fd: int, place: Place, reference: str) -> bool:
    """The last word is on what was opened, not on what was looked at.

    A directory that was pinned may have been moved out of the scope since, and what is
    below it was then perhaps never inside. False: deleted or replaced meanwhile.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) and not (place.is_directory and stat.S_ISDIR(found.st_mode)):
        raise RefError(RefReason.IO, reference, "not a regular file")
    real = _real_path(fd)
    if real is None:
        return True
    if found.st_nlink == 0 and real.endswith(_DELETED):
        return False
    if scope.permission(components_of(real)) < Permission.READ:
        raise RefError(RefReason.OUT_OF_SCOPE, reference, "outside of what may be read")
    return True


def _real_path(fd: int) -> str | None:
    """Where an open descriptor is now; None where the system cannot say."""
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        path = _darwin_path(fd)
    return path if path and path.startswith("/") else None


def _darwin_path(fd: int) -> str | None:
    command = getattr(fcntl, "F_GETPATH", None)
    if command is None:
        return None
    try:
        answer = fcntl.fcntl(fd, command, bytes(_PATH_LIMIT_BYTES // 4))
    except OSError:
        return None
    return os.fsdecode(answer.rstrip(b"\0"))


def _problem_of(reference: str, *, strict: bool) -> str:
    try:
        encoded = reference.encode()
    except UnicodeEncodeError:
        return "not a text that can be stored"
    if b"\0" in encoded or len(encoded) > _PATH_LIMIT_BYTES:
        return "not a path"
    if not strict:
        return ""
    if reference.startswith("/"):
        return "absolute paths are not allowed"
    if "\\" in reference:
        return "backslashes are not allowed"
    return "`..` is not allowed" if ".." in reference.split("/") else ""


def _kind(entry: "os.DirEntry[str]") -> EntryKind:
    try:
        if entry.is_symlink():
            return EntryKind.SYMLINK
        return EntryKind.DIRECTORY if entry.is_dir(follow_symlinks=False) else EntryKind.OTHER
    except OSError:
        return EntryKind.OTHER


def _canonical(scope: Scope) -> Scope:
    """The scope with the links in its targets resolved."""
    return Scope(
        tuple(_canonical_rule(rule) for rule in scope.allow),
        tuple(_canonical_rule(rule) for rule in scope.deny),
    )


def _canonical_rule(rule: ScopeRule) -> ScopeRule:
    return ScopeRule(os.path.realpath(rule.target), rule.permission, rule.recursive)
