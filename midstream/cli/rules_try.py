"""`midstream rules test`: a rule's own examples, or any text, on the engine itself.

Here are the examples; a text of the user's own is tried by `rules_snippet.py`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from midstream.cli.rule_selection import Selection
from midstream.cli.rules_snippet import TryOptions, try_text
from midstream.cli.tables import counted, one_line, print_line, short_path
from midstream.messages.errors import ConfigError
from midstream.rules.example_check import ExampleResult, TrialSettings, check_examples
from midstream.rules.rule import Rule
from midstream.rules.tool_shapes import ToolTable


def try_rules(selection: Selection, options: TryOptions, console: Console) -> int:
    """Run the command. Returns its exit code: 1 where an example fails, where rules that
    were named do not match, or where a verdict depends on how the text is cut."""
    settings = TrialSettings(
        cuts=options.cuts,
        seed=options.seed,
        cwd=str(selection.cwd),
        table=ToolTable(selection.config.rules.tools),
    )
    if options.snippet is None:
        for option, value in (
            ("--source", options.source),
            ("--tool", options.tool),
            ("--path", options.path),
        ):
            if value is not None:
                mend = "examples say themselves where they stand; give a snippet or a file"
                raise ConfigError("midstream rules test", option, "needs a text", mend)
        return _try_examples(selection, options, settings, console)
    return try_text(selection, options.snippet, options, settings, console)


def _try_examples(
    selection: Selection, options: TryOptions, settings: TrialSettings, console: Console
) -> int:
    rules = selection.named(options.names)
    with_examples = [rule for rule in rules if rule.examples]
    results = [
        result
        for rule in _with_progress(with_examples)
        for result in check_examples(rule, settings)
    ]
    failed = [result for result in results if result.failure is not None]
    if options.json:
        for result in results:
            console.file.write(msgspec.json.encode(_example_data(result)).decode() + "\n")
        return int(bool(failed))
    for result in failed:
        _print_failure(console, result, selection.cwd)
    without = len(rules) - len(with_examples)
    outcome = f"{len(failed)} failed" if failed else "all as their authors say"
    summary = f"{counted(len(results), 'example')} of {counted(len(with_examples), 'rule')}"
    summary += f": {outcome}" if results else ""
    summary += f"; {counted(without, 'rule')} without examples" if without else ""
    print_line(console, summary, "bold red" if failed else "bold green")
    return int(bool(failed))


def _with_progress(rules: Sequence[Rule]) -> Iterator[Rule]:
    errors = Console(stderr=True)
    shown = errors.is_terminal
    yield from track(rules, "trying examples", console=errors, transient=True, disable=not shown)


def _print_failure(console: Console, result: ExampleResult, cwd: Path) -> None:
    rule, sample = result.rule, result.trial.sample
    kind = "match" if result.example.matches else "no_match"
    print_line(console, f"{one_line(rule.name)} ({short_path(rule.path, cwd)})", "bold")
    print_line(console, f"  {kind:8}  {one_line(result.example.text)}")
    print_line(console, f"  tried as  {one_line(sample.place)}")
    print_line(console, f"  failed    {one_line(result.failure or '')}", "red")


def _example_data(result: ExampleResult) -> dict[str, object]:
    sample = result.trial.sample
    return {
        "rule": result.rule.name,
        "path": result.rule.path,
        "text": result.example.text,
        "expected": "match" if result.example.matches else "no_match",
        "passed": result.failure is None,
        "failure": result.failure,
        "triedAs": {"source": sample.source, "tool": sample.tool, "path": sample.path},
    }
