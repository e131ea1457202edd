"""What the engine finds in a stream: matches, and the limits that it ran into."""

from dataclasses import dataclass

from midstream.rules.rule import Rule, Source


@dataclass(frozen=True, slots=True)
class Match:
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


@dataclass(frozen=True, slots=True)
class Suspended:
    """A condition took too long and is not evaluated any more in this session."""

    rules: tuple[str, ...]
    condition: str
    reason: str


@dataclass(frozen=True, slots=True)
class Overflowed:
    """A passage is longer than its cap; conditions that need its text stop there."""

    source: Source
    limit_chars: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """The arguments of a call are not what they should be; the rest is still watched."""

    call_id: str
    problem: str


Finding = Match | Suspended | Overflowed | Malformed
