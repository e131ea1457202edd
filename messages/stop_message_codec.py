"""Reading, writing, merging and showing a stopMessage state.

The conversation's book keeps `{"version": 1, "state": {...}}`, the reference's own shape,
so that its files read here. `decode_state` takes what a crash, an older version or another
program left behind and keeps what can be trusted (spec/stop_message.md 3, 3.1): it never
fails, and what it repaired is to be written again.
"""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar, cast

import msgspec

from midstream.messages.directive import DEFAULT_MAX_REPEATS, StageMode
from midstream.messages.directive_tail import AiMode
from midstream.messages.stop_message import (
    BdWorkState,
    Source,
    Stage,
    StopMessageState,
    without_surrogates,
)

Member = TypeVar("Member", bound=StrEnum)

STATE_NAME = "stopMessage"
"""Under which name a conversation's book keeps the state."""
VERSION = 1
REPAIR_LIMIT_BYTES = 256 * 1024
"""Larger garbage is not searched for a state (spec/stop_message.md 3.1)."""
_LARGEST_INTEGER = 2**53
"""Beyond this JSON numbers are not exact everywhere; no count or time is as large."""


class DecodedState(msgspec.Struct, frozen=True):
    """What was read. `repaired` says that the stored bytes differ from `state`."""

    state: StopMessageState | None
    repaired: bool = False


def stored_state(state: StopMessageState) -> dict[str, object]:
    """A state in its envelope, as the store takes it."""
    return {"version": VERSION, "state": state}


def encode_state(state: StopMessageState | None) -> bytes:
    """The stored form; `null` for no state."""
    return msgspec.json.encode(stored_state(state) if state else None)


def decode_state(data: bytes | str) -> DecodedState:
    """Read a stored state, whatever shape it is in.

    Trailing garbage after the JSON is cut, numbers are floored, values of no sense are
    dropped, and a mode without N gets the default N.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        value, is_whole = json.loads(text), True
    except (ValueError, RecursionError):
        value, is_whole = _leading_object(text), False
    if value is None:
        return DecodedState(None, repaired=not is_whole)
    state = heal(_inner(value))
    stored = _comparable(_inner(value))
    return DecodedState(state, repaired=not is_whole or stored != _comparable(_plain(state)))


def heal(fields: object) -> StopMessageState | None:
    """A state from JSON fields of unknown quality; None if it is no object at all."""
    if not isinstance(fields, dict):
        return None
    read = cast(Mapping[str, Any], fields).get
    mode = _member(StageMode, read("stopMessageStageMode"))
    max_repeats = _whole(read("stopMessageMaxRepeats"), least=1)
    if max_repeats is None and mode in (StageMode.ON, StageMode.AUTO):
        max_repeats = DEFAULT_MAX_REPEATS
    return StopMessageState(
        text=_words(read("stopMessageText")),
        max_repeats=max_repeats,
        used=_whole(read("stopMessageUsed")) or 0,
        updated_at_ms=_whole(read("stopMessageUpdatedAt")),
        last_used_at_ms=_whole(read("stopMessageLastUsedAt")),
        source=_member(Source, read("stopMessageSource")),
        stage_mode=mode,
        stage=_member(Stage, read("stopMessageStage")),
        observation_hash=_words(read("stopMessageObservationHash")),
        observation_stable_count=_whole(read("stopMessageObservationStableCount")) or 0,
        bd_work_state=_member(BdWorkState, read("stopMessageBdWorkState")),
        ai_mode=_member(AiMode, read("stopMessageAiMode")),
        directive_fingerprint=_words(read("directiveFingerprint")),
    )


def merge(left: StopMessageState, right: StopMessageState) -> StopMessageState:
    """The newer of two copies of one session's state, whichever comes first.

    Copies of one arming may have counted differently; the larger count is adopted. Of two
    different states of one instant the clear wins, then the left one.
    """
    left_at, right_at = left.updated_at_ms or 0, right.updated_at_ms or 0
    if left_at != right_at:
        return left if left_at > right_at else right
    if _configuration(left) == _configuration(right):
        ahead = left if left.used >= right.used else right
        last_used = max(left.last_used_at_ms or 0, right.last_used_at_ms or 0)
        return msgspec.structs.replace(ahead, last_used_at_ms=last_used or None)
    return right if left.is_armed and not right.is_armed else left


def snapshot(state: StopMessageState | None) -> dict[str, Any] | None:
    """What an operator sees: the state as camelCase JSON, None for none or a cleared one.

    A mode without a text shows, and so does an exhausted state (#95, G14).
    """
    if state is None or not (state.text or state.stage_mode):
        return None
    return _plain(state)


def _leading_object(text: str) -> object:
    """The JSON object that `text` begins with, if what follows it is garbage."""
    if len(text) > REPAIR_LIMIT_BYTES:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip("\ufeff \t\r\n"))
    except (ValueError, RecursionError):
        return None
    return cast(object, value) if isinstance(value, dict) else None


def _inner(value: object) -> object:
    """The state within its envelope; older copies have none."""
    if isinstance(value, dict) and "state" in value:
        return cast(Mapping[str, object], value)["state"]
    return cast(object, value)


def _plain(state: StopMessageState | None) -> Any:
    return msgspec.to_builtins(state)


def _comparable(fields: object) -> object:
    """Fields with the defaults filled in: a stored `used: 0` is no repair."""
    if not isinstance(fields, dict):
        return fields
    zeros = {"stopMessageUsed": 0, "stopMessageObservationStableCount": 0}
    return {**zeros, **cast(dict[str, Any], fields)}


def _configuration(state: StopMessageState) -> tuple[object, ...]:
    return (state.text, state.max_repeats, state.stage_mode, state.ai_mode)


def _words(value: object) -> str | None:
    return without_surrogates(value.strip()) or None if isinstance(value, str) else None


def _whole(value: object, *, least: int = 0) -> int | None:
    """`value` floored, if it is a number that a count or a time can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not least <= value <= _LARGEST_INTEGER:
        return None
    return int(value)


def _member(kind: Callable[[str], Member], value: object) -> Member | None:
    try:
        return kind(value) if isinstance(value, str) else None
    except ValueError:
        return None
