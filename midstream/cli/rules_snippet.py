"""The half of `midstream rules test` that tries a text of the user's own.

It finds out what the text is and where it stands, says what it inferred, and shows which
rules match, how early that is certain, and why a rule that was named does not.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from midstream.cli.rule_selection import Selection
from midstream.cli.source_kinds import is_source
from midstream.cli.tables import one_line, print_line, print_table
from midstream.messages.errors import ConfigError
from midstream.rules.buckets import is_for_agent
from midstream.rules.example_check import Hit, Trial, TrialSettings, try_sample, why_no_hit
from midstream.rules.example_place import is_json_object
from midstream.rules.problem import Severity
from midstream.rules.rule import Action, MatchOn, Rule, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.sample import Sample

_PATH_LIKE_CHARS = 200


class TryOptions(msgspec.Struct, frozen=True):
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


def try_text(
    selection: Selection,
    snippet: str,
    options: TryOptions,
    settings: TrialSettings,
    console: Console,
) -> int:
    """Try the text that `snippet` is, or names. Returns the exit code: 1 where rules that
    were named do not match, or where a verdict depends on how the text is cut.

    Raises `ConfigError` for what does not fit together, or a file that cannot be read.
    """
    sample, note = read_sample(snippet, options, selection.cwd)
    stderr = Console(stderr=True, highlight=False)
    for problem in selection.found.problems if selection.is_named else ():
        if problem.severity is not Severity.NOTE:
            print_line(stderr, str(problem), "yellow")
    print_line(stderr, note, "dim")
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


def read_sample(snippet: str, options: TryOptions, cwd: Path) -> tuple[Sample, str]:
    """The text to try and where it stands, with a note that says what was inferred.

    Raises `ConfigError` for what does not fit together, or a file that cannot be read.
    """
    text, path, origin = _read_text(snippet, cwd)
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
        return sys.stdin.buffer.read().decode("utf-8", "replace"), None, "standard input"
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
    for line in _lines(trials, misses):
        console.file.write(msgspec.json.encode(line).decode() + "\n")


def _lines(trials: Sequence[Trial], misses: dict[str, str]) -> Iterator[dict[str, object]]:
    for trial in trials:
        found = {hit.match.rule.name for hit in trial.hits}
        for hit in trial.hits:
            yield _hit_data(hit, trial)
        for name in trial.unsteady:
            if name not in found:
                yield {"rule": name, "hit": False, "steady": False}
        for slow in trial.suspended:
            for name in slow.rules:
                yield {"rule": name, "suspended": slow.condition, "reason": slow.reason}
    for name, why in misses.items():
        yield {"rule": name, "hit": False, "reason": why}


def _hit_data(hit: Hit, trial: Trial) -> dict[str, object]:
    match = hit.match
    return {
        "rule": match.rule.name,
        "hit": True,
        "condition": match.condition,
        "source": match.source,
        "tool": match.tool,
        "path": match.path,
        "offsetChars": match.offset_chars,
        "excerpt": match.excerpt,
        "certainAfterChars": hit.certain_after_chars,
        "streamedChars": trial.streamed_chars,
        "steady": match.rule.name not in trial.unsteady,
    }
