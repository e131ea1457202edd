"""The scope grammar (spec/ttsr.md 1.4) and the file-glob shorthand (1.3)."""

import pytest

from midstream.rules.problem import Severity
from midstream.rules.rule import ScopeToken, Source
from midstream.rules.scope import glob_scope, is_path_pattern, parse_scope, split_list

TEXT = ScopeToken(Source.TEXT)
THINKING = ScopeToken(Source.THINKING)
ANY_TOOL = ScopeToken(Source.TOOL)


def tool(name: str | None, glob: str | None = None) -> ScopeToken:
    return ScopeToken(Source.TOOL, name, glob)


@pytest.mark.parametrize(
    ("scope", "tokens"),
    [
        ("text", [TEXT]),
        ("text, thinking", [TEXT, THINKING]),
        ("TEXT, Thinking", [TEXT, THINKING]),
        ("tool", [ANY_TOOL]),
        ("toolcall", [ANY_TOOL]),
        ("tool:edit", [tool("edit")]),
        ("toolcall:edit", [tool("edit")]),
        ("tool:Edit(*.TS)", [tool("edit", "*.TS")]),
        ("tool(*.md)", [tool(None, "*.md")]),
        ("edit", [tool("edit")]),
        ("edit(*.ts)", [tool("edit", "*.ts")]),
        ("tooling", [tool("tooling")]),
        ("tool:my-tool_2", [tool("my-tool_2")]),
        ("tool:mcp__github__*", [tool("mcp__github__*")]),
        ("tool:edit(*.ts), tool:write(*.ts)", [tool("edit", "*.ts"), tool("write", "*.ts")]),
        ("text, tool:edit(*.{ts,tsx})", [TEXT, tool("edit", "*.{ts,tsx}")]),
        ("tool:edit(src/**)", [tool("edit", "src/**")]),
        ("tool:edit([ab],x)", [tool("edit", "[ab],x")]),
        ('"text","thinking"', [TEXT, THINKING]),
        ("'tool:edit(a,b)', text", [tool("edit", "a,b"), TEXT]),
        ("text, text, TEXT", [TEXT]),
    ],
)
def test_a_scope_reads_as_its_tokens(scope: str, tokens: list[ScopeToken]):
    assert list(parse_scope([scope])[0]) == tokens


@pytest.mark.parametrize(
    ("scope", "mend"),
    [
        ("tool:edit(*.ts", "close the parenthesis"),
        ("tool:", "write text, thinking, tool, tool:NAME or tool:NAME(GLOB)"),
        ("tool:mcp.server.x", "mcp__server__tool"),
        ("(*.ts)", "write `tool(*.ts)`"),
        ("*.ts", "write `tool(*.ts)`"),
        ("tool:edit()", "write text"),
        ("tool:a:b", "write text"),
        ("tool:edit(" + "{a,b}" * 9 + ")", ""),
    ],
)
def test_an_invalid_token_is_left_out_with_a_mend(scope: str, mend: str):
    tokens, complaints = parse_scope([scope, "text"])

    assert tokens == (TEXT,)
    assert [complaint.severity for complaint in complaints] == [Severity.WARNING]
    assert mend in complaints[0].mend


@pytest.mark.parametrize(
    ("word", "meant"),
    [("assistant", "`text`"), ("thinkng", "`thinking`"), ("reasoning", "`thinking`")],
)
def test_a_bare_word_that_looks_like_a_slip_is_a_tool_with_a_note(word: str, meant: str):
    tokens, complaints = parse_scope([word])

    assert tokens == (tool(word),)
    assert complaints[0].severity is Severity.NOTE
    assert meant in complaints[0].mend


def test_a_well_known_tool_as_a_bare_word_needs_no_note():
    assert parse_scope(["edit, bash, write(*.md)"])[1] == ()


def test_prose_with_a_path_is_reported():
    tokens, complaints = parse_scope(["text(*.md)"])

    assert tokens == (tool("text", "*.md"),)
    assert "prose has no path" in complaints[0].what


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a, b", ["a", "b"]),
        ("a(b,c),d", ["a(b,c)", "d"]),
        ("{a,b},[c,d]", ["{a,b}", "[c,d]"]),
        ("'a,b', \"c\"", ["a,b", "c"]),
        (" , a ,, ", ["a"]),
        ("a(b,c", ["a(b,c"]),
        ("it's, b", ["it's", "b"]),
        ("", []),
    ],
)
def test_a_list_splits_on_commas_at_the_top_only(text: str, items: list[str]):
    assert split_list(text) == items


@pytest.mark.parametrize("condition", ["*.rs", "src/**", "**/*.{ts,tsx}", "a/*b", "src/[ab].c"])
def test_a_path_pattern_is_one(condition: str):
    assert is_path_pattern(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "foo/bar",
        "a*b",
        "[abc]",
        "*.(ts|tsx)",
        "unsafe",
        "a/b?",
        "https://x?y",
        "https://*.example",
        "//.*TODO",
        "[0-9]{3}-{2}",
        "1/2{3}",
        "a/b{2,}",
        "^src/*",
        "*. x",
    ],
)
def test_a_regular_expression_is_no_path_pattern(condition: str):
    assert not is_path_pattern(condition)


def test_a_path_pattern_stands_for_edits_and_writes():
    assert glob_scope("*.rs") == (tool("edit", "*.rs"), tool("write", "*.rs"))
