"""The rules over the text of a file, as if a model had just written all of it.

Pure: path and text in, places out; `midstream rules scan` walks the files and reads them.
The engine that watches streams gives the verdict, for a `write` of the file and, where a
rule asks for edits only, for an `edit` of it, so that scopes and globs count. A stream
tells of a rule once; here every line that matches is looked up, since somebody wants to
mend them.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from midstream.rules.code_units import code_point_offset
from midstream.rules.condition import Condition
from midstream.rules.finding import Match, Suspended
from midstream.rules.globs import candidate_paths
from midstream.rules.rule import Rule, Source
from midstream.rules.rule_set import CompiledRule, RuleSet
from midstream.rules.sample import Sample, stream
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.watch import Watch

FILE_TOOLS = ("write", "edit")
"""The calls that a file is taken for, in this order; the second where the first is not in
a rule's scope."""

PLACES_LIMIT = 100
"""Lines shown of one rule in one file."""

EXCERPT_CHARS = 160
_LOCATE_BUDGET_S = 1.0
"""For the lines of one condition; a verdict is never lost by it, only its place."""


class Place(msgspec.Struct, frozen=True):
    """Where a condition matches: line and column from 1, in characters, and that line."""

    line: int
    column: int
    excerpt: str


class FileHit(msgspec.Struct, frozen=True):
    """A rule that a write or an edit of the file would break.

    `places` are the first `PLACES_LIMIT` lines with a match, empty where they could not be
    found in time or lie in the JSON text of the call (`match: json`). `is_cut` says that
    there are more.
    """

    rule: Rule
    tool: str
    places: tuple[Place, ...]
    is_cut: bool = False


class FileFindings(msgspec.Struct, frozen=True):
    """What was found in one file. `suspended` conditions took too long in it."""

    hits: tuple[FileHit, ...]
    suspended: tuple[Suspended, ...] = ()


def concerns(rule_set: RuleSet, path: str, cwd: str) -> bool:
    """Whether any rule listens to writes or edits of this file; if not, it need not be
    read."""
    return any(_tools(rule, candidate_paths(path, cwd)) for rule in rule_set.rules)


def scan_text(rule_set: RuleSet, path: str, text: str, cwd: str) -> FileFindings:
    """Watch the text of the file at `path`, which is relative to `cwd` or absolute."""
    paths = candidate_paths(path, cwd)
    tool_of = {
        rule.rule.name: tools[0] for rule in rule_set.rules if (tools := _tools(rule, paths))
    }
    hits: list[FileHit] = []
    suspended: list[Suspended] = []
    for tool in FILE_TOOLS:
        if tool not in tool_of.values():
            continue
        matched: dict[str, Match] = {}
        for finding in _watch(rule_set, Sample(text, Source.TOOL, tool, path), cwd):
            if isinstance(finding, Match):
                matched.setdefault(finding.rule.name, finding)
            else:
                suspended.append(finding)
        hits += [
            _hit(rule_set, rule, tool, text)
            for rule in rule_set.rules
            if rule.rule.name in matched and tool_of.get(rule.rule.name) == tool
        ]
    return FileFindings(tuple(hits), tuple(suspended))


def _tools(rule: CompiledRule, paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(tool for tool in FILE_TOOLS if rule.admits(Source.TOOL, tool, paths))


def _watch(rule_set: RuleSet, sample: Sample, cwd: str) -> Iterator[Match | Suspended]:
    def new_arguments(call_id: str, tool: str) -> ToolArguments:
        return ToolArguments(call_id, tool, cwd=cwd, raw=rule_set.wants_raw_arguments)

    # The cap guards against streams without an end; the size of a file is known.
    cap_chars = 2 * len(sample.text) + 65_536
    watch = Watch(rule_set, new_arguments, passage_cap_chars=cap_chars)
    for finding in watch.feed(stream(sample)):
        if isinstance(finding, Match | Suspended):
            yield finding


def _hit(rule_set: RuleSet, rule: CompiledRule, tool: str, text: str) -> FileHit:
    places: dict[int, Place] = {}
    for number in sorted(rule.conditions):
        for place in islice(_places(rule_set.conditions[number], text), PLACES_LIMIT + 1):
            places.setdefault(place.line, place)
    ordered = [places[line] for line in sorted(places)]
    return FileHit(rule.rule, tool, tuple(ordered[:PLACES_LIMIT]), len(ordered) > PLACES_LIMIT)


def _places(condition: Condition, text: str) -> Iterator[Place]:
    """The lines on which a match of the condition begins, each once."""
    lines = text.split("\n")
    if condition.source == "":
        yield _place(lines, 1, 0)
    if condition.source == "" or condition.pattern is None:
        return
    units = condition.units(text)
    starts = [0, *(end.end() for end in re.finditer("\n", units))]
    line = 0
    try:
        for match in condition.pattern.finditer(units, timeout=_LOCATE_BUDGET_S):
            if line < len(starts) and match.start() >= starts[line]:
                line = bisect_right(starts, match.start())
                start = starts[line - 1]
                column = code_point_offset(units[start : match.start() + 1], match.start() - start)
                yield _place(lines, line, column)
    except TimeoutError:
        return


def _place(lines: Sequence[str], line: int, column: int) -> Place:
    text = lines[line - 1]
    first = max(0, column - EXCERPT_CHARS // 2) if len(text) > EXCERPT_CHARS else 0
    return Place(line, column + 1, text[first : first + EXCERPT_CHARS].strip())
