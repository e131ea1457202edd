"""Whole tool calls for the tests of `ToolArguments`, and what they said."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from midstream.rules.passage import (
    ArgumentEvent,
    ArgumentsMalformed,
    JsonPath,
    PassageEnded,
    PassageKey,
    PassagePath,
    PassageText,
    PathsKnown,
    Restarted,
)
from midstream.rules.tool_arguments import BUILT_IN_TABLE, ToolArguments
from midstream.rules.tool_shapes import ToolTable

CWD = "/home/dev/app"


@dataclass
class Seen:
    """What one call said, checked for order as it comes."""

    text: dict[PassageKey, str] = field(default_factory=dict[PassageKey, str])
    ended: set[PassageKey] = field(default_factory=set[PassageKey])
    paths: dict[PassageKey, tuple[str, ...]] = field(
        default_factory=dict[PassageKey, tuple[str, ...]]
    )
    known: set[PassageKey] = field(default_factory=set[PassageKey])
    reports: list[str] = field(default_factory=list[str])
    restarts: int = 0

    def take(self, events: Iterable[ArgumentEvent]) -> None:
        for event in events:
            match event:
                case PassageText(key, text):
                    assert text
                    assert key not in self.ended
                    self.text[key] = self.text.get(key, "") + text
                case PassageEnded(key):
                    assert key not in self.ended
                    self.text.setdefault(key, "")
                    self.ended.add(key)
                case PassagePath(key, paths):
                    assert key not in self.known
                    assert not set(paths) & set(self.paths.get(key, ()))
                    self.paths[key] = self.paths.get(key, ()) + paths
                case PathsKnown(key, paths):
                    assert key not in self.known
                    assert sorted(paths) == sorted(self.paths.get(key, ()))
                    self.known.add(key)
                    self.paths[key] = paths
                case Restarted():
                    self.__init__(reports=self.reports, restarts=self.restarts + 1)
                case ArgumentsMalformed(_, _, problem):
                    self.reports.append(problem)

    def by_part(self) -> dict[JsonPath | tuple[JsonPath, str], str]:
        """Text by JSON path, or by path and file; the undecoded passage left out."""
        return {
            key.part if key.file is None else (key.part, key.file): text
            for key, text in self.text.items()
            if not key.raw
        }

    def by_file(self) -> dict[str | None, str]:
        return {key.file: text for key, text in self.text.items() if not key.raw}

    def paths_of(self, *part: str | int, file: str | None = None) -> tuple[str, ...]:
        (paths,) = (
            paths
            for key, paths in self.paths.items()
            if key.part == part and key.file == file and not key.raw
        )
        return paths


def call(
    tool: str,
    *fragments: str,
    final: str | None = None,
    table: ToolTable = BUILT_IN_TABLE,
    raw: bool = False,
) -> Seen:
    """A whole call, as streamed."""
    seen = Seen()
    arguments = ToolArguments("call_1", tool, table, CWD, raw=raw)
    for fragment in fragments:
        seen.take(arguments.feed(fragment))
    seen.take(arguments.finish(final))
    assert seen.ended == set(seen.text)
    assert seen.known == seen.ended
    return seen


def at_any_cut(
    tool: str, arguments: str | dict[str, Any], table: ToolTable = BUILT_IN_TABLE
) -> Seen:
    """A call that has to say the same whole, in single characters and in threes."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    whole = call(tool, text, table=table)
    assert call(tool, *text, table=table) == whole
    assert call(tool, *(text[at : at + 3] for at in range(0, len(text), 3)), table=table) == whole
    return whole


def texts(events: Iterable[ArgumentEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, PassageText)]


PATCH = """\
*** Begin Patch
*** Update File: README.md
@@ usage
 const x: any = 1
-old: any
+The type is `: any`.
*** Update File: src/main.ts
@@
 context: any
-removed: any
+const n: number = 1;
+
+const m = 2;
*** Add File: src/new.ts
+export {};
*** Delete File: gone.ts
*** Update File: README.md
@@
+Second.
*** End Patch
"""
PATCH_FILES = {
    "README.md": "The type is `: any`.\nSecond.",
    "src/main.ts": "const n: number = 1;\n\nconst m = 2;",
    "src/new.ts": "export {};",
}
