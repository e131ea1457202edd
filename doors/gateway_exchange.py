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

- A reply that may be continued keeps its ending back until that is decided, and a follow-up
  that fails costs the client nothing that it has.

    STREAMING ──cut──▶ CUT ──retry──▶ STREAMING ... ──end, fail──▶ OVER
        └──end──▶ COMPLETE ──follow_up──▶ STREAMING ... ──fail──▶ LOST
"""

from collections.abc import Mapping, Sequence
from enum import Enum

from midstream.doors.gateway_attempt import Attempt, Held
from midstream.doors.gateway_message import ClientMessage
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_verdicts import Verdicts
from midstream.doors.gateway_wire import CALL_RUNS_LATER, Json, Wire, decoded, protocol_failure
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
from midstream.messages.verdict import Verdict
from midstream.providers.sse import SseEvent
from midstream.rules.finding import Match
from midstream.rules.reminder import render
from midstream.rules.watch import Watch

IN_THE_MIDDLE = "the stream ended in the middle of an event"


class Phase(Enum):
    """Where an exchange is."""

    STREAMING = "streaming"
    CUT = "cut"
    """The upstream is to be closed; `retry` says what comes next."""
    COMPLETE = "complete"
    """The reply is complete; `conclude` or `follow_up`, or for a follow-up that came back
    empty `again` or `keep_last`, says what comes next."""
    LOST = "lost"
    """A follow-up failed, as `lost` says: `again`, `keep_last` or `give_up`."""
    OVER = "over"


class Exchange:
    """See the module.

    `body` is the client's request. `streams` says whether the client reads a stream; one
    that waits for the whole answer gets nothing of an attempt that is cut. `recorded` are
    the rules whose reminders are in the body, with the turn of each; `now_s` is any clock.
    With `may_continue` a reply that is complete is asked about before its ending goes out.

    `attempts` counts the streams that were asked for, `retries` those that followed one
    which a rule had cut, and `follow_ups` the continuations.
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
        may_continue: bool = False,
    ) -> None:
        self._wire = wire
        self._rules = rules
        self._body = body
        self._streams = streams
        self._may_continue = may_continue
        self._verdicts = Verdicts(rules, recorded, turn)
        self._began_at_s = now_s
        self._watch = Watch(
            rules.rule_set, rules.new_arguments, rules.passage_cap_chars, holds=rules.interrupts
        )
        self._may_interrupt = rules.may_interrupt
        self._restarts = 0
        self._context: list[AnyItem] = []
        self._usage: Usage | None = None
        self._message = ClientMessage(wire, may_be_cut=self._may_interrupt or may_continue)
        self._last_ending: list[SseEvent] | None = None
        self._attempt = Attempt(wire, rules.reaches_call)
        self.attempts = 0
        self.retries = 0
        self.follow_ups = 0
        self.phase = Phase.STREAMING
        self.failure: ProviderFailure | None = None
        self.lost: ProviderFailure | None = None
        self.capped: str | None = None

    # --- one attempt

    def begin(self) -> None:
        """A stream begins. `attempts` counts them."""
        self.attempts += 1
        self._attempt = Attempt(self._wire, self._rules.reaches_call)
        self._watch.begin()
        self._verdicts.begin()
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
            if not last.is_broken_off or _is_whole(last.event):
                self._take(last, out)
            elif not attempt.decoder.writer.over:
                return self.fail(protocol_failure(IN_THE_MIDDLE))
        except StreamFormatError:
            return self.fail(protocol_failure(IN_THE_MIDDLE))
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
        if self._may_continue and attempt.heard.state is StreamState.FINISHED:
            self.phase = Phase.COMPLETE
            return b"".join(out)
        self._release_all(out)
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
        if self.phase in (Phase.OVER, Phase.LOST):
            return b""
        failed = self._attempt.heard.state is StreamState.FAILED
        if self.phase is Phase.STREAMING and self._attempt.decoder.ending and not failed:
            return self.end()
        self._attempt.drop_held()
        if self._last_ending is not None:
            self.lost = failure
            self.phase = Phase.LOST
            return b""
        self._count()
        return self._say_failed(failure)

    def _say_failed(self, failure: ProviderFailure) -> bytes:
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
    def may_continue(self) -> bool:
        return self._may_continue

    @property
    def may_go_on(self) -> bool:
        """Whether the client's message may become longer than one answer of the upstream."""
        return self._may_interrupt or self._may_continue

    @property
    def holding(self) -> bool:
        """Whether the client waits while the model speaks, or while it is asked again."""
        is_asked_again = self.attempts > 1 and not self._attempt.has_sent
        return self.phase is not Phase.STREAMING or bool(self._attempt.queue) or is_asked_again

    @property
    def verdicts(self) -> list[Verdict]:
        """What was decided about all matches."""
        return self._verdicts.all

    @property
    def verdict_attempts(self) -> list[int]:
        """For each of the verdicts the number of its attempt, counted from 1."""
        return self._verdicts.attempts

    @property
    def reminders(self) -> list[Verdict]:
        """The verdicts of the last attempt that the model is still to be told of."""
        return self._verdicts.reminders

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
        why = self.spent_budget(now_s)
        if why is not None:
            return self._cap(why, spent), None
        delivered = self._delivered()
        reminder = ReminderItem(
            render(
                self._verdicts.violations,
                cwd=self._rules.cwd,
                home=self._rules.home,
                delivered=self.output if self._streams else "",
            ),
            tuple(dict.fromkeys(verdict.rule for verdict in self._verdicts.violations)),
        )
        self._context += [*delivered, reminder]
        closing = self._message.cut(spent)
        self._restarts += 1
        self.retries += 1
        return closing, self.request

    @property
    def request(self) -> Json:
        """The request as it is sent now, with what the attempts that were cut have added."""
        return self._wire.continued(self._body, self._context) if self._context else self._body

    def _delivered(self) -> tuple[AnyItem, ...]:
        """What the client has of the attempt that was cut, as items of the conversation."""
        accumulator = Accumulator(self._wire.format)
        accumulator.feed(self._attempt.sent)
        partial = accumulator.snapshot()
        going_on = ToolOutcome(ToolState.RETURNED, CALL_RUNS_LATER)
        tools = {call.call_id: going_on for call in partial.calls}
        return settle(partial, Outcome(Ending.STEERED, tools), self._wire.format)

    def spent_budget(self, now_s: float) -> str | None:
        """Why nothing more may be started for this request; None if something may.

        A reply that is waiting to be followed, or was lost, has cost what it has cost.
        """
        budget, usage = self._rules.budget, self.usage
        if self.phase in (Phase.COMPLETE, Phase.LOST):
            usage = usage.plus(self._attempt.heard.snapshot().usage)
        if self._restarts >= budget.max_restarts:
            return f"{self.attempts} attempts were made for this request"
        if now_s - self._began_at_s >= budget.max_s:
            return f"this request has taken {budget.max_s:g} seconds"
        limit = budget.max_output_tokens
        if limit is not None and (usage.output_tokens or 0) >= limit:
            return f"{usage.output_tokens} output tokens were spent on this request"
        return None

    # --- a reply that is complete, and the one that follows it

    def reply(self) -> Json | None:
        """The complete reply as one document of the protocol."""
        assembler = self._wire.assembler()
        for event in self._attempt.events:
            assembler.take(event)
        return assembler.answer()

    def conclude(self) -> bytes:
        """Nothing follows: the ending of the reply."""
        assert self.phase is Phase.COMPLETE
        out: list[bytes] = []
        self._release_all(out)
        self._finish(out)
        return b"".join(out)

    def follow_up(self, body: Json) -> tuple[bytes, Json]:
        """Another reply follows in the same message, and `body` asks for it: the rest of
        this one without its ending, and the request."""
        assert self.phase is Phase.COMPLETE
        out: list[bytes] = []
        ending: list[SseEvent] = []
        for held in self._attempt.rest():
            if not held.is_ending:
                self._send(held, out)
            elif held.frame.event is not None:
                ending.append(held.frame.event)
        out.append(self._message.follow(ending, self._count()))
        self._last_ending = ending
        self._body, self._context = self._reminded(body), []
        self._restarts += 1
        self.follow_ups += 1
        self._verdicts.turn += 1
        return b"".join(out), self._body

    def again(self) -> tuple[bytes, Json]:
        """The follow-up was lost, or its reply is empty: the same request once more."""
        self._restarts += 1
        self.lost = None
        return self._message.cut(self._count()), self.request

    def keep_last(self) -> bytes:
        """The follow-up was lost, or its reply is empty: end with the reply before it."""
        return self._keep_last(self._count())

    def give_up(self, failure: ProviderFailure) -> bytes:
        """Nothing came of the reply or its follow-up, or somebody has stopped it."""
        self._attempt.drop_held()
        self._count()
        return self._say_failed(failure)

    @property
    def has_sent(self) -> bool:
        """Whether anything of the last attempt went out."""
        return self._attempt.has_sent

    @property
    def aliases(self) -> dict[str, str]:
        """See `Reframer`."""
        return self._message.aliases

    def _keep_last(self, spent: Usage) -> bytes:
        assert self._last_ending is not None
        self._attempt.drop_held()
        self.failure = None
        self.phase = Phase.OVER
        return self._message.cut(spent) + self._message.end_as(self._last_ending)

    def _reminded(self, body: Json) -> Json:
        """The body with what rules have to say of the reply that it follows."""
        verdicts = self._verdicts.reminders
        if not verdicts:
            return body
        text = render(verdicts, cwd=self._rules.cwd, home=self._rules.home)
        rules = tuple(dict.fromkeys(verdict.rule for verdict in verdicts))
        return self._wire.continued(body, [ReminderItem(text, rules, interrupted=False)])

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
        held = attempt.hold(frame, messages)
        if self._may_continue and frame.event is not None:
            attempt.events.append(frame.event)
            held.is_ending = attempt.decoder.stopping
        if messages:
            self._judge(messages, out, held)
        else:
            self._offer(held, out)

    def _judge(
        self, messages: Sequence[AnyStreamMessage], out: list[bytes], held: Held | None = None
    ) -> None:
        """Watch the messages; cut, or let go what is free now."""
        attempt = self._attempt
        attempt.heard.feed(messages)
        if findings := self._watch.feed(messages):
            matches = [finding for finding in findings if isinstance(finding, Match)]
            if matches and self._obey(matches, out):
                return
        for message in messages:
            if isinstance(message, ToolCallFinished):
                attempt.close_call(message)
            elif isinstance(message, StreamFailed):
                if held is None or attempt.queue or self._last_ending is not None:
                    # The upstream's own words may repeat what is held.
                    out.append(self.fail(message.failure))
                    return
                self.failure = message.failure  # said in the upstream's own words
        if held is not None:
            self._offer(held, out)

    def _obey(self, matches: Sequence[Match], out: list[bytes]) -> bool:
        """Decide about the matches; whether the attempt is over for them."""
        spent = self._verdicts.decide(matches)
        if self._verdicts.violations:
            self._attempt.drop_held()
            self.phase = Phase.CUT
            return True
        if spent is None:
            return False
        self._attempt.drop_held()
        out.append(self._cap(f"{spent.rule}: {spent.reason}", self._count()))
        return True

    def _cap(self, why: str, spent: Usage) -> bytes:
        self.capped = why
        if self._last_ending is not None:
            return self._keep_last(spent)
        self.failure = ProviderFailure(FailureKind.INVALID_REQUEST, f"midstream ended this: {why}")
        self.phase = Phase.OVER
        return self._message.fail(self.failure) if self._streams else b""

    # --- what goes out

    def _offer(self, held: Held, out: list[bytes]) -> None:
        """Send the frame and what waits before it, as far as it is free."""
        attempt = self._attempt
        goes_out = self._streams or attempt.heard.state is StreamState.FAILED
        if goes_out and not attempt.queue and attempt.is_free(held, self._watch.held_from):
            self._send(held, out)
            return
        attempt.queue_up(held)
        if not goes_out:
            return
        for free in attempt.free(self._watch.held_from):
            self._send(free, out)
        if attempt.held_bytes > self._rules.hold_limit_bytes:
            limit = self._rules.hold_limit_bytes
            problem = f"a rule holds back more than {limit} bytes"
            out.append(self.fail(ProviderFailure(FailureKind.SERVER, problem)))

    def _send(self, held: Held, out: list[bytes]) -> None:
        self._attempt.has_sent |= bool(held.messages)
        if self._may_interrupt:
            self._attempt.sent.extend(held.messages)
        out.append(self._message.send(held.frame, held.messages))

    def _release_all(self, out: list[bytes]) -> None:
        for held in self._attempt.rest():
            self._send(held, out)

    def _finish(self, out: list[bytes]) -> None:
        out.append(self._message.finish())
        self._count()
        self.phase = Phase.OVER

    def _count(self) -> Usage:
        """Add what this attempt has cost."""
        spent = self._attempt.heard.snapshot().usage
        self._usage = spent if self._usage is None else self._usage.plus(spent)
        return spent


def _is_whole(event: SseEvent | None) -> bool:
    """Whether the event in which a stream broke off has all of its data."""
    return event is not None and (event.data == b"[DONE]" or decoded(event) is not None)
