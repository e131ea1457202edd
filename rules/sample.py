"""A text as if a model had written it: as prose, as thinking, or into the call of a tool.

Pure. `example_check.py` and `file_scan.py` try rules on texts that no model has streamed;
this makes the stream messages for them, so that the engine itself is asked and not
something that resembles it. What a tool's arguments look like comes from the same table by
which they are read (`tool_shapes.py`).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.rules.rule import Source
from midstream.rules.tool_arguments import BUILT_IN_TABLE
from midstream.rules.tool_shapes import TextFormat, ToolShape, ToolTable

CALL_ID = "call_1"
"""The call's id in the messages of a sample."""

_UNNAMED_FILE = "file.txt"


class Sample(msgspec.Struct, frozen=True):
    """A text and where the model writes it.

    For `Source.TOOL`, `tool` is the tool's name and `path` the file that the call goes to,
    if any. The text is what the call introduces; with `is_arguments` it is the JSON text
    of the call's arguments instead, and `path` is not used.
    """

    text: str
    source: Source = Source.TEXT
    tool: str | None = None
    path: str | None = None
    is_arguments: bool = False

    @property
    def place(self) -> str:
        """Where it is written, for people: `prose`, `an edit call for src/a.py`."""
        if self.source is not Source.TOOL:
            return "prose" if self.source is Source.TEXT else "thinking"
        article = "an" if (self.tool or "")[:1].lower() in tuple("aeiou") else "a"
        return f"{article} {self.tool} call" + (f" for {self.path}" if self.path else "")


def streamed_text(sample: Sample, table: ToolTable = BUILT_IN_TABLE) -> str:
    """What comes over the wire: the text itself, or the arguments of the call."""
    if sample.source is not Source.TOOL or sample.is_arguments:
        return sample.text
    shape = _shape_of(sample.tool or "", table)
    arguments: dict[str, object] = {}
    if sample.path is not None and (path_key := _path_key(shape)) is not None:
        _put(arguments, path_key, sample.path)
    place, text = "text", sample.text
    if shape is not None and shape.introduced:
        place, text = shape.introduced[0], _wrapped(sample, shape.format)
    _put(arguments, place, text)
    return msgspec.json.encode(arguments).decode()


def stream(
    sample: Sample, cuts: Iterable[int] = (), table: ToolTable = BUILT_IN_TABLE
) -> list[AnyStreamMessage]:
    """The messages of a sample. `cuts` are the places in its streamed text, from 1 on, at
    which a new delta begins; without any the text comes as one delta."""
    text = streamed_text(sample, table)
    bounds = sorted({0, len(text), *(cut for cut in cuts if 0 < cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    match sample.source:
        case Source.TEXT:
            return [*(TextDelta(0, piece) for piece in pieces), BlockFinished(0)]
        case Source.THINKING:
            return [*(ThinkingDelta(0, piece) for piece in pieces), BlockFinished(0)]
        case Source.TOOL:
            name = sample.tool or ""
            return [
                ToolCallStarted(0, CALL_ID, name),
                *(ToolArgumentsDelta(0, piece) for piece in pieces),
                ToolCallFinished(0, CALL_ID, name, text),
            ]


def _shape_of(tool: str, table: ToolTable) -> ToolShape | None:
    """The shape to write by: one that takes the text as it is, if there is any."""
    shapes = table.shapes_of(tool)
    plain = (shape for shape in shapes if shape.format is TextFormat.PLAIN)
    return next(plain, shapes[0] if shapes else None)


def _path_key(shape: ToolShape | None) -> str | None:
    """Where the path goes; None for a tool whose arguments name none."""
    if shape is None or shape.paths is None:
        return "path"
    return shape.paths[0] if shape.paths else None


def _put(arguments: dict[str, object], place: str, value: str) -> None:
    """Write `value` at a place in the notation of `ToolShape`; each `*` becomes a list."""
    first, *rest = place.split(".")
    arguments[first] = _nested(rest, value)


def _nested(steps: Sequence[str], value: object) -> object:
    for step in reversed(steps):
        value = [value] if step == "*" else {step: value}
    return value


def _wrapped(sample: Sample, text_format: TextFormat) -> str:
    """The text in the format in which the tool takes what it introduces."""
    text, path = sample.text, sample.path or _UNNAMED_FILE
    added = "\n".join(f"+{line}" for line in text.split("\n"))
    match text_format:
        case TextFormat.PLAIN | TextFormat.SHELL:
            return text
        case TextFormat.APPLY_PATCH:
            return f"*** Begin Patch\n*** Add File: {path}\n{added}\n*** End Patch"
        case TextFormat.HASHLINE:
            return f"[{path}#0000]\n{added}"
        case TextFormat.UNIFIED_DIFF:
            return f"--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n{added}"
        case TextFormat.SEARCH_REPLACE:
            return f"<<<<<<< SEARCH\n=======\n{text}\n>>>>>>> REPLACE"
