"""Auto-continue within a turn: what it remembers, and what follows from each reply.

`Turn` owns one `Continuing` and asks here after each reply that the model has finished by
itself, after each follow-up that went wrong, and at its end. Every function is pure and
answers with the `Continuing` that is true from then on. The order of things is
reserve, persist, send or refund (spec/stop_message.md 14, decision 8): a follow-up is
counted in the state that goes on record together with its text, before its stream is asked
for; if nothing of it has reached the provider, the last write of the session gives it back.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from midstream.actors.turn_phases import Conclusion, FinishedReply, reply_text, status_of
from midstream.actors.turn_settings import ContinuationSettings
from midstream.messages.bd_stage import (
    TEMPLATE_PATHS,
    StageChoice,
    StageTemplatesMissing,
    choose_stage,
    observation_hash,
)
from midstream.messages.blocked_report import extract_blocked_report
from midstream.messages.compaction import is_compaction
from midstream.messages.continuation import (
    Continue,
    Situation,
    Stop,
    WhyNot,
    decide_continuation,
)
from midstream.messages.conversation import (
    AnyItem,
    ModelRequest,
    SystemItem,
    UserItem,
)
from midstream.messages.directive import StageMode
from midstream.messages.events import AnyEvent, ContinuationDecided, WorkBlocked
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.follow_up_outcome import (
    QUOTA_KINDS,
    Action,
    FollowUpVerdict,
    Outcome,
    judge_follow_up,
)
from midstream.messages.loop_guard import Chain, round_hash
from midstream.messages.record import SessionStatus
from midstream.messages.stop_message import (
    BdWorkState,
    Reservation,
    Stage,
    StopMessageState,
    clear,
    refund,
)
from midstream.messages.stream import AnyStreamMessage, StopReason, StreamFailed

PERHAPS_HEARD = frozenset({FailureKind.TIMEOUT, FailureKind.PROTOCOL})
"""What says that a request has reached the provider, or may have: one that ran into a deadline
may still be answered, and one whose answer makes no sense was answered."""
WARNING_KIND = "auto_continue"
"""The `kind` of the system item that warns the model of repeating itself."""


class FollowUp(msgspec.Struct, frozen=True):
    """One follow-up, from its reservation to its reply.

    `tries` counts its own attempts; retries for a rule or after a crash are part of one.
    `reached` says that something of it has reached the provider, `asking` that a stream
    was asked for of which nothing is known yet.
    """

    reservation: Reservation
    tries: int = 1
    reached: bool = False
    asking: bool = False

    @property
    def may_have_reached(self) -> bool:
        return self.reached or self.asking


class Continuing(msgspec.Struct, frozen=True):
    """What a turn knows of its automatic continuations.

    `state` is that of the conversation, `templates` are the texts of the stages, if there
    are any; `follow_up` is the one whose reply is awaited.
    """

    state: StopMessageState | None = None
    templates: Mapping[Stage, str] = msgspec.field(default_factory=dict[Stage, str])
    is_compaction: bool = False
    is_aside: bool = False
    is_connected: bool = True
    chain: Chain = msgspec.field(default_factory=Chain)
    follow_up: FollowUp | None = None
    has_good_reply: bool = False

    @property
    def is_chained(self) -> bool:
        """Whether this is no longer the answer to the user's own prompt."""
        return self.chain.hops > 0

    @property
    def needs_work_state(self) -> bool:
        """Whether stages are going to choose the text, so that the task list is asked first."""
        state = self.state
        if state is None or not (state.is_active and self.is_connected):
            return False
        return state.stage_mode in (StageMode.ON, StageMode.AUTO) and all(
            self.templates.get(stage) for stage in TEMPLATE_PATHS
        )

    @property
    def may_continue(self) -> bool:
        """Whether a natural stop could be continued, as far as is known before it."""
        is_active = self.state is not None and self.state.is_active
        return is_active and not (self.is_compaction or self.is_aside)

    @property
    def last_state(self) -> StopMessageState | None:
        """The state to keep when the turn ends now."""
        if self.state is None or self.follow_up is None or self.follow_up.may_have_reached:
            return self.state
        return refund(self.state, self.follow_up.reservation)

    def asked(self) -> "Continuing":
        """An attempt is being started; if a follow-up is awaited, it is one of it."""
        if self.follow_up is None:
            return self
        follow_up = self.follow_up
        return replace(
            self, follow_up=replace(follow_up, reached=follow_up.may_have_reached, asking=True)
        )

    def unasked(self) -> "Continuing":
        """The attempt that was being started has not gone out, and will not."""
        if self.follow_up is None:
            return self
        return replace(self, follow_up=replace(self.follow_up, asking=False))

    def reached(self) -> "Continuing":
        """The provider has begun to answer the follow-up that is awaited, if one is."""
        if self.follow_up is None:
            return self
        return replace(self, follow_up=replace(self.follow_up, reached=True))

    def heard(self, messages: Iterable[AnyStreamMessage]) -> "Continuing":
        """These came; anything but a refusal says that the provider has begun to answer."""
        if self.follow_up is None or self.follow_up.reached:
            return self
        if all(isinstance(message, StreamFailed) for message in messages):
            return self
        return self.reached()


def continue_or_stop(
    continuing: Continuing,
    settings: ContinuationSettings,
    reply: FinishedReply,
    *,
    work: BdWorkState = BdWorkState.UNKNOWN,
    is_budget_spent: bool = False,
) -> tuple[Continuing, Continue | Stop]:
    """Decide what follows a finished reply. A `Continue` is counted already."""
    good = replace(
        continuing,
        follow_up=None,
        has_good_reply=continuing.has_good_reply or not reply.is_empty,
    )
    choice = _stage(continuing, reply, work)
    situation = Situation(
        state=choice.state if choice else continuing.state,
        is_natural_stop=reply.is_natural_stop,
        now_s=reply.now_s,
        round_hash=_round(reply),
        chain=continuing.chain,
        text=(choice.text or "") if choice else None,
        can_reenter=settings.is_allowed,
        is_compaction=continuing.is_compaction,
        is_aside=continuing.is_aside,
        is_connected=continuing.is_connected,
        are_stages_over=choice is not None and choice.text is None,
        single_hop=settings.single_hop,
        is_budget_spent=is_budget_spent,
    )
    decision = decide_continuation(situation, now_ms=reply.now_ms, limits=settings.limits)
    if isinstance(decision, Stop):
        # A stage that was not sent was not reached, unless it is that there is none left.
        is_over = decision.reason is WhyNot.STAGES_OVER
        return (replace(good, state=situation.state) if is_over else good), decision
    follow_up = FollowUp(decision.reservation)
    counted = replace(good, state=decision.state, chain=decision.chain, follow_up=follow_up)
    return counted, decision


def said_on_behalf(decision: Continue) -> tuple[AnyItem, ...]:
    """What a continuation puts behind the reply: the text, in the user's name."""
    said = UserItem(decision.text, automatic=True)
    if decision.warning is None:
        return (said,)
    return (SystemItem(decision.warning, WARNING_KIND), said)


def after_bad_follow_up(
    continuing: Continuing, failure: ProviderFailure | None, *, now_ms: int
) -> tuple[Continuing, FollowUpVerdict]:
    """Judge a follow-up that failed, or, without a `failure`, came back empty."""
    follow_up = continuing.follow_up
    assert follow_up is not None
    outcome = Outcome.EMPTY if failure is None else Outcome.FAILED
    unheard = failure is not None and failure.kind not in PERHAPS_HEARD
    reached = follow_up.reached or (follow_up.asking and not unheard)
    verdict = judge_follow_up(
        outcome,
        attempt=follow_up.tries,
        reached_provider=reached,
        has_good_reply=continuing.has_good_reply,
        failure=failure,
    )
    if verdict.action is Action.RETRY:
        again = replace(follow_up, tries=follow_up.tries + 1, reached=reached, asking=False)
        return replace(continuing, follow_up=again), verdict
    state = continuing.state
    if state is not None and verdict.clears:
        state = clear(state, now_ms=now_ms)
    elif state is not None and verdict.refunds:
        state = refund(state, follow_up.reservation)
    return replace(continuing, state=state, follow_up=None), verdict


def conclusion_after_stop(
    decision: Stop, stop_reason: StopReason | None, *, exhausted: str | None, spent: str | None
) -> Conclusion:
    """How a session ends whose last reply is not continued.

    `exhausted` says that a rule was broken more often than it is retried, `spent` that the
    budget of the prompt is spent; either is never `completed` (architecture.md invariant 7).
    """
    if exhausted is not None:
        return Conclusion(SessionStatus.CAPPED, exhausted, stop_reason=stop_reason)
    notice = decision.notice
    if decision.reason is WhyNot.BUDGET_SPENT:
        notice = f"{notice}: {spent}"
    status = SessionStatus.CAPPED if decision.reason.is_cap else SessionStatus.COMPLETED
    return Conclusion(status, notice, stop_reason=stop_reason)


def conclusion_after_bad(verdict: FollowUpVerdict, stop_reason: StopReason | None) -> Conclusion:
    """How a session ends after a follow-up that went wrong for good.

    With the last good reply it is completed, unless the quota is spent: then everybody has
    to hear of that.
    """
    failure = verdict.failure
    is_good = verdict.action is Action.KEEP_LAST
    if failure is None or (is_good and failure.kind not in QUOTA_KINDS):
        return Conclusion(SessionStatus.COMPLETED, verdict.notice, failure, stop_reason)
    return Conclusion(status_of(failure), verdict.notice, failure, stop_reason)


def decision_events(
    attempt: int, before: Continuing, reply: FinishedReply, decision: Continue | Stop
) -> tuple[AnyEvent, ...]:
    """What there is to tell about a decision: nothing where there never was a stopMessage."""
    if before.state is None:
        return ()
    text = decision.text if isinstance(decision, Continue) else None
    decided = ContinuationDecided(attempt, decision.record, text)
    report = extract_blocked_report(reply.text) if before.state.is_armed else None
    return (decided,) if report is None else (WorkBlocked(attempt, report), decided)


def resumed(
    continuing: Continuing, context: Sequence[AnyItem], now_s: float
) -> tuple[Continuing, str]:
    """What a session that was taken over knows, and its last good reply.

    If a follow-up was under way, it goes on as that: it was counted by the host that was
    lost, and may have reached the provider.
    """
    words = [n for n, item in enumerate(context) if isinstance(item, UserItem)]
    last = context[words[-1]] if words else None
    state = continuing.state
    if state is None or not (isinstance(last, UserItem) and last.automatic):
        return continuing, ""
    own = [n for n in words if not (isinstance(said := context[n], UserItem) and said.automatic)]
    replies = [text for item in context[max(own, default=0) :] if (text := reply_text(item))]
    reservation = Reservation(state.used, state.updated_at_ms, state.last_used_at_ms or 0, None)
    chain = Chain().after_trigger(now_s=now_s, armed_at_ms=state.updated_at_ms)
    under_way = replace(
        continuing,
        chain=chain,
        follow_up=FollowUp(reservation, reached=True),
        has_good_reply=bool(replies),
    )
    return under_way, replies[-1] if replies else ""


def is_compacting(
    system: str | None, items: Sequence[AnyItem], settings: ContinuationSettings
) -> bool:
    """Whether the user's own prompt, or the instructions, ask for a compaction."""
    own = [item for item in items if not (isinstance(item, UserItem) and item.automatic)]
    request = ModelRequest(model="", items=tuple(own), system=system)
    return is_compaction(request, sentinels=settings.compaction_sentinels)


def _stage(continuing: Continuing, reply: FinishedReply, work: BdWorkState) -> StageChoice | None:
    """What the stages say, where they choose the text."""
    state = continuing.state
    if state is None or state.stage_mode not in (StageMode.ON, StageMode.AUTO):
        return None
    observation = observation_hash([*reply.context, *reply.items])
    try:
        return choose_stage(state, continuing.templates, work, observation)
    except StageTemplatesMissing:
        # They have gone since the mode was set: there is nothing to say, and the turn ends.
        return StageChoice("", state)


def _round(reply: FinishedReply) -> str:
    """What the round is recognised by: the last words of the user, and all that followed."""
    at = max((n for n, item in enumerate(reply.context) if isinstance(item, UserItem)), default=-1)
    asked = reply.context[at] if at >= 0 else None
    said = asked.text if isinstance(asked, UserItem) else ""
    return round_hash(said, [*reply.context[at + 1 :], *reply.items])
