"""What becomes of a follow-up that came back empty, failed, or whose client has gone.

A good reply is never lost to a bad follow-up: the client gets the last good one and a
notice (spec/stop_message.md 9, G13). Two bad ones in a row end the setting, because the
next stop would run into the same wall. A spent quota is no fault of the follow-up: it ends
the chain at once, costs nothing of N, and the setting stays. Pure; the session carries the
verdict out.
"""

from enum import StrEnum

import msgspec

from midstream.messages.failure import FailureKind, ProviderFailure

ATTEMPTS = 2
"""A follow-up is tried again once."""
EMPTY_FOLLOW_UP = ProviderFailure(
    FailureKind.PROTOCOL,
    "the model's reply and its automatic continuation were both empty",
    status=502,
    code="SERVERTOOL_EMPTY_FOLLOWUP",
)


QUOTA_KINDS = (FailureKind.RATE_LIMITED, FailureKind.OVERLOADED)
"""The provider has no room: trying again at once would only hit it once more."""


class Outcome(StrEnum):
    """How a follow-up ended."""

    REPLIED = "replied"
    EMPTY = "empty"
    FAILED = "failed"
    DISCONNECTED = "disconnected"


class Action(StrEnum):
    """What to do about it."""

    DELIVER = "deliver"
    """Deliver the follow-up's reply; it is the last good one now."""
    RETRY = "retry"
    """Send the same follow-up again, on the same reservation."""
    KEEP_LAST = "keep_last"
    """End the chain with the last good reply."""
    FAIL = "fail"
    """End the turn with `failure`: there is no good reply."""


class FollowUpVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and what it means for the stopMessage state."""

    action: Action
    clears: bool = False
    """Whether the state is cleared."""
    refunds: bool = False
    """Whether the reservation is given back: nothing reached the provider."""
    notice: str | None = None
    failure: ProviderFailure | None = None


def judge_follow_up(
    outcome: Outcome,
    *,
    attempt: int,
    reached_provider: bool,
    has_good_reply: bool,
    failure: ProviderFailure | None = None,
) -> FollowUpVerdict:
    """Judge one attempt (counted from 1) at a follow-up.

    `reached_provider` says whether any attempt of it did. `failure` is needed for `FAILED`.
    """
    if outcome is Outcome.REPLIED:
        return FollowUpVerdict(action=Action.DELIVER)
    if outcome is Outcome.DISCONNECTED:
        return FollowUpVerdict(action=Action.KEEP_LAST, refunds=not reached_provider)
    if failure is not None and failure.kind in QUOTA_KINDS:
        return FollowUpVerdict(
            action=Action.KEEP_LAST if has_good_reply else Action.FAIL,
            refunds=True,
            notice=f"auto-continue ended: {failure.message}",
            failure=failure,
        )
    if attempt < ATTEMPTS:
        return FollowUpVerdict(action=Action.RETRY)
    if outcome is Outcome.EMPTY:
        failure, problem = EMPTY_FOLLOW_UP, "the model had nothing more to say"
    else:
        problem = failure.message if failure else "the follow-up failed"
    return FollowUpVerdict(
        action=Action.KEEP_LAST if has_good_reply else Action.FAIL,
        clears=True,
        refunds=not reached_provider,
        notice=f"auto-continue ended: {problem}",
        failure=None if has_good_reply and outcome is Outcome.EMPTY else failure,
    )
