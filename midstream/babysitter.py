"""The babysitter of one session outside: a small program that outlives whoever started it.

`python -m midstream.babysitter` reads its configuration from stdin, leaves its caller (a
process of its own session, whose pid it prints), and runs the command. While that runs it
reports to the host that the session runs and lives; at the end, how it ended. When the host
answers that the session is over (somebody cancelled it), or a SIGTERM comes, it stops the
command and all that the command started. A report of the end that nobody takes goes into the
dead-letter queue, where the host finds it.

Decisions are in babysitter_report.py; sources: spec/animator.md 8, B3 to B8 and B12 to B16.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import trio

from midstream.actors.clock import Clock, SystemClock
from midstream.babysitter_config import BabysitterConfig, parse_babysitter_config
from midstream.babysitter_report import RunEnd, record_report
from midstream.messages.envelope import ReportEnvelope
from midstream.messages.errors import ConfigError, MidstreamError
from midstream.messages.record import SessionStatus
from midstream.messages.session_reports import (
    HeartbeatReport,
    RecordReport,
    ReportAnswer,
    RunningReport,
)
from midstream.messages.timestamps import format_timestamp
from midstream.providers.child_process import open_child
from midstream.providers.child_start import ChildCommand, ChildNotStarted
from midstream.providers.claude_code_run import RunReading
from midstream.providers.process_group import CancelHandle
from midstream.report_client import RETRY_S, ReportClient, open_report_client
from midstream.stores.dlq_files import write_envelope

STOPPED_RETRY_S = 3.0
"""How long the report of a stopped session is sent again: whoever stopped it does not wait
long before SIGKILL."""


class Babysitter:
    """See the module. `run` is all there is to call."""

    def __init__(self, config: BabysitterConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._reading = RunReading()
        self._command_scope = trio.CancelScope()
        self._sending_scope: trio.CancelScope | None = None
        self._stop_reason: str | None = None
        self._stopped = False
        self._began_at_s = 0.0

    async def run(self) -> int:
        """See the session through. Returns 0 if its end is known to the host, or waits for
        it; 1 if it is lost."""
        config = self._config
        self._began_at_s = trio.current_time()
        opened = open_report_client(config.guild_tool_url, config.session_id, config.token)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with opened as client, trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, signals)
                end = await self._see_through(client)
                delivered = await self._deliver(client, self._report(end))
                nursery.cancel_scope.cancel()
        return 0 if delivered else 1

    async def _see_through(self, client: ReportClient) -> RunEnd:
        """Run the command to its end, and report meanwhile."""
        async with trio.open_nursery() as reporting:
            reporting.start_soon(self._say_running, client, RETRY_S)
            reporting.start_soon(self._beat, client)
            end = await self._run_command()
            reporting.cancel_scope.cancel()
        return end

    # --- the command

    async def _run_command(self) -> RunEnd:
        config = self._config
        environment = {**os.environ, **config.environment}
        prompt = config.prompt.encode("utf-8", "replace")
        command = ChildCommand(config.argv, Path(config.cwd), environment, prompt)
        opened = open_child(
            command, grace_s=config.stop_grace_s, stderr_limit_chars=config.stderr_limit_chars
        )
        child = None
        trouble: str | None = None
        with trio.move_on_after(config.timeout_s) as time_limit, self._command_scope:
            try:
                async with opened as child:
                    while data := await child.read():
                        self._reading.feed(data)
                    await child.wait()
            except ChildNotStarted as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001 - somebody has to be told how it ended
                trouble = f"the babysitter failed: {error!r}"
        self._reading.end()
        return RunEnd(
            exit_code=child.exit_code if child is not None else None,
            stderr_tail=child.stderr_tail if child is not None else "",
            trouble=trouble,
            stopped=self._stopped,
            stop_reason=self._stop_reason,
            timed_out=time_limit.cancelled_caught,
        )

    def _stop(self, reason: str | None) -> None:
        if not self._stopped:
            self._stopped = True
            self._stop_reason = reason
            self._command_scope.cancel()

    async def _obey(self, signals: AsyncIterator[int]) -> None:
        """A signal stops the command; when that has ended already, the sending of the report
        soon."""
        async for number in signals:
            if self._sending_scope is None:
                self._stop(f"stopped by {signal.Signals(number).name}")
            else:
                soon = trio.current_time() + STOPPED_RETRY_S
                self._sending_scope.deadline = min(self._sending_scope.deadline, soon)

    # --- reports while it runs

    async def _say_running(self, client: ReportClient, retry_s: float) -> None:
        config = self._config
        report = RunningReport(
            session_id=config.session_id,
            started_at=config.started_at,
            provider=config.provider,
            conversation_id=config.conversation_id,
            metadata=config.metadata,
            cancel_handle=CancelHandle.of_leader(os.getpid()).as_record(),
        )
        self._heed(await client.send(report, retry_s=retry_s))

    async def _beat(self, client: ReportClient) -> None:
        """From the beginning, and whatever becomes of the other report (B12)."""
        report = HeartbeatReport(session_id=self._config.session_id)
        while True:
            await trio.sleep(self._config.heartbeat_s)
            answer = await client.send(report, retry_s=0)
            self._heed(answer)
            if answer is not None and (not answer.ok or answer.status is SessionStatus.PENDING):
                await self._say_running(client, 0)  # the host has not heard that it runs

    def _heed(self, answer: ReportAnswer | None) -> None:
        """Somebody has ended the session on record: nobody wants its work any more (B8)."""
        if answer is not None and answer.status is not None and answer.status.is_terminal:
            self._stop(f"the session is {answer.status} on record")

    # --- the end

    def _report(self, end: RunEnd) -> RecordReport:
        now_ms = self._clock.now_ms()
        return record_report(
            self._config.session_id,
            self._config.conversation_id,
            self._reading,
            end,
            ended_at=format_timestamp(now_ms),
            ended_ms=now_ms,
            duration_ms=round((trio.current_time() - self._began_at_s) * 1000),
        )

    async def _deliver(self, client: ReportClient, report: RecordReport) -> bool:
        """Tell the host; if it does not take it, leave it where the host will find it (B5, B6)."""
        retry_s = STOPPED_RETRY_S if self._stopped else RETRY_S
        answer = None
        with trio.CancelScope() as self._sending_scope:
            answer = await client.send(report, retry_s=retry_s)
        if answer is not None and answer.ok:
            return True
        queue = Path(self._config.dead_letters)
        put = partial(write_envelope, queue, ReportEnvelope(report=report))
        try:
            await trio.to_thread.run_sync(put)
        except (OSError, MidstreamError) as error:
            _complain(f"the end of {report.session_id} is lost: {error}")
            return False
        return True


def main() -> int:
    """The program. `--foreground` keeps it with its caller, for service managers."""
    try:
        config = parse_babysitter_config(sys.stdin.buffer.read())
    except ConfigError as error:
        _complain(str(error))
        return 2
    if "--foreground" not in sys.argv[1:] and not _leave_caller():
        return 0
    if os.getpgrp() != os.getpid():
        os.setsid()
    return trio.run(Babysitter(config, SystemClock()).run)


def _leave_caller() -> bool:
    """Go on in a process without a terminal; False in the one that is left behind.

    Whoever started us waits for that one only, and need not reap the other.
    """
    pid = os.fork()
    if pid:
        sys.stdout.write(f"{pid}\n")
        return False
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    return True


def _complain(message: str) -> None:
    sys.stderr.write(f"midstream: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
