"""What `PartialJson` says while it reads a document. No state, no text of its own.

`path` is always where the value stands: keys and indexes from the root.
"""

import msgspec

from midstream.rules.passage import JsonPath


class StringStarted(msgspec.Struct, frozen=True):
    path: JsonPath


class StringText(msgspec.Struct, frozen=True):
    """More decoded text of the open string value; never empty."""

    path: JsonPath
    text: str


class StringEnded(msgspec.Struct, frozen=True):
    path: JsonPath


class KeySeen(msgspec.Struct, frozen=True):
    """An object's key is complete; `path` is the object's."""

    path: JsonPath
    key: str


class Scalar(msgspec.Struct, frozen=True):
    """A number, `true`, `false` or `null`, as written."""

    path: JsonPath
    text: str


class ContainerStarted(msgspec.Struct, frozen=True):
    path: JsonPath
    is_object: bool


class ContainerEnded(msgspec.Struct, frozen=True):
    path: JsonPath
    is_object: bool


class Malformed(msgspec.Struct, frozen=True):
    """What was wrong at `offset_chars` of the text."""

    offset_chars: int
    problem: str


JsonEvent = (
    StringStarted
    | StringText
    | StringEnded
    | KeySeen
    | Scalar
    | ContainerStarted
    | ContainerEnded
    | Malformed
)
