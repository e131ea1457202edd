"""What happened in an explored run, message by message, for people.

A line is one message that an actor took, one event that a client heard, one request, or one
fault: when, who, what. Lines are in the order in which things happened; the same run gives
the same lines.
"""

import re

import msgspec

MOST_CHARS = 160
"""Of one message; the rest is left out."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Line(msgspec.Struct, frozen=True):
    """One thing that happened, at `at_s` seconds of the run."""

    at_s: float
    who: str
    said: object

    @property
    def what(self) -> str:
        return self.said if isinstance(self.said, str) else shown(self.said)

    def __str__(self) -> str:
        return f"{self.at_s:10.4f} s  {self.who:<18} {self.what}"


class Trace:
    """The lines of one run."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.began_at = 0.0

    def note(self, now: float, who: str, what: object) -> None:
        """Append a line; `who` is an actor's path, or anybody else's name."""
        # Made readable when somebody reads it, which is seldom.
        self.lines.append(Line(now - self.began_at, short_name(who), what))

    def text(self, last: int | None = None) -> str:
        """All lines, or the `last` ones."""
        lines = self.lines if last is None else self.lines[-last:]
        left_out = len(self.lines) - len(lines)
        head = [f"  ... {left_out} lines before"] if left_out else []
        return "\n".join([*head, *map(str, lines)])


def shown(message: object) -> str:
    """A message on one line."""
    said = repr(message)
    if isinstance(message, msgspec.Struct):
        said = _ADDRESS.sub("", said)
    said = said.replace("\n", "\\n")
    return said if len(said) <= MOST_CHARS else said[: MOST_CHARS - 1] + "…"


def short_name(who: str) -> str:
    """The last two places of a path, with the session's name cut to its last digits."""
    places = who.split("/")[-2:]
    return "/".join(place[-4:] if place.startswith("ses-") else place for place in places)


def session_of(who: str) -> str:
    """The session in whose tree the actor at the path `who` lives."""
    return who.split("/")[-2]
