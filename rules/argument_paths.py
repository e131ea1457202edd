"""Where the paths of a tool call stand in its arguments, and what they are paths of.

Reference implementations look at top-level keys alone (spec/ttsr.md 3.4, 7.10); here a
path counts at any depth. `PassageBook` is the user.
"""

import re
from urllib.parse import unquote

from midstream.rules.globs import candidate_paths
from midstream.rules.passage import JsonPath

PATH_LIMIT_CHARS = 4096
"""A longer string is no path."""

_PATH_KEY = re.compile(
    r"(?i:.*paths?|files?|file_?names?|dir|directory|uri)|.*_files?|.*[a-z]Files?"
)


def names_a_path(path: JsonPath) -> bool:
    """Whether the string at `path` is a path by the name of its key.

    Those are keys that end in `path` or `paths`, and `file`, `filename`, `uri`, `dir`,
    `target_file` and their likes, whatever their case; also each string of a list under
    such a key. `cwd` and `workdir` are not among them: they say where a command runs.
    """
    place = _key_place(path)
    return bool(place) and _PATH_KEY.fullmatch(str(place[-1])) is not None


def path_scope(path: JsonPath) -> JsonPath:
    """What the path at `path` goes for: the array item that it stands in, or the call.

    Strings in other items of the same array are of other files.
    """
    return _item(_key_place(path))


def scopes_of(part: JsonPath) -> list[JsonPath]:
    """The scopes that a string at `part` is in, the innermost first."""
    ends = [end for end in range(len(part), 0, -1) if isinstance(part[end - 1], int)]
    return [*(part[:end] for end in ends), ()]


def path_candidates(raw: str, cwd: str) -> tuple[str, ...]:
    """The spellings under which a path or `file:` URI is matched against globs."""
    scheme, found, rest = raw.strip().partition("://")
    if not found:
        return candidate_paths(raw, cwd)
    if scheme.lower() != "file":
        return ()
    # file:///a and file://host/a; a drive stands behind the slash: file:///c:/a
    path = "/" + unquote(rest.partition("/")[2])
    return candidate_paths(path[1:] if re.match(r"/[A-Za-z]:/", path) else path, cwd)


def _key_place(path: JsonPath) -> JsonPath:
    """The place of the key: a list of paths is named by the key of the list."""
    return path[:-1] if path and isinstance(path[-1], int) else path


def _item(path: JsonPath) -> JsonPath:
    for end in range(len(path), 0, -1):
        if isinstance(path[end - 1], int):
            return path[:end]
    return ()
