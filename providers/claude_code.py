"""The provider `claude_code`: the Claude Code program as a child process, attached.

A stream is one run of the program: started for the request, its prompt through stdin, its
output read line by line, ended for good when the stream's context is left
(child_process.py). To abort is to stop the program and all that it started; it has then
written a part of its session that nobody goes on from. To retry is a new run from where the
aborted one began, with the reminder behind the prompt (claude_code_request.py).
"""

import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from midstream.messages.conversation import ModelRequest
from midstream.messages.errors import ConfigError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import AnyStreamMessage, StreamFailed
from midstream.messages.well_formed import well_formed
from midstream.providers.child_process import (
    GRACE_S,
    STDERR_LIMIT_CHARS,
    ChildProcess,
    open_child,
)
from midstream.providers.child_start import ChildCommand, ChildNotStarted
from midstream.providers.claude_code_failures import SESSION_LOST
from midstream.providers.claude_code_format import ClaudeCodeDecoder
from midstream.providers.claude_code_parts import FORMAT
from midstream.providers.claude_code_request import DEFAULT_COMMAND, Launch, Template, launch
from midstream.providers.ndjson import NdjsonReader
from midstream.providers.process_group import LocalProcesses
from midstream.providers.provider import StreamBatches, refused

START_S = 120.0
"""How long the program may take to its first line; it reads settings and starts servers."""
IDLE_S = 3600.0
"""The longest silence after that. A tool that runs says nothing until it has returned."""
LINGER_S = 5.0
"""How long the program may go on after its result, in which it writes its session down."""
_CLOSED_OUTPUT_S = 2.0
"""How long a program that has closed its output may take to end and say how."""


class ClaudeCodeProvider:
    """Streams from runs of Claude Code.

    `command` is the command line, as `Template` says; its first entry is the program.
    `environment` is the environment of the program, by default our own; its key, if it needs
    one, comes with it. `cwd` is where it works and by what it finds its sessions. A request
    may name another directory, and add variables.
    `wall_clock` tells seconds since 1970, for limits that say when they end.
    `abort_stops_billing` is believed of Anthropic and of servers on this machine.
    """

    def __init__(
        self,
        *,
        command: Template = DEFAULT_COMMAND,
        cwd: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
        name: str = "claude_code",
        wall_clock: Callable[[], float] | None = None,
        start_s: float = START_S,
        idle_s: float = IDLE_S,
        linger_s: float = LINGER_S,
        grace_s: float = GRACE_S,
        stderr_limit_chars: int = STDERR_LIMIT_CHARS,
    ) -> None:
        if not command or not isinstance(command[0], str):
            raise ConfigError(name, "command", "does not begin with a program")
        self.name = name
        self.format = FORMAT
        self._command = command
        self._program = Path(command[0]).name
        self._cwd = Path(cwd) if cwd is not None else Path.cwd()
        self._environment = environment
        self._wall_clock = wall_clock
        self._start_s = start_s
        self._idle_s = idle_s
        self._linger_s = linger_s
        self._grace_s = grace_s
        self._stderr_limit_chars = stderr_limit_chars

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} in {self._cwd}>"

    @property
    def abort_stops_billing(self) -> bool:
        environment = self._given_environment()
        if any(environment.get(f"CLAUDE_CODE_USE_{cloud}") for cloud in ("BEDROCK", "VERTEX")):
            return False
        host = urlsplit(environment.get("ANTHROPIC_BASE_URL", "")).hostname
        return host in (None, "api.anthropic.com", "localhost", "127.0.0.1", "::1")

    @asynccontextmanager
    async def open(self, request: ModelRequest) -> AsyncGenerator[StreamBatches]:
        """Start one run, as `Provider.open` says.

        Leaving takes at most `grace_s` and four seconds, or `linger_s` more behind a result.
        When the session that it should go on from is lost, it tells the program the whole
        conversation instead.
        """
        with _system_file(request.system) as system_file:
            try:
                plans = self._plans(request, system_file)
            except ConfigError as error:
                yield refused(ProviderFailure(FailureKind.INVALID_REQUEST, str(error)))
                return
            async with AsyncExitStack() as stack:
                run = await self._start(plans[0], self._cwd / request.cwd, stack)
                if plans[0].resumes and await run.has_lost_its_session():
                    await stack.aclose()
                    run = await self._start(plans[1], self._cwd / request.cwd, stack)
                yield run

    async def cancel(self, handle: Mapping[str, Any]) -> None:
        """Stop a run of another process, as `CancelsByHandle` says."""
        await LocalProcesses().cancel(handle)

    async def aclose(self) -> None:
        """Nothing is kept between streams."""

    def _plans(self, request: ModelRequest, system_file: str | None) -> tuple[Launch, Launch]:
        """What to start, and what to start if the session is lost."""
        environment = self._given_environment()
        first, second = (
            launch(request, self._command, environment, system_file, afresh=afresh)
            for afresh in (False, True)
        )
        return first, second

    async def _start(self, what: Launch, cwd: Path, stack: AsyncExitStack) -> "_Run":
        """Start the program; `stack` ends it."""
        command = ChildCommand(what.argv, cwd, what.environment, what.stdin)
        limit_chars = self._stderr_limit_chars
        opened = open_child(command, grace_s=self._grace_s, stderr_limit_chars=limit_chars)
        decoder = ClaudeCodeDecoder(self._wall_clock)
        try:
            child = await stack.enter_async_context(opened)
        except ChildNotStarted as error:
            decoder.writer.fail(ProviderFailure(FailureKind.INVALID_REQUEST, str(error)))
            return _Run(None, decoder, self._program, self._start_s, self._idle_s)
        run = _Run(child, decoder, self._program, self._start_s, self._idle_s)
        stack.push_async_callback(run.linger, self._linger_s)
        return run

    def _given_environment(self) -> Mapping[str, str]:
        return os.environ if self._environment is None else self._environment


class _Run:
    """One run of the program, as an iterator of batches. Without a child it has failed."""

    def __init__(
        self,
        child: ChildProcess | None,
        decoder: ClaudeCodeDecoder,
        program: str,
        start_s: float,
        idle_s: float,
    ) -> None:
        self._child = child
        self._decoder = decoder
        self._program = program
        self._reader = NdjsonReader()
        self._wait_s = start_s
        self._idle_s = idle_s
        self._ready: list[AnyStreamMessage] = decoder.writer.take()
        self._has_result = False

    def __aiter__(self) -> "_Run":
        return self

    async def __anext__(self) -> Sequence[AnyStreamMessage]:
        await self._fill()
        if not self._ready:
            raise StopAsyncIteration
        batch, self._ready = self._ready, []
        return batch

    async def has_lost_its_session(self) -> bool:
        """Whether the first that the program says is that there is no such session."""
        await self._fill()
        last = self._ready[-1] if self._ready else None
        return isinstance(last, StreamFailed) and last.failure.code == SESSION_LOST

    async def linger(self, seconds: float) -> None:
        """Let a program that has told its result end by itself."""
        if self._has_result and self._child is not None:
            with trio.move_on_after(seconds):
                await self._child.wait()

    async def _fill(self) -> None:
        """Read until there is something to give, or nothing will come any more."""
        while not self._ready and not self._decoder.writer.over:
            await self._read()
            self._ready = self._decoder.writer.take()

    async def _read(self) -> None:
        assert self._child is not None
        try:
            with trio.fail_after(self._wait_s):
                data = await self._child.read()
        except trio.TooSlowError:
            message = f"{self._program} was silent for {self._wait_s:g} s"
            self._decoder.writer.fail(ProviderFailure(FailureKind.TIMEOUT, message))
            return
        self._wait_s = self._idle_s
        for line in self._reader.feed(data) if data else self._reader.end():
            self._decoder.feed(line)
        if self._decoder.writer.over:
            self._has_result = True
        elif not data:
            await self._end()

    async def _end(self) -> None:
        """The output ended without a result."""
        assert self._child is not None
        code: int | None = None
        with trio.move_on_after(_CLOSED_OUTPUT_S):
            code = await self._child.wait()
        self._decoder.end(self._program, code, self._child.stderr_tail)


@contextmanager
def _system_file(system: str | None) -> Generator[str | None]:
    """A file with the system prompt, that nobody else may read; None if there is none.

    A file, because a command line is short and everybody sees it.
    """
    text = well_formed(system or "")
    if not text.strip():
        yield None
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="midstream-") as file:
        file.write(text)
        file.flush()
        yield file.name
