"""A tool call's passages, their paths, and the end of the call, at every cut."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.rules.argument_paths import PATH_LIMIT_CHARS
from midstream.rules.passage import (
    JsonPath,
    PassageText,
    PathsKnown,
)
from midstream.rules.passage_book import PATHS_LIMIT
from midstream.rules.tool_arguments import ToolArguments

from .argument_calls import CWD, PATCH, PATCH_FILES, at_any_cut, call, texts

FIXTURES = Path(
    os.environ.get("MIDSTREAM_FIXTURES", Path(__file__).parents[3] / "shared" / "fixtures")
)


# Unknown tools


def test_p2_strings_of_unknown_tools_are_decoded_one_by_one() -> None:
    arguments = {"code": "x\nimport * as React", "note": 'a "quoted" é', "n": 3, "list": ["p", ""]}
    seen = at_any_cut("mcp__repl__run", arguments)
    assert seen.by_part() == {
        ("code",): "x\nimport * as React",
        ("note",): 'a "quoted" é',
        ("list", 0): "p",
        ("list", 1): "",
    }


def test_the_paths_of_an_unknown_tool_are_strings_too() -> None:
    seen = at_any_cut("mcp__fs__put", {"path": "src/a.ts", "data": "x"})
    assert seen.by_part() == {("path",): "src/a.ts", ("data",): "x"}
    assert "a.ts" in seen.paths_of("path")


def test_a_repeated_key_makes_passages_of_its_own() -> None:
    seen = at_any_cut("tool", '{"a": "one", "a": "two"}')
    assert [(key.occurrence, text) for key, text in seen.text.items()] == [(0, "one"), (1, "two")]


# Paths


@pytest.mark.parametrize(
    "key",
    [
        *("path", "file_path", "filePath", "notebook_path", "PATH", "scriptPath", "file"),
        *("filename", "file_name", "target_file", "targetFile", "uri", "dir", "directory"),
    ],
)
def test_a_path_is_found_before_and_after_the_content(key: str) -> None:
    for arguments in ({key: "./src/a.ts", "text": "x"}, {"text": "x", key: "./src/a.ts"}):
        assert at_any_cut("unknown", arguments).paths_of("text") == (
            "./src/a.ts",
            "src/a.ts",
            f"{CWD}/src/a.ts",
            "a.ts",
        )


@pytest.mark.parametrize("key", ["profile", "cwd", "workdir", "filed", "url", "pathology"])
def test_other_keys_are_no_paths(key: str) -> None:
    assert at_any_cut("unknown", {key: "a.ts", "text": "x"}).paths_of("text") == ()


def test_b29_a_path_in_any_spelling_has_its_other_spellings() -> None:
    for written in (f"{CWD}/src/a.ts", "src\\a.ts", f"file://{CWD}/src/a.ts", "src/../src/a.ts"):
        paths = at_any_cut("write", {"path": written, "content": "x"}).paths_of("content")
        assert {f"{CWD}/src/a.ts", "src/a.ts"} <= set(paths)
    uri = at_any_cut("write", {"uri": "https://x/a.ts", "content": "x"})
    assert uri.paths_of("content") == ()


def test_a_path_goes_for_its_own_item_of_a_list() -> None:
    files = [{"path": "README.md", "body": ": any"}, {"body": "x", "meta": {"file": "a.ts"}}]
    seen = at_any_cut("unknown", {"files": files, "root_path": "r.txt"})
    assert set(seen.paths_of("files", 0, "body")) == {"README.md", f"{CWD}/README.md"} | root()
    assert set(seen.paths_of("files", 1, "body")) == {"a.ts", f"{CWD}/a.ts"} | root()


def root() -> set[str]:
    return {"r.txt", f"{CWD}/r.txt"}


def test_a_path_in_an_object_beside_the_content_counts() -> None:
    arguments = {"textDocument": {"uri": "file:///p/a.ts"}, "edits": [{"newText": "x"}]}
    assert "/p/a.ts" in at_any_cut("lsp", arguments).paths_of("edits", 0, "newText")


def test_a_list_of_paths_goes_for_the_whole_call() -> None:
    seen = at_any_cut("unknown", {"text": "x", "paths": ["a.ts", "b.md"]})
    assert {"a.ts", "b.md"} <= set(seen.paths_of("text"))


def test_no_path_is_said_when_the_call_ends() -> None:
    arguments = ToolArguments("c", "write", cwd=CWD)
    events = arguments.feed('{"content": "x"}')
    assert not [event for event in events if isinstance(event, PathsKnown)]
    (known,) = arguments.finish()
    assert isinstance(known, PathsKnown)
    assert known.paths == ()


def test_a_shell_command_has_no_path_from_its_first_character_on() -> None:
    events = ToolArguments("c", "bash", cwd=CWD).feed('{"command": "r')
    assert isinstance(events[0], PathsKnown)
    assert events[0].paths == ()


def test_an_endless_path_is_none() -> None:
    path = "a/" * PATH_LIMIT_CHARS + "b.ts"
    assert at_any_cut("write", {"path": path, "content": "x"}).paths_of("content") == ()
    patch = f"*** Add File: ok.ts\n+x\n*** Add File: {path}\n+y"
    assert at_any_cut("apply_patch", patch).by_file() == {"ok.ts": "x\ny"}


def test_paths_are_bounded_and_more_are_reported() -> None:
    paths = [f"p{number}" for number in range(PATHS_LIMIT + 5)]
    seen = at_any_cut("unknown", {"paths": paths, "text": "x"})
    assert len(seen.paths_of("text")) == 2 * PATHS_LIMIT
    assert len([report for report in seen.reports if "paths" in report]) == 1


# The end of a call


def test_b4_a_call_without_fragments_is_read_from_its_final_arguments() -> None:
    final = json.dumps({"file_path": "a.ts", "content": "x: any"})
    seen = call("Write", final=final)
    assert seen.by_part() == {("content",): "x: any"}
    assert "a.ts" in seen.paths_of("content")
    assert call("Write", "", final=final) == seen


def test_b4_what_is_missing_in_the_fragments_is_read_at_the_end() -> None:
    final = json.dumps({"file_path": "a.ts", "content": "x: any"})
    for cut in range(len(final) + 1):
        seen = call("Write", final[:cut], final=final)
        assert seen.by_part() == {("content",): "x: any"}
        assert seen.restarts == 0


def test_b4_final_arguments_that_differ_are_read_instead() -> None:
    seen = call("Write", '{"content": "dra', final='{"content": "final", "path": "a.ts"}')
    assert seen.restarts == 1
    assert seen.by_part() == {("content",): "final"}
    assert "a.ts" in seen.paths_of("content")


def test_b4_what_comes_after_the_final_arguments_says_nothing() -> None:
    arguments = ToolArguments("c", "write", cwd=CWD)
    arguments.finish('{"content": "x"}')
    assert arguments.feed('{"content": "y"}') == []
    assert arguments.finish('{"content": "z"}') == []


def test_a_call_without_arguments_has_no_passages() -> None:
    for final in (None, "", "{}"):
        seen = call("write", "", final=final)
        assert not seen.text
        assert not seen.reports


def test_a_call_that_is_cut_ends_its_passages() -> None:
    seen = call("write", '{"path": "a.ts", "content": "half')
    assert seen.by_part() == {("content",): "half"}
    assert "inside a string" in seen.reports[0]


def test_malformed_arguments_are_reported_and_the_rest_is_watched() -> None:
    seen = at_any_cut("write", '{"path": "a.ts" "content": "one\ntwo",}')
    assert seen.by_part() == {("content",): "one\ntwo"}
    assert "a.ts" in seen.paths_of("content")
    assert len(seen.reports) == 3


def test_a_string_behind_malformed_arguments_is_watched_whatever_the_tool() -> None:
    seen = at_any_cut("write", '{"path": "a.ts"}, "content": "x: any"')
    assert "x: any" in seen.text.values()


# Passages are never joined


def test_b29_forb_on_edit_and_idden_on_write_do_not_join() -> None:
    edit, write = ToolArguments("call_1", "edit"), ToolArguments("call_2", "write")
    events = edit.feed('{"new_string": "FORB') + write.feed('{"content": "IDDEN')
    keys = {event.key for event in events if isinstance(event, PassageText)}
    assert len(keys) == 2
    assert len({key.call_id for key in keys}) == 2


def test_b5_two_calls_of_one_tool_have_different_passages() -> None:
    events = [
        event
        for call_id in ("call_1", "call_2")
        for event in ToolArguments(call_id, "bash").feed('{"command": "rm')
        if isinstance(event, PassageText)
    ]
    assert len({event.key for event in events}) == 2


def test_fragments_of_one_string_have_one_key() -> None:
    arguments = ToolArguments("c", "bash")
    events = arguments.feed('{"command": "FORB') + arguments.feed('IDDEN"}')
    assert {event.key.part for event in events if isinstance(event, PassageText)} == {("command",)}
    assert "".join(texts(events)) == "FORBIDDEN"


# The undecoded text


def test_the_undecoded_text_is_one_passage_that_goes_to_every_path() -> None:
    text = json.dumps({"input": PATCH, "more": [{"path": "x.py"}]})
    for fragments in ([text], list(text)):
        seen = call("apply_patch", *fragments, raw=True)
        (raw,) = (key for key in seen.text if key.raw)
        assert seen.text[raw] == text
        assert {"README.md", "src/main.ts", "gone.ts", "x.py"} <= set(seen.paths[raw])
    assert seen.by_file() == PATCH_FILES


def test_the_undecoded_text_is_there_only_when_asked_for() -> None:
    assert not any(key.raw for key in call("bash", '{"command": "ls"}').text)


def test_a_pair_cut_between_fragments_is_whole_in_every_passage() -> None:
    seen = call("note", '{"a": "\ud83d', '\ude00"}', raw=True)
    assert set(seen.text.values()) == {'{"a": "😀"}', "😀"}


# Recorded streams


def recorded_calls() -> Iterator[tuple[str, str, list[str]]]:
    """File, tool and argument fragments of each recorded tool call."""
    for path in sorted([*FIXTURES.glob("*/*.sse"), *FIXTURES.glob("*/*.chunks.jsonl")]):
        calls: dict[Any, tuple[str, list[str]]] = {}
        for payload in payloads(path):
            for key, name, fragment in call_pieces(payload):
                calls.setdefault(key, (name, []))[1].append(fragment)
        for name, fragments in calls.values():
            if any(fragments):
                yield path.name, name, fragments


def payloads(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").splitlines():
        line = line.removeprefix("data:").strip()
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def call_pieces(payload: dict[str, Any]) -> Iterator[tuple[Any, str, str]]:
    match payload:
        case {"type": "content_block_start", "index": index, "content_block": {"name": str(name)}}:
            yield index, name, ""
        case {"type": "content_block_delta", "index": index, "delta": {"partial_json": str(text)}}:
            yield index, "", text
        case {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {"name": str(name)},
        }:
            yield index, name, ""
        case {"type": str(kind), "output_index": index, "delta": str(text)} if kind.endswith(
            ("arguments.delta", "input.delta")
        ):
            yield index, "", text
        case {"choices": [{"delta": {"tool_calls": [*calls]}}]}:
            for piece in calls:
                function: dict[str, str | None] = piece.get("function") or {}
                key = "chat", piece.get("index", 0)
                yield key, function.get("name") or "", function.get("arguments") or ""
        case _:
            return


def strings_of(value: Any, path: JsonPath = ()) -> Iterator[tuple[JsonPath, str]]:
    match value:
        case str():
            yield path, value
        case list():
            for index, item in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                yield from strings_of(item, (*path, index))
        case dict():
            for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                yield from strings_of(item, (*path, str(key)))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="the recorded streams are not beside the project")
def test_recorded_calls_say_at_every_cut_what_a_full_parse_says() -> None:
    complete = 0
    for file, _, fragments in recorded_calls():
        text = "".join(fragments)
        try:
            expected = dict(strings_of(json.loads(text)))
        except ValueError:
            expected = None if text.startswith("{") else {(): text}
        streamed = call("unknown", *fragments)
        assert streamed == call("unknown", *text) == call("unknown", text), file
        if expected is not None:
            complete += 1
            assert streamed.by_part() == expected, file
    assert complete >= 30


# Cost


def lines_run(fragments: Iterable[str], tool: str) -> int:
    count = 0

    def tracer(_frame: Any, _event: str, _arg: Any) -> Any:
        nonlocal count
        count += 1
        return tracer

    arguments = ToolArguments("c", tool, cwd=CWD)
    previous = sys.gettrace()
    sys.settrace(tracer)
    try:
        for fragment in fragments:
            arguments.feed(fragment)
    finally:
        sys.settrace(previous)
    return count


@pytest.mark.parametrize(
    ("tool", "start", "unit"),
    [
        ("write", '{"content": "', "word \\n"),
        ("apply_patch", "*** Update File: a\n", "+line\n ctx\n"),
        ("edit", '{"input": "[a.ts]\\n', "+x\\n9:\\n"),
        ("edit", '{"diff": "', "-x\\n+y\\n"),
        ("bash", '{"command": "', "echo \\n"),
        ("unknown", '{"text": ["', 'a","'),
        ("unknown", '{"files": [', '{"path": "p", "text": "t"},'),
    ],
)
def test_the_work_for_each_character_stays_flat(tool: str, start: str, unit: str) -> None:
    short, long = (lines_run(start + unit * count, tool) for count in (60, 240))
    assert long < short * 4.2
