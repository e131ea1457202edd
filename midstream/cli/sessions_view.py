"""How sessions and the shared pause look: tables for people, JSON lines for programs."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text as Styled

from midstream.cli.display import shortened
from midstream.cli.tables import harmless
from midstream.messages.dispatch import DispatchState
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.session_cost import SessionCost
from midstream.messages.timestamps import duration_ms, format_timestamp
from midstream.session_book import Overview

STYLES = {
    SessionStatus.PENDING: "cyan",
    SessionStatus.RUNNING: "bold cyan",
    SessionStatus.COMPLETED: "green",
    SessionStatus.FAILED: "red",
    SessionStatus.TIMEOUT: "red",
    SessionStatus.CANCELLED: "yellow",
    SessionStatus.RATE_LIMITED: "magenta",
    SessionStatus.CAPPED: "yellow",
    SessionStatus.DEAD_LETTERED: "bold red",
}
ERROR_CHARS = 60


class SessionsView(msgspec.Struct, frozen=True):
    """A page of sessions, as they are at `now_ms`."""

    records: Sequence[SessionRecord]
    now_ms: int
    has_more: bool = False
    is_final: bool = False

    def render(self) -> RenderableType:
        if not self.records:
            return Styled("no sessions", "dim")
        rows = [self._cells(record) for record in self.records]
        table = Table(box=None, pad_edge=False)
        # Only the last column gives way on a narrow terminal: the others are for copying.
        for place, heading in enumerate(("session", "status", "started (UTC)", "took")):
            width = max(len(heading), *(len(row[place]) for row in rows))
            table.add_column(heading, no_wrap=True, min_width=width)
        if any(record.cost_usd is not None for record in self.records):
            table.add_column("cost", justify="right", no_wrap=True)
        table.add_column("as", no_wrap=True)
        table.add_column("why")
        for row in rows:
            table.add_row(*row)
        more = Styled("there are more; see --limit, or filter", "dim")
        return Group(table, more) if self.has_more else table

    def lines(self, *, json: bool) -> Mapping[str, str]:
        return {record.id: self._line(record, json=json) for record in self.records}

    def _line(self, record: SessionRecord, *, json: bool) -> str:
        if json:
            return msgspec.json.encode(record).decode()
        return "  ".join(str(cell) for cell in self._cells(record)).rstrip()

    def _cells(self, record: SessionRecord) -> list[Styled | str]:
        cells = [
            record.id,
            Styled(record.status, STYLES[record.status]),
            clock_text(record.started_at),
            took(record, self.now_ms),
        ]
        if any(other.cost_usd is not None for other in self.records):
            cells.append("" if record.cost_usd is None else f"${record.cost_usd:.4f}")
        who = role_of(record) or record.provider
        why = shortened(" ".join((record.error or "").split()), ERROR_CHARS)
        # Ellipsis is the text's, not the column's: a column that may wrap is the first to shrink.
        return [*cells, who, Styled(why, no_wrap=True, overflow="ellipsis")]


class SessionView(msgspec.Struct, frozen=True):
    """One session with everything that is on record, as it is at `now_ms`."""

    record: SessionRecord
    rules: Sequence[str]
    """Of which its conversation was reminded."""
    now_ms: int

    @property
    def is_final(self) -> bool:
        return self.record.is_terminal and not self.record.presumed_dead

    def render(self) -> RenderableType:
        record = self.record
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("session", record.id)
        status = Styled(record.status, STYLES[record.status])
        if record.presumed_dead:
            status.append(" (presumed dead: its host was not heard of)", "dim")
        table.add_row("status", status)
        for name, value in self._rows():
            if value:
                table.add_row(name, harmless(value))
        if not record.output:
            return table
        return Group(table, Styled("\noutput", "dim"), Styled(harmless(record.output)))

    def lines(self, *, json: bool) -> Mapping[str, str]:
        if json:
            return {"record": msgspec.json.encode(self.record).decode()}
        return SessionsView([self.record], self.now_ms).lines(json=False)

    def _rows(self) -> list[tuple[str, str]]:
        record, usage = self.record, self.record.token_usage
        return [
            ("started", clock_text(record.started_at)),
            ("ended", clock_text(record.ended_at)),
            ("took", took(record, self.now_ms)),
            ("last sign of life", clock_text(record.last_activity_at)),
            ("provider", record.provider),
            ("conversation", record.conversation_id or ""),
            ("provider's session", record.provider_session_id or ""),
            ("metadata", msgspec.json.encode(record.metadata).decode() if record.metadata else ""),
            ("exit code", "" if record.exit_code is None else str(record.exit_code)),
            ("why", record.error or ""),
            ("tokens", "" if usage is None else _tokens(usage)),
            ("cost", "" if record.cost_usd is None else f"${record.cost_usd:.4f}"),
            ("reminded of", ", ".join(self.rules)),
            ("recovered", f"{record.recoveries} times" if record.recoveries else ""),
            ("owner", record.fence.owner if record.fence else ""),
        ]


def costs_table(costs: Mapping[str, SessionCost]) -> RenderableType:
    """What sessions have cost, and the sum."""
    table = Table(box=None, pad_edge=False, show_footer=True)
    total = sum(cost.cost_usd for cost in costs.values())
    tokens_in = sum(cost.input_tokens or 0 for cost in costs.values())
    tokens_out = sum(cost.output_tokens or 0 for cost in costs.values())
    sessions = "1 session" if len(costs) == 1 else f"{len(costs)} sessions"
    table.add_column("session", sessions, no_wrap=True)
    table.add_column("cost", f"${total:.4f}" if total else "not told", justify="right")
    table.add_column("tokens in", str(tokens_in), justify="right")
    table.add_column("tokens out", str(tokens_out), justify="right")
    for session_id, cost in costs.items():
        counts = (_count(cost.input_tokens), _count(cost.output_tokens))
        # 0 is what the reference says where nobody has told (spec/animator.md 5.4).
        told = f"${cost.cost_usd:.4f}" if cost.cost_usd else "not told"
        table.add_row(session_id, told, *counts)
    return table


class StatusView(msgspec.Struct, frozen=True):
    """The shared pause, and who lives, as they are at `now_ms`."""

    overview: Overview
    now_ms: int
    is_final: bool = False

    def render(self) -> RenderableType:
        overview, status = self.overview, self.overview.status
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        may = Styled("yes", "green") if overview.dispatchable else Styled("no", "bold magenta")
        table.add_row("dispatchable", may)
        table.add_row("state", f"{status.state}, level {status.backoff_level}")
        if status.state is DispatchState.PAUSED:
            table.add_row("paused since", clock_text(status.paused_since))
            table.add_row("paused until", self._until())
            table.add_row("because", status.pause_reason or "")
        if status.last_triggering_session:
            hit = f"{clock_text(status.backoff_last_hit_at)} by {status.last_triggering_session}"
            table.add_row("last hit", hit)
        live = f"{overview.running} running, {overview.pending} pending"
        table.add_row("sessions", live)
        table.add_row("last host heard", clock_text(overview.guild_alive_at) or "never")
        if overview.dead_letters:
            table.add_row("dead letters", f"{overview.dead_letters} wait for the store")
        return table

    def lines(self, *, json: bool) -> Mapping[str, str]:
        overview = self.overview
        if json:
            status = msgspec.to_builtins(overview.status)
            rest = msgspec.to_builtins(overview)
            del rest["status"]
            return {"status": msgspec.json.encode({**status, **rest}).decode()}
        state = "dispatchable" if overview.dispatchable else f"paused until {self._until()}"
        return {"status": f"{state}; {overview.running} running, {overview.pending} pending"}

    def _until(self) -> str:
        until = self.overview.status.paused_until
        left_ms = duration_ms(format_timestamp(self.now_ms), until)
        return f"{clock_text(until)} ({span(left_ms)} left)" if left_ms else clock_text(until)


def clock_text(timestamp: str | None) -> str:
    """`2026-03-01 12:00:00` of a record's timestamp; other text as it is."""
    return (timestamp or "").replace("T", " ").split(".")[0].removesuffix("Z")


def took(record: SessionRecord, now_ms: int) -> str:
    """How long the session has taken, or takes until now."""
    if record.duration_ms is not None:
        return span(record.duration_ms)
    return span(duration_ms(record.started_at, format_timestamp(now_ms)))


def span(ms: int) -> str:
    """Milliseconds as people say them: `0.8s`, `12s`, `3m 04s`, `2h 05m`."""
    seconds = ms // 1000
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60:02}m"


def role_of(record: SessionRecord) -> str:
    """The role in the metadata, if it is one."""
    role = (record.metadata or {}).get("role")
    return role if isinstance(role, str) else ""


def _tokens(usage: object) -> str:
    figures = msgspec.to_builtins(usage)
    source = figures.pop("source", "unknown")
    known = ", ".join(f"{name} {count}" for name, count in figures.items())
    return f"{known} ({source})" if known else str(source)


def _count(tokens: int | None) -> str:
    return "" if tokens is None else str(tokens)
