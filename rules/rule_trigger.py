"""Reads what a rule file says about when its rule matches: conditions, scope, path gate.

The second half of `rule_file.py`, which is its only caller. Whatever is left out here
narrows a rule or takes it out of the watch; nothing that is invalid ever widens it.
"""

import re
from collections.abc import Callable, Iterator

import msgspec

from midstream.rules.condition_check import check_condition
from midstream.rules.dialect_error import DialectError, UntranslatableError
from midstream.rules.globs import GlobError, compile_glob
from midstream.rules.problem import Complaint, Severity
from midstream.rules.rule import DEFAULT_SCOPE, Dialect, ScopeToken, Source
from midstream.rules.rule_fields import FieldReader, Located
from midstream.rules.scope import glob_scope, is_path_pattern, parse_scope, split_list

ConditionCheck = Callable[[str, Dialect], tuple[str, ...]]
"""Warnings for a valid condition; raises `DialectError` or `UntranslatableError`."""

PATH_KEYS = {"github": "applyTo", "claude": "paths"}
"""The key under which an origin's own files list path patterns, comma-separated or not."""

_COMMA_LISTS = ("cursor", "windsurf")
"""Origins whose own files list `globs` in one text, separated by commas."""

_EVERYTHING = ("*", "**", "**/*")
_OLD_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}
"""Words that YAML 1.1 took for a truth value, and a quoted one; none is a condition."""

_CONDITION_KEYS = ("condition", "ttsr_trigger", "ttsrTrigger")


class Trigger(msgspec.Struct, frozen=True):
    """When a rule matches. `scope` is empty where no output can reach it; `conditions` are
    valid. `everywhere` is a GitHub file's `applyTo` without a limit."""

    dialect: Dialect
    conditions: tuple[Located, ...]
    all_conditions: bool
    match_anything: bool
    scope: tuple[ScopeToken, ...]
    globs: tuple[str, ...]
    everywhere: bool


def read_trigger(
    fields: FieldReader, origin: str, check: ConditionCheck = check_condition
) -> Trigger:
    """The trigger that the fields describe; what is invalid goes to `fields.problems`."""
    dialect = fields.choice("dialect", Dialect) or Dialect.ECMASCRIPT
    written, all_conditions = _written_conditions(fields)
    path_patterns = [item for item in written if is_path_pattern(item.text)]
    regexes = [item for item in written if item not in path_patterns]
    valid = [item for item in regexes if _is_valid(fields, item, dialect, check)]
    if all_conditions and len(valid) < len(regexes):
        what = "not all conditions are valid, so the rule is not watched for"
        fields.complain("all", Severity.WARNING, what, "mend or remove them")
        valid = []
    anything = bool(path_patterns) and not regexes
    globs = _read_globs(fields, origin)
    everywhere = origin == "github" and any(glob.text in _EVERYTHING for glob in globs)
    gate = [] if everywhere else [glob for glob in globs if is_glob(fields, glob)]
    scope = _read_scope(fields, path_patterns, anything)
    if globs and not everywhere:
        scope = _gated(fields, scope, _glob_key(fields, origin)) if gate else ()
    return Trigger(
        dialect=dialect,
        conditions=tuple(valid),
        all_conditions=all_conditions and bool(valid),
        match_anything=anything,
        scope=scope,
        # A lost gate stays readable; without scope nothing asks it.
        globs=() if everywhere else tuple(glob.text for glob in gate or globs),
        everywhere=everywhere,
    )


def is_glob(fields: FieldReader, item: Located) -> bool:
    """Whether a path pattern can be used; if not, a problem says why."""
    try:
        compile_glob(item.text)
    except GlobError as error:
        fields.pass_on(item.line, Complaint(Severity.WARNING, f"a glob is ignored: {error}"))
        return False
    return True


def _written_conditions(fields: FieldReader) -> tuple[list[Located], bool]:
    """The conditions as the file has them, and whether all of them must hold.

    `all: true` AND-s the list of `condition`; `all:` with a list is that list, AND-ed,
    together with a single `condition` (spec/ttsr.md 0.14).
    """
    present = [key for key in _CONDITION_KEYS if fields.has(key)]
    for ignored in present[1:]:
        what = f"`{ignored}` is not read beside `{present[0]}`"
        fields.complain(ignored, Severity.WARNING, what, "make one list of them")
    conditions = fields.texts(present[0]) if present else []
    required = fields.fields["all"].value if fields.has("all") else False
    if isinstance(required, str) and required.strip().lower() in _OLD_BOOLEANS:
        meant = _OLD_BOOLEANS[required.strip().lower()]
        what = f"`all: {required}` was read as {str(meant).lower()}"
        fields.complain("all", Severity.WARNING, what, "write true or false, without quotes")
        required = meant
    if isinstance(required, bool):
        return conditions, required
    if len(conditions) > 1:
        what = "`all` with a list cannot stand beside several conditions"
        mend = "write one list, and `all: true` if each of it must hold"
        fields.complain("all", Severity.WARNING, f"{what}; the rule is not watched for", mend)
        return [], False
    unique = {item.text: item for item in [*fields.texts("all"), *conditions]}
    return list(unique.values()), True


def _is_valid(fields: FieldReader, item: Located, dialect: Dialect, check: ConditionCheck) -> bool:
    shown = item.text if len(item.text) <= 60 else item.text[:59] + "…"
    try:
        warnings = check(item.text, dialect)
    except (DialectError, UntranslatableError) as error:
        where = f" at character {error.position}" if isinstance(error, DialectError) else ""
        what = f"condition `{shown}` is ignored: {error.reason}{where}"
        fields.pass_on(item.line, Complaint(Severity.WARNING, what, error.mend))
        return False
    for warning in (*_spelling_hints(item.text), *warnings):
        complaint = Complaint(Severity.WARNING, f"condition `{shown}`: {warning}")
        fields.pass_on(item.line, complaint)
    return True


_FROM_ESCAPES = {"\b": "b", "\a": "a", "\x1b": "e", "\0": "0"}
"""Characters that no text has, and the escape of a double-quoted value that makes each."""

_LITERAL = re.compile(r"/(?!\\?[*/])(?:(.+)/([dgimsuvy]+)|((?:\^|\\b).+|.+(?:\$|\\b))/)", re.DOTALL)
"""A JavaScript literal: with flags, or with an anchor at an end, so that it is no path and no
comment."""


def _spelling_hints(condition: str) -> Iterator[str]:
    """What a valid condition says in YAML or in regular expressions, and was hardly meant."""
    for character, escape in _FROM_ESCAPES.items():
        if character in condition:
            yield (
                f"`\\{escape}` in double quotes is a control character to YAML;"
                " write the condition in single quotes"
            )
    literal = _LITERAL.fullmatch(condition)
    if literal is not None:
        flags = "".join(flag for flag in "ims" if flag in (literal[2] or ""))
        meant = (f"(?{flags})" if flags else "") + (literal[1] or literal[3])
        yield f"the slashes around it are part of what it looks for; write `{meant}`"


def _glob_key(fields: FieldReader, origin: str) -> str:
    own_key = PATH_KEYS.get(origin)
    return own_key if own_key and fields.has(own_key) else "globs"


def _read_globs(fields: FieldReader, origin: str) -> list[Located]:
    """The path gate as written: under the origin's own key, else under `globs`."""
    key = _glob_key(fields, origin)
    if key != "globs":
        items = fields.texts(key)
        return [Located(glob, item.line) for item in items for glob in split_list(item.text)]
    written = fields.texts("globs")
    if origin in _COMMA_LISTS:
        return [Located(glob, item.line) for item in written for glob in split_list(item.text)]
    if fields.has("globs") and isinstance(fields.fields["globs"].value, str):
        for item in written:
            if len(split_list(item.text)) > 1:
                what = "`globs` with a single text is one pattern, its commas included"
                fields.complain("globs", Severity.WARNING, what, "write a list, one item each")
    return written


def _read_scope(
    fields: FieldReader, path_patterns: list[Located], anything: bool
) -> tuple[ScopeToken, ...]:
    explicit = _explicit_scope(fields)
    shorthand = _shorthand_scope(fields, path_patterns)
    if explicit is None:
        return shorthand if path_patterns else DEFAULT_SCOPE
    if anything:
        explicit = _with_path(fields, explicit)
    return tuple(dict.fromkeys(explicit + shorthand))


def _explicit_scope(fields: FieldReader) -> tuple[ScopeToken, ...] | None:
    """The scope that the file gives, or None where it gives none."""
    items = fields.texts("scope")
    if not items:
        return None
    tokens: list[ScopeToken] = []
    for item in items:
        found, complaints = parse_scope([item.text])
        tokens += found
        for complaint in complaints:
            fields.pass_on(item.line, complaint)
    if not tokens:
        what = "nothing of the scope can be reached, so it makes the rule match nowhere"
        fields.complain("scope", Severity.WARNING, what, "name text, thinking or a tool")
    return tuple(tokens)


def _shorthand_scope(fields: FieldReader, patterns: list[Located]) -> tuple[ScopeToken, ...]:
    """Conditions that are path patterns; said aloud, since they may be meant otherwise."""
    tokens: list[ScopeToken] = []
    for item in patterns:
        if is_glob(fields, item):
            tokens += glob_scope(item.text)
            what = f"condition `{item.text}` was read as a path pattern: edits and writes there"
            mend = "for a regular expression, write it as `(?:...)`"
            fields.pass_on(item.line, Complaint(Severity.NOTE, what, mend))
    return tuple(tokens)


def _with_path(fields: FieldReader, explicit: tuple[ScopeToken, ...]) -> tuple[ScopeToken, ...]:
    """The tokens under which "any text" is bounded by a path; without one, a condition that
    is only a path pattern would match all prose, or all calls of a tool."""
    kept = tuple(token for token in explicit if token.glob is not None)
    if kept != explicit:
        what = "a condition that is only a path pattern does not apply to scopes without a path"
        fields.complain("scope", Severity.WARNING, what, "add a regular expression to `condition`")
    return kept


def _gated(fields: FieldReader, scope: tuple[ScopeToken, ...], key: str) -> tuple[ScopeToken, ...]:
    """The tokens that a rule with `globs` can be reached through: prose has no path, so that
    the gate never opens there (spec/ttsr.md 0.15)."""
    tools = tuple(token for token in scope if token.source is Source.TOOL)
    if scope and not tools:
        what = f"`{key}` need a path and this scope has none, so the rule is not watched for"
        fields.complain(key, Severity.WARNING, what, f"add a tool to `scope`, or drop `{key}`")
    elif tools != scope and fields.texts("scope"):
        what = f"`{key}` need a path, so text and thinking are not watched"
        fields.complain("scope", Severity.WARNING, what, "make it a rule of its own")
    return tools
