"""`midstream rules scan`: the rules over the files of a directory, or one file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from midstream.cli.command import INTERRUPTED
from midstream.cli.rule_selection import Selection
from midstream.cli.source_files import SourceFiles
from midstream.cli.tables import counted, one_line, print_line, print_table
from midstream.messages.errors import ConfigError
from midstream.rules.file_scan import FileHit, concerns, scan_text
from midstream.rules.rule_reader import printable
from midstream.rules.rule_set import RuleSet


class _Report(msgspec.Struct):
    """What a scan has found so far."""

    files: SourceFiles
    total: int
    rules: int
    hits: list[tuple[str, FileHit]] = msgspec.field(default_factory=list[tuple[str, FileHit]])
    suspended: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter[tuple[str, str]])
    seen: int = 0
    read: int = 0
    is_stopped: bool = False


class ScanOptions(msgspec.Struct, frozen=True):
    """The options of the command."""

    place: Path
    names: tuple[str, ...]
    max_bytes: int
    heeds_gitignore: bool
    fail: bool
    json: bool


def scan_files(selection: Selection, options: ScanOptions, console: Console) -> int:
    """Run the command. Returns its exit code: 0 unless `fail` and something was found, or
    Ctrl-C ended it early; what was found by then is shown.

    Raises `ConfigError` for a place that is not there.
    """
    errors = Console(stderr=True, highlight=False)
    root = (selection.cwd / options.place).resolve()
    if not root.exists():
        problem = "there is no such file or directory"
        raise ConfigError("midstream rules scan", str(options.place), problem)
    base = selection.cwd if root.is_relative_to(selection.cwd) else root
    rule_set = RuleSet(selection.watched(options.names))
    files = SourceFiles(root, options.max_bytes, options.heeds_gitignore)
    paths = files.find()
    if files.note:
        print_line(errors, files.note, "yellow")
    report = _Report(files, total=len(paths), rules=len(rule_set.rules))
    columns = (TextColumn("scanning"), BarColumn(), MofNCompleteColumn())
    shown = errors.is_terminal
    try:
        with Progress(*columns, console=errors, transient=True, disable=not shown) as progress:
            for path in progress.track(paths):
                hits = _scan(rule_set, path, base, report)
                if options.json:
                    _write_json(console, hits)
    except KeyboardInterrupt:
        report.is_stopped = True
    if not options.json:
        _print(console, report)
    _print_summary(errors, report)
    if report.is_stopped:
        return INTERRUPTED
    return int(options.fail and bool(report.hits))


def _scan(rule_set: RuleSet, path: Path, base: Path, report: _Report) -> list[tuple[str, FileHit]]:
    shown = printable(path.relative_to(base) if path.is_relative_to(base) else path)
    hits: list[tuple[str, FileHit]] = []
    if concerns(rule_set, shown, str(base)) and (text := report.files.read(path)) is not None:
        report.read += 1
        findings = scan_text(rule_set, shown, text, str(base))
        hits = [(shown, hit) for hit in findings.hits]
        for suspended in findings.suspended:
            report.suspended.update((rule, suspended.condition) for rule in suspended.rules)
        report.hits += hits
    report.seen += 1
    return hits


def _print(console: Console, report: _Report) -> None:
    rows: list[tuple[str, str, str]] = []
    for path, hit in report.hits:
        rows += [
            (f"{path}:{place.line}:{place.column}", hit.rule.name, place.excerpt)
            for place in hit.places
        ]
        if not hit.places:
            rows.append((path, hit.rule.name, ""))
        if hit.is_cut:
            rows.append((path, hit.rule.name, "… and more lines"))
    if not rows:
        return
    if console.is_terminal:
        print_table(console, ("PLACE", "RULE", "LINE"), rows, ("", "green", "dim"))
        return
    for place, rule, excerpt in rows:
        print_line(console, one_line(f"{place}: {rule}: {excerpt}"))


def _write_json(console: Console, hits: Sequence[tuple[str, FileHit]]) -> None:
    for path, hit in hits:
        line = {
            "path": path,
            "rule": hit.rule.name,
            "tool": hit.tool,
            "places": hit.places,
            "isCut": hit.is_cut,
        }
        console.file.write(msgspec.json.encode(line).decode() + "\n")
    console.file.flush()


def _print_summary(errors: Console, report: _Report) -> None:
    for (rule, condition), count in report.suspended.items():
        text = f"{rule}: `{condition}` took too long in {counted(count, 'file')}"
        print_line(errors, one_line(text), "yellow")
    broken = len({path for path, _ in report.hits})
    lines = sum(max(1, len(hit.places)) for _, hit in report.hits)
    skipped = report.files.skipped
    unread = report.seen - report.read - skipped.total()
    left_out = [f"{count} {reason}" for reason, count in sorted(skipped.items())]
    left_out += [f"{unread} that no rule listens to"] if unread else []
    summary = f"{counted(lines, 'place')} in {counted(broken, 'file')}"
    summary += f"; {counted(report.rules, 'rule')} over {report.read} of "
    summary += counted(report.total, "file") + (f" ({', '.join(left_out)})" if left_out else "")
    if report.is_stopped:
        summary = f"stopped after {counted(report.seen, 'file')}: {summary}"
    print_line(errors, summary, "bold")
