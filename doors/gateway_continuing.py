"""Auto-continue for one request through the gateway: its directives, and what follows a reply.

The decisions are those of an embedded session (`actors/turn_continuation.py`); what is kept
of a session, `actors/stop_message_book.py` keeps. The order is reserve, keep, send or refund:
`after_reply` answers when the send is counted and kept, `settle` gives back what was never
sent. A request that names no session is continued by its own directives alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import trio
from msgspec.structs import replace

from midstream.actors.stop_message_book import KeptStop, StopMessageBook
from midstream.actors.turn_continuation import (
    Continuing,
    after_bad_follow_up,
    conclusion_after_bad,
    conclusion_after_stop,
    continue_or_stop,
    decision_events,
)
from midstream.actors.turn_phases import Conclusion, FinishedReply
from midstream.actors.turn_settings import ContinuationSettings
from midstream.doors.gateway_wire import Json
from midstream.messages.alert import Alert, AlertLevel
from midstream.messages.arming import Applied, apply_directives, settle_emptied_turn
from midstream.messages.compaction import is_compaction_body
from midstream.messages.continuation import Continue, Stop
from midstream.messages.directive import ClearAll, ClearStopMessage
from midstream.messages.directive_items import NO_TEXT
from midstream.messages.directive_wire import BodyReading, read_body
from midstream.messages.events import AlertRaised, AnyEvent, StopMessageChanged
from midstream.messages.failure import ProviderFailure
from midstream.messages.follow_up_outcome import ATTEMPTS, Action, FollowUpVerdict
from midstream.messages.stop_message import BdWorkState, StopMessageState
from midstream.messages.stream import StopReason
from midstream.messages.wire_body import as_object
from midstream.providers.json_fields import list_of, object_of

ALERT_SOURCE = "stop_message"

Result = TypeVar("Result")


class OpenedBody(msgspec.Struct, frozen=True):
    """A client's request without its directives, which have been carried out.

    `local_answer` is for a message that was nothing but directives; then no model is asked.
    """

    body: Json
    continuing: Continuing
    events: tuple[AnyEvent, ...] = ()
    local_answer: str | None = None


async def open_body(book: StopMessageBook, key: str | None, body: Json) -> OpenedBody:
    """Take the directives out of a request and carry them out. `key` is that of its session.

    The very same body where there are none. Raises `StageTemplatesMissing` for a mode whose
    texts are not there.
    """
    kept = KeptStop() if key is None else await book.read(key)
    settings = book.settings
    reading = read_body(
        body,
        keep_in_code=settings.keep_in_code,
        armed_text=kept.state.text if kept.state else None,
    )
    uses_tools = bool(body.get("tools"))
    is_armed = kept.state is not None and kept.state.is_armed
    is_aside = is_armed and kept.uses_tools and not uses_tools
    applied = Applied(kept.state or StopMessageState(), changed=False)
    if is_aside and _only_clears(reading):
        is_aside, uses_tools = False, True
    if reading.found is not None and not is_aside:
        applied = await _apply(book, key, reading, uses_tools)
    state = applied.state if applied.changed else kept.state
    continuing = Continuing(
        state,
        await book.templates(state),
        is_compaction=is_compaction_body(
            body,
            flag=(as_object(body.get("metadata")) or {}).get("compactionRequest"),
            sentinels=settings.continuation.compaction_sentinels,
        ),
        is_aside=is_aside,
    )
    now_ms = book.clock.now_ms()
    events: list[AnyEvent] = [
        AlertRaised(Alert(AlertLevel.WARN, ALERT_SOURCE, f"stopMessage: {warning}", now_ms))
        for warning in dict.fromkeys((*reading.warnings, *applied.warnings))
    ]
    if applied.changed:
        events.append(StopMessageChanged(applied.state))
    sent, answer = _turn(reading, applied.state, is_aside=is_aside)
    return OpenedBody(sent, continuing, tuple(events), answer)


def _only_clears(reading: BodyReading) -> bool:
    """Whether all that a message has to say is that auto-continue is to end; who wants that
    gets it, with tools or without."""
    directives = reading.found.directives if reading.found else ()
    cleared = all(isinstance(one, ClearAll | ClearStopMessage) for one in directives)
    return bool(directives) and cleared and reading.emptied_turn


async def _apply(
    book: StopMessageBook, key: str | None, reading: BodyReading, uses_tools: bool
) -> Applied:
    texts = await book.file_texts(reading.found)

    def step(state: StopMessageState | None) -> tuple[StopMessageState | None, Applied]:
        applied = apply_directives(
            state,
            reading.found,
            now_ms=book.clock.now_ms(),
            has_session=key is not None,
            file_texts=texts,
        )
        return (applied.state if applied.changed else state), applied

    if key is None:
        applied = step(None)[1]
        await book.require_templates(applied.state.stage_mode)
        return applied
    wanted = step((await book.read(key)).state)[1]
    if not wanted.changed:
        return wanted
    await book.require_templates(wanted.state.stage_mode)
    return await book.change(key, step, uses_tools=uses_tools)


def _turn(
    reading: BodyReading, state: StopMessageState, *, is_aside: bool
) -> tuple[Json, str | None]:
    """The body that is sent, or what is answered without sending it."""
    if not reading.emptied_turn:
        return reading.body, None
    if is_aside:
        return reading.with_turn_text(state.text or NO_TEXT), None
    emptied = settle_emptied_turn(reading.found, state)
    if emptied.text is None:
        return reading.body, emptied.answer
    return reading.with_turn_text(emptied.text), None


class RequestContinuation:
    """What follows the replies to one request. `is_connected` says whether its client is
    still there; `conclusion` is how the chain has ended, once that is known."""

    def __init__(
        self,
        book: StopMessageBook,
        key: str | None,
        opened: OpenedBody,
        is_connected: Callable[[], bool],
    ) -> None:
        self._book = book
        self._key = key
        self._is_connected = is_connected
        self._continuing = opened.continuing
        self.events: list[AnyEvent] = list(opened.events)
        self.conclusion: Conclusion | None = None

    @property
    def may_continue(self) -> bool:
        """Whether a reply of this request could be continued."""
        return self._book.settings.continuation.is_allowed and self._continuing.may_continue

    @property
    def has_state(self) -> bool:
        """Whether a stopMessage was ever set in this conversation."""
        return self._continuing.state is not None

    @property
    def awaits_follow_up(self) -> bool:
        """Whether the reply that is awaited is that of a follow-up."""
        return self._continuing.follow_up is not None

    @property
    def deadline_s(self) -> float | None:
        """How long the next attempt may take; None for as long as it wants."""
        settings = self._book.settings.continuation
        return settings.follow_up_deadline_s if self.awaits_follow_up else None

    @property
    def now_ms(self) -> int:
        """Wall time."""
        return self._book.clock.now_ms()

    def asked(self) -> None:
        """The provider is being asked."""
        self._continuing = self._continuing.asked()

    def heard(self) -> None:
        """It has begun to answer."""
        self._continuing = self._continuing.reached()

    async def after_reply(
        self, reply: FinishedReply, attempt: int, *, can_follow: bool, spent: str | None
    ) -> Continue | None:
        """Decide what follows a complete reply; a `Continue` is counted and kept.

        `can_follow` says whether a request can be made that continues it, `spent` why the
        budget of this request allows no further one.
        """
        work = BdWorkState.UNKNOWN
        if reply.is_natural_stop and self._continuing.needs_work_state:
            work = await self._book.work()
        settings = self._book.settings.continuation
        settings = msgspec.structs.replace(settings, is_allowed=settings.is_allowed and can_follow)
        before = replace(self._continuing, is_connected=self._is_connected())

        def step(
            state: StopMessageState | None,
        ) -> tuple[StopMessageState | None, tuple[Continuing, Continue | Stop]]:
            after, decision = continue_or_stop(
                replace(before, state=state),
                settings,
                reply,
                work=work,
                is_budget_spent=spent is not None,
            )
            return after.state, (after, decision)

        self._continuing, decision = await self._change(step)
        self.events += decision_events(attempt, before, reply, decision)
        if isinstance(decision, Continue):
            return decision
        self.conclusion = conclusion_after_stop(
            decision, reply.stop_reason, exhausted=None, spent=spent
        )
        return None

    def note(self, reply: FinishedReply, attempt: int) -> None:
        """Say why a reply is not continued that could not have been."""
        before = self._continuing
        _, decision = continue_or_stop(before, self._settings(can_follow=True), reply)
        if isinstance(decision, Continue):  # one choice would be, and several were asked for
            _, decision = continue_or_stop(before, self._settings(can_follow=False), reply)
        self.events += decision_events(attempt, before, reply, decision)

    async def after_bad(
        self,
        failure: ProviderFailure | None,
        stop_reason: StopReason | None,
        *,
        may_repeat: bool,
    ) -> FollowUpVerdict:
        """Judge a follow-up that failed, or, without a `failure`, came back empty. One of
        which the client has something cannot be repeated."""
        before, now_ms = self._continuing, self._book.clock.now_ms()
        assert before.follow_up is not None
        if not may_repeat:
            before = replace(before, follow_up=replace(before.follow_up, tries=ATTEMPTS))

        def step(
            state: StopMessageState | None,
        ) -> tuple[StopMessageState | None, tuple[Continuing, FollowUpVerdict]]:
            known = replace(before, state=state)
            after, verdict = after_bad_follow_up(known, failure, now_ms=now_ms)
            return after.state, (after, verdict)

        self._continuing, verdict = await self._change(step)
        if verdict.action is not Action.RETRY:
            self.conclusion = conclusion_after_bad(verdict, stop_reason)
        return verdict

    async def settle(self) -> None:
        """The request is over: give back what was reserved and never sent."""
        before = self._continuing
        if before.follow_up is None or before.follow_up.may_have_reached:
            return

        def step(state: StopMessageState | None) -> tuple[StopMessageState | None, None]:
            return replace(before, state=state).last_state, None

        with trio.CancelScope(shield=True):
            await self._change(step)
        self._continuing = replace(before, follow_up=None)

    def _settings(self, *, can_follow: bool) -> ContinuationSettings:
        settings = self._book.settings.continuation
        allowed = settings.is_allowed and can_follow
        return msgspec.structs.replace(settings, is_allowed=allowed)

    async def _change(
        self,
        step: Callable[[StopMessageState | None], tuple[StopMessageState | None, Result]],
    ) -> Result:
        if self._key is None:
            return step(self._continuing.state)[1]
        return await self._book.change(self._key, step)


def without_directives(body: Json, *, keep_in_code: bool) -> Json:
    """A request that is no turn of its conversation, without its markers; or a batch of such
    (platform.claude.com/docs/en/api/creating-message-batches). The very same body where there
    are none."""
    batch = list_of(body.get("requests"))
    if not batch:
        return read_body(body, internal=True, keep_in_code=keep_in_code).body
    cleaned = [_cleaned_entry(entry, keep_in_code=keep_in_code) for entry in batch]
    unchanged = all(new is old for new, old in zip(cleaned, batch, strict=True))
    return body if unchanged else {**body, "requests": cleaned}


def _cleaned_entry(entry: Any, *, keep_in_code: bool) -> Any:
    params = object_of(object_of(entry).get("params"))
    cleaned = read_body(params, internal=True, keep_in_code=keep_in_code).body
    return entry if cleaned is params else {**entry, "params": cleaned}
