"""The scope grammar: which parts of a model's output a rule listens to (spec/ttsr.md 1.4),
and the conditions that are path patterns in disguise (1.3).

Pure: strings in, tokens and complaints out; the rule reader gives the complaints their
place. Beyond the grammar of the reference a tool's name may hold `*`, so that
`tool:mcp__github__*` covers the tools of one MCP server (spec/ttsr.md 7.10).
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from midstream.rules.globs import GlobError, compile_glob
from midstream.rules.problem import Complaint, Severity
from midstream.rules.rule import ScopeToken, Source

_TOKEN = re.compile(
    r"""(?:
        (?P<prose>text|thinking)
      | (?P<any>tool(?:call)?)
      | tool(?:call)?:(?P<tool>[a-z0-9_*-]+)
      | (?P<bare>[a-z0-9_-]+)
    )(?:\((?P<glob>[^)]+)\))?""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_PROSE_WORDS = {
    "assistant": "text",
    "message": "text",
    "output": "text",
    "prose": "text",
    "response": "text",
    "reasoning": "thinking",
    "thought": "thinking",
    "thoughts": "thinking",
    "any": "tool",
    "tools": "tool",
}
_OPENING, _CLOSING = "([{", ")]}"
_QUOTES = "\"'"
_ANY_EDIT = ("edit", "write")


def split_list(text: str) -> list[str]:
    """The items of a comma list. Commas within `()`, `[]`, `{}` and quotes do not separate;
    quotes around an item and blank items go away."""
    items: list[str] = []
    item, depth, quote = "", 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES and not item.strip():
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(0, depth - 1)
        elif char == "," and depth == 0:
            items.append(item)
            item = ""
            continue
        item += char
    return [bare for bare in map(_unquoted, [*items, item]) if bare]


def parse_scope(items: Iterable[str]) -> tuple[tuple[ScopeToken, ...], tuple[Complaint, ...]]:
    """The tokens of a scope, in order and without repetition. Invalid ones are left out
    with a complaint; an empty result means that the rule can never be reached."""
    tokens: dict[ScopeToken, None] = {}
    complaints: list[Complaint] = []
    for item in items:
        for text in split_list(item):
            token, complaint = _parse_token(text)
            if token is not None:
                tokens[token] = None
            if complaint is not None:
                complaints.append(complaint)
    return tuple(tokens), tuple(complaints)


def glob_scope(glob: str) -> tuple[ScopeToken, ...]:
    """What a condition that is a path pattern stands for: edits and writes of such files."""
    return tuple(ScopeToken(Source.TOOL, tool, glob) for tool in _ANY_EDIT)


def is_path_pattern(condition: str) -> bool:
    """Whether a condition is the file-glob shorthand (spec/ttsr.md 1.3).

    It is when no character makes it a regular expression for sure, and it is `*.` with an
    extension, or has a `/` and a wildcard. Unlike in the reference, a lone `?` is no
    wildcard and counts such as `{3}` are none (`a/b?`, `[0-9]{3}/`), and URLs and comment
    marks (`https://x?y`, `//.*`) are no paths.
    """
    if re.search(r"[\\^$+|()]", condition):
        return False
    if re.fullmatch(r"\*\.[^\s/]+", condition):
        return True
    if "/" not in condition or "://" in condition or condition.startswith("//"):
        return False
    without_counts = re.sub(r"\{\d*,?\d*\}", "", condition)
    return re.search(r"\*|\[.+\]|\{.+\}", without_counts) is not None


def _parse_token(text: str) -> tuple[ScopeToken | None, Complaint | None]:
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None, _invalid(text)
    glob = match["glob"]
    if glob is not None:
        try:
            compile_glob(glob)
        except GlobError as error:
            return None, Complaint(Severity.WARNING, f"scope `{text}` is ignored: {error}")
    prose, bare = match["prose"], match["bare"]
    if prose and glob is None:
        return ScopeToken(Source(prose.lower())), None
    if match["any"]:
        return ScopeToken(Source.TOOL, None, glob), _odd_glob(glob)
    tool = (match["tool"] or bare or prose).lower()
    token = ScopeToken(Source.TOOL, None if tool == "*" else tool, glob)
    if match["tool"]:
        return token, _odd_glob(glob)
    return token, _bare_word(tool, prose) or _odd_glob(glob)


def _invalid(text: str) -> Complaint:
    what = f"scope `{text}` is not understood and is ignored"
    if text.count("(") > text.count(")"):
        return Complaint(Severity.WARNING, what, "close the parenthesis")
    if re.fullmatch(r"\(.*\)", text) or is_path_pattern(text):
        glob = text.removeprefix("(").removesuffix(")")
        return Complaint(Severity.WARNING, what, f"write `tool({glob})`")
    if re.fullmatch(r"(?i)tool(call)?:.*\..*", text):
        mend = "tools of an MCP server are called `mcp__server__tool`; write that name"
        return Complaint(Severity.WARNING, what, mend)
    mend = "write text, thinking, tool, tool:NAME or tool:NAME(GLOB)"
    return Complaint(Severity.WARNING, what, mend)


def _bare_word(tool: str, prose: str | None) -> Complaint | None:
    """A bare word is a tool's name, and so is a misspelt `text`: say what was understood."""
    if prose:
        what = f"scope `{tool}(...)` means a tool named `{tool}`: prose has no path"
        return Complaint(Severity.WARNING, what, f"write `{tool}`")
    meant = _PROSE_WORDS.get(tool) or next(
        iter(get_close_matches(tool, ("text", "thinking", "tool"), n=1, cutoff=0.7)), None
    )
    if meant is None:
        return None
    what = f"scope `{tool}` means the tool of that name"
    return Complaint(Severity.NOTE, what, f"for {meant}, write `{meant}`; else `tool:{tool}`")


def _odd_glob(glob: str | None) -> Complaint | None:
    if glob is None or not glob.startswith("./"):
        return None
    what = f"the glob `{glob}` matches only paths that are written with `./`"
    return Complaint(Severity.NOTE, what, f"write `{glob.removeprefix('./')}`")


def _unquoted(item: str) -> str:
    item = item.strip()
    if len(item) >= 2 and item[0] in _QUOTES and item[-1] == item[0]:
        return item[1:-1].strip()
    return item
