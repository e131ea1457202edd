"""Stopping a process group that somebody else started: the cancel handle, and its use.

A session's record carries a `CancelHandle`, so that any process on the machine can stop the
session's process (spec/animator.md 5.3). What a number means may change, so a signal is sent
only when the number cannot mean everybody, ourselves, or a process that came later
(B16); SIGTERM first, SIGKILL after a grace (14.16).
"""

import logging
import os
import signal
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
import trio

from midstream.messages.errors import MidstreamError
from midstream.providers import process_table

_log = logging.getLogger("midstream.processes")

HANDLE_KIND = "local-pgid"
GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL (spec/animator.md 14.16)."""
KILL_S = 2.0
"""Seconds for the kernel to carry out a SIGKILL; a process that hangs in a system call on a
dead disk may take longer."""
_POLL_S = 0.05


class UnsafeHandle(MidstreamError):
    """A cancel handle whose number must never be signalled."""


class CancelHandle(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Which process group to stop, as it stands in the record of a session.

    `start_time` is that of the group's leader, as `process_table.start_time` tells it. A
    handle of the reference has none: it is kept, but nobody is signalled by it where start
    times can be told, since the number may be anybody's by now.
    """

    kind: str = HANDLE_KIND
    pgid: int
    start_time: str | None = None

    @classmethod
    def of_leader(cls, pid: int) -> "CancelHandle":
        """The handle of a process that leads its group, which it must still do."""
        return cls(kind=HANDLE_KIND, pgid=pid, start_time=process_table.start_time(pid))

    def as_record(self) -> dict[str, Any]:
        """The handle as records keep it; `kind` is always there."""
        return {"kind": self.kind, **msgspec.to_builtins(self)}


class LocalProcesses:
    """Stops sessions of this machine by their handles: a `CancelsByHandle` for any program."""

    name = HANDLE_KIND

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s

    async def cancel(self, handle: Mapping[str, Any]) -> None:
        """Stop the process group, as `kill_group` does."""
        known = read_handle(handle)
        if known is not None:
            await kill_group(known, self._grace_s)


class GroupEnd(StrEnum):
    """What became of a group that was to be stopped."""

    GONE = "gone"
    """It had ended before, or its number belongs to somebody else now. Nothing was sent."""
    ENDED = "ended"
    """It ended within the grace."""
    KILLED = "killed"
    SURVIVES = "survives"
    """Even SIGKILL has not ended it yet."""


def read_handle(kept: Mapping[str, Any] | None) -> CancelHandle | None:
    """The handle in a record, or None for what is none of ours to stop.

    A handle of an unknown kind is warned about; one without a number is nothing.
    """
    if not kept or kept.get("pgid") is None:
        return None
    if kept.get("kind") != HANDLE_KIND:
        _log.warning("a cancel handle of the kind %r is not understood", kept.get("kind"))
        return None
    try:
        return msgspec.convert(dict(kept), CancelHandle)
    except msgspec.ValidationError as error:
        raise UnsafeHandle(f"the cancel handle cannot be read: {error}") from None


async def kill_group(handle: CancelHandle, grace_s: float = GRACE_S) -> GroupEnd:
    """Stop the group: SIGTERM, and SIGKILL if anybody of it lives after `grace_s` seconds.

    Once begun it is carried through, also if the caller is cancelled, and takes at most
    `grace_s` and `KILL_S` seconds. Raises `UnsafeHandle` for a number that means everybody
    (1), the caller's own group (0, or by name), or anybody (no start time); PermissionError
    where the group belongs to another user.
    """
    _require_safe(handle)
    if not _is_the_same(handle):
        await trio.lowlevel.checkpoint()
        return GroupEnd.GONE
    if not _signal(handle.pgid, signal.SIGTERM):
        return GroupEnd.GONE
    with trio.CancelScope(shield=True):
        if await _ends_within(handle, grace_s):
            return GroupEnd.ENDED
        if not _signal(handle.pgid, signal.SIGKILL):
            return GroupEnd.ENDED
        if await _ends_within(handle, KILL_S):
            return GroupEnd.KILLED
    return GroupEnd.SURVIVES


def _require_safe(handle: CancelHandle) -> None:
    pgid = handle.pgid
    if pgid <= 1:
        raise UnsafeHandle(f"process group {pgid} is no group of a session")
    if pgid == os.getpgrp():
        raise UnsafeHandle(f"process group {pgid} is our own")
    if handle.start_time is None and process_table.start_time(os.getpid()) is not None:
        raise UnsafeHandle(f"process group {pgid} has no start time, so it may be anybody's by now")


def _is_the_same(handle: CancelHandle) -> bool:
    """Whether the leader is the one that the handle was made for.

    Its number stays taken while anybody is in the group, so a leader that has gone leaves
    it undecided who the others are; nobody is signalled then. A system that tells no start
    times leaves only the number.
    """
    known = process_table.start_time(handle.pgid)
    return known == handle.start_time


async def _ends_within(handle: CancelHandle, seconds: float) -> bool:
    with trio.move_on_after(seconds):
        while process_table.group_is_alive(handle.pgid):
            if process_table.entry(handle.pgid) is not None and not _is_the_same(handle):
                return True  # all have ended, and the number is somebody else's by now
            await trio.sleep(_POLL_S)
        return True
    return False


def _signal(pgid: int, number: signal.Signals) -> bool:
    """Signal the group; False when there is nobody in it."""
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    return True
