"""Runs a rule's own examples, and any other text, through the engine that watches streams.

Pure. A text is watched whole and then cut at random places from a seed, and the verdicts
have to be the same (architecture.md invariant 9); one more run in small pieces tells after how
much of the stream a rule was certain of its match. `midstream rules test` shows the result.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random  # noqa: TID251 - seeded by the caller, for the places of cuts

import msgspec

from midstream.messages.stream import AnyStreamMessage
from midstream.rules.coverage import why_not_covered
from midstream.rules.example_place import place_example
from midstream.rules.finding import Finding, Match, Suspended
from midstream.rules.rule import Example, MatchOn, Rule, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.sample import Sample, stream, streamed_text
from midstream.rules.tool_arguments import BUILT_IN_TABLE, ToolArguments
from midstream.rules.tool_shapes import ToolTable
from midstream.rules.watch import Watch

DEFAULT_CUTS = 16
"""How many times a text is cut at random."""

_PIECES = 512
"""In how many pieces a text is fed to see how early a rule is certain."""

_CUTS_PER_CHAR = 8
"""One cut for so many characters on average, so that short texts are cut finely too."""


class Hit(msgspec.Struct, frozen=True):
    """A match, and after how many streamed characters it was certain: of the text, or of
    the call's arguments. None: at the end of the passage only."""

    match: Match
    certain_after_chars: int | None


class Trial(msgspec.Struct, frozen=True):
    """What the rules found in one text.

    `unsteady` names the rules whose verdict was another one under some way of cutting,
    which is a defect of the engine. `suspended` conditions took too long.
    """

    sample: Sample
    streamed_chars: int
    hits: tuple[Hit, ...]
    suspended: tuple[Suspended, ...] = ()
    unsteady: tuple[str, ...] = ()


class ExampleResult(msgspec.Struct, frozen=True):
    """How one example went; `failure` is None if it went as its author says."""

    rule: Rule
    example: Example
    trial: Trial
    failure: str | None = None


class TrialSettings(msgspec.Struct, frozen=True):
    """How texts are tried: how often cut, by which seed, in which working directory, with
    which table of tools."""

    cuts: int = DEFAULT_CUTS
    seed: int = 0
    cwd: str = "/"
    table: ToolTable = BUILT_IN_TABLE


DEFAULT_SETTINGS = TrialSettings()


def check_examples(
    rule: Rule, settings: TrialSettings = DEFAULT_SETTINGS
) -> tuple[ExampleResult, ...]:
    """Run the examples of a rule, each for itself."""
    rule_set = RuleSet([rule])
    return tuple(_check(rule_set, rule, example, settings) for example in rule.examples)


def try_sample(
    rule_set: RuleSet, sample: Sample, settings: TrialSettings = DEFAULT_SETTINGS
) -> Trial:
    """Watch a text with all rules of a set, whole and cut."""
    length = len(streamed_text(sample, settings.table))
    whole = _watch(rule_set, sample, (), settings)
    suspended = [finding for _, finding in whole if isinstance(finding, Suspended)]
    step = max(1, -(-length // _PIECES))
    slow = _watch(rule_set, sample, range(step, length, step), settings)
    certain = {_key(match): fed for fed, match in _matches(slow)}
    hits = [Hit(match, certain.get(_key(match))) for _, match in _matches(whole)]
    expected = _verdicts(whole)
    unsteady: set[str] = set()
    for findings in (slow, *_cut_runs(rule_set, sample, length, settings)):
        if not suspended and not any(isinstance(found, Suspended) for _, found in findings):
            unsteady |= {name for name, *_ in expected ^ _verdicts(findings)}
    return Trial(sample, length, tuple(hits), tuple(suspended), tuple(sorted(unsteady)))


_Found = Sequence[tuple[int | None, Finding]]
"""Findings, each with the streamed characters after which it was made; None at the end."""


def _watch(
    rule_set: RuleSet, sample: Sample, cuts: Iterable[int], settings: TrialSettings
) -> list[tuple[int | None, Finding]]:
    def new_arguments(call_id: str, tool: str) -> ToolArguments:
        raw = rule_set.wants_raw_arguments
        return ToolArguments(call_id, tool, settings.table, settings.cwd, raw=raw)

    watch = Watch(rule_set, new_arguments)
    found: list[tuple[int | None, Finding]] = []
    fed = 0
    for message in stream(sample, cuts, settings.table):
        size = _size(message)
        fed += size
        found += [(fed if size else None, finding) for finding in watch.feed([message])]
    return found


def _size(message: AnyStreamMessage) -> int:
    return len(getattr(message, "text", "") or getattr(message, "fragment", ""))


def _cut_runs(
    rule_set: RuleSet, sample: Sample, length: int, settings: TrialSettings
) -> Iterator[_Found]:
    random = Random(settings.seed)
    for _ in range(settings.cuts if length > 1 else 0):
        count = random.randint(1, max(1, min(length // _CUTS_PER_CHAR, _PIECES)) + 1)
        cuts = [random.randint(1, length - 1) for _ in range(count)]
        yield _watch(rule_set, sample, cuts, settings)


def _matches(found: _Found) -> list[tuple[int | None, Match]]:
    return [(fed, finding) for fed, finding in found if isinstance(finding, Match)]


def _key(match: Match) -> tuple[str, str | None]:
    return match.rule.name, match.path


def _verdicts(found: _Found) -> set[tuple[str, str | None]]:
    return {_key(match) for _, match in _matches(found)}


def _check(
    rule_set: RuleSet, rule: Rule, example: Example, settings: TrialSettings
) -> ExampleResult:
    sample = place_example(rule, example)
    trial = try_sample(rule_set, sample, settings)
    return ExampleResult(rule, example, trial, _failure(rule_set, rule, example, trial, settings))


def _failure(
    rule_set: RuleSet, rule: Rule, example: Example, trial: Trial, settings: TrialSettings
) -> str | None:
    if trial.suspended:
        return f"`{trial.suspended[0].condition}` took longer than its time budget"
    if trial.unsteady:
        return "the verdict depends on how the text is cut, which is a defect of midstream"
    if example.matches and not trial.hits:
        return f"expected a match: {why_no_hit(rule_set, rule, trial.sample, settings.cwd)}"
    if not example.matches and trial.hits:
        return f"expected no match, but `{trial.hits[0].match.condition}` matches"
    return None


def why_no_hit(rule_set: RuleSet, rule: Rule, sample: Sample, cwd: str) -> str:
    """Why a rule did not match a sample that was tried with `rule_set`."""
    if rule.name not in {compiled.rule.name for compiled in rule_set.rules}:
        return "the rule is not watched for, see `midstream rules check`"
    uncovered = why_not_covered(
        rule, sample.source, sample.tool, sample.path, cwd=cwd, has_no_path=sample.path is None
    )
    if uncovered is not None and not sample.is_arguments:
        return uncovered
    if sample.source is Source.TOOL and rule.match_on is MatchOn.JSON:
        return "no condition matches the JSON text of the arguments"
    if rule.all_conditions and len(rule.conditions) > 1:
        return "not all of its conditions match"
    return "no condition matches"
