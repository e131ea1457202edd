"""What is wrong with rules that load: parts that can never be reached, that say the same
twice, or that do not do what their author meant.

Pure: rules in, problems out. The loader has already reported what it left out of a file
(`rule_file.py`), so nothing of that is said again here; `midstream rules check` shows both.
"""

from collections.abc import Iterable, Sequence

from midstream.rules.buckets import BUILTIN_ORIGIN, can_watch
from midstream.rules.condition import compile_condition
from midstream.rules.condition_lint import json_hint, lint_condition, shown
from midstream.rules.dialect_error import DialectError, UntranslatableError
from midstream.rules.discovery import Shadowed
from midstream.rules.problem import Complaint, Problem, Severity
from midstream.rules.rule import Action, InterruptMode, MatchOn, RepeatMode, Rule, Source
from midstream.rules.rule_overlap import find_overlaps
from midstream.rules.scope_lint import SCOPE_KEYS, lint_scope
from midstream.rules.tool_names import same_tool

_FILE_TOOLS = ("edit", "write")


def lint(rules: Sequence[Rule], shadowed: Iterable[Shadowed] = ()) -> tuple[Problem, ...]:
    """All that can be said about `rules`, which have unique names and come in order of
    precedence, and about those that they shadow. Sorted by file and line."""
    hidden = list(shadowed)
    alone = [*rules, *(pair.rule for pair in hidden)]
    # The bundled rules are not the user's to mend; tests of ours keep them clean.
    own = [rule for rule in alone if rule.origin != BUILTIN_ORIGIN]
    found = [problem for rule in own for problem in lint_rule(rule)]
    found += find_overlaps(rules)
    found += [_shadow(pair) for pair in hidden]
    return tuple(sorted(found, key=lambda problem: (problem.path, problem.line)))


def lint_rule(rule: Rule) -> list[Problem]:
    """What can be said about a rule by itself."""
    place = rule.path or rule.name
    found = [
        complaint.at(place, rule.line_of(complaint.key, *SCOPE_KEYS))
        for complaint in (*lint_scope(rule), *_lint_settings(rule))
    ]
    for index, source in enumerate(rule.conditions):
        line = rule.condition_lines[index] if index < len(rule.condition_lines) else 0
        found += [complaint.at(place, line) for complaint in _lint_condition(rule, source)]
    return found


def _lint_settings(rule: Rule) -> list[Complaint]:
    """Settings that do nothing, given the rest of the rule."""
    found: list[Complaint] = []
    if not can_watch(rule):
        return found
    mode = rule.interrupt_mode
    if rule.always_apply:
        what = "`alwaysApply` has no effect, since a rule with a condition is watched for"
        mend = "make standing advice a rule of its own"
        found.append(Complaint(Severity.NOTE, what, mend, "alwaysApply"))
    if mode not in (None, InterruptMode.NEVER) and not _interrupts(rule, mode):
        what = f"`interruptMode: {mode.value}` interrupts nothing that is in the rule's scope"
        mend = "write `never` or `always`, whichever is meant"
        found.append(Complaint(Severity.WARNING, what, mend, "interruptMode"))
    is_quiet = mode is InterruptMode.NEVER or rule.action is Action.OBSERVE
    if rule.max_retries is not None and is_quiet:
        what = "`maxRetries` has no effect, since this rule never interrupts"
        found.append(Complaint(Severity.NOTE, what, "drop it", "maxRetries"))
    repeat = rule.repeat_mode
    if rule.repeat_gap is not None and repeat not in (None, RepeatMode.AFTER_GAP):
        what = f"`repeatGap` has no effect with `repeatMode: {repeat.value}`"
        key = "repeatGap" if rule.line_of("repeatGap") else "gap_turns"
        found.append(Complaint(Severity.NOTE, what, "write `repeatMode: after-gap`", key))
    return found


def _interrupts(rule: Rule, mode: InterruptMode) -> bool:
    return any(mode.interrupts(token.source) for token in rule.scope)


def _lint_condition(rule: Rule, source: str) -> list[Complaint]:
    try:
        condition = compile_condition(source, rule.dialect)
    except (DialectError, UntranslatableError) as error:
        what = f"condition `{shown(source)}` cannot be used: {error.reason}"
        return [Complaint(Severity.WARNING, what, error.mend)]
    gated = bool(rule.globs) or all(token.glob is not None for token in rule.scope)
    found = lint_condition(condition, has_path_gate=gated)
    hint = json_hint(source) if _sees_decoded_calls(rule) else None
    return [*found, hint] if hint else found


def _sees_decoded_calls(rule: Rule) -> bool:
    """Whether the rule names tools other than those that write files: the text that goes
    into a file may well look like JSON."""
    return rule.match_on is MatchOn.DECODED and any(
        token.tool is not None and not any(same_tool(kind, token.tool) for kind in _FILE_TOOLS)
        for token in rule.scope
        if token.source is Source.TOOL
    )


def _shadow(pair: Shadowed) -> Problem:
    rule, by = pair.rule, pair.by
    what = f"the rule is not used, because `{by.name}` of {by.path or by.origin} comes first"
    mend = "give one of the files another name"
    return Problem(rule.path or rule.name, 0, Severity.NOTE, what, mend)
