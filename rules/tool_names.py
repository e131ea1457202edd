"""Whether the tool that a scope names is the tool that a model calls.

Hosts name the same tool in many ways: `bash`, `Bash`, `_bash`, `exec_command`. A rule file
should not care, so names are compared without case and leading underscores, and four
names stand for a kind of tool (spec/ttsr.md 10): `edit`, `write`, `bash` (or `shell`) and
`read`. Any other name means that one tool. Pure; the matching engine calls `same_tool`.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

TOOL_KINDS: Mapping[str, frozenset[str]] = {
    "edit": frozenset(
        {
            "edit",
            "multiedit",
            "notebookedit",
            "editfile",
            "editnotebook",
            "strreplace",
            "strreplaceeditor",
            "strreplaceedit",
            "strreplacebasededittool",
            "replace",
            "replaceinfile",
            "replacestringinfile",
            "multireplacestringinfile",
            "searchreplace",
            "searchandreplace",
            "inserteditintofile",
            "insertcontent",
            "applypatch",
            "applydiff",
            "patch",
        }
    ),
    "write": frozenset(
        {
            "write",
            "writefile",
            "writetofile",
            "createfile",
            "savefile",
            # These create files as well as edit them.
            "strreplaceeditor",
            "strreplacebasededittool",
            "applypatch",
        }
    ),
    "bash": frozenset(
        {
            "bash",
            "shell",
            "shellcommand",
            "localshell",
            "execcommand",
            "executecommand",
            "runcommand",
            "runshellcommand",
            "runbash",
            "runinterminal",
            "runterminalcmd",
            "runterminalcommand",
            "terminal",
            "unifiedexec",
        }
    ),
    "read": frozenset({"read", "readfile", "view", "viewfile", "openfile", "readmanyfiles"}),
}
"""By the name that a scope uses, the tools that it covers, as `_squeezed` writes them."""

_SYNONYMS = {"shell": "bash"}


def same_tool(scope_name: str, call_name: str) -> bool:
    """Whether `tool:scope_name` covers a call of `call_name`.

    `*` in `scope_name` stands for any characters: `mcp__github__*`.
    """
    scope, call = _plain(scope_name), _plain(call_name)
    if fnmatchcase(call, scope):
        return True
    covered = TOOL_KINDS.get(_SYNONYMS.get(scope, scope))
    return covered is not None and _squeezed(call) in covered


def _plain(name: str) -> str:
    return name.strip().lstrip("_").lower()


def _squeezed(plain: str) -> str:
    """`multi_edit`, `multi-edit` and `MultiEdit` are one name."""
    return plain.replace("_", "").replace("-", "")
