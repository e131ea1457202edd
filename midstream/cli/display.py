"""Shows a session's events: in colour on a terminal, as plain lines elsewhere, or as NDJSON.

One renderer for each. The terminal one prints prose as it comes; when an attempt is cut it
says where, by which rule and how fast, then what the model is told.
"""

import sys
from typing import Protocol

import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.text import Text as Styled

from midstream.cli.tables import harmless, print_line
from midstream.messages.alert import AlertLevel
from midstream.messages.event_log import Position
from midstream.messages.events import (
    AlertRaised,
    AnyEvent,
    AttemptDiscarded,
    AttemptLost,
    AttemptPaused,
    AttemptStarted,
    ContinuationDecided,
    LocalAnswer,
    PassageCapped,
    ReminderInjected,
    Retracted,
    RetryScheduled,
    RuleSuspended,
    RuleTriggered,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    StopMessageChanged,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    ToolWanted,
    WorkBlocked,
)
from midstream.messages.record import SessionStatus
from midstream.messages.stop_message import StopMessageState
from midstream.messages.verdict import Verdict, VerdictAction


class Display(Protocol):
    """Takes events in order."""

    def show(self, event: SessionEvent) -> None: ...


class NdjsonDisplay:
    """Each event as one JSON object on one line, as it is on the wire."""

    def __init__(self, console: Console) -> None:
        self._file = console.file

    def show(self, event: SessionEvent) -> None:
        self._file.write(msgspec.json.encode(event).decode() + "\n")
        self._file.flush()

    def begin_again(self, place: Position) -> None:
        """What was shown behind this place is not on record; what is follows. Whoever reads
        lines of events is told beside them."""
        place_said = f"number {place.sequence} of epoch {place.epoch}"
        sys.stderr.write(f"midstream: the host was lost; forget the events behind {place_said}\n")


class TerminalDisplay:
    """For people. Colours and panels go away by themselves where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._inline = ""

    def show(self, event: SessionEvent) -> None:
        self._show(event.event)

    def begin_again(self, place: Position) -> None:
        """What was shown behind this place is not on record; what is follows."""
        self._line("! the host of this session was lost; what it has on record, again:", "yellow")

    def _show(self, event: AnyEvent) -> None:
        match event:
            case SessionStarted(conversation_id, provider, model):
                asked = f"{provider} {model}".strip()
                self._line(f"asking {asked}, conversation {conversation_id}", "dim")
            case AlertRaised(alert):
                style = "red" if alert.level is AlertLevel.ERROR else "yellow"
                self._line(f"! {alert.message}", style)
            case StopMessageChanged(state):
                self._line(_armed(state), "dim")
            case LocalAnswer(text):
                self._line(text, "")
            case ContinuationDecided():
                self._decision(event)
            case WorkBlocked(_, report):
                self._line(f"the model is blocked: {report.blocker or report.summary}", "yellow")
            case AttemptStarted(attempt):
                self._line(f"attempt {attempt}", "bold")
            case AttemptPaused(attempt, reason):
                self._line(f"attempt {attempt} waits: {reason}", "yellow")
            case Text(_, text):
                self._stream("text", text, "")
            case Thinking(_, text):
                self._stream("thinking", text, "dim italic")
            case ToolUse(_, _, tool, arguments):
                self._line(f"→ {tool} {shortened(arguments, 300)}", "cyan")
            case ToolWanted(_, call_id, tool):
                self._line(f"… {tool} waits for the host to answer call {call_id}", "yellow")
            case ToolResult(_, tool, content, is_error):
                style = "red" if is_error else "green"
                self._line(f"← {tool}: {shortened(content, 300)}", style)
            case RuleTriggered(_, verdict, latency_us):
                self._verdict(verdict, latency_us)
            case Retracted(attempt):
                self._line(f"attempt {attempt} is void", "dim")
            case ReminderInjected(_, text):
                self._panel(text)
            case AttemptLost(attempt, reason):
                self._line(f"attempt {attempt} was lost: {reason}", "red")
            case RuleSuspended(rule, condition, reason):
                self._line(f"rule {rule} is suspended: {condition}: {reason}", "yellow")
            case PassageCapped(_, source, limit_chars):
                self._line(f"a {source} passage is longer than {limit_chars} characters", "yellow")
            case SessionEnded():
                self._end(event)
            case AttemptDiscarded() | RetryScheduled():
                pass  # said by the verdict before it and the attempt behind it

    def _decision(self, decided: ContinuationDecided) -> None:
        record = decided.record
        if decided.text is None:
            self._line(f"not continued: {record.reason.replace('_', ' ')}", "dim")
        else:
            number = f"{record.used + 1} of {record.max_repeats}"
            self._line(f"↻ continued, {number}: {shortened(decided.text, 160)}", "magenta")

    def _verdict(self, verdict: Verdict, latency_us: int | None) -> None:
        where = verdict.source if verdict.tool is None else f"{verdict.tool} call"
        if verdict.path:
            where += f" for {verdict.path}"
        if verdict.offset_chars is not None:
            where += f", character {verdict.offset_chars}"
        if verdict.action is VerdictAction.INTERRUPT:
            speed = "" if latency_us is None else f", {latency_us} µs after the bytes arrived"
            self._line(f"✂ cut by {verdict.rule} in {where}{speed}", "bold red")
        else:
            because = f" ({verdict.reason})" if verdict.reason else ""
            self._line(f"· {verdict.rule} matched in {where}: {verdict.action}{because}", "yellow")
        self._line(f"  {shortened(' '.join(verdict.excerpt.split()), 160)}", "red dim")

    def _end(self, ended: SessionEnded) -> None:
        good = ended.status is SessionStatus.COMPLETED
        because = f": {ended.reason}" if ended.reason else ""
        stop = f" ({ended.stop_reason})" if ended.stop_reason else ""
        attempts = f"{ended.attempts} attempt" + ("s" if ended.attempts != 1 else "")
        self._line(
            f"{ended.status}{because}{stop} after {attempts}, {ended.duration_ms} ms",
            "bold green" if good else "bold yellow",
        )

    def _stream(self, kind: str, text: str, style: str) -> None:
        if self._inline != kind:
            self._break()
            self._inline = kind
        self._console.print(Styled(harmless(text), style), end="", soft_wrap=True)
        self._console.file.flush()

    def _line(self, text: str, style: str) -> None:
        self._break()
        print_line(self._console, text, style)

    def _panel(self, text: str) -> None:
        self._break()
        if self._console.is_terminal:
            body = Styled(harmless(text))
            self._console.print(Panel(body, title="the model is told", style="magenta"))
        else:
            print_line(self._console, f"the model is told:\n{text}")

    def _break(self) -> None:
        if self._inline:
            self._console.print()
            self._inline = ""


def _armed(state: StopMessageState) -> str:
    if not state.is_active:
        return "replies are not continued"
    text = f" with {shortened(state.text, 100)!r}" if state.text else ""
    return f"replies are continued{text}, at most {state.remaining} times"


def display_for(console: Console, *, json: bool) -> NdjsonDisplay | TerminalDisplay:
    """The display that fits."""
    return NdjsonDisplay(console) if json else TerminalDisplay(console)


def shortened(text: str, most: int) -> str:
    """`text`, cut to `most` characters with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"
