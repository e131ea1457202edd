"""`midstream gateway` as a process, before a scripted upstream."""

import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import trio
from gateway_world import ScriptedUpstream

MAIN = (sys.executable, "-P", "-c", "from midstream.cli import main; main()")


async def said(stream: trio.abc.ReceiveStream | None, pattern: bytes) -> str:
    """What the pattern's group matches in what a command says."""
    assert stream is not None
    heard = b""
    with trio.fail_after(30):
        while not (found := re.search(pattern, heard)):
            more = await stream.receive_some()
            assert more, heard
            heard += more
    return found[1].decode()


def words(answer: httpx2.Response) -> str:
    """The text of a stream."""
    return "".join(re.findall(r'"text":"([^"]*)"', answer.text))


async def started(process: trio.Process) -> str:
    """The address that the command says."""
    return await said(process.stdout, rb"listens at (\S+)\n")


@asynccontextmanager
async def gateway_command(
    cwd: Path, upstream: ScriptedUpstream, *options: str
) -> AsyncGenerator[trio.Process]:
    """`midstream gateway` in a directory, before this upstream."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, upstream.handle, [listener])
        address = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        process = await trio.lowlevel.open_process(
            [*MAIN, "gateway", "--upstream", address, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
        )
        try:
            yield process
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()
