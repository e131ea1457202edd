"""The stopMessage state of a session: what continues it, how often, and what that has cost.

A state is a value; the functions here make the next one from it. The session's own actor
is the only writer. It keeps the state in the conversation's book
(`stop_message_codec.py`), lets `arming.py` carry out the user's directives, and calls
`reserve` before each automatic send, so that N is never exceeded, also by two requests of
one session at once (architecture.md invariant 7, spec/stop_message.md 3 and 14). Pure: the time
is handed in, in milliseconds.
"""

from enum import StrEnum

import msgspec

from midstream.messages.directive import (
    DEFAULT_MAX_REPEATS,
    StageMode,
)
from midstream.messages.directive_tail import AiMode
from midstream.messages.marker import scan


class BdWorkState(StrEnum):
    """What the project's task list says about the work (`bd_stage.py`)."""

    ACTIVE = "active"
    IDLE = "idle"
    UNKNOWN = "unknown"


class Stage(StrEnum):
    """Which stage's text was sent last (`bd_stage.py`)."""

    STATUS_PROBE = "status_probe"
    ACTIVE_CONTINUE = "active_continue"
    LOOP_SELF_CHECK = "loop_self_check"
    SUMMARY = "summary"


class Source(StrEnum):
    """Where the text came from."""

    EXPLICIT = "explicit"
    EXPLICIT_FILE = "explicit_file"
    DEFAULT = "default"


_JSON_NAMES = {
    "text": "stopMessageText",
    "max_repeats": "stopMessageMaxRepeats",
    "used": "stopMessageUsed",
    "updated_at_ms": "stopMessageUpdatedAt",
    "last_used_at_ms": "stopMessageLastUsedAt",
    "source": "stopMessageSource",
    "stage_mode": "stopMessageStageMode",
    "stage": "stopMessageStage",
    "observation_hash": "stopMessageObservationHash",
    "observation_stable_count": "stopMessageObservationStableCount",
    "bd_work_state": "stopMessageBdWorkState",
    "ai_mode": "stopMessageAiMode",
    "directive_fingerprint": "directiveFingerprint",
}


class StopMessageState(
    msgspec.Struct, frozen=True, kw_only=True, rename=_JSON_NAMES, omit_defaults=True
):
    """What is known of a session's stopMessage. JSON names are the reference's.

    `text` is trimmed; `max_repeats` (N) is at least 1. `updated_at_ms` is the time of the
    last directive and never goes back; alone, it is the tombstone that a clear leaves, so
    that no older copy revives what was cleared. An exhausted state stays to be looked at.
    """

    text: str | None = None
    max_repeats: int | None = None
    used: int = 0
    updated_at_ms: int | None = None
    last_used_at_ms: int | None = None
    source: Source | None = None
    stage_mode: StageMode | None = None
    stage: Stage | None = None
    observation_hash: str | None = None
    observation_stable_count: int = 0
    bd_work_state: BdWorkState | None = None
    ai_mode: AiMode | None = None
    directive_fingerprint: str | None = None
    """Of the directive applied last; ours (decision 1)."""

    @property
    def is_armed(self) -> bool:
        """Whether there is something to send and a number of times to send it."""
        has_stages = self.stage_mode in (StageMode.ON, StageMode.AUTO)
        return bool(self.max_repeats) and (bool(self.text) or has_stages)

    @property
    def remaining(self) -> int:
        """How many automatic sends are left; 0 when nothing is armed."""
        return max(0, (self.max_repeats or 0) - self.used) if self.is_armed else 0

    @property
    def is_active(self) -> bool:
        """Whether the next natural stop may be continued."""
        return self.remaining > 0 and self.stage_mode is not StageMode.OFF


class Reservation(msgspec.Struct, frozen=True):
    """One automatic send that was counted before it happened; `number` counts from 1."""

    number: int
    armed_at_ms: int | None
    sent_at_ms: int
    last_used_at_ms: int | None


def set_text(
    state: StopMessageState,
    text: str,
    max_repeats: int,
    *,
    now_ms: int,
    source: Source = Source.EXPLICIT,
    ai_mode: AiMode | None = None,
) -> StopMessageState:
    """Arm with a text; an empty one, or N < 1, changes nothing. The count begins anew.

    The text will be sent as the user's, so that it is without markers as well. The mode
    stays unless it was `off`: who sets a text wants it sent.
    """
    stripped = without_surrogates(scan(text).text.strip())
    if not stripped or max_repeats < 1:
        return state
    return StopMessageState(
        text=stripped,
        max_repeats=max_repeats,
        updated_at_ms=_tick(state, now_ms),
        source=source,
        stage_mode=None if state.stage_mode is StageMode.OFF else state.stage_mode,
        ai_mode=ai_mode or state.ai_mode,
        directive_fingerprint=state.directive_fingerprint,
    )


def set_mode(
    state: StopMessageState,
    mode: StageMode,
    max_repeats: int | None = None,
    *,
    now_ms: int,
    ai_mode: AiMode | None = None,
) -> StopMessageState:
    """Change the mode and keep the text. `on` and `auto` re-arm: N (default 10), used 0."""
    if mode is StageMode.OFF:
        return msgspec.structs.replace(
            state,
            stage_mode=mode,
            max_repeats=max_repeats or state.max_repeats,
            ai_mode=ai_mode or state.ai_mode,
            updated_at_ms=_tick(state, now_ms),
        )
    return StopMessageState(
        text=state.text,
        max_repeats=max_repeats or DEFAULT_MAX_REPEATS,
        updated_at_ms=_tick(state, now_ms),
        source=state.source,
        stage_mode=mode,
        ai_mode=ai_mode or state.ai_mode,
        directive_fingerprint=state.directive_fingerprint,
    )


def clear(state: StopMessageState, *, now_ms: int) -> StopMessageState:
    """Forget everything but the time of the clear and which directive came last."""
    return StopMessageState(
        updated_at_ms=_tick(state, now_ms), directive_fingerprint=state.directive_fingerprint
    )


def reserve(state: StopMessageState, *, now_ms: int) -> tuple[StopMessageState, Reservation] | None:
    """Count one automatic send before it happens; None when none is left (decision 8)."""
    if not state.is_active:
        return None
    after = msgspec.structs.replace(state, used=state.used + 1, last_used_at_ms=now_ms)
    return after, Reservation(after.used, state.updated_at_ms, now_ms, state.last_used_at_ms)


def refund(state: StopMessageState, reservation: Reservation) -> StopMessageState:
    """Take a reservation back: nothing of it has reached the provider.

    Of a state that was set or cleared since there is nothing to take back.
    """
    if state.updated_at_ms != reservation.armed_at_ms or state.used == 0:
        return state
    is_latest = state.last_used_at_ms == reservation.sent_at_ms
    return msgspec.structs.replace(
        state,
        used=state.used - 1,
        last_used_at_ms=reservation.last_used_at_ms if is_latest else state.last_used_at_ms,
    )


def without_surrogates(text: str) -> str:
    """A lone surrogate can be neither stored nor sent (spec/lessons.md 40)."""
    return text.encode("utf-8", "replace").decode()


def _tick(state: StopMessageState, now_ms: int) -> int:
    """A clock that was set back must not make a newer state look older (decision 18)."""
    return now_ms if state.updated_at_ms is None else max(now_ms, state.updated_at_ms + 1)
