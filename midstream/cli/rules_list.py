"""`midstream rules list`: which rules there are, what each is for, where it comes from."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console

from midstream.cli.rule_selection import Selection
from midstream.cli.tables import counted, print_line, print_table, short_path
from midstream.rules.rule import Action, InterruptMode, RepeatMode, Rule, ScopeToken, Source
from midstream.rules.scope_lint import token_text

_TITLES = {
    "stream": "Watched for",
    "always": "In the system prompt",
    "rulebook": "In the rulebook, read on demand",
    "unused": "Of no use as they stand",
    "disabled": "Disabled",
    "shadowed": "Shadowed by a rule of the same name",
}
_WIDE = 110
"""From this width on a terminal has room for the column of origins."""


class _Entry(msgspec.Struct, frozen=True):
    rule: Rule
    bucket: str
    """A key of `_TITLES`."""
    because: str = ""
    """Why it is disabled, or what shadows it."""


def list_rules(selection: Selection, console: Console, *, show_all: bool, json: bool) -> int:
    """Print the rules. Returns the exit code."""
    entries = [entry for entry in _entries(selection) if show_all or entry.bucket in _SHOWN]
    if json:
        for entry in entries:
            console.file.write(msgspec.json.encode(_as_data(selection, entry)).decode() + "\n")
        return 0
    if console.is_terminal:
        _print_sections(selection, console, entries)
    elif entries:
        columns = ("NAME", "BUCKET", *_COLUMNS, "ORIGIN", "FILE")
        rows = [
            (e.rule.name, e.bucket, *_cells(selection, e), e.rule.origin, _file(selection, e))
            for e in entries
        ]
        print_table(console, columns, rows)
    _print_summary(selection, console, entries, show_all=show_all)
    return 0


_SHOWN = ("stream", "always", "rulebook", "unused")
_COLUMNS = ("SCOPE", "THEN")


def _entries(selection: Selection) -> Iterator[_Entry]:
    buckets = selection.buckets()
    by_name = {rule.name: rule for rule in selection.found.rules}
    for bucket, rules in zip(
        _SHOWN,
        (buckets.stream, buckets.always_apply, buckets.rulebook, buckets.unused),
        strict=True,
    ):
        for rule in rules:
            yield _Entry(by_name[rule.name], bucket)
    for rule in selection.found.disabled:
        yield _Entry(rule, "disabled", "enabled: false")
    for rule in selection.found.rules:
        if (why := selection.why_off(rule)) is not None:
            yield _Entry(rule, "disabled", why)
    for pair in selection.found.shadowed:
        yield _Entry(pair.rule, "shadowed", short_path(pair.by.path, selection.cwd))


def _cells(selection: Selection, entry: _Entry) -> tuple[str, str]:
    """Where a rule listens, and what a match does."""
    rule = entry.rule
    scope = readable_scope(rule.scope) if rule.conditions or rule.match_anything else "-"
    if rule.globs:
        scope += f" if {' '.join(rule.globs)}"
    if rule.agents:
        scope += f" (agents {', '.join(rule.agents)})"
    return scope, "-" if scope.startswith("-") else _effect(selection, rule)


def readable_scope(scope: Sequence[ScopeToken]) -> str:
    """A scope in short: `text; edit, write: *.ts *.tsx`."""
    globs_of: dict[str, list[str]] = {}
    for token in scope:
        name = token.source.value if token.source is not Source.TOOL else token.tool or "any tool"
        globs_of.setdefault(name, []).extend([token.glob] if token.glob else [])
    names_of: dict[tuple[str, ...], list[str]] = {}
    for name, globs in globs_of.items():
        names_of.setdefault(tuple(globs), []).append(name)
    parts = (
        ", ".join(names) + (f": {' '.join(globs)}" if globs else "")
        for globs, names in names_of.items()
    )
    return "; ".join(parts) or "nowhere"


def _effect(selection: Selection, rule: Rule) -> str:
    settings = selection.config.rules
    mode = rule.interrupt_mode or settings.interrupt_mode
    does = "observe" if rule.action is Action.OBSERVE else _DOES[mode]
    repeat = rule.repeat_mode or settings.repeat_mode
    gap = settings.repeat_gap if rule.repeat_gap is None else rule.repeat_gap
    often = f"after {counted(gap, 'turn')}" if repeat is RepeatMode.AFTER_GAP else repeat.value
    return f"{does}, {often}"


_DOES = {
    InterruptMode.ALWAYS: "interrupt",
    InterruptMode.NEVER: "remind",
    InterruptMode.PROSE_ONLY: "interrupt prose",
    InterruptMode.TOOL_ONLY: "interrupt tools",
}


def _file(selection: Selection, entry: _Entry) -> str:
    file = short_path(entry.rule.path, selection.cwd)
    if entry.bucket == "disabled":
        return f"{file} ({entry.because})"
    return f"{file} (by {entry.because})" if entry.bucket == "shadowed" else file


def _print_sections(selection: Selection, console: Console, entries: list[_Entry]) -> None:
    origin = ("ORIGIN",) if console.width >= _WIDE else ()
    for bucket, title in _TITLES.items():
        of_bucket = [entry for entry in entries if entry.bucket == bucket]
        if not of_bucket:
            continue
        print_line(console, f"{title} ({len(of_bucket)})", "bold cyan")
        is_text = bucket in ("always", "rulebook", "unused")
        middle = () if is_text else _COLUMNS
        rows = [
            (
                entry.rule.name,
                *(() if is_text else _cells(selection, entry)),
                *((entry.rule.origin,) if origin else ()),
                _file(selection, entry),
            )
            for entry in of_bucket
        ]
        print_table(console, ("NAME", *middle, *origin, "FILE"), rows, ("green",))
        console.print()


def _print_summary(
    selection: Selection, console: Console, entries: list[_Entry], *, show_all: bool
) -> None:
    hidden = 0 if show_all else sum(1 for _ in _entries(selection)) - len(entries)
    active = sum(entry.bucket in _SHOWN for entry in entries)
    watched = sum(entry.bucket == "stream" for entry in entries)
    summary = f"{counted(active, 'rule')}, {watched} of them watched for" if active else "no rules"
    if hidden:
        summary += f"; {hidden} more disabled or shadowed: --all"
    if selection.found.problems:
        summary += "; some have problems: midstream rules check"
    print_line(Console(stderr=True) if not console.is_terminal else console, summary, "dim")


def _as_data(selection: Selection, entry: _Entry) -> dict[str, object]:
    rule, settings = entry.rule, selection.config.rules
    repeat = rule.repeat_mode or settings.repeat_mode
    gap = settings.repeat_gap if rule.repeat_gap is None else rule.repeat_gap
    return {
        "name": rule.name,
        "bucket": None if entry.bucket in ("disabled", "shadowed") else entry.bucket,
        "state": entry.bucket if entry.bucket in ("disabled", "shadowed") else "active",
        "because": entry.because or None,
        "origin": rule.origin,
        "path": rule.path,
        "description": rule.description,
        "scope": [token_text(token) for token in rule.scope],
        "globs": rule.globs,
        "agents": rule.agents,
        "conditions": rule.conditions,
        "action": rule.action,
        "interruptMode": rule.interrupt_mode or settings.interrupt_mode,
        "repeatMode": repeat,
        "repeatGap": gap if repeat is RepeatMode.AFTER_GAP else None,
        "examples": len(rule.examples),
    }
