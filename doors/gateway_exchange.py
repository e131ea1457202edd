"""The course of one client request through the gateway, as a pure state machine.

Bytes of the upstream's stream go in, bytes for the client come out. `Exchange` holds back
what a rule may still forbid, decides that an attempt is cut, and says with which request it
is tried again; `gateway.py` does the reading and writing. What it promises (design.md
section 4, `safe`):

- A frame goes out, unchanged, as soon as the text that it carries cannot become part of a
  match that interrupts, and behind every frame that came before it. Calls that such a rule
  can reach go out when they are complete and clean.
- Of an attempt that is cut nothing more goes out. The next one is told what the client has,
  and is written on in the same message.
- With no rule close to matching, nothing is held; rules that only observe never hold.

    STREAMING ──cut──▶ CUT ──retry──▶ STREAMING ... ──end, fail──▶ OVER
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from midstream.actors.turn_settings import OnExhausted
from midstream.doors.gateway_attempt import Attempt, Held
from midstream.doors.gateway_message import ClientMessage
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_wire import CALL_RUNS_LATER, Json, Wire, protocol_failure
from midstream.doors.sse_frames import Frame
from midstream.messages.accumulate import Accumulator, PartialTranscript, StreamState
from midstream.messages.conversation import AnyItem, ReminderItem
from midstream.messages.errors import StreamFormatError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.settle import Ending, Outcome, ToolOutcome, ToolState, settle
from midstream.messages.stream import (
    AnyStreamMessage,
    StreamFailed,
    ToolCallFinished,
)
from midstream.messages.usage import Usage
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.rules.finding import Match
from midstream.rules.policy import PolicyState, decide, next_attempt
from midstream.rules.reminder import render
from midstream.rules.rule import Source
from midstream.rules.watch import Watch

_REMINDING = (VerdictAction.FOLD, VerdictAction.DEFER)


class Phase(Enum):
    """Where an exchange is."""

    STREAMING = "streaming"
    CUT = "cut"
    """The upstream is to be closed; `retry` says what comes next."""
    OVER = "over"


class Exchange:
    """See the module.

    `body` is the client's request. `streams` says whether the client reads a stream; one
    that waits for the whole answer gets nothing of an attempt that is cut. `recorded` are
    the rules whose reminders are in the body, with the turn of each; `now_s` is any clock.
    `reminders` are the verdicts of the last attempt that the model is still to be told of.
    """

    def __init__(
        self,
        wire: Wire,
        rules: GatewayRules,
        body: Json,
        *,
        streams: bool,
        recorded: Mapping[str, int],
        turn: int,
        now_s: float,
    ) -> None:
        self._wire = wire
        self._rules = rules
        self._body = body
        self._streams = streams
        self._recorded = recorded
        self._turn = turn
        self._began_at_s = now_s
        self._watch = Watch(
            rules.rule_set, rules.new_arguments, rules.passage_cap_chars, holds=rules.interrupts
        )
        self._may_interrupt = rules.may_interrupt
        self._policy = PolicyState()
        self._restarts = 0
        self._context: list[AnyItem] = []
        self._violations: tuple[Verdict, ...] = ()
        self._usage: Usage | None = None
        self._message = ClientMessage(wire, may_be_cut=self._may_interrupt)
        self._attempt = Attempt(wire, rules.reaches_call)
        self.attempts = 0
        self.phase = Phase.STREAMING
        self.failure: ProviderFailure | None = None
        self.capped: str | None = None
        self.verdicts: list[Verdict] = []
        self.reminders: list[Verdict] = []

    # --- one attempt

    def begin(self) -> None:
        """A stream begins. `attempts` counts them."""
        self.attempts += 1
        self.reminders = []
        self._attempt = Attempt(self._wire, self._rules.reaches_call)
        self._watch.begin()
        self._policy = next_attempt(self._policy, self._recorded)
        self.phase = Phase.STREAMING

    def feed(self, data: bytes) -> bytes:
        """More of the stream; what may go out of it now. Look at `phase` afterwards."""
        out: list[bytes] = []
        try:
            for frame in self._attempt.frames.feed(data):
                self._take(frame, out)
                if self.phase is not Phase.STREAMING:
                    break
        except StreamFormatError as error:
            out.append(self.fail(protocol_failure(str(error))))
        return b"".join(out)

    def end(self) -> bytes:
        """The stream's bytes are over."""
        attempt = self._attempt
        out: list[bytes] = []
        try:
            last = attempt.frames.end()
            self._take(last, out)
        except StreamFormatError:
            return self.fail(protocol_failure("the stream ended in the middle of an event"))
        if self.phase is not Phase.STREAMING:
            return b"".join(out)
        if not attempt.decoder.writer.over:
            attempt.decoder.end()
            self._judge(attempt.decoder.writer.take(), out)
        if self.phase is not Phase.STREAMING:
            return b"".join(out)
        if attempt.heard.state is StreamState.RUNNING:
            out.append(self.fail(protocol_failure("the stream ended without its terminal event")))
            return b"".join(out)
        if self.failure is not None and attempt.queue:
            out.append(self.fail(self.failure))
            return b"".join(out)
        for held in attempt.rest():
            self._send(held, out)
        self._finish(out)
        return b"".join(out)

    def whole(self, answer: Json) -> None:
        """The upstream answered with one document; it is clean if `phase` is OVER, and no
        failure is known."""
        attempt = self._attempt
        for event in self._wire.whole(answer):
            attempt.decoder.feed(event)
        attempt.decoder.end()
        self._judge(attempt.decoder.writer.take(), [])
        if self.phase is Phase.STREAMING:
            self._finish([])

    def fail(self, failure: ProviderFailure) -> bytes:
        """The stream broke, or cannot be had: the error event of the protocol.

        What is held is not known to be clean and never goes out. A stream that had its
        terminal event is finished all the same.
        """
        if self.phase is Phase.OVER:
            return b""
        failed = self._attempt.heard.state is StreamState.FAILED
        if self.phase is Phase.STREAMING and self._attempt.decoder.ending and not failed:
            return self.end()
        self._attempt.drop_held()
        self._count()
        self.failure = failure
        self.phase = Phase.OVER
        return self._message.fail(failure) if self._streams else b""

    @property
    def ending(self) -> bool:
        """Whether the terminal event was seen, so that waiting long makes no sense."""
        return self._attempt.decoder.ending or self._attempt.decoder.writer.over

    @property
    def may_interrupt(self) -> bool:
        return self._may_interrupt

    @property
    def holding(self) -> bool:
        """Whether the client waits while the model speaks, or while it is asked again."""
        return self.phase is Phase.CUT or bool(self._attempt.queue)

    @property
    def usage(self) -> Usage:
        """What all attempts have cost."""
        return self._usage or Usage()

    @property
    def output(self) -> str:
        """The text that went out."""
        return self._message.text

    @property
    def outcome(self) -> PartialTranscript:
        """The last attempt as it was heard."""
        return self._attempt.heard.snapshot()

    # --- the next attempt

    def retry(self, now_s: float) -> tuple[bytes, Json | None]:
        """After a cut, with the upstream closed and the delay passed: what closes the part
        that the client has, and the next request; None if the budget is spent."""
        assert self.phase is Phase.CUT
        spent = self._count()
        why = self._draw_on_budget(now_s)
        if why is not None:
            return self._cap(why), None
        delivered = self._delivered()
        reminder = ReminderItem(
            render(
                self._violations,
                cwd=self._rules.cwd,
                home=self._rules.home,
                delivered=self.output if self._streams else "",
            ),
            tuple(dict.fromkeys(verdict.rule for verdict in self._violations)),
        )
        self._context += [*delivered, reminder]
        closing = self._message.cut(spent)
        self._restarts += 1
        return closing, self._wire.continued(self._body, self._context)

    def _delivered(self) -> tuple[AnyItem, ...]:
        """What the client has of the attempt that was cut, as items of the conversation."""
        accumulator = Accumulator(self._wire.format)
        accumulator.feed(self._attempt.sent)
        partial = accumulator.snapshot()
        going_on = ToolOutcome(ToolState.RETURNED, CALL_RUNS_LATER)
        tools = {call.call_id: going_on for call in partial.calls}
        return settle(partial, Outcome(Ending.STEERED, tools), self._wire.format)

    def _draw_on_budget(self, now_s: float) -> str | None:
        budget = self._rules.budget
        if self._restarts >= budget.max_restarts:
            return f"{self.attempts} attempts were made for this request"
        if now_s - self._began_at_s >= budget.max_s:
            return f"this request has taken {budget.max_s:g} seconds"
        limit = budget.max_output_tokens
        if limit is not None and (self.usage.output_tokens or 0) >= limit:
            return f"{self.usage.output_tokens} output tokens were spent on this request"
        return None

    # --- frames

    def _take(self, frame: Frame, out: list[bytes]) -> None:
        attempt = self._attempt
        writer = attempt.decoder.writer
        if frame.event is not None and not writer.over:
            try:
                attempt.decoder.feed(frame.event)
            except StreamFormatError:
                if self._may_interrupt or self._message.is_reframed:
                    raise
                writer.take()  # nobody watches: the client may make of it what it can
            messages = writer.take()
        else:
            messages = []
        if not messages:
            self._offer(Held(frame, ()), out)
            return
        self._judge(messages, out, attempt.hold(frame, messages))

    def _judge(
        self, messages: Sequence[AnyStreamMessage], out: list[bytes], held: Held | None = None
    ) -> None:
        """Watch the messages; cut, or let go what is free now."""
        attempt = self._attempt
        attempt.heard.feed(messages)
        findings = self._watch.feed(messages)
        matches = [finding for finding in findings if isinstance(finding, Match)]
        if matches and self._obey(matches, out):
            return
        for message in messages:
            if isinstance(message, ToolCallFinished):
                attempt.close_call(message)
            elif isinstance(message, StreamFailed):
                if held is None or attempt.queue:
                    # The upstream's own words may repeat what is held.
                    out.append(self.fail(message.failure))
                    return
                self.failure = message.failure  # said in the upstream's own words
        if held is not None:
            self._offer(held, out)

    def _obey(self, matches: Sequence[Match], out: list[bytes]) -> bool:
        """Decide about the matches; whether the attempt is over for them."""
        # What goes out here cannot be taken back, and the reminder of an earlier request is
        # not in the client's conversation: a rule that may cut does so until its retries
        # are spent, whatever its repeat policy.
        cutting = {m.rule.name for m in matches if self._rules.interrupts(m.rule, m.source)}
        recorded = {n: t for n, t in self._recorded.items() if n not in cutting}
        state = msgspec.structs.replace(self._policy, recorded=recorded)
        self._policy, verdicts = decide(state, self._rules.policy, matches, self._turn)
        self.verdicts += verdicts
        self.reminders += [v for v in verdicts if v.action in _REMINDING]
        violations = tuple(
            verdict
            for verdict in verdicts
            if verdict.action in (VerdictAction.INTERRUPT, VerdictAction.RIDE_ALONG)
        )
        if violations:
            self._violations = violations
            self._attempt.drop_held()
            self.phase = Phase.CUT
            return True
        spent = next((verdict for verdict in verdicts if self._ends_for(verdict)), None)
        if spent is None:
            return False
        self._attempt.drop_held()
        self._count()
        out.append(self._cap(f"{spent.rule}: {spent.reason}"))
        return True

    def _ends_for(self, verdict: Verdict) -> bool:
        """Whether the answer ends here: a call that breaks a rule must not be run."""
        return verdict.action is VerdictAction.EXHAUSTED and (
            verdict.source == Source.TOOL or self._rules.on_exhausted is OnExhausted.FAIL
        )

    def _cap(self, why: str) -> bytes:
        self.capped = why
        self.failure = ProviderFailure(FailureKind.INVALID_REQUEST, f"midstream ended this: {why}")
        self.phase = Phase.OVER
        return self._message.fail(self.failure) if self._streams else b""

    # --- what goes out

    def _offer(self, held: Held, out: list[bytes]) -> None:
        """Send the frame and what waits before it, as far as it is free."""
        attempt = self._attempt
        attempt.queue_up(held)
        if not self._streams and attempt.heard.state is not StreamState.FAILED:
            return
        for free in attempt.free(self._watch.held_from):
            self._send(free, out)
        if attempt.held_bytes > self._rules.hold_limit_bytes:
            limit = self._rules.hold_limit_bytes
            problem = f"a rule holds back more than {limit} bytes"
            out.append(self.fail(ProviderFailure(FailureKind.SERVER, problem)))

    def _send(self, held: Held, out: list[bytes]) -> None:
        if self._may_interrupt:
            self._attempt.sent.extend(held.messages)
        out.append(self._message.send(held.frame, held.messages))

    def _finish(self, out: list[bytes]) -> None:
        out.append(self._message.finish())
        self._count()
        self.phase = Phase.OVER

    def _count(self) -> Usage:
        """Add what this attempt has cost."""
        spent = self._attempt.heard.snapshot().usage
        self._usage = spent if self._usage is None else self._usage.plus(spent)
        return spent
