"""What a person typed, in typed pieces: text, pastes, references to files.

Clients send segments, `FileRefResolver` resolves the references among them, and `flatten`
makes of them the text that the model reads; a replay of the record calls the same function
(spec/file_ref.md 2.1). Clients that have only a flat text use `parse_flat`, whose one
question to the world, whether a path exists, is a callback. Pure.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, cast

import msgspec

from midstream.messages.errors import MidstreamError

UNKNOWN_PLACEHOLDER = "[unknown input segment]"


class SegmentFormatError(MidstreamError):
    """The segments of an input are not what they have to be; the message names the place."""


class Segment(msgspec.Struct, frozen=True, tag_field="kind"):
    """Base of the pieces of an input."""


class TextSegment(Segment, frozen=True, tag="text"):
    """Typed characters; adjacent ones are one segment."""

    content: str


class PasteSegment(Segment, frozen=True, tag="paste"):
    """A paste that the client shows as a chip; `chars` and `lines` are what the chip says."""

    id: int
    chars: int
    lines: int
    content: str


class FileRefSegment(Segment, frozen=True, tag="file_ref"):
    """A reference to a file, without the `@`."""

    path: str


class UnknownSegment(msgspec.Struct, frozen=True):
    """A piece of a kind that this version does not know; `fields` is the whole object."""

    kind: str
    fields: dict[str, Any]


AnySegment = TextSegment | PasteSegment | FileRefSegment | UnknownSegment


class UnresolvedStyle(StrEnum):
    """What the model reads of a reference that failed (spec/file_ref.md decision 1)."""

    PLACEHOLDER = "placeholder"
    """`[unresolved file ref: <path>]`, so that the model knows."""
    SIGIL = "sigil"
    """`@<path>`, as of one that was resolved."""


_KINDS = {"text": TextSegment, "paste": PasteSegment, "file_ref": FileRefSegment}


def decode_segments(data: bytes | str) -> tuple[AnySegment, ...]:
    """Read a JSON array of segments. Unknown kinds are kept whole, to be sent back whole.

    Raises `SegmentFormatError` for anything else, naming the segment (`$[2].content`).
    """
    try:
        listed = msgspec.json.decode(data, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise SegmentFormatError(f"input segments: {error}") from error
    return tuple(_decode(fields, index) for index, fields in enumerate(listed))


def encode_segments(segments: Sequence[AnySegment]) -> bytes:
    """The JSON array of segments."""
    return msgspec.json.encode(
        [one.fields if isinstance(one, UnknownSegment) else one for one in segments]
    )


def normalise(segments: Iterable[AnySegment]) -> tuple[AnySegment, ...]:
    """Adjacent texts joined, empty ones left out."""
    joined: list[AnySegment] = []
    texts: list[str] = []
    for segment in segments:
        if isinstance(segment, TextSegment):
            texts.append(segment.content)
            continue
        joined.extend(_text("".join(texts)))
        texts = []
        joined.append(segment)
    return (*joined, *_text("".join(texts)))


def flatten(
    segments: Sequence[AnySegment],
    failed: Collection[int] = (),
    unresolved_style: UnresolvedStyle = UnresolvedStyle.PLACEHOLDER,
) -> str:
    """The text that the model reads: the pieces one after the other, nothing in between.

    `failed` are the indexes of the references that could not be attached.
    """
    return "".join(
        _flat(segment, index in failed and unresolved_style is UnresolvedStyle.PLACEHOLDER)
        for index, segment in enumerate(segments)
    )


_REFERENCE = re.compile(
    r"(?:(?<=[\s(\[{<（「『【《])|(?<![\s\S]))@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<bare>\S+))"
)
"""At the start, after white space or after an opening bracket; to the next white space."""
_TRAILING = ".,;:!?)]}。，；：！？）】」』》"
_STRIPPED_AT_MOST = 8
"""How many trailing characters are tried as punctuation; each costs a look at the disk."""


def parse_flat(text: str, exists: Callable[[str], bool]) -> tuple[AnySegment, ...]:
    """Find the file references in a flat text (spec/file_ref.md decision 11).

    `@path` and `@"path with spaces"`. Trailing punctuation belongs to the sentence when
    only the path without it exists. An `@word` that does not exist stays text, unless it
    looks like a path (`/` or `.` in it): then it is a reference, whose failure is reported.
    """
    segments: list[AnySegment] = []
    position = 0
    for match in _REFERENCE.finditer(text):
        path = match["quoted"] or _path_of(match["bare"], exists)
        if path is None:
            continue
        end = match.end() if match["quoted"] else match.start("bare") + len(path)
        segments += [TextSegment(text[position : match.start()]), FileRefSegment(path)]
        position = end
    return normalise([*segments, TextSegment(text[position:])])


def _path_of(token: str, exists: Callable[[str], bool]) -> str | None:
    """The path that a token refers to, or None for a mere mention."""
    path = token
    for _ in range(_STRIPPED_AT_MOST + 1):
        if exists(path):
            return path
        if path[-1] not in _TRAILING or len(path) == 1:
            break
        path = path[:-1]
    word = token.rstrip(_TRAILING)
    return token if "/" in word or "." in word else None


def _decode(fields: dict[str, Any], index: int) -> AnySegment:
    kind = fields.get("kind")
    if not isinstance(kind, str):
        raise SegmentFormatError(f"input segments: `$[{index}].kind` has to be a text")
    if kind not in _KINDS:
        return UnknownSegment(kind, fields)
    try:
        return cast(AnySegment, msgspec.convert(fields, _KINDS[kind]))
    except msgspec.ValidationError as error:
        place = f"$[{index}]"
        raise SegmentFormatError(
            f"input segments: {error}".replace("`$", f"`{place}")
            if "`$" in str(error)
            else f"input segments: {error} - at `{place}`"
        ) from error


def _text(content: str) -> list[TextSegment]:
    return [TextSegment(content)] if content else []


def _flat(segment: AnySegment, as_placeholder: bool) -> str:
    match segment:
        case TextSegment(content) | PasteSegment(content=content):
            return content
        case FileRefSegment(path):
            return f"[unresolved file ref: {path}]" if as_placeholder else f"@{path}"
        case UnknownSegment():
            return UNKNOWN_PLACEHOLDER
