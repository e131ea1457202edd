"""Path patterns of scopes and of `globs:`, and the forms of a path that they are tried on.

The semantics are those of Bun.Glob, as the reference has them (spec/ttsr.md 1.4): `*` and
`?` stay within one segment and match leading dots, `**/` matches zero or more directories,
braces nest, a leading `!` negates, case counts. wcmatch translates the segments. Two things
are done here: braces, because wcmatch follows bash there (`{1..3}` counts, `{a}` is
literal), and `**`, because models write the paths, and the cost of several `**` in one
regular expression grows with a power of a path's length. Here it grows with the length.
"""

import posixpath
import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec
from wcmatch import glob as wcglob

from midstream.messages.errors import MidstreamError

_FLAGS = wcglob.GLOBSTAR | wcglob.DOTGLOB | wcglob.FORCEUNIX | wcglob.CASE
_DRIVE = re.compile(r"^[A-Za-z]:/")
_PARTS = re.compile(r"\\.|\[[!^]?(?:\\.|[^\\\]/])+\]|[{},]|.", re.DOTALL)

LENGTH_LIMIT_CHARS = 1024
"""Longest pattern."""
BRACE_LIMIT = 256
"""Alternatives that one pattern may expand to."""
NESTING_LIMIT = 10
"""Braces within braces, as in Bun.Glob."""
SEGMENT_LIMIT = 256
"""Segments, from the end, that a path is matched on."""

Segments = tuple[re.Pattern[str] | None, ...]
"""One alternative of a pattern, segment by segment; None is `**`."""


class GlobError(MidstreamError):
    """A path pattern cannot be used; the message says why and what to write instead."""


class Glob(msgspec.Struct, frozen=True):
    """A compiled pattern."""

    pattern: str
    negated: bool
    alternatives: tuple[Segments, ...]

    def matches(self, candidates: Iterable[str]) -> bool:
        """Whether the pattern holds for a path, given the forms of it to try.

        A plain pattern holds when it matches one of them, a negated one when it matches
        none of them, so that `!*.ts` excludes `src/a.ts` too.
        """
        paths = [candidate.split("/")[-SEGMENT_LIMIT:] for candidate in candidates]
        found = any(_fits(alternative, path) for path in paths for alternative in self.alternatives)
        return found is not self.negated


@lru_cache(maxsize=1024)
def compile_glob(pattern: str) -> Glob:
    """Raises `GlobError` for a pattern that is too large."""
    if len(pattern) > LENGTH_LIMIT_CHARS:
        raise GlobError(f"a pattern of {len(pattern)} characters is too long; write a list")
    positive = pattern.lstrip("!")
    negated = (len(pattern) - len(positive)) % 2 == 1
    plain = dict.fromkeys(_expand_braces(positive.replace("\\/", "/")))
    alternatives = (tuple(map(_segment, text.split("/"))) for text in plain if text)
    return Glob(pattern, negated, tuple(alternatives))


def candidate_paths(raw: str, cwd: str) -> tuple[str, ...]:
    """The forms of a path that a model wrote: as written, without `./`, absolute, relative
    to `cwd` where inside it, and its last segment (spec/ttsr.md 3.4 and 1.4).

    Backslashes count as slashes. Symbolic links and `~` are left alone. A blank path has
    no forms.
    """
    path = raw.strip().replace("\\", "/")
    if not path:
        return ()
    base = posixpath.normpath(cwd.replace("\\", "/"))
    bare = path
    while bare.startswith("./"):
        bare = bare[2:].lstrip("/")
    is_absolute = path.startswith("/") or _DRIVE.match(path) is not None
    absolute = posixpath.normpath(path if is_absolute else posixpath.join(base, path))
    forms = [path, bare, absolute]
    inside = base.rstrip("/") + "/"
    if absolute.startswith(inside):
        forms.append(absolute[len(inside) :])
    forms.append(posixpath.basename(absolute))
    return tuple(form for form in dict.fromkeys(forms) if form)


@lru_cache(maxsize=4096)
def _segment(text: str) -> re.Pattern[str] | None:
    if text == "**":
        return None
    # Bun.Glob has no POSIX classes: `[[:alpha:]]` is the set of `[:alph` and then `]`.
    included, _ = wcglob.translate(text.replace("[[:", "[\\[:"), flags=_FLAGS)
    return re.compile(included[0])


def _fits(pattern: Segments, path: list[str]) -> bool:
    """Follows all ways to match at once: `reached` are the counts of leading segments of
    the path that the pattern so far can stand for."""
    reached = {0}
    for index, segment in enumerate(pattern):
        if segment is None:
            # `src/**` does not match `src`: at the end, `**` takes one segment or more.
            least = 1 if index == len(pattern) - 1 else 0
            reached = set(range(min(reached) + least, len(path) + 1))
        else:
            reached = {
                count + 1
                for count in reached
                if count < len(path) and segment.fullmatch(path[count]) is not None
            }
        if not reached:
            return False
    return len(path) in reached


def _expand_braces(pattern: str) -> list[str]:
    """All alternatives of a pattern's braces; a brace without its partner is literal."""
    texts, _ = _expand_sequence(_pair_braces(pattern), 0, depth=0)
    if len(texts) > BRACE_LIMIT:
        raise GlobError(f"`{pattern}` has more than {BRACE_LIMIT} alternatives; use fewer braces")
    return texts


def _pair_braces(pattern: str) -> list[str]:
    """The pattern in parts: `{` and `}` for braces that pair, escapes for those that do not."""
    parts: list[str] = _PARTS.findall(pattern)
    open_at: list[int] = []
    for index, part in enumerate(parts):
        if part == "{":
            open_at.append(index)
        elif part == "}" and open_at:
            open_at.pop()
        elif part == "}":
            parts[index] = "\\}"
        if len(open_at) > NESTING_LIMIT:
            raise GlobError(f"`{pattern}` nests more than {NESTING_LIMIT} braces; use fewer")
    for index in open_at:
        parts[index] = "\\{"
    return parts


def _expand_sequence(parts: list[str], start: int, depth: int) -> tuple[list[str], int]:
    """Alternatives of the text up to the `,` or `}` that ends it, and where that is."""
    texts = [""]
    index = start
    while index < len(parts) and not (depth and parts[index] in (",", "}")):
        if parts[index] == "{":
            options, index = _expand_group(parts, index, depth + 1)
        else:
            options, index = [parts[index]], index + 1
        texts = [text + option for text in texts for option in options][: BRACE_LIMIT + 1]
    return texts, index


def _expand_group(parts: list[str], start: int, depth: int) -> tuple[list[str], int]:
    """Alternatives of the braces that open at `start`, and the place after them."""
    options: list[str] = []
    index = start
    while parts[index] != "}":
        texts, index = _expand_sequence(parts, index + 1, depth)
        options += texts
    return options, index + 1
