"""Shall this reply be continued by itself? The decision, and the record of why.

The session asks after each finished reply, the gateway for each request;
`decide_continuation` answers from what they know and never does anything. A `Continue`
carries the state in which the send is already counted, so that deciding and counting are
one step: whoever keeps that state before sending cannot exceed N (architecture.md invariant 7,
spec/stop_message.md 6 and 14). What becomes of the follow-up is `follow_up_outcome.py`.
"""

from enum import StrEnum

import msgspec

from midstream.messages.directive import StageMode
from midstream.messages.loop_guard import REPETITION_WARNING, Chain, GuardLimits
from midstream.messages.stop_message import Reservation, StopMessageState, reserve


class WhyNot(StrEnum):
    """Why a reply is not continued, in the order in which the reasons are looked for."""

    INTERNAL_REQUEST = "internal_request"
    """The reply answers a request that midstream sent for another purpose."""
    NO_REENTRY = "no_reentry"
    """Whoever asks has no way to send a follow-up."""
    COMPACTION = "compaction"
    ASIDE = "aside"
    """The request is none of the conversation's turns, such as one for a title."""
    DISCONNECTED = "disconnected"
    INTERRUPTED = "interrupted"
    """The user has stopped the session since the prompt (architecture.md invariant 3)."""
    MODE_OFF = "mode_off"
    NO_STATE = "no_state"
    SUPERSEDED = "superseded"
    """Set anew while the chain ran; the new setting begins with the next request."""
    EXHAUSTED = "exhausted"
    NOT_A_NATURAL_STOP = "not_a_natural_stop"
    NO_CAPTURED_REQUEST = "no_captured_request"
    STAGES_OVER = "stages_over"
    """The work is done, or does not move although the model was told (`bd_stage.py`)."""
    NOTHING_TO_SEND = "nothing_to_send"
    """No text, or no model to send it to."""
    SINGLE_HOP = "single_hop"
    REPEATING = "repeating"
    OVERDUE = "overdue"
    BUDGET_SPENT = "budget_spent"

    @property
    def is_cap(self) -> bool:
        """Whether the turn is to be reported as `capped`: a limit ended it that the user
        did not set (architecture.md invariant 7)."""
        return self in (WhyNot.REPEATING, WhyNot.OVERDUE, WhyNot.BUDGET_SPENT)


_NOTICES = {
    WhyNot.REPEATING: "auto-continue ended: the replies repeat themselves",
    WhyNot.OVERDUE: "auto-continue ended: it has taken too long",
    WhyNot.BUDGET_SPENT: "auto-continue ended: the budget of this prompt is spent",
}


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """All that the decision depends on, after one finished reply.

    `text` is what a stage chose to say (`bd_stage.py`), None for the text of the state.
    `round_hash` identifies the round that has just ended, `now_s` is the runtime's clock.
    """

    state: StopMessageState | None
    is_natural_stop: bool
    now_s: float
    round_hash: str
    chain: Chain = Chain()
    text: str | None = None
    is_internal: bool = False
    can_reenter: bool = True
    is_compaction: bool = False
    is_aside: bool = False
    is_connected: bool = True
    is_interrupted: bool = False
    has_captured_request: bool = True
    has_model: bool = True
    are_stages_over: bool = False
    single_hop: bool = False
    is_budget_spent: bool = False


class ComparisonRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of the event log for each decision (spec/stop_message.md 6).

    The figures are those before the send is counted. `reason` is a `WhyNot`, or empty.
    """

    armed: bool
    mode: StageMode | None
    used: int
    max_repeats: int
    remaining: int
    active: bool
    stop_eligible: bool
    has_captured_request: bool
    compaction_request: bool
    has_seed: bool
    decision: str
    reason: str
    hops: int


class Continue(msgspec.Struct, frozen=True, kw_only=True):
    """Send `text` as the user. Keep `state` first; give `reservation` to `refund` if
    nothing reached the provider. `warning` is one system message that goes along."""

    text: str
    warning: str | None
    state: StopMessageState
    reservation: Reservation
    chain: Chain
    record: ComparisonRecord


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Leave it at the last reply. `notice` is for people and set when a guard decided."""

    reason: WhyNot
    notice: str | None
    record: ComparisonRecord


def decide_continuation(
    situation: Situation, *, now_ms: int, limits: GuardLimits | None = None
) -> Continue | Stop:
    """Decide whether a reply is continued, and count the send if it is."""
    chain = situation.chain.after_round(situation.round_hash)
    limits = limits or GuardLimits()
    text = _text_to_send(situation)
    reason = _reason_against(situation, chain, text, limits)
    state = situation.state
    reserved = reserve(state, now_ms=now_ms) if state and reason is None else None
    if reserved is None or state is None:
        reason = reason or WhyNot.EXHAUSTED
        return Stop(
            reason=reason,
            notice=_NOTICES.get(reason),
            record=_record(situation, text, reason),
        )
    counted, reservation = reserved
    return Continue(
        text=text,
        warning=REPETITION_WARNING if chain.wants_warning(limits) else None,
        state=counted,
        reservation=reservation,
        chain=chain.after_trigger(now_s=situation.now_s, armed_at_ms=state.updated_at_ms),
        record=_record(situation, text, None),
    )


def _text_to_send(situation: Situation) -> str:
    if situation.text is not None:
        return situation.text
    return (situation.state.text if situation.state else None) or ""


def _reason_against(
    situation: Situation, chain: Chain, text: str, limits: GuardLimits
) -> WhyNot | None:
    state = situation.state or StopMessageState()
    rearmed = chain.hops > 0 and state.updated_at_ms != chain.armed_at_ms
    obstacles = (
        (situation.is_internal, WhyNot.INTERNAL_REQUEST),
        (not situation.can_reenter, WhyNot.NO_REENTRY),
        (situation.is_compaction, WhyNot.COMPACTION),
        (situation.is_aside, WhyNot.ASIDE),
        (not situation.is_connected, WhyNot.DISCONNECTED),
        (situation.is_interrupted, WhyNot.INTERRUPTED),
        (state.stage_mode is StageMode.OFF, WhyNot.MODE_OFF),
        (not state.is_armed, WhyNot.NO_STATE),
        (rearmed, WhyNot.SUPERSEDED),
        (not state.is_active, WhyNot.EXHAUSTED),
        (not situation.is_natural_stop, WhyNot.NOT_A_NATURAL_STOP),
        (not situation.has_captured_request, WhyNot.NO_CAPTURED_REQUEST),
        (situation.are_stages_over, WhyNot.STAGES_OVER),
        (not _has_seed(situation, text), WhyNot.NOTHING_TO_SEND),
        (situation.single_hop and chain.hops > 0, WhyNot.SINGLE_HOP),
        (chain.is_repeating(limits), WhyNot.REPEATING),
        (chain.is_overdue(limits, now_s=situation.now_s), WhyNot.OVERDUE),
        (situation.is_budget_spent, WhyNot.BUDGET_SPENT),
    )
    return next((reason for stands, reason in obstacles if stands), None)


def _has_seed(situation: Situation, text: str) -> bool:
    return situation.has_model and bool(text.strip())


def _record(situation: Situation, text: str, reason: WhyNot | None) -> ComparisonRecord:
    state = situation.state or StopMessageState()
    return ComparisonRecord(
        armed=state.is_armed,
        mode=state.stage_mode,
        used=state.used,
        max_repeats=state.max_repeats or 0,
        remaining=state.remaining,
        active=state.is_active,
        stop_eligible=situation.is_natural_stop,
        has_captured_request=situation.has_captured_request,
        compaction_request=situation.is_compaction,
        has_seed=_has_seed(situation, text),
        decision="stop" if reason else "continue",
        reason=reason or "",
        hops=situation.chain.hops,
    )
