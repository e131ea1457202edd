"""Reads rule files from disk: what is in a directory, and what is in a file.

With `discovery.py`, its caller, the only I/O of this room. Nothing raises: what cannot be
read becomes a problem.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from midstream.rules.front_matter import Undecodable, decode
from midstream.rules.problem import Problem, Severity
from midstream.rules.rule_file import RuleFile, parse_rule, rule_name

SIZE_LIMIT_BYTES = 256 * 1024
"""Larger files are no rules; reading them would only cost memory."""


def read_rule(
    file: Path, origin: str, name: str | None = None, always_apply: bool = False
) -> RuleFile:
    """The rule of one file. `name` replaces the one that the file's name gives;
    `always_apply` is forced on."""
    path = printable(file)
    try:
        text = _text_of(file)
    except OSError as error:
        return _rejected(path, f"it cannot be read: {error.strerror or error}")
    except Undecodable as error:
        return _rejected(path, str(error), "save it as UTF-8")
    except _NotARule as error:
        return _rejected(path, str(error))
    if name is None:
        name = rule_name(printable(Path(file.name)), origin)
    return parse_rule(name, text, path=path, origin=origin, always_apply=always_apply)


class _NotARule(Exception):
    """The message says why."""


def _text_of(file: Path) -> str:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _NotARule("it is not a regular file")
    if status.st_size > SIZE_LIMIT_BYTES:
        raise _NotARule(f"it is larger than {SIZE_LIMIT_BYTES // 1024} KiB")
    return decode(file.read_bytes())


def _rejected(path: str, what: str, mend: str = "") -> RuleFile:
    return RuleFile(None, (Problem(path, 0, Severity.ERROR, what, mend),))


def files_in(
    directory: Path, suffixes: tuple[str, ...], is_recursive: bool, problems: list[Problem]
) -> Iterator[Path]:
    """Files by name, without hidden ones. Directories within are entered where asked."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        what = f"the directory cannot be read: {error.strerror or error}"
        problems.append(Problem(printable(directory), 0, Severity.WARNING, what))
        return
    for name in names:
        path = directory / name
        if name.startswith("."):
            continue
        if os.path.isdir(path):
            # A link to a directory could lead back up.
            if is_recursive and not os.path.islink(path):
                yield from files_in(path, suffixes, True, problems)
            elif not is_recursive and _has_rules(path, suffixes):
                what = "rules in directories within a rule directory are not read"
                note = Problem(printable(path), 0, Severity.NOTE, what, "move them up")
                problems.append(note)
        elif name.endswith(suffixes):
            yield path
        elif name.lower().endswith(suffixes):
            what = "it is not read as a rule, since its ending is not in small letters"
            problems.append(Problem(printable(path), 0, Severity.NOTE, what, "rename it"))


_NO_RULES = frozenset({"workflows"})
"""Directories within those of rules that are for something else: Cline's prompts on demand."""


def _has_rules(directory: Path, suffixes: tuple[str, ...]) -> bool:
    if directory.name in _NO_RULES:
        return False
    try:
        return any(name.endswith(suffixes) for name in os.listdir(directory))
    except OSError:
        return False


def has_content(path: Path) -> bool:
    """Whether there is a directory, or a file that is not empty. What cannot be looked at
    counts: reading it gives the problem."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return os.path.islink(path)
    except OSError:
        return True
    return stat.S_ISDIR(status.st_mode) or status.st_size > 0


def printable(path: Path) -> str:
    """A path whose name is not valid UTF-8 must not break what shows it."""
    return os.fsencode(path).decode("utf-8", "replace")
