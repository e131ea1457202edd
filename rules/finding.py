"""What the engine finds in a stream: matches, and the limits that it ran into."""

import msgspec

from midstream.rules.rule import Rule, Source


class Match(msgspec.Struct, frozen=True):
    """A rule has matched for good in one passage; said once for each passage.

    `offset_chars` and the end are places in the passage, None where finding them would
    have taken too long. `path` is the path of the file concerned as the call wrote it.
    """

    rule: Rule
    condition: str
    source: Source
    tool: str | None = None
    call_id: str | None = None
    path: str | None = None
    offset_chars: int | None = None
    excerpt: str = ""


class Suspended(msgspec.Struct, frozen=True):
    """A condition took too long and is not evaluated any more in this session."""

    rules: tuple[str, ...]
    condition: str
    reason: str


class Overflowed(msgspec.Struct, frozen=True):
    """A passage is longer than its cap; conditions that need its text stop there."""

    source: Source
    limit_chars: int


class Malformed(msgspec.Struct, frozen=True):
    """The arguments of a call are not what they should be; the rest is still watched."""

    call_id: str
    problem: str


Finding = Match | Suspended | Overflowed | Malformed
