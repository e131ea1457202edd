"""The passages of one tool call and the paths that are known of them.

`ArgumentReading` writes here what it finds, in order, and takes the events that follow
from it. The book knows which paths go for which passages: a path counts for every string
of the array item that it stands in, or of the whole call, before and after it; a file of
a multi-file payload has the paths of its own section and no others (spec/ttsr.md B3).
"""

from collections.abc import Iterable

from midstream.rules.argument_paths import path_candidates, scopes_of
from midstream.rules.passage import (
    ArgumentEvent,
    ArgumentsMalformed,
    JsonPath,
    PassageEnded,
    PassageKey,
    PassagePath,
    PassageText,
    PathsKnown,
)
from midstream.rules.rule import Source

PATHS_LIMIT = 64
"""Paths in one scope. More are reported and not matched: each counts for each passage."""

_Owner = JsonPath | PassageKey
"""What a path belongs to: a scope of the arguments, or a passage with paths of its own."""


class PassageBook:
    """The passages of one reading of one call.

    `with_paths` says whether the arguments themselves may name paths; if not, that no
    path will come is said at once. `raw` adds the undecoded text as a passage.
    """

    def __init__(self, call_id: str, cwd: str, *, with_paths: bool, raw: bool) -> None:
        self._call_id = call_id
        self._cwd = cwd
        self._with_paths = with_paths
        self._raw = PassageKey(Source.TOOL, call_id, raw=True) if raw else None
        self._events: list[ArgumentEvent] = []
        self._counts: dict[tuple[JsonPath, str | None], int] = {}
        self._paths_due: dict[PassageKey, None] = {}
        self._by_scope: dict[JsonPath, list[PassageKey]] = {}
        self._paths: dict[_Owner, dict[str, None]] = {}
        self._path_counts: dict[_Owner, int] = {}
        if self._raw is not None:
            self._paths_due[self._raw] = None

    def take(self) -> list[ArgumentEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    # Passages

    def begin(self, part: JsonPath, file: str | None = None) -> PassageKey:
        """A new passage; it is told the paths that are known for it."""
        occurrence = self._counts.get((part, file), 0)
        self._counts[part, file] = occurrence + 1
        key = PassageKey(Source.TOOL, self._call_id, part, file, occurrence=occurrence)
        if file is None and not self._with_paths:
            self._events.append(PathsKnown(key, ()))
            return key
        self._paths_due[key] = None
        if file is None:
            for scope in scopes_of(part):
                self._by_scope.setdefault(scope, []).append(key)
            if paths := self._paths_of(key):
                self._events.append(PassagePath(key, paths))
        return key

    def text(self, key: PassageKey, text: str) -> None:
        if text:
            self._events.append(PassageText(key, text))

    def raw_text(self, text: str) -> None:
        if self._raw is not None:
            self.text(self._raw, text)

    def end(self, key: PassageKey) -> None:
        self._events.append(PassageEnded(key))

    def end_file(self, key: PassageKey) -> None:
        """End a passage whose paths are its own, and so are all known."""
        self._know_paths(key)
        self.end(key)

    def report(self, offset_chars: int, problem: str) -> None:
        self._events.append(ArgumentsMalformed(self._call_id, offset_chars, problem))

    def finish(self) -> None:
        """The call is over: no path will come any more."""
        if self._raw is not None:
            self.end(self._raw)
        for key in list(self._paths_due):
            self._know_paths(key)

    # Paths

    def add_path(self, scope: JsonPath, written: str) -> bool:
        """A path of the arguments; False if there are too many in its scope."""
        count = self._path_counts.get(scope, 0)
        if count == PATHS_LIMIT:
            return False
        self._path_counts[scope] = count + 1
        candidates = path_candidates(written, self._cwd)
        for key in self._by_scope.get(scope, ()):
            self._tell(key, candidates)
        self._paths.setdefault(scope, {}).update(dict.fromkeys(candidates))
        self._add_own_path(self._raw, candidates)
        return True

    def add_file_path(self, key: PassageKey, written: str) -> None:
        """A path of a file of a multi-file payload."""
        self._add_own_path(key, path_candidates(written, self._cwd))

    def name_file(self, written: str) -> None:
        """A payload has named a file, whether or not it adds anything to it."""
        # The undecoded text goes to every path of the call.
        self._add_own_path(self._raw, path_candidates(written, self._cwd))

    def _add_own_path(self, key: PassageKey | None, candidates: Iterable[str]) -> None:
        if key is not None:
            self._tell(key, candidates)
            self._paths.setdefault(key, {}).update(dict.fromkeys(candidates))

    def _tell(self, key: PassageKey, candidates: Iterable[str]) -> None:
        said = [self._paths[owner] for owner in _owners(key) if owner in self._paths]
        new = tuple(path for path in candidates if not any(path in paths for paths in said))
        if new:
            self._events.append(PassagePath(key, new))

    def _paths_of(self, key: PassageKey) -> tuple[str, ...]:
        known = (path for owner in _owners(key) for path in self._paths.get(owner, ()))
        return tuple(dict.fromkeys(known))

    def _know_paths(self, key: PassageKey) -> None:
        del self._paths_due[key]
        self._events.append(PathsKnown(key, self._paths_of(key)))


def _owners(key: PassageKey) -> list[_Owner]:
    """What the paths of a passage can belong to."""
    return [key] if key.file is not None or key.raw else [*scopes_of(key.part)]
