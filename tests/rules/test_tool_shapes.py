"""The table of tools: what a config adds to it and overrides, and what it may not say."""

from typing import Any

import pytest

from midstream.messages.errors import ConfigError
from midstream.rules.tool_arguments import BUILT_IN_TABLE
from midstream.rules.tool_names import TOOL_KINDS
from midstream.rules.tool_shapes import ToolTable, read_tool_shapes

from .argument_calls import CWD, at_any_cut


def table(*entries: dict[str, Any]) -> ToolTable:
    return ToolTable(read_tool_shapes(list(entries), "midstream.toml"))


def test_the_config_adds_a_tool() -> None:
    config = table(
        {"names": ["save_page", "mcp__wiki__*"], "introduced": ["body", "parts.*.text"]}
        | {"paths": ["page.id"]}
    )
    arguments = {
        "page": {"id": "a.md"},
        "body": "b",
        "path": "no",
        "parts": [{"text": "t", "k": "k"}],
    }
    for tool in ("save_page", "SavePage", "mcp__wiki__put"):
        seen = at_any_cut(tool, arguments, config)
        assert seen.by_part() == {("body",): "b", ("parts", 0, "text"): "t"}
        assert seen.paths_of("body") == ("a.md", f"{CWD}/a.md")


def test_the_config_overrides_a_built_in_tool() -> None:
    config = table({"names": ["edit"], "introduced": ["replacement"]})
    seen = at_any_cut("Edit", {"new_string": "n", "replacement": "r"}, config)
    assert seen.by_part() == {("replacement",): "r"}
    everything = table({"names": ["edit"]})
    assert len(at_any_cut("edit", {"old_string": "o", "new_string": "n"}, everything).text) == 2
    assert at_any_cut("write", {"content": "x", "other": "y"}, config).by_part() == {
        ("content",): "x"
    }


def test_the_config_gives_a_tool_a_format() -> None:
    config = table({"names": ["propose"], "introduced": ["change"], "format": "unified_diff"})
    assert at_any_cut("propose", {"change": "-a\n+b"}, config).by_part() == {("change",): "b"}


@pytest.mark.parametrize("kind", ["edit", "write", "bash"])
def test_every_tool_that_a_scope_covers_by_its_kind_has_a_shape(kind: str) -> None:
    for name in TOOL_KINDS[kind]:
        assert BUILT_IN_TABLE.shapes_of(name), name


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"names": ["a"], "format": "diff"}, "tools[0].format"),
        ({"names": "a"}, "tools[0].names"),
        ({"names": ["a"], "introduce": ["x"]}, "tools[0]"),
        ({"names": ["a"], "introduced": ["x", 3]}, "tools[0].introduced[1]"),
        ({"names": ["a"], "introduced": ["edits..text"]}, "tools[0]"),
        ({"names": []}, "tools[0]"),
        ({"introduced": ["x"]}, "tools[0]"),
    ],
)
def test_a_config_error_names_the_key(entry: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        table(entry)
    assert caught.value.key == key
    assert caught.value.where == "midstream.toml"
    assert caught.value.problem
