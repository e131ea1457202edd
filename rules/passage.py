"""What a passage is called, and what is said about the passages of a tool call.

A passage is the text that one rule sees as one. `ToolArguments` turns argument fragments
into the events below, the engine (`watch.py`) consumes them and makes keys of its own for
prose and thinking. Keys are values: equal keys name the same passage, and two passages
never share a key, so that text of one can never continue another (spec/ttsr.md B29).
"""

import msgspec

from midstream.rules.rule import Source

JsonPath = tuple[str | int, ...]
"""Where a value stands in a JSON document: keys and indexes from the root."""


class PassageKey(msgspec.Struct, frozen=True, cache_hash=True):
    """The name of one passage within one attempt.

    `part` is the JSON path of the argument string that the text comes from, `()` for
    arguments that are no JSON. `file` is the file of a multi-file payload, as written
    there without a leading `./`. `raw` marks the undecoded argument text that rules with
    `match: json` ask for. `occurrence` counts strings at the same path (a repeated key).
    For prose, `call_id` is empty and `part` is the engine's to choose.
    """

    source: Source
    call_id: str = ""
    part: JsonPath = ()
    file: str | None = None
    raw: bool = False
    occurrence: int = 0


class PassageText(msgspec.Struct, frozen=True):
    """More text of a passage; valid Unicode, never empty."""

    key: PassageKey
    text: str


class PassageEnded(msgspec.Struct, frozen=True):
    """The passage has all its text. A passage without any `PassageText` is empty.

    Paths may still come, until `PathsKnown`.
    """

    key: PassageKey


class PassagePath(msgspec.Struct, frozen=True):
    """Further spellings of paths that this passage goes to, before or after its text.

    `paths` are candidates for globs (spec/ttsr.md 3.4), none of which was said before.
    """

    key: PassageKey
    paths: tuple[str, ...]


class PathsKnown(msgspec.Struct, frozen=True):
    """No further path will come: `paths` are all candidates, empty if there is none.

    Said exactly once for each passage of a call, at the latest when the call ends.
    """

    key: PassageKey
    paths: tuple[str, ...]


class Restarted(msgspec.Struct, frozen=True):
    """The final arguments are others than those that were streamed.

    Every passage of the call is void; what follows is the call from its beginning, under
    the same keys.
    """

    call_id: str


class ArgumentsMalformed(msgspec.Struct, frozen=True):
    """The arguments are not what they should be; the rest is watched all the same.

    `offset_chars` counts from the start of the argument text.
    """

    call_id: str
    offset_chars: int
    problem: str


ArgumentEvent = (
    PassageText | PassageEnded | PassagePath | PathsKnown | Restarted | ArgumentsMalformed
)
