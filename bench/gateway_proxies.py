"""What bench/gateway.py sends its requests through, each a process as its user starts it.

The bare pass-through, `midstream gateway` without rules and with 20, and LiteLLM's proxy where
a `litellm` is on the path (or the environment's LITELLM names one). Memory and CPU are those
that Linux counts for the process (/proc).
"""

import os
import re
import shutil
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

import trio

HERE = Path(__file__).parent
RULES = 20
KEY = "sk-only-for-a-benchmark-on-loopback"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Proxy:
    """One that is running. `headers` is what its requests need beyond the usual."""

    name: str
    port: int
    pid: int
    paths: frozenset[str]

    def cpu_s(self) -> float:
        """What the process has used until now, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def memory_mib(self) -> float:
        """What it has in memory now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS")) / 1024


EVERYTHING = frozenset(("/v1/chat/completions", "/v1/messages", "/v1/responses"))


@asynccontextmanager
async def started(
    command: Sequence[str], cwd: Path, pattern: bytes = rb"(\d+)\n"
) -> AsyncGenerator[tuple[int, int]]:
    """Port and process id of a server, which says its port on standard output."""
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                command,
                stdin=PIPE,
                stdout=PIPE,
                capture_stdout=False,
                check=False,
                cwd=cwd,
            )
        )
        assert process.stdout is not None
        said = b""
        with trio.fail_after(30):
            while not (found := re.search(pattern, said)):
                more = await process.stdout.receive_some()
                if not more:
                    raise RuntimeError(f"{command[-1]} did not start: {said.decode()}")
                said += more
        yield int(found[1]), process.pid
        process.terminate()


@asynccontextmanager
async def provider() -> AsyncGenerator[int]:
    """The port of the provider behind all of them."""
    async with started([sys.executable, str(HERE / "gateway_upstream.py")], HERE) as (port, _):
        yield port


def write_rules(directory: Path) -> None:
    """Rules as one may have them: of words that come, of words that never do."""
    conditions = [rf"never\s+said\s+{number}\b" for number in range(RULES - 4)]
    conditions += [
        r":\s*any\b",
        r"(?i)as an AI language model",
        r"TODO|FIXME",
        "sk-[A-Za-z0-9]{20,}",
    ]
    directory.mkdir(parents=True)
    for number, condition in enumerate(conditions):
        text = f"---\ncondition: '{condition}'\n---\nDo not say that.\n"
        (directory / f"rule-{number}.md").write_text(text)


@asynccontextmanager
async def all_proxies(upstream: int, scratch: Path) -> AsyncGenerator[list[Proxy]]:
    """All that can be had here; the bare one first."""
    address = f"http://127.0.0.1:{upstream}"
    async with AsyncExitStack() as stack:
        bare = [sys.executable, str(HERE / "gateway_bare.py"), address]
        port, pid = await stack.enter_async_context(started(bare, HERE))
        proxies = [Proxy("bare pass-through", port, pid, EVERYTHING)]
        for rules in (0, RULES):
            proxies.append(await stack.enter_async_context(_gateway(address, rules, scratch)))
        program = os.environ.get("LITELLM") or shutil.which("litellm")
        if program:
            proxies.append(await stack.enter_async_context(_litellm(program, address, scratch)))
        yield proxies


@asynccontextmanager
async def _gateway(address: str, rules: int, scratch: Path) -> AsyncGenerator[Proxy]:
    cwd = scratch / f"gateway-{rules}"
    cwd.mkdir()
    if rules:
        write_rules(cwd / ".midstream/rules")
    (cwd / "midstream.toml").write_text("[rules]\nbuiltin_rules = false\n")
    program = [sys.executable, "-P", "-c", "from midstream.cli import main; main()"]
    command = [*program, "gateway", "--upstream", address, "--port", "0"]
    async with started(command, cwd, rb"listens at http://127.0.0.1:(\d+)\n") as (port, pid):
        yield Proxy(f"gateway, {rules} rules", port, pid, EVERYTHING)


@asynccontextmanager
async def _litellm(program: str, address: str, scratch: Path) -> AsyncGenerator[Proxy]:
    """LiteLLM translates between protocols, so it is asked in the one that the provider has."""
    port = _free_port()
    config = scratch / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n"
        f"      api_base: {address}/v1\n      api_key: {KEY}\n"
    )
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    wanted = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": KEY,
    }
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                command,
                check=False,
                env={**os.environ, **wanted},
                stdout=DEVNULL,
                stderr=DEVNULL,
                cwd=scratch,
            )
        )
        with trio.fail_after(120):
            while not await _answers(port):  # noqa: ASYNC110 - another process
                await trio.sleep(0.2)
        yield Proxy("LiteLLM proxy", port, process.pid, frozenset(("/v1/chat/completions",)))
        process.terminate()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def _answers(port: int) -> bool:
    try:
        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
    except OSError:
        return False
    return True
