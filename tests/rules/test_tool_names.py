"""A scope names a tool once, whatever each host calls it (spec/ttsr.md 10)."""

import pytest

from midstream.rules.tool_names import same_tool


@pytest.mark.parametrize(
    ("scope_name", "call_name", "expected"),
    [
        ("bash", "bash", True),
        ("bash", "Bash", True),
        ("bash", "_bash", True),
        ("Bash", "_bash", True),
        ("bash", "exec_command", True),
        ("bash", "shell", True),
        ("bash", "run_terminal_cmd", True),
        ("shell", "Bash", True),
        ("edit", "Edit", True),
        ("edit", "_edit", True),
        ("edit", "MultiEdit", True),
        ("edit", "multi_edit", True),
        ("edit", "NotebookEdit", True),
        ("edit", "str_replace_based_edit_tool", True),
        ("edit", "apply_patch", True),
        ("write", "Write", True),
        ("write", "write_file", True),
        ("write", "apply_patch", True),
        ("write", "str_replace_based_edit_tool", True),
        ("write", "Edit", False),
        ("edit", "write", False),
        ("bash", "BashOutput", False),
        ("edit", "editorial", False),
        ("MultiEdit", "multiedit", True),
        ("MultiEdit", "Edit", False),
        ("apply_patch", "edit", False),
        ("mcp__github__*", "mcp__github__create_issue", True),
        ("mcp__github__*", "mcp__gitlab__create_issue", False),
        ("mcp__fs__write", "write", False),
        ("tooling", "Tooling", True),
    ],
)
def test_names_of_the_same_tool_are_the_same(scope_name: str, call_name: str, expected: bool):
    assert same_tool(scope_name, call_name) is expected
