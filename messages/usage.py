"""What a request consumed, and how well we know it."""

from enum import StrEnum
from typing import TypeVar

import msgspec

N = TypeVar("N", int, float)


class UsageSource(StrEnum):
    """Where the figures come from; never a silent zero (design: what an abort costs)."""

    REPORTED = "reported"
    """The provider said so in a finished stream."""
    ESTIMATED = "estimated"
    """The stream was cut: input as reported, output counted from what was received."""
    UNKNOWN = "unknown"
    """The provider has said nothing."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one or several requests. `None` means that nobody has said."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    source: UsageSource = UsageSource.UNKNOWN
    cost_usd: float | None = None
    """What it has cost, where the provider itself says so."""

    def plus(self, other: "Usage") -> "Usage":
        """The sum of two usages; its source is the less certain of the two."""
        return Usage(
            input_tokens=_add(self.input_tokens, other.input_tokens),
            output_tokens=_add(self.output_tokens, other.output_tokens),
            cache_read_tokens=_add(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens=_add(self.cache_write_tokens, other.cache_write_tokens),
            source=max(self.source, other.source, key=_CERTAINTY.index),
            cost_usd=_add(self.cost_usd, other.cost_usd),
        )


_CERTAINTY = [UsageSource.REPORTED, UsageSource.ESTIMATED, UsageSource.UNKNOWN]


def _add(left: N | None, right: N | None) -> N | None:
    if left is None:
        return right
    return left if right is None else left + right
