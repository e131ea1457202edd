"""Turns the text of a rule file into a `Rule`, and reports what of it cannot be used.

Pure; `discovery.py` gives it the files. It never raises: a file that gives no rule has an
error among its problems, a part that cannot be used is left out with a warning, and the
rest loads (spec/ttsr.md 1.1 to 1.5). A rule whose conditions are all invalid, or that no
output can reach, keeps its text but has no conditions or no scope: `buckets.py` then
treats it as guidance.
"""

import re
from difflib import get_close_matches

import msgspec

from midstream.rules.buckets import can_watch
from midstream.rules.condition_check import check_condition
from midstream.rules.front_matter import read_document
from midstream.rules.problem import Problem, Severity
from midstream.rules.rule import Action, InterruptMode, MatchOn, RepeatMode, Rule
from midstream.rules.rule_fields import FieldReader, Located
from midstream.rules.rule_trigger import (
    PATH_KEYS,
    ConditionCheck,
    Trigger,
    is_glob,
    read_trigger,
)
from midstream.rules.scope import split_list

_OURS = (
    "condition",
    "ttsr_trigger",
    "ttsrTrigger",
    "astCondition",
    "question",
    "scope",
    "globs",
    "interruptMode",
    "alwaysApply",
    "description",
    "agents",
    "enabled",
    "reminder",
    "repeatMode",
    "repeatGap",
    "maxRetries",
    "action",
    "match",
    "dialect",
    "all",
    "examples",
    "repeat_policy",
    "gap_turns",
)
_WITHOUT_MEANING = {
    "name": "a rule is named after its file",
    "id": "a rule is named after its file",
    "severity": "what a match does is said by `interruptMode` and `action`",
    "tags": "midstream has no use for it",
    "probes": "midstream has no use for it; `examples` are a rule's tests",
}


class RuleFile(msgspec.Struct, frozen=True):
    """What a rule file gave. `rule` is None where the file was rejected; `enabled` is
    false where the file says so, which only discovery heeds (spec/ttsr.md 1.2)."""

    rule: Rule | None
    problems: tuple[Problem, ...] = ()
    enabled: bool = True


def rule_name(file_name: str, origin: str = "argument") -> str:
    """A rule's name: the last segment of its file without `.md` or `.mdc`, and without
    `.instructions.md` where it is one of GitHub's (spec/ttsr.md 1.2)."""
    base = re.split(r"[/\\]", file_name)[-1]
    for suffix in ((".instructions.md",) if origin == "github" else ()) + (".mdc", ".md"):
        if base.endswith(suffix):
            return base.removesuffix(suffix)
    return base


def parse_rule(
    name: str,
    text: str,
    *,
    path: str = "",
    origin: str = "argument",
    always_apply: bool = False,
    check: ConditionCheck = check_condition,
) -> RuleFile:
    """The rule in `text`, named `name`.

    `path` is shown in problems and kept in the rule; `origin` is the provider it was found
    by, some of which have keys of their own (`applyTo`, `paths`). `always_apply` is forced on
    for files that have no front matter to say so (`RULES.md`).
    """
    document = read_document(text, path)
    fields = FieldReader(path, document.fields, list(document.problems))
    enabled = fields.flag("enabled", default=True)
    if not name:
        fields.complain("", Severity.ERROR, "the file's name leaves the rule without a name")
        return _result(None, fields, enabled)
    if not document.body:
        what = "the file has no body, so the rule has nothing to tell the model"
        fields.complain("", Severity.ERROR, what, "write the guidance below the front matter")
        return _result(None, fields, enabled)
    trigger = read_trigger(fields, origin, check)
    rule = _read_rule(fields, trigger, name, document.body, origin)
    if always_apply:
        rule = msgspec.structs.replace(rule, always_apply=True)
    if origin == "github":
        rule = _as_instructions(fields, rule, trigger)
    _report_keys(fields, origin)
    _report_uses(fields, rule)
    return _result(rule, fields, enabled)


def _result(rule: Rule | None, fields: FieldReader, enabled: bool) -> RuleFile:
    by_line = sorted(fields.problems, key=lambda problem: problem.line)
    return RuleFile(rule, tuple(by_line), enabled)


def _read_rule(fields: FieldReader, trigger: Trigger, name: str, body: str, origin: str) -> Rule:
    return Rule(
        name=name,
        body=body,
        path=fields.path,
        origin=origin,
        description=fields.text("description"),
        conditions=tuple(condition.text for condition in trigger.conditions),
        condition_lines=tuple(condition.line for condition in trigger.conditions),
        key_lines=tuple((key, entry.line) for key, entry in fields.fields.items()),
        all_conditions=trigger.all_conditions,
        match_anything=trigger.match_anything,
        scope=trigger.scope,
        globs=trigger.globs,
        dialect=trigger.dialect,
        interrupt_mode=fields.choice("interruptMode", InterruptMode),
        repeat_mode=fields.choice(_either(fields, "repeatMode", "repeat_policy"), RepeatMode),
        repeat_gap=fields.count(_either(fields, "repeatGap", "gap_turns")),
        max_retries=fields.count("maxRetries"),
        action=fields.choice("action", Action) or Action.REMIND,
        match_on=fields.choice("match", MatchOn) or MatchOn.DECODED,
        always_apply=fields.flag("alwaysApply", default=False),
        agents=_read_agents(fields),
        reminder=fields.reminder(),
        examples=fields.examples(),
        ast_conditions=tuple(item.text for item in fields.texts("astCondition")),
        question=fields.text("question"),
    )


def _either(fields: FieldReader, key: str, legacy_key: str) -> str:
    return key if fields.has(key) else legacy_key


def _read_agents(fields: FieldReader) -> tuple[str, ...]:
    """Agent names and patterns. One that is no pattern stays: without it, a rule that was
    meant for one agent would be for all."""
    names = [
        re.sub(r"\s+", "", name).lower()
        for item in fields.texts("agents")
        for name in split_list(item.text)
    ]
    for name in names:
        is_glob(fields, Located(name, fields.line("agents")))
    return tuple(dict.fromkeys(names))


def _as_instructions(fields: FieldReader, rule: Rule, trigger: Trigger) -> Rule:
    """GitHub's instruction files say with `applyTo` where they apply (spec/ttsr.md 1.8)."""
    if trigger.everywhere:
        return msgspec.structs.replace(rule, always_apply=True)
    if fields.has("applyTo"):
        rule = msgspec.structs.replace(rule, always_apply=False)
        return _described(rule, f"Instructions for files that match {', '.join(rule.globs)}")
    what = "`applyTo` is missing, so the instructions are listed, not applied"
    fields.complain("applyTo", Severity.WARNING, what, 'add `applyTo: "**"` or a pattern')
    return _described(rule, f"GitHub instructions {rule.name}")


def _described(rule: Rule, description: str) -> Rule:
    return msgspec.structs.replace(rule, description=rule.description or description)


def _report_keys(fields: FieldReader, origin: str) -> None:
    """Notes on keys that have no effect, with the key that was probably meant."""
    ours = {*_OURS, PATH_KEYS.get(origin, "globs")}
    squeezed = {_squeeze(key): key for key in ours}
    for key, entry in fields.fields.items():
        if key in ours:
            continue
        if key in _WITHOUT_MEANING:
            what = f"`{entry.key}` has no effect: {_WITHOUT_MEANING[key]}"
            fields.complain(key, Severity.NOTE, what)
            continue
        near = get_close_matches(_squeeze(key), squeezed, n=1, cutoff=0.8)
        mend = f"did you mean `{squeezed[near[0]]}`?" if near else ""
        fields.complain(key, Severity.NOTE, f"`{entry.key}` is not known and has no effect", mend)


def _report_uses(fields: FieldReader, rule: Rule) -> None:
    """What a rule asks for that is not supported, and a rule that nothing will ever use."""
    if rule.ast_conditions:
        what = "`astCondition` is not supported yet and never matches"
        fields.complain("astCondition", Severity.WARNING, what, "add a `condition`")
    if rule.question:
        what = "`question` is not supported yet, so the rule is not watched for"
        fields.complain("question", Severity.WARNING, what, "use a `condition` alone")
    if not can_watch(rule) and not rule.always_apply and not rule.description:
        what = "the rule has no use: no condition, no `alwaysApply: true`, no `description`"
        fields.complain("", Severity.NOTE, what, "add one of them")


def _squeeze(key: str) -> str:
    return key.replace("_", "").lower()
