"""What a call introduces, tool by tool and file by file, at every cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.rules.introduced_text import HELD_LIMIT_CHARS
from midstream.rules.passage import (
    JsonPath,
    PassageKey,
    PassagePath,
    PassageText,
)
from midstream.rules.rule import Source
from midstream.rules.tool_arguments import ToolArguments

from .argument_calls import CWD, PATCH, PATCH_FILES, Seen, at_any_cut, call, texts


@pytest.mark.parametrize(
    ("tool", "arguments", "texts"),
    [
        ("Write", {"file_path": "a.ts", "content": "x"}, {("content",): "x"}),
        ("write", {"content": "x", "filePath": "a.ts"}, {("content",): "x"}),
        ("_write", {"i": "why", "path": "a.ts", "content": "x"}, {("content",): "x"}),
        (
            "Edit",
            {"file_path": "a.ts", "old_string": "o", "new_string": "n", "replace_all": False},
            {("new_string",): "n"},
        ),
        (
            "edit",
            {"filePath": "a.ts", "oldString": "o", "newString": "n"},
            {("newString",): "n"},
        ),
        (
            "MultiEdit",
            {"file_path": "a", "edits": [{"old_string": "o", "new_string": f"{i}"} for i in "pq"]},
            {("edits", 0, "new_string"): "p", ("edits", 1, "new_string"): "q"},
        ),
        (
            "edit",
            {"path": "a.ts", "edits": [{"oldText": "o", "newText": "n"}]},
            {("edits", 0, "newText"): "n"},
        ),
        (
            "str_replace_based_edit_tool",
            {"command": "create", "path": "a.py", "file_text": "n"},
            {("file_text",): "n"},
        ),
        (
            "str_replace_based_edit_tool",
            {"command": "str_replace", "path": "a.py", "old_str": "o", "new_str": "n"},
            {("new_str",): "n"},
        ),
        (
            "str_replace_based_edit_tool",
            {"command": "insert", "path": "a.py", "insert_line": 2, "insert_text": "n"},
            {("insert_text",): "n"},
        ),
        ("str_replace_based_edit_tool", {"command": "view", "path": "a.py"}, {}),
        (
            "NotebookEdit",
            {"notebook_path": "/n.ipynb", "cell_id": "c", "new_source": "n", "cell_type": "code"},
            {("new_source",): "n"},
        ),
        (
            "edit",
            {"path": "a.ts", "edits": [{"op": "update", "diff": "@@\n ctx\n-o\n+n\n+m"}]},
            {("edits", 0, "diff"): "n\nm"},
        ),
        ("Bash", {"command": "ls", "description": "List"}, {("command",): "ls"}),
        ("exec_command", {"cmd": "ls", "workdir": "/tmp"}, {("cmd",): "ls"}),
        (
            "shell",
            {"command": ["bash", "-lc", "ls"], "workdir": "/"},
            {("command", 0): "bash", ("command", 1): "-lc", ("command", 2): "ls"},
        ),
        (
            "replace_in_file",
            {"path": "a", "diff": "<<<<<<< SEARCH\no\n=======\nn\n\nm\n>>>>>>> REPLACE\n"},
            {("diff",): "n\n\nm"},
        ),
    ],
)
def test_b2_a_known_tool_shows_the_decoded_introduced_text_alone(
    tool: str, arguments: dict[str, Any], texts: dict[JsonPath, str]
) -> None:
    assert at_any_cut(tool, arguments).by_part() == texts


@pytest.mark.parametrize(
    ("tool", "key"),
    [("apply_patch", "input"), ("apply_patch", "patchText"), ("edit", "input"), ("patch", "patch")],
)
def test_b3_a_multi_file_patch_is_a_passage_for_each_file(tool: str, key: str) -> None:
    seen = at_any_cut(tool, {"i": "why", key: PATCH})
    assert seen.by_part() == {((key,), file): text for file, text in PATCH_FILES.items()}


def test_b3_any_in_the_readme_hunk_is_not_in_the_passage_of_a_ts_file() -> None:
    seen = at_any_cut("apply_patch", {"input": PATCH})
    for key, text in seen.text.items():
        is_ts = any(path.endswith(".ts") for path in seen.paths[key])
        assert (": any" in text) is not is_ts
    assert seen.paths_of("input", file="src/main.ts") == (
        "src/main.ts",
        f"{CWD}/src/main.ts",
        "main.ts",
    )


def test_b3_any_in_the_ts_hunk_is_in_its_passage() -> None:
    patch = PATCH.replace("+const m", "+const m: any")
    assert ": any" in at_any_cut("apply_patch", {"input": patch}).by_file()["src/main.ts"]


def test_a_freeform_patch_is_read_as_it_is() -> None:
    seen = at_any_cut("apply_patch", PATCH)
    assert seen.by_part() == {((), file): text for file, text in PATCH_FILES.items()}
    assert not seen.reports


def test_a_freeform_edit_is_hashline() -> None:
    seen = at_any_cut("edit", "[a.ts#0001]\n3:\n+x: any\n[b.md#0002]\n+y")
    assert seen.by_part() == {((), "a.ts"): "x: any", ((), "b.md"): "y"}


def test_a_freeform_text_of_an_unknown_tool_is_one_passage() -> None:
    assert at_any_cut("write_sql", "SELECT * FROM users").by_part() == {(): "SELECT * FROM users"}


def test_a_freeform_text_that_starts_like_json_is_watched_and_reported() -> None:
    seen = at_any_cut("exec", "{ let x = 1 }")
    assert seen.by_part() == {(): "{ let x = 1 }"}
    assert "no JSON" in seen.reports[0]


def test_a_moved_file_goes_by_both_paths() -> None:
    patch = "*** Begin Patch\n*** Update File: a.js\n*** Move to: b.ts\n@@\n+x\n*** End Patch"
    seen = at_any_cut("apply_patch", patch)
    assert seen.by_file() == {"a.js": "x"}
    assert {"a.js", "b.ts"} <= set(seen.paths_of(file="a.js"))


@pytest.mark.parametrize(
    "header",
    [
        "[src/main.ts#1A2B]",
        "[src/main.ts]",
        "  [./src/main.ts#1a2b]  ",
        "[*** Update File: src/main.ts#1A2B]",
        "*** Update File: [src/main.ts#1A2B]",
        "*** Update File: src/main.ts",
        "[src\\main.ts#1A2B]\r",
    ],
)
def test_hashline_sections_are_files(header: str) -> None:
    payload = f"[README.md#0001]\n3:\n+: any\n{header}\n12-14:\n+const a = 1;\n+ +b\n7!\n  [x]"
    seen = at_any_cut("edit", {"i": "why", "input": payload})
    assert seen.by_file() == {"README.md": ": any", "src/main.ts": "const a = 1;\n +b"}


def test_hashline_sections_of_one_file_are_one_passage() -> None:
    payload = "[a.ts#0001]\n1:\n+one\n[b.ts#0002]\n+two\n[./a.ts#0001]\n9:\n+three"
    assert at_any_cut("edit", {"input": payload}).by_file() == {"a.ts": "one\nthree", "b.ts": "two"}


def test_brackets_in_a_hashline_path_are_part_of_it() -> None:
    seen = at_any_cut("edit", {"input": "[app/[id]/page.tsx#AB12]\n1:\n+x"})
    assert seen.by_file() == {"app/[id]/page.tsx": "x"}


def test_a_unified_diff_of_many_files_is_split_by_its_headers() -> None:
    diff = (
        "diff --git a/README.md b/README.md\n--- a/README.md\n+++ b/README.md\n@@ -1 +1,2 @@\n"
        " x\n+: any\n--- /dev/null\n+++ b/src/a.ts\n@@ -0,0 +1 @@\n+y\n+++z\n"
        "--- a/gone.ts\n+++ /dev/null\n@@ -1 +0,0 @@\n-q\n"
        "--- old.txt\t2026\n+++ old.txt\t2027\n+w\n"
    )
    seen = at_any_cut("edit", {"diff": diff})
    assert seen.by_file() == {"README.md": ": any", "src/a.ts": "y\n++z", "old.txt": "w"}


@pytest.mark.parametrize("order", [("op", "diff"), ("diff", "op")])
@pytest.mark.parametrize(
    "content", ["import x\n- y\n", " indented\nz", "\n\ndef f(): ...", "@import 'a';"]
)
def test_the_whole_diff_of_a_create_without_marked_lines_is_introduced(
    order: tuple[str, str], content: str
) -> None:
    if order == ("diff", "op"):
        content = content.replace("- y", "y")
    edit = {"op": "create", "diff": content}
    seen = at_any_cut("edit", {"path": "a", "edits": [{key: edit[key] for key in order}]})
    assert seen.by_part() == {("edits", 0, "diff"): content}


@pytest.mark.parametrize("op", [{}, {"op": "update"}, {"op": "delete"}])
def test_an_update_without_added_lines_introduces_nothing(op: dict[str, str]) -> None:
    for edit in ({"diff": " context\n"} | op, op | {"diff": "context"}, op | {"diff": "-x\n y"}):
        assert at_any_cut("edit", {"path": "a", "edits": [edit]}).by_part() == {}


def test_the_content_of_a_created_file_flows() -> None:
    arguments = ToolArguments("c", "edit", cwd=CWD)
    arguments.feed('{"path": "a.ts", "edits": [{"op": "create", "diff": "cons')
    assert [e.text for e in arguments.feed("t x") if isinstance(e, PassageText)] == ["t x"]


def test_the_openai_patch_operation_is_a_file_with_its_path() -> None:
    operation = {"type": "create_file", "diff": "+## List\n+\n+- Milk\n", "path": "list.md"}
    seen = at_any_cut("apply_patch", {"operation": operation})
    assert seen.by_part() == {("operation", "diff"): "## List\n\n- Milk"}
    assert "list.md" in seen.paths_of("operation", "diff")


@pytest.mark.parametrize(
    "command",
    [
        "cd app && apply_patch <<'EOF'\n" + PATCH + "EOF\necho +done",
        "apply_patch '" + PATCH + "'",
        PATCH,
    ],
)
def test_an_apply_patch_in_a_shell_command_is_watched_file_by_file(command: str) -> None:
    for tool, arguments, part in (
        ("exec_command", {"cmd": command}, ("cmd",)),
        ("shell", {"command": ["bash", "-lc", command]}, ("command", 2)),
    ):
        by_part = at_any_cut(tool, arguments).by_part()
        assert by_part[part] == command
        for file, text in PATCH_FILES.items():
            assert by_part[part, file] == text


def test_plus_lines_of_a_shell_command_outside_a_patch_are_no_files() -> None:
    command = "cat > x <<EOF\n+a\n*** Update File: b\n+c\nEOF"
    assert at_any_cut("bash", {"command": command}).by_part() == {("command",): command}


def test_what_a_shell_command_holds_after_a_patch_belongs_to_no_file() -> None:
    command = f"apply_patch <<EOF\n{PATCH}EOF\ncat <<EOF\n*** Update File: x.ts\n+y\n"
    assert at_any_cut("bash", {"command": command}).by_file() == {None: command} | PATCH_FILES


def test_lines_without_a_file_are_a_passage_of_their_own() -> None:
    patch = "*** Begin Patch\n+before\n*** Add File: a.ts\n+in\n*** End Patch\n+after"
    assert at_any_cut("apply_patch", patch).by_file() == {None: "before\nafter", "a.ts": "in"}
    in_shell = at_any_cut("bash", {"command": patch})
    assert in_shell.by_file() == {None: patch, "a.ts": "in"}


def test_a_payload_in_an_unknown_format_is_watched_as_it_is() -> None:
    text = "§src/a.ts\nconst t = ⟪1│2⟫;\n"
    assert at_any_cut("edit", {"input": text}).by_part() == {("input",): text}
    assert at_any_cut("apply_patch", {"input": text}).by_part() == {("input",): text}
    assert at_any_cut("apply_diff", {"path": "a", "diff": text}).by_part() == {("diff",): text}


def test_a_payload_in_an_unknown_format_is_not_kept_for_ever() -> None:
    text = "word\n" * (HELD_LIMIT_CHARS // 5 + 2) + "+added"
    arguments = ToolArguments("c", "apply_patch", cwd=CWD)
    seen = Seen()
    for at in range(0, len(text), 1000):
        seen.take(arguments.feed(text[at : at + 1000]))
    assert len(seen.by_part()[()]) > HELD_LIMIT_CHARS
    seen.take(arguments.finish())
    assert seen.by_part() == {(): text}
    assert call("apply_patch", text).by_part() == {(): text}


def test_an_added_line_flows_as_soon_as_its_marker_is_known() -> None:
    arguments = ToolArguments("c", "apply_patch", cwd=CWD)
    arguments.feed("*** Begin Patch\n*** Update File: a.ts\n@@\n")
    key = PassageKey(Source.TOOL, "c", file="a.ts")
    assert arguments.feed("+") == [PassagePath(key, ("a.ts", f"{CWD}/a.ts"))]
    assert texts(arguments.feed("con")) == ["con"]
    assert texts(arguments.feed("st\n")) == ["st"]
    assert texts(arguments.feed("-gone\n con")) == []
    assert texts(arguments.feed("text\n+x")) == ["\nx"]


# Properties

LINES = st.sampled_from(
    """\
*** Begin Patch|*** Update File: a.ts|*** Add File: b.md|*** End Patch|*** Move to: z.ts|***
[a.ts#00FF]|[c/[d].ts]|  [e.py]|@@ x|--- a/a.ts|+++ b/b.md|--- old|-old| ctx||plain|\
+|++|+++|+ added|+[a.ts]|++++ x|<<<<<<< SEARCH|=======|>>>>>>> REPLACE|>>>>> x|\
+++++++ REPLACE|😀 \\ "|diff --git a/x b/x|import x""".replace("\n", "|").split("|")
)
TOOLS = st.sampled_from(
    [
        ("apply_patch", "input"),
        ("edit", "input"),
        ("edit", "diff"),
        ("bash", "command"),
        ("apply_diff", "diff"),
        ("write", "content"),
        ("unknown", "text"),
    ]
)


@settings(deadline=None, max_examples=300)
@given(
    lines=st.lists(LINES, max_size=14),
    tool=TOOLS,
    op=st.sampled_from(["", "create"]),
    data=st.data(),
)
def test_no_cut_changes_a_passage(
    lines: list[str], tool: tuple[str, str], op: str, data: st.DataObject
) -> None:
    name, key = tool
    arguments = ({"op": op} if op else {}) | {key: "\n".join(lines), "path": "p.ts"}
    text = json.dumps(arguments, ensure_ascii=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    fragments = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = call(name, text, raw=True)
    assert call(name, *fragments, raw=True) == whole
    assert call(name, *text, raw=True) == whole


@settings(deadline=None, max_examples=150)
@given(
    sections=st.lists(
        st.tuples(st.sampled_from(["a.ts", "b.md", "c d.py"]), st.lists(LINES)), max_size=5
    )
)
def test_a_patch_is_split_as_a_full_parse_splits_it(sections: list[tuple[str, list[str]]]) -> None:
    added: dict[str, list[str]] = {}
    out: list[str] = ["*** Begin Patch"]
    for file, lines in sections:
        out.append(f"*** Update File: {file}")
        for number, line in enumerate(lines):
            mark = "+- "[number % 3]
            out.append(mark + line)
            if mark == "+":
                added.setdefault(file, []).append(line)
    patch = "\n".join([*out, "*** End Patch"])
    expected = {file: "\n".join(lines) for file, lines in added.items()}
    assert call("apply_patch", *patch).by_file() == expected
    assert call("apply_patch", json.dumps({"input": patch})).by_file() == expected


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(st.sampled_from(list("{}[]:,\"'\\unop+-*\n path\ud83d\ude00")), max_size=60),
    tool=st.sampled_from(["edit", "apply_patch", "bash", "apply_diff", "unknown"]),
)
def test_no_argument_text_stops_the_watch_or_is_read_differently_when_cut(
    text: str, tool: str
) -> None:
    whole, cut = call(tool, text, raw=True), call(tool, *text, raw=True)
    assert cut == whole
    for passage in cut.text.values():
        passage.encode()
