"""A child and its descendants end with their block, whatever happens to either side."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from process_watch import PATIENCE_S, gone, is_alive, python, until, written

from midstream.providers import process_table
from midstream.providers.child_process import ChildProcess, open_child
from midstream.providers.child_start import ChildCommand, ChildNotStarted
from midstream.providers.process_group import CancelHandle
from midstream.providers.text_tail import TextTail
from midstream.providers.watchdog import MARK

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def command(*argv: str, stdin: bytes = b"", cwd: Path = Path("/"), **extra: str) -> ChildCommand:
    return ChildCommand(argv, cwd, {**os.environ, **extra}, stdin)


async def output(child: ChildProcess) -> bytes:
    read = b""
    while data := await child.read():
        read += data
    return read


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No child, no zombie, no watchdog and no descriptor outlives a test."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    own = process_table.start_time(os.getpid())
    for each in filter(str.isdecimal, os.listdir("/proc")):
        found = process_table.entry(int(each))
        assert found is None or found.ppid != os.getpid(), f"{found} was not reaped"
        environment = b""
        if found is not None and found.is_alive:
            try:
                environment = Path(f"/proc/{each}/environ").read_bytes()
            except OSError:
                continue
        assert f"{MARK}={os.getpid()}:{own}".encode() not in environment
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # trio's own thread may open one


async def test_what_is_written_in_comes_out_and_the_exit_code_is_told():
    async with open_child(command("sh", "-c", "cat; exit 3", stdin=b"hello")) as child:
        assert await output(child) == b"hello"
        assert await child.wait() == 3


async def test_an_end_by_a_signal_is_told_as_such():
    async with open_child(command("sh", "-c", "kill -9 $$")) as child:
        assert await child.wait() == -9


async def test_a_child_that_ignores_sigterm_is_killed():
    async with open_child(command(*python(STUBBORN)), grace_s=0.05) as child:
        assert await child.read() == b"ready\n"
        assert is_alive(child.pid)
    assert not is_alive(child.pid)


async def test_a_child_that_obeys_sigterm_may_say_goodbye(tmp_path: Path):
    path = tmp_path / "goodbye"
    script = f"trap 'echo bye > {path}; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    async with open_child(command("sh", "-c", script), grace_s=PATIENCE_S) as child:
        assert await child.read() == b"ready\n"
    assert path.read_text() == "bye\n"


async def test_cancelling_ends_it_too():
    """By a signal: who waits for its own end, however long that takes, has not ended it."""
    children: list[ChildProcess] = []
    script = STUBBORN.replace("600", "20")
    with trio.move_on_after(PATIENCE_S) as scope:
        async with open_child(command(*python(script)), grace_s=0.05) as child:
            children.append(child)
            await child.read()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert children[0].exit_code == -signal.SIGKILL


async def test_an_error_in_the_block_ends_it_and_comes_out_as_it_is():
    pids: list[int] = []
    with pytest.raises(LookupError, match="mine"):  # noqa: PT012 - raised inside the block
        async with open_child(command(*python(STUBBORN)), grace_s=0.05) as child:
            pids.append(child.pid)
            raise LookupError("mine")
    assert not is_alive(pids[0])


@pytest.mark.parametrize("launcher", ["", "setsid", "setsid setsid"])
async def test_a_grandchild_ends_also_if_it_left_the_group_and_the_session(
    launcher: str, tmp_path: Path
):
    path = tmp_path / "pid"
    inner = f"echo $$ > {path}; trap '' TERM; sleep 600"
    script = f'{launcher} sh -c "{inner.replace("$", chr(92) + "$")}" & wait'
    async with open_child(command("sh", "-c", script), grace_s=PATIENCE_S):
        grandchild = int(await written(path))
        assert is_alive(grandchild)
    await gone(grandchild)


async def test_what_a_child_leaves_behind_when_it_ends_by_itself_ends_too(tmp_path: Path):
    path = tmp_path / "pid"
    script = f"setsid sh -c 'echo $$ > {path}; sleep 600' >/dev/null 2>&1 & exit 0"
    async with open_child(command("sh", "-c", script)) as child:
        grandchild = int(await written(path))
        assert await child.wait() == 0
    await gone(grandchild)


async def test_a_grandchild_that_holds_the_pipe_does_not_hold_us_up():
    script = "echo said; sleep 600 & exit 0"
    with trio.fail_after(PATIENCE_S):
        async with open_child(command("sh", "-c", script)) as child:
            assert await output(child) == b"said\n"
            assert await child.wait() == 0


async def test_nothing_that_a_child_wrote_is_lost_when_it_ends_before_it_is_read():
    script = "import os; os.write(1, b'x' * 60000); import subprocess as s; "
    script += "s.Popen(['sleep', '600'])"
    async with open_child(command(*python(script))) as child:
        await child.wait()
        assert await output(child) == b"x" * 60_000


async def test_b14_a_flood_on_stderr_blocks_nobody_and_its_end_is_kept():
    script = "import sys; sys.stderr.write('noise ' * 500_000 + 'the end'); print('done')"
    async with open_child(command(*python(script)), stderr_limit_chars=13) as child:
        assert await output(child) == b"done\n"
        assert await child.wait() == 0
        assert child.stderr_tail == "noise the end"


async def test_a_child_that_does_not_read_its_stdin_does_not_hold_us_up():
    async with open_child(command("true", stdin=b"x" * 5_000_000)) as child:
        assert await child.wait() == 0


async def test_a_child_that_closes_its_output_and_runs_on_ends_with_the_block():
    script = "import os, time; os.close(1); os.close(2); time.sleep(600)"
    async with open_child(command(*python(script)), grace_s=0.05) as child:
        assert await output(child) == b""
        assert is_alive(child.pid)


@pytest.mark.parametrize(
    ("argv", "cwd", "said"),
    [
        (["no-such-program-anywhere"], "/", "no program"),
        (["/etc/passwd"], "/", "no program"),
        (["true"], "/no/such/directory", "cannot be started in"),
        (["true", "null\0byte"], "/", "cannot be started"),
    ],
)
async def test_what_cannot_be_started_is_said_before_the_block(
    argv: list[str], cwd: str, said: str
):
    with pytest.raises(ChildNotStarted, match=said):
        async with open_child(command(*argv, cwd=Path(cwd))):
            pytest.fail("the block was entered")


async def test_a_program_is_looked_up_in_the_childs_directory(tmp_path: Path):
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o700)
    async with open_child(command("./tool", cwd=tmp_path)) as child:
        assert await output(child) == b"found\n"


async def test_a_child_leads_a_session_of_its_own_and_its_handle_says_so():
    async with open_child(command(*python(STUBBORN)), grace_s=0.05) as child:
        await child.read()
        assert os.getsid(child.pid) == child.pid
        assert child.handle == CancelHandle.of_leader(child.pid)
        assert child.handle.start_time == process_table.start_time(child.pid)


HOST = """
import os, sys, trio
from pathlib import Path
from midstream.providers.child_process import open_child
from midstream.providers.child_start import ChildCommand

async def main():
    script = sys.argv[1]
    async with open_child(ChildCommand(["sh", "-c", script], Path("/"), dict(os.environ))) as child:
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("kernel_helps", [True, False])
async def test_55_when_we_are_killed_the_child_and_its_descendants_die_with_us(
    kernel_helps: bool, tmp_path: Path
):
    path = tmp_path / "pids"
    script = "trap '' TERM HUP; setsid sh -c 'echo $PPID $$ > " + str(path) + "; sleep 600' & wait"
    environment = dict(os.environ)
    if not kernel_helps:  # no setpriv to be found, so that only the watchdog is left
        environment["PATH"] = str(tmp_path)
        script = script.replace("setsid", "/usr/bin/setsid").replace("sh -c", "/bin/sh -c")
        (tmp_path / "sh").symlink_to("/bin/sh")
        (tmp_path / "sleep").symlink_to("/bin/sleep")
    host = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-P", "-c", HOST, script], env=environment
    )
    try:
        child, grandchild = map(int, (await written(path)).split())
        assert is_alive(child)
        assert is_alive(grandchild)
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
    await gone(child, grandchild)


async def test_a_child_whose_watchdog_was_killed_still_ends_with_its_block():
    async with open_child(command(*python(STUBBORN)), grace_s=0.05) as child:
        await child.read()
        watchdogs = [
            int(pid)
            for pid in filter(str.isdecimal, os.listdir("/proc"))
            if (found := process_table.entry(int(pid))) and found.ppid == os.getpid()
        ]
        for pid in watchdogs:
            if pid != child.pid:
                os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_alive(child.pid))


@pytest.mark.parametrize(
    ("pieces", "limit_chars", "kept"),
    [
        ([b"short"], 200, "short"),
        ([b"abc", b"def"], 4, "cdef"),
        ([b"\xf0\x9f", b"\x8e\x88 bang"], 6, "🎈 bang"),
        (["🎈".encode() * 9], 3, "🎈🎈🎈"),
        ([b"bad \xff byte"], 200, "bad \ufffd byte"),
        ([b"x"], 0, ""),
        (["é".encode() * 1000, b"\xc3"], 2, "é\ufffd"),
    ],
)
def test_14_17_the_tail_is_cut_between_characters(pieces: list[bytes], limit_chars: int, kept: str):
    tail = TextTail(limit_chars)
    for piece in pieces:
        tail.feed(piece)
    assert tail.text == kept
