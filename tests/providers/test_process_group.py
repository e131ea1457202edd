"""Stopping a process group by its cancel handle, and never anybody else."""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator

import msgspec
import pytest
import trio
from process_watch import gone, is_alive, python, until

from midstream.providers import process_table
from midstream.providers.process_group import (
    CancelHandle,
    GroupEnd,
    UnsafeHandle,
    kill_group,
    read_handle,
)

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


class Started:
    """Processes that a test has started, each the leader of a group."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, command: list[str]) -> int:
        """Start one that says when it is ready. Its pid."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        assert process.stdout is not None
        if process_table.group_is_alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


async def test_a_group_that_obeys_ends_by_sigterm(start: Started):
    pid = start(["sh", "-c", "sleep 600 & echo ready; wait"])
    assert await kill_group(CancelHandle.of_leader(pid)) is GroupEnd.ENDED
    assert not process_table.group_is_alive(pid)


async def test_14_16_a_group_that_ignores_sigterm_is_killed_after_the_grace(start: Started):
    pid = start(python(STUBBORN))
    assert await kill_group(CancelHandle.of_leader(pid), grace_s=0.1) is GroupEnd.KILLED
    assert not process_table.group_is_alive(pid)


async def test_those_that_the_leader_leaves_behind_are_killed_too(start: Started):
    script = f"import subprocess, sys\nsubprocess.Popen({python(STUBBORN)!r}).wait()"
    pid = start(python(script))
    assert await kill_group(CancelHandle.of_leader(pid), grace_s=0.3) is GroupEnd.KILLED
    assert not process_table.group_is_alive(pid)


@pytest.mark.parametrize("pgid", [0, 1, -1, -4])
async def test_b16_a_number_that_means_everybody_or_ourselves_is_refused(
    pgid: int, monkeypatch: pytest.MonkeyPatch
):
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pgid, number: sent.append(pgid))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]  # a stand-in
    with pytest.raises(UnsafeHandle, match="no group"):
        await kill_group(CancelHandle(pgid=pgid))
    assert sent == []


async def test_b16_our_own_group_is_refused():
    with pytest.raises(UnsafeHandle, match="our own"):
        await kill_group(CancelHandle(pgid=os.getpgrp()))


async def test_b16_a_pid_that_was_reused_is_left_alone(start: Started):
    pid = start(python(STUBBORN))
    earlier = CancelHandle(pgid=pid, start_time="1@another-boot")
    assert await kill_group(earlier, grace_s=0) is GroupEnd.GONE
    assert is_alive(pid)


async def test_without_the_leader_nobody_can_say_whose_group_it_is(start: Started):
    pid = start(["sh", "-c", "sleep 600 & echo ready; read -r _"])
    handle = CancelHandle.of_leader(pid)
    os.kill(pid, signal.SIGKILL)
    start.processes[0].wait()
    assert await kill_group(handle, grace_s=0) is GroupEnd.GONE
    assert process_table.group_is_alive(pid)


async def test_a_group_that_has_ended_is_gone():
    process = subprocess.Popen(["true"], start_new_session=True)  # noqa: ASYNC220
    handle = CancelHandle.of_leader(process.pid)
    process.wait()
    assert await kill_group(handle) is GroupEnd.GONE


async def test_a_leader_that_waits_to_be_reaped_does_not_count_as_alive(start: Started):
    pid = start(["sh", "-c", "echo ready"])
    await gone(pid)
    assert await kill_group(CancelHandle.of_leader(pid)) is GroupEnd.ENDED


async def test_a_group_of_somebody_else_is_an_error(
    start: Started, monkeypatch: pytest.MonkeyPatch
):
    pid = start(python(STUBBORN))

    def refuse(pgid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", refuse)
        with pytest.raises(PermissionError):
            await kill_group(CancelHandle.of_leader(pid))


@pytest.mark.parametrize("kept", [None, {}, {"kind": "local-pgid"}, {"pgid": None}])
def test_a_handle_without_a_number_is_nothing(kept: dict[str, object] | None):
    assert read_handle(kept) is None


def test_a_handle_of_an_unknown_kind_is_warned_about(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "midstream.processes"):
        assert read_handle({"kind": "kubernetes-pod", "pgid": 12}) is None
    assert "kubernetes-pod" in caplog.text


@pytest.mark.parametrize("pgid", ["12", 1.5, True, [3]])
def test_b16_a_number_that_is_none_is_refused(pgid: object):
    with pytest.raises(UnsafeHandle, match="pgid"):
        read_handle({"kind": "local-pgid", "pgid": pgid})


async def test_a_handle_survives_the_record_and_the_reference_reads_it(start: Started):
    pid = start(python(STUBBORN))
    kept = CancelHandle.of_leader(pid).as_record()
    assert kept["kind"] == "local-pgid"
    assert kept["pgid"] == pid
    handle = read_handle(msgspec.json.decode(msgspec.json.encode(kept)))
    assert handle == CancelHandle.of_leader(pid)


async def test_b16_a_handle_without_a_start_time_may_be_anybodys(start: Started):
    pid = start(python(STUBBORN))
    handle = read_handle({"kind": "local-pgid", "pgid": pid})
    assert handle is not None
    with pytest.raises(UnsafeHandle, match="no start time"):
        await kill_group(handle, grace_s=0)
    assert is_alive(pid)


async def test_where_no_start_times_are_told_the_number_has_to_do(
    start: Started, monkeypatch: pytest.MonkeyPatch
):
    pid = start(["sh", "-c", "echo ready; read -r _"])
    with monkeypatch.context() as patch:
        patch.setattr(process_table, "start_time", lambda pid: None)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]  # a stand-in
        assert await kill_group(CancelHandle(pgid=pid)) is GroupEnd.ENDED


async def test_a_cancelled_caller_still_gets_the_group_killed(start: Started):
    pid = start(python(STUBBORN))
    with trio.move_on_after(0.05):
        await kill_group(CancelHandle.of_leader(pid), grace_s=0.2)
    await until(lambda: not process_table.group_is_alive(pid))


def test_a_number_that_nobody_has_has_no_start_time():
    assert process_table.start_time(2**22 + 1) is None
