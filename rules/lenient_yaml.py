"""Reads the YAML of a front matter as people write it, with the line of every value.

Two thirds of the rule files in the wild are not valid YAML (`globs: **/*.ts` is a broken
alias), so nothing here is fatal. Three readings are tried in turn (spec/ttsr.md 1.1):
the text as it is; the text with plain values that hold `: ` put in quotes; and key by
key, where a value that is no YAML is taken as plain text. Scalars follow the core schema
of YAML 1.2: `yes`, `on` and dates are text.
"""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import msgspec
import yaml
from yaml.constructor import SafeConstructor

from midstream.rules.problem import Problem, Severity

_QUOTABLE = re.compile(r"""^(\s*(?:- +)?[\w-]+:[ ]+)([^\s"'\[\]{}|>&*!%#@`,?-].*)$""")
_KEY_LINE = re.compile(r"^([\w-]+):(?:\s+(.*)|(\S.*))?$")
_ITEM = re.compile(r"^\s*-\s+(.*\S)\s*$")


class Entry(msgspec.Struct, frozen=True):
    """One value of the mapping: `line` is that of its key, `item_lines` those of the items
    where the value is a list. Lines count from 1 in the text that was parsed."""

    key: str
    value: object
    line: int
    item_lines: tuple[int, ...] = ()


class LenientMapping(msgspec.Struct):
    """What could be read, in order, and what was odd about it (with empty paths)."""

    entries: list[Entry] = msgspec.field(default_factory=list[Entry])
    problems: list[Problem] = msgspec.field(default_factory=list[Problem])

    def complain(self, line: int, severity: Severity, what: str, mend: str = "") -> None:
        self.problems.append(Problem("", line, severity, what, mend))


_CORE_SCALARS = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
)


def _core_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """PyYAML's registry: by first character, the tags to try in turn."""
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, first_characters in _CORE_SCALARS:
        for first in first_characters:
            resolver = (f"tag:yaml.org,2002:{tag}", re.compile(pattern))
            resolvers.setdefault(first, []).append(resolver)
    return resolvers


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2 in place of those of 1.1."""

    yaml_implicit_resolvers = _core_resolvers()


class _NotYaml(Exception):
    """`line` counts from 1 in the text that was given."""

    def __init__(self, line: int, what: str) -> None:
        self.line = line
        self.what = what
        super().__init__(what)


def parse_mapping(text: str) -> LenientMapping:
    """The entries of a front matter's YAML. Never raises.

    A text that is valid YAML but no mapping (a list, a scalar) has no entries.
    """
    try:
        return _parse_strictly(text)
    except _NotYaml as error:
        first_error = error
    quoted, quoted_lines = _quote_values_with_colons(text)
    if quoted_lines:
        try:
            mapping = _parse_strictly(quoted)
        except _NotYaml:
            pass
        else:
            for line in quoted_lines:
                mapping.complain(
                    line, Severity.NOTE, "a value with `: ` was read as text", "put it in quotes"
                )
            return mapping
    mapping = _parse_key_by_key(text)
    mapping.problems.insert(
        0,
        Problem(
            "",
            first_error.line,
            Severity.WARNING,
            f"the front matter is not valid YAML ({first_error.what}) and was read key by key",
            "put the value in quotes",
        ),
    )
    return mapping


def _parse_strictly(text: str) -> LenientMapping:
    """Raises `_NotYaml`."""
    node = _compose(text)
    mapping = LenientMapping()
    if not isinstance(node, yaml.MappingNode):
        if node is not None:
            mapping.complain(1, Severity.WARNING, "the front matter has no `key: value` lines")
        return mapping
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _construct(key_node)
        if not isinstance(key, str):
            mapping.complain(line, Severity.WARNING, f"the key {key!r} is not a word")
            continue
        if key in seen:
            mapping.complain(
                line, Severity.WARNING, f"`{key}` was set before; this line counts", "keep one"
            )
        seen[key] = line
        value = _construct(value_node)
        mapping.entries.append(Entry(key, value, line, _item_lines(value_node)))
    return mapping


def _item_lines(node: yaml.Node) -> tuple[int, ...]:
    if not isinstance(node, yaml.SequenceNode):
        return ()
    items = cast(list[yaml.Node], node.value)
    return tuple(item.start_mark.line + 1 for item in items)


def _compose(text: str) -> yaml.Node | None:
    try:
        return _CoreLoader(text).get_single_node()
    except yaml.YAMLError as error:
        raise _NotYaml(_line_of(error), _reason_of(error)) from error
    except RecursionError as error:
        raise _NotYaml(1, "it is nested too deeply") from error


def _construct(node: yaml.Node) -> object:
    try:
        construct = cast(Callable[[yaml.Node], object], SafeConstructor().construct_document)  # pyright: ignore[reportUnknownMemberType] - untyped in the stubs
        return construct(node)
    except yaml.YAMLError as error:
        raise _NotYaml(node.start_mark.line + 1, _reason_of(error)) from error
    except (RecursionError, ValueError) as error:
        # ValueError: a number with more digits than Python converts.
        raise _NotYaml(node.start_mark.line + 1, "a value cannot be read") from error


def _line_of(error: yaml.YAMLError) -> int:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return mark.line + 1 if mark is not None else 1


def _reason_of(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        return error.problem
    return str(error).splitlines()[0]


def _quote_values_with_colons(text: str) -> tuple[str, list[int]]:
    """The text with plain values that hold `: ` quoted, and the lines of those values."""
    lines = text.split("\n")
    changed: list[int] = []
    for index, line in enumerate(lines):
        match = _QUOTABLE.match(line)
        if match is None:
            continue
        value = match[2].split(" #", 1)[0].rstrip()
        if ": " in value or value.endswith(":"):
            lines[index] = match[1] + json.dumps(value, ensure_ascii=False)
            changed.append(index + 1)
    return "\n".join(lines), changed


def _parse_key_by_key(text: str) -> LenientMapping:
    mapping = LenientMapping()
    lines = text.split("\n")
    starts = [index for index, line in enumerate(lines) if _KEY_LINE.match(line)]
    bounds = [*starts, len(lines)]
    _report_lost(mapping, lines, range(bounds[0]))
    for start, end in pairwise(bounds):
        _parse_block(mapping, lines, start, end)
    return mapping


def _parse_block(mapping: LenientMapping, lines: list[str], start: int, end: int) -> None:
    """Reads one unindented key with the lines that belong to it."""
    match = _KEY_LINE.match(lines[start])
    assert match is not None, "the caller found the key on this line"
    key, rest = match[1], (match[2] or match[3] or "").strip()
    followers = [index for index in range(start + 1, end) if _has_content(lines[index])]
    if not followers:
        mapping.entries.append(Entry(key, _read_value(rest), start + 1))
        return
    try:
        block = _parse_strictly("\n".join(lines[start:end]))
    except _NotYaml:
        block = LenientMapping()
    if block.entries:
        entry = block.entries[0]
        item_lines = tuple(start + line for line in entry.item_lines)
        mapping.entries.append(Entry(key, entry.value, start + 1, item_lines))
        return
    items = [_ITEM.match(lines[index]) for index in followers]
    if not rest and all(items):
        values = [_read_value(item[1]) for item in items if item]
        item_lines = tuple(index + 1 for index in followers)
        mapping.entries.append(Entry(key, values, start + 1, item_lines))
        return
    mapping.entries.append(Entry(key, _read_value(rest), start + 1))
    _report_lost(mapping, lines, followers)


def _read_value(text: str) -> object:
    """`text` alone as YAML where it is a scalar or a flow list, else as it stands."""
    try:
        node = _compose(text)
        value = None if node is None else _construct(node)
    except _NotYaml:
        return text
    return text if isinstance(value, dict) else value


def _has_content(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#")


def _report_lost(mapping: LenientMapping, lines: list[str], indexes: range | list[int]) -> None:
    for index in indexes:
        if _has_content(lines[index]):
            mapping.complain(
                index + 1, Severity.WARNING, "this line could not be read", "write `key: value`"
            )
