"""A chain of automatic continuations, and when it goes nowhere.

The chain belongs to one user prompt and to the session that runs it; `continuation.py`
moves it on. Guards: rounds that repeat themselves, and elapsed time
(spec/stop_message.md 9, decision 7). They are a safety net beside N and can be set apart.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import msgspec

WARN_AFTER_IDENTICAL = 5
STOP_AFTER_IDENTICAL = 10
STOP_AFTER_S = 900.0
FOLLOW_UP_TIMEOUT_S = 500.0
"""How long one follow-up may take (spec/stop_message.md 9)."""

REPETITION_WARNING = (
    "The last replies were identical. Do not repeat yourself: take a different step, "
    "or say plainly that the work is done or what blocks it."
)

_VOLATILE_KEYS = frozenset(
    {
        *("id", "created", "created_at", "timestamp", "request_id", "requestId", "trace_id"),
        *("response_id", "system_fingerprint", "usage", "call_id", "tool_call_id"),
        *("tool_use_id", "signature", "encrypted_content"),
    }
)
"""The reference's list, and what also differs between equal replies: token counts, call
ids, and what a provider signs or encrypts anew."""


class GuardLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Where the guards act; None switches one off."""

    warn_after_identical: int | None = WARN_AFTER_IDENTICAL
    stop_after_identical: int | None = STOP_AFTER_IDENTICAL
    stop_after_s: float | None = STOP_AFTER_S


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The continuations of one user prompt so far.

    `started_s` is when the first was decided (the runtime's clock, in seconds) and
    `armed_at_ms` which setting it follows; `identical` counts equal rounds in a row, the
    last one included.
    """

    hops: int = 0
    started_s: float | None = None
    armed_at_ms: int | None = None
    round_hash: str | None = None
    identical: int = 0

    def after_round(self, round_hash: str) -> "Chain":
        """The chain after one more finished round."""
        identical = self.identical + 1 if round_hash == self.round_hash else 1
        return msgspec.structs.replace(self, round_hash=round_hash, identical=identical)

    def after_trigger(self, *, now_s: float, armed_at_ms: int | None) -> "Chain":
        """The chain after one more continuation was decided."""
        return msgspec.structs.replace(
            self,
            hops=self.hops + 1,
            started_s=now_s if self.started_s is None else self.started_s,
            armed_at_ms=armed_at_ms,
        )

    def is_repeating(self, limits: GuardLimits) -> bool:
        """Whether too many rounds in a row were equal."""
        limit = limits.stop_after_identical
        return limit is not None and self.identical >= limit

    def is_overdue(self, limits: GuardLimits, *, now_s: float) -> bool:
        """Whether the chain has taken too long since its first continuation."""
        if limits.stop_after_s is None or self.started_s is None:
            return False
        return now_s - self.started_s >= limits.stop_after_s

    def wants_warning(self, limits: GuardLimits) -> bool:
        """Whether the next follow-up is to carry the warning: once in a row of equals."""
        return self.identical == limits.warn_after_identical


def round_hash(request: object, reply: object) -> str:
    """What a round is recognised by: what was asked and what was said, without what is
    different every time.

    Takes JSON values and msgspec structs. In a chain the conversation grows with every
    hop, so that `request` is what the round added to it: the text that was sent.
    """
    rounds = _settled(msgspec.to_builtins([request, reply]))
    return hashlib.sha256(msgspec.json.encode(rounds, order="sorted")).hexdigest()


def _settled(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {key: _settled(inner) for key, inner in fields.items() if key not in _VOLATILE_KEYS}
    if isinstance(value, list | tuple):
        return [_settled(inner) for inner in cast(Sequence[Any], value)]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
