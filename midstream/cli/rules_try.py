"""`midstream rules test`: a rule's own examples, or any text, on the engine itself."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from midstream.cli.rule_selection import Selection
from midstream.cli.source_kinds import is_source
from midstream.cli.tables import counted, one_line, print_line, print_table, short_path
from midstream.messages.errors import ConfigError
from midstream.rules.buckets import is_for_agent
from midstream.rules.example_check import (
    ExampleResult,
    Hit,
    Trial,
    TrialSettings,
    check_examples,
    try_sample,
    why_no_hit,
)
from midstream.rules.example_place import is_json_object
from midstream.rules.rule import Action, MatchOn, Rule, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.sample import Sample

_PATH_LIKE_CHARS = 200


@dataclass(frozen=True, slots=True)
class TryOptions:
    """The options of the command; None is not given."""

    snippet: str | None
    names: tuple[str, ...]
    source: Source | None
    tool: str | None
    path: str | None
    agent: str | None
    cuts: int
    seed: int
    json: bool


def try_rules(selection: Selection, options: TryOptions, console: Console) -> int:
    """Run the command. Returns its exit code: 1 where an example fails, where rules that
    were named do not match, or where a verdict depends on how the text is cut."""
    settings = TrialSettings(cuts=options.cuts, seed=options.seed, cwd=str(selection.cwd))
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
    errors = Console(stderr=True, highlight=False)
    sample, note = read_sample(options, selection.cwd)
    print_line(errors, note, "dim")
    return _try_sample(selection, options, settings, sample, console)


# --- examples


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


# --- a text


def read_sample(options: TryOptions, cwd: Path) -> tuple[Sample, str]:
    """The text to try and where it stands, with a note that says what was inferred.

    Raises `ConfigError` for what does not fit together, or a file that cannot be read.
    """
    text, path, origin = _read_text(options.snippet or "", cwd)
    tool, source = options.tool, options.source
    file = options.path or path
    if source in (Source.TEXT, Source.THINKING) and (tool or options.path):
        option = "--tool" if tool else "--path"
        mend = f"prose has none; leave it out, or say `--source tool` instead of `{source}`"
        raise ConfigError("midstream rules test", option, f"does not go with {source}", mend)
    why = ""
    if source is None:
        is_call = tool is not None or options.path is not None or is_source(path or "")
        source = Source.TOOL if is_call else Source.TEXT
        if tool is None and options.path is None:
            why = "; say --source or --tool where it is something else"
    if source is not Source.TOOL:
        sample = Sample(text, source)
    else:
        sample = Sample(text, source, tool or "edit", file)
        why += "" if file else "; it has no path, -p gives it one"
    return sample, f"tried {origin} as {one_line(sample.place)}{why}"


def _read_text(snippet: str, cwd: Path) -> tuple[str, str | None, str]:
    """The text, the file it comes from, and what to call it."""
    if snippet == "-":
        return sys.stdin.read(), None, "standard input"
    path = cwd / snippet
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or with a null character
        is_file = False
    if is_file:
        try:
            return path.read_text("utf-8", "replace"), snippet, f"the file {one_line(snippet)}"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise ConfigError("midstream rules test", snippet, problem) from error
    looks_like_path = len(snippet) < _PATH_LIKE_CHARS and not snippet.split(maxsplit=1)[1:]
    if looks_like_path and is_source(snippet):
        return snippet, None, f"`{one_line(snippet)}` (there is no such file)"
    return snippet, None, "the text"


def _try_sample(
    selection: Selection,
    options: TryOptions,
    settings: TrialSettings,
    sample: Sample,
    console: Console,
) -> int:
    agent = options.agent or selection.config.agent
    asked = bool(options.names) or selection.is_named
    candidates = selection.named(options.names)
    rules = [rule for rule in candidates if is_for_agent(rule, agent)]
    trials = [
        try_sample(rule_set, as_sample, settings) for rule_set, as_sample in _sets(rules, sample)
    ]
    hits = [hit for trial in trials for hit in trial.hits]
    unsteady = sorted({name for trial in trials for name in trial.unsteady})
    misses = dict(_misses(candidates, agent, hits, sample, settings)) if asked else {}
    if options.json:
        _write_json(console, trials, misses)
    else:
        _print_trials(console, trials, misses, selection)
    return int(bool(unsteady) or (asked and not hits))


def _sets(rules: Sequence[Rule], sample: Sample) -> Iterator[tuple[RuleSet, Sample]]:
    """Rules on the JSON text of a call see the text as the arguments, if it can be that."""
    as_arguments = sample.source is Source.TOOL and is_json_object(sample.text)
    raw = [rule for rule in rules if as_arguments and rule.match_on is MatchOn.JSON]
    yield RuleSet(rule for rule in rules if rule not in raw), sample
    if raw:
        yield RuleSet(raw), msgspec.structs.replace(sample, is_arguments=True)


def _misses(
    rules: Sequence[Rule],
    agent: str,
    hits: Sequence[Hit],
    sample: Sample,
    settings: TrialSettings,
) -> Iterator[tuple[str, str]]:
    """Why each rule that was named did not match."""
    matched = {hit.match.rule.name for hit in hits}
    for rule in rules:
        if rule.name in matched:
            continue
        if not is_for_agent(rule, agent):
            yield rule.name, f"it is for the agents {', '.join(rule.agents)}, not for {agent}"
        else:
            yield rule.name, why_no_hit(RuleSet([rule]), rule, sample, settings.cwd)


def _print_trials(
    console: Console, trials: Sequence[Trial], misses: dict[str, str], selection: Selection
) -> None:
    rows = [
        (hit.match.rule.name, _certain(hit, trial), _effect(hit, selection), hit.match.excerpt)
        for trial in trials
        for hit in trial.hits
    ]
    if rows:
        print_table(console, ("RULE", "CERTAIN", "THEN", "WHERE"), rows, ("green",))
    else:
        print_line(console, "no rule matches", "bold")
    for name, why in misses.items():
        print_line(console, f"{one_line(name)} does not match: {one_line(why)}", "yellow")
    for trial in trials:
        for suspended in trial.suspended:
            rules = ", ".join(suspended.rules)
            print_line(console, f"{rules}: {suspended.reason}: {suspended.condition}", "yellow")
        for name in trial.unsteady:
            text = f"{name}: the verdict depends on how the text is cut, a defect of midstream"
            print_line(console, text, "bold red")


def _certain(hit: Hit, trial: Trial) -> str:
    if hit.certain_after_chars is None:
        return "at the end"
    return f"after {hit.certain_after_chars} of {trial.streamed_chars} characters"


def _effect(hit: Hit, selection: Selection) -> str:
    rule = hit.match.rule
    if rule.action is Action.OBSERVE:
        return "observe"
    mode = rule.interrupt_mode or selection.config.rules.interrupt_mode
    return "interrupt" if mode.interrupts(hit.match.source) else "remind"


def _write_json(console: Console, trials: Sequence[Trial], misses: dict[str, str]) -> None:
    lines = [
        {
            "rule": hit.match.rule.name,
            "hit": True,
            "condition": hit.match.condition,
            "source": hit.match.source,
            "tool": hit.match.tool,
            "path": hit.match.path,
            "offsetChars": hit.match.offset_chars,
            "excerpt": hit.match.excerpt,
            "certainAfterChars": hit.certain_after_chars,
            "streamedChars": trial.streamed_chars,
            "steady": hit.match.rule.name not in trial.unsteady,
        }
        for trial in trials
        for hit in trial.hits
    ]
    lines += [{"rule": name, "hit": False, "reason": why} for name, why in misses.items()]
    for line in lines:
        console.file.write(msgspec.json.encode(line).decode() + "\n")
