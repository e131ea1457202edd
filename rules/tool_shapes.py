"""Which strings of which tool's arguments are introduced text, as a table.

A `ToolShape` describes the arguments of the tools that it names. The built-in shapes
cover the edit, write, patch, notebook and shell tools of the agents that we know (Claude
Code, codex, opencode, pi, omp, Gemini CLI, Cline, Cursor, VS Code); a config adds to them
and overrides them, tool by tool. Of a tool with a shape only the introduced values are
watched; of any other tool every string value is (spec/ttsr.md 0.4).

In TOML:

    [[tools]]
    names = ["save_page", "mcp__wiki__*"]
    introduced = ["body", "sections.*.text"]
    paths = ["page"]
    format = "plain"
"""

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from midstream.messages.errors import ConfigError
from midstream.rules.passage import JsonPath


class TextFormat(StrEnum):
    """How an introduced value says what it introduces."""

    PLAIN = "plain"
    """All of it."""
    UNIFIED_DIFF = "unified_diff"
    """Its `+` lines; files by `+++` lines, if there are any."""
    APPLY_PATCH = "apply_patch"
    """Its `+` lines; files by `*** Add|Update|Delete File:` lines."""
    HASHLINE = "hashline"
    """Its `+` lines; files by `[path#TAG]` lines, or by those of apply_patch."""
    SEARCH_REPLACE = "search_replace"
    """The second halves of its `<<<<<<< SEARCH`, `=======`, `>>>>>>> REPLACE` blocks."""
    SHELL = "shell"
    """All of it, and apart from that the files of an apply_patch in it."""


class ToolShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of some tools.

    `names` are compared without case, `_` and `-` (`MultiEdit`, `multi_edit`, `_edit`);
    with a `*` in it a name is a pattern, compared without case alone.
    `introduced` are the places of introduced values: keys joined by dots, `*` for any one
    key or index (`edits.*.new_string`). None means every string value.
    `paths` are the places of the paths that the call goes to, in the same notation. None
    means every key that says that it is a path (see `names_a_path`).
    `operation` are keys beside a unified diff; `create`, `create_file` or `add` there
    means that a diff without any marked line is the whole content of a new file.
    """

    names: tuple[str, ...]
    introduced: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    format: TextFormat = TextFormat.PLAIN
    operation: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names or not all(name.strip() for name in self.names):
            raise ValueError("`names` must name at least one tool")
        for place in (*(self.introduced or ()), *(self.paths or ())):
            if not all(place.split(".")):
                raise ValueError(f"{place!r} has an empty part; write keys joined by dots")

    def is_of(self, tool_name: str) -> bool:
        """Whether the shape describes this tool."""
        return any(_same_name(name, tool_name) for name in self.names)


def matches_place(place: str, path: JsonPath) -> bool:
    """Whether a value at `path` is one that the notation `place` means."""
    parts = place.split(".")
    return len(parts) == len(path) and all(
        part == "*" or part == str(step) for part, step in zip(parts, path, strict=True)
    )


class ToolTable:
    """All shapes: those of the config over the built-in ones."""

    def __init__(self, config: tuple[ToolShape, ...] = ()) -> None:
        self._layers = (config, BUILT_IN_SHAPES)

    def shapes_of(self, tool_name: str) -> tuple[ToolShape, ...]:
        """The shapes of a tool; none if it is unknown.

        If the config has any for it, the built-in ones do not count.
        """
        for layer in self._layers:
            if shapes := tuple(shape for shape in layer if shape.is_of(tool_name)):
                return shapes
        return ()


def read_tool_shapes(value: Any, where: str, key: str = "tools") -> tuple[ToolShape, ...]:
    """The shapes of a decoded config value, such as the list under `[[tools]]` in TOML.

    `where` names the file. Raises `ConfigError`, which names the key.
    """
    try:
        return msgspec.convert(value, tuple[ToolShape, ...])
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `")
        place = place.removesuffix("`").removeprefix("$")
        mend = "a tool has names, introduced, paths, format, operation"
        raise ConfigError(where, f"{key}{place}", problem, mend) from error


def _same_name(shape_name: str, tool_name: str) -> bool:
    if "*" in shape_name:
        return fnmatchcase(tool_name.lower(), shape_name.lower())
    return _squeezed(shape_name) == _squeezed(tool_name)


def _squeezed(name: str) -> str:
    return name.strip().lower().replace("_", "").replace("-", "")


_NEW_STRINGS = ("new_string", "newString", "new_str", "new_text", "newText")

BUILT_IN_SHAPES = (
    ToolShape(
        names=("write", "write_file", "write_to_file", "create_file", "save_file"),
        introduced=("content", "contents", "text", "file_text", "file_content", "code"),
    ),
    ToolShape(
        names=(
            "edit",
            "multi_edit",
            "edit_file",
            "replace",
            "str_replace",
            "str_replace_editor",
            "str_replace_edit",
            "str_replace_based_edit_tool",
            "replace_string_in_file",
            "multi_replace_string_in_file",
            "insert_edit_into_file",
            "insert_content",
            "search_and_replace",
            "search_replace",
        ),
        introduced=(
            *_NEW_STRINGS,
            *(f"edits.*.{key}" for key in _NEW_STRINGS),
            *(f"replacements.*.{key}" for key in _NEW_STRINGS),
            "content",
            "file_text",
            "insert_text",
            "code",
            "code_edit",
            "replace",
        ),
    ),
    ToolShape(names=("edit",), introduced=("input",), format=TextFormat.HASHLINE),
    ToolShape(
        names=("apply_patch", "patch"),
        introduced=("input", "patch", "patchText", "patch_text"),
        format=TextFormat.APPLY_PATCH,
    ),
    ToolShape(
        names=("edit", "edit_file", "patch"),
        introduced=("diff", "edits.*.diff"),
        format=TextFormat.UNIFIED_DIFF,
        operation=("op", "type"),
    ),
    ToolShape(
        names=("apply_patch",),
        introduced=("diff", "operation.diff"),
        format=TextFormat.UNIFIED_DIFF,
        operation=("type",),
    ),
    ToolShape(
        names=("replace_in_file", "apply_diff"),
        introduced=("diff", "args.*.diff", "args.*.diff.*.content"),
        format=TextFormat.SEARCH_REPLACE,
    ),
    ToolShape(
        names=("notebook_edit", "edit_notebook", "edit_notebook_file"),
        introduced=("new_source", "newCode", "new_string"),
        paths=("notebook_path", "target_notebook", "filePath", "file_path", "path"),
    ),
    ToolShape(
        names=(
            "bash",
            "shell",
            "shell_command",
            "local_shell",
            "exec_command",
            "execute_command",
            "run_bash",
            "run_command",
            "run_shell_command",
            "run_in_terminal",
            "run_terminal_cmd",
            "run_terminal_command",
            "terminal",
            "unified_exec",
        ),
        introduced=("command", "cmd", "command.*", "cmd.*"),
        paths=(),
        format=TextFormat.SHELL,
    ),
)
"""The tools that are known. Several shapes of one tool count together; text that is no
JSON is in the first format of them that is not plain."""
