"""Where an example of a rule is written, when its author does not say it in full.

Pure. An example is placed where its rule listens: its `tool` and `path` count if they are
given, and what is missing is taken from the rule's scope, so that a list of plain texts is
enough for a rule on `tool:edit(*.ts)` too.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from midstream.rules.globs import compile_glob
from midstream.rules.rule import Example, MatchOn, Rule, ScopeToken, Source
from midstream.rules.sample import Sample

_INNERMOST_BRACES = re.compile(r"\{([^{},]*)[^{}]*\}")
_CLASS = re.compile(r"\[(?![!^])(.)[^\]]*\]")


def place_example(rule: Rule, example: Example) -> Sample:
    """The sample that an example stands for."""
    sources = {token.source for token in rule.scope}
    if example.tool is None and example.path is None:
        for source in (Source.TEXT, Source.THINKING):
            if source in sources and not rule.globs:
                return Sample(example.text, source)
        if not sources:
            return Sample(example.text)
    is_arguments = rule.match_on is MatchOn.JSON and is_json_object(example.text)
    token = _token(rule, example)
    tool = example.tool or _tool_name(token)
    path = example.path if example.path is not None else _path(rule, token)
    return Sample(example.text, Source.TOOL, tool, path, is_arguments)


def is_json_object(text: str) -> bool:
    """Whether a text can be the arguments of a call as it stands."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False


def _token(rule: Rule, example: Example) -> ScopeToken:
    """The part of the scope that the example is for: the first one that its path fits."""
    tokens = [token for token in rule.scope if token.source is Source.TOOL]
    path = example.path
    fitting = (t for t in tokens if path is None or t.glob is None or _fits(t.glob, path))
    return next(fitting, tokens[0] if tokens else ScopeToken(Source.TOOL))


def _tool_name(token: ScopeToken) -> str:
    """A tool that the token covers; edits are what rules for any tool mostly are for."""
    return "edit" if token.tool is None else token.tool.replace("*", "any")


def _path(rule: Rule, token: ScopeToken) -> str | None:
    """A path that the rule lets through, None if it needs none or none is found."""
    globs = [*([] if token.glob is None else [token.glob]), *rule.globs]
    for path in _example_paths(globs):
        scoped = token.glob is None or _fits(token.glob, path)
        if scoped and (not rule.globs or any(_fits(glob, path) for glob in rule.globs)):
            return path
    return None


def _example_paths(globs: Iterable[str]) -> Iterator[str]:
    for glob in globs:
        if glob.startswith("!"):
            yield "file.txt"
            continue
        while (braces := _INNERMOST_BRACES.search(glob)) is not None:
            glob = glob[: braces.start()] + braces[1] + glob[braces.end() :]
        path = _CLASS.sub(r"\1", glob).replace("**/", "").replace("**", "file")
        yield path.replace("*", "file").replace("?", "a")


def _fits(glob: str, path: str) -> bool:
    return compile_glob(glob).matches([path, path.rsplit("/", 1)[-1]])
