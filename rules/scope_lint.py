"""What is odd about where a rule listens: its scope, and the path gate beside it.

Pure; `lint.py` asks for each rule. The loader has reported what of a scope is invalid, or
cannot be reached because prose has no path (`rule_trigger.py`); here are the parts that
are valid and still never do anything.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from midstream.rules.glob_overlap import are_disjoint
from midstream.rules.problem import Complaint, Severity
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.rules.tool_names import TOOL_KINDS, same_tool

SCOPE_KEYS = ("scope", "globs", "paths", "applyTo", "condition", "ttsr_trigger", "ttsrTrigger")
"""Keys that a rule's scope may come from; a condition that is a path pattern is one."""


def scope_text(scope: Iterable[ScopeToken]) -> str:
    """A scope as a rule file would write it."""
    return ", ".join(map(token_text, scope))


def token_text(token: ScopeToken) -> str:
    """One scope token as a rule file would write it."""
    if token.source is not Source.TOOL:
        return token.source.value
    name = "tool" if token.tool is None else f"tool:{token.tool}"
    return name if token.glob is None else f"{name}({token.glob})"


def covers(wide: ScopeToken, narrow: ScopeToken) -> bool:
    """Whether all that `narrow` admits, `wide` surely admits too."""
    if wide.source is not narrow.source or wide.glob not in (None, narrow.glob):
        return False
    if wide.tool is None or wide.tool == narrow.tool:
        return True
    if narrow.tool is None or narrow.tool in TOOL_KINDS or "*" in narrow.tool:
        return False  # it stands for many tools
    return same_tool(wide.tool, narrow.tool)


def lint_scope(rule: Rule) -> list[Complaint]:
    """What can be said about the scope and the globs of a rule."""
    if not rule.scope:
        return _lint_missing_scope(rule)
    found = _lint_globs(rule)
    for token in rule.scope:
        wider = next((other for other in rule.scope if _is_wider(other, token)), None)
        if wider is not None:
            what = f"scope `{token_text(token)}` adds nothing to `{token_text(wider)}`"
            found.append(Complaint(Severity.NOTE, what, "drop the one that is not meant", "scope"))
    for tool in dict.fromkeys(token.tool for token in rule.scope):
        found += _misspelt(tool)
    return found


def _lint_missing_scope(rule: Rule) -> list[Complaint]:
    if rule.path or not (rule.conditions or rule.match_anything):
        return []  # the loader has said why nothing is left of a file's scope
    what = "the scope is empty, so no output can reach the rule"
    return [Complaint(Severity.WARNING, what, "name text, thinking or a tool")]


def _lint_globs(rule: Rule) -> list[Complaint]:
    """Scope tokens that the path gate never lets through."""
    shut = [token for token in rule.scope if rule.globs and _is_shut(token, rule.globs)]
    if not shut:
        return []
    what = f"no path is both in scope `{scope_text(shut)}` and in globs `{', '.join(rule.globs)}`"
    if len(shut) == len(rule.scope):
        what += ", so the rule never fires"
    mend = "widen `globs`, or drop that part of the scope"
    return [Complaint(Severity.WARNING, what, mend, "globs")]


def _is_shut(token: ScopeToken, globs: Sequence[str]) -> bool:
    if token.source is not Source.TOOL:
        return True  # prose has no path
    glob = token.glob
    return glob is not None and all(are_disjoint(glob, gate) for gate in globs)


def _is_wider(wide: ScopeToken, narrow: ScopeToken) -> bool:
    return wide != narrow and covers(wide, narrow) and not covers(narrow, wide)


def _misspelt(tool: str | None) -> list[Complaint]:
    """The loader looks for misspelt `text`, `thinking` and `tool`; this for the tools whose
    names stand for a kind of tool."""
    kinds = list(TOOL_KINDS)
    if tool is None or "*" in tool or any(same_tool(kind, tool) for kind in kinds):
        return []
    near = get_close_matches(tool.lower(), kinds, n=1, cutoff=0.75)
    if not near:
        return []
    what = f"scope `tool:{tool}` means the tool of that very name"
    return [Complaint(Severity.NOTE, what, f"for {near[0]}, write `tool:{near[0]}`")]
