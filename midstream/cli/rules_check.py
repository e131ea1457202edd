"""`midstream rules check`: what is wrong with rule files, as a linter says it."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from midstream.cli.rule_selection import Selection
from midstream.cli.tables import counted, one_line, print_line, short_path
from midstream.rules.discovery import Discovery
from midstream.rules.lint import lint
from midstream.rules.problem import Problem, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def check_rules(
    selection: Selection, paths: Sequence[Path], console: Console, *, strict: bool, json: bool
) -> int:
    """Print all problems, sorted by file and line. Returns the exit code: 1 where a file
    gives no rule, or, if `strict`, where anything is lost."""
    problems = all_problems(selection, paths)
    if json:
        for problem in problems:
            console.file.write(msgspec.json.encode(problem).decode() + "\n")
    else:
        _print(console, problems, selection.cwd)
        _print_summary(console, problems, selection.found)
    failing = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    return int(any(problem.severity in failing for problem in problems))


def all_problems(selection: Selection, paths: Sequence[Path]) -> list[Problem]:
    """What loading found and what the linter finds, sorted by file and line."""
    found = selection.found
    problems = [*found.problems, *lint(found.rules, found.shadowed)]
    problems += _idle_settings(selection)
    problems += [
        Problem(str(selection.cwd / path), 0, Severity.NOTE, what, "name files or directories")
        for path in paths
        if (what := _not_searched(selection.cwd / path)) is not None
    ]
    return sorted(problems, key=lambda problem: (problem.path, problem.line))


def _idle_settings(selection: Selection) -> list[Problem]:
    """Names in `disabled_rules` that no rule has."""
    found = selection.found
    known = {rule.name for rule in (*found.rules, *found.disabled)}
    names = (name.strip().removeprefix("rule:") for name in selection.disabled_rules)
    what = "`rules.disabled_rules` names `{}`, and there is no such rule"
    return [
        Problem("configuration", 0, Severity.WARNING, what.format(name), "drop it, or mend it")
        for name in names
        if name not in known
    ]


def _not_searched(path: Path) -> str | None:
    """What to say of a directory without rule files, or with more of them further down."""
    if not path.is_dir():
        return None
    inner = [
        entry.name
        for entry in sorted(path.iterdir())
        if not entry.name.startswith(".") and _has_rule_files(entry)
    ]
    below = f"directories below it are not searched: {', '.join(inner)}" if inner else ""
    if _has_rule_files(path):
        return below or None
    what = "there are no rule files (*.md, *.mdc) in this directory"
    return f"{what}; {below}" if below else what


def _has_rule_files(path: Path) -> bool:
    if not path.is_dir():
        return False
    return any(e.suffix in (".md", ".mdc") and not e.is_dir() for e in path.iterdir())


def _print(console: Console, problems: Sequence[Problem], cwd: Path) -> None:
    # Problems name other rule files too.
    shown = [
        msgspec.structs.replace(
            problem,
            path=short_path(problem.path, cwd),
            what=one_line(problem.what.replace(f"{cwd}/", "")),
            mend=one_line(problem.mend),
        )
        for problem in problems
    ]
    if console.is_terminal:
        _print_by_file(console, shown)
        return
    for problem in shown:
        print_line(console, str(problem))


def _print_by_file(console: Console, problems: Sequence[Problem]) -> None:
    for path, of_file in groupby(problems, key=lambda problem: problem.path):
        print_line(console, path, "bold")
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        grid.add_column(justify="right", style="dim", min_width=4)
        grid.add_column()
        grid.add_column(overflow="fold")
        for problem in of_file:
            text = Text(problem.what)
            if problem.mend:
                text.append(f"\n{problem.mend}", "dim")
            style = _STYLES[problem.severity]
            line = str(problem.line) if problem.line else ""
            grid.add_row(line, Text(problem.severity.value, style), text)
        console.print(grid)
        console.print()


def _print_summary(console: Console, problems: Sequence[Problem], found: Discovery) -> None:
    rules = len(found.rules) + len(found.shadowed) + len(found.disabled)
    counts = [
        counted(number, severity.value)
        for severity in Severity
        if (number := sum(problem.severity is severity for problem in problems))
    ]
    print_line(console, f"{counted(rules, 'rule')}: {', '.join(counts) or 'no problems'}", "bold")
