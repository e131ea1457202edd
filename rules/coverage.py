"""Whether a rule listens to a place in the output, and if not, why.

Pure. The same answers as the engine's `CompiledRule.admits`, but in sentences, for the
commands that explain: `midstream rules why` and `midstream rules test`.
"""

from collections.abc import Sequence

from midstream.rules.globs import candidate_paths, compile_glob
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.rules.scope_lint import scope_text
from midstream.rules.tool_names import same_tool


def why_not_covered(
    rule: Rule,
    source: Source,
    tool: str | None = None,
    path: str | None = None,
    *,
    cwd: str = "/",
    has_no_path: bool = False,
) -> str | None:
    """Why no passage of this kind is in the rule's scope; None if one may be.

    What is None is not known, so that anything counts; `has_no_path` says that there is no
    path at all. The rule's globs are valid, as those of loaded rules are.
    """
    scope = f"its scope is `{scope_text(rule.scope)}`" if rule.scope else "it has no scope"
    of_source = [token for token in rule.scope if token.source is source]
    if not of_source:
        return f"{scope}, which does not cover {_NAMES[source]}"
    if source is not Source.TOOL:
        return f"its globs need a path, and {_NAMES[source]} has none" if rule.globs else None
    tokens = [token for token in of_source if _is_of(token, tool)]
    if not tokens:
        return f"{scope}, which does not cover the tool `{tool}`"
    if path is None:
        return _without_path(rule, tokens) if has_no_path else None
    paths = candidate_paths(path, cwd)
    if not any(token.glob is None or _matches(token.glob, paths) for token in tokens):
        return f"{scope}, which does not cover the path `{path}`"
    if rule.globs and not any(_matches(glob, paths) for glob in rule.globs):
        return f"its globs are `{', '.join(rule.globs)}`, which do not match `{path}`"
    return None


_NAMES = {Source.TEXT: "text", Source.THINKING: "thinking", Source.TOOL: "tool calls"}


def _is_of(token: ScopeToken, tool: str | None) -> bool:
    return token.tool is None or tool is None or same_tool(token.tool, tool)


def _without_path(rule: Rule, tokens: Sequence[ScopeToken]) -> str | None:
    if rule.globs:
        return f"its globs are `{', '.join(rule.globs)}`, and the call has no path"
    if all(token.glob is not None for token in tokens):
        return f"its scope is `{scope_text(tokens)}`, and the call has no path"
    return None


def _matches(glob: str, paths: Sequence[str]) -> bool:
    return compile_glob(glob).matches(paths)
