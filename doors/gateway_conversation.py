"""The upstream's side of one watched request: the attempts that answer it.

One task sends each attempt, reads it and writes the client; what goes out, what is held and
what is tried again, `gateway_exchange.py` decides.
"""

from collections.abc import Callable, Sequence

import msgspec
import trio

from midstream.actors.turn_phases import FinishedReply
from midstream.doors.gateway_backoff import SPENT, WindowKey, Windows
from midstream.doors.gateway_client import capped_retry_after
from midstream.doors.gateway_continuing import RequestContinuation
from midstream.doors.gateway_exchange import Exchange, Phase
from midstream.doors.gateway_protocols import (
    give_up,
    json_object,
    out_of_quota,
    refuse_until,
    say,
)
from midstream.doors.gateway_request import Begun, Finished, GatewayRequest
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Answer, UpstreamFailed
from midstream.doors.gateway_wire import Json, protocol_failure
from midstream.messages.conversation import UserItem
from midstream.messages.events import AnyEvent, RuleTriggered
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.follow_up import follow_up_body
from midstream.messages.follow_up_outcome import EMPTY_FOLLOW_UP, Action
from midstream.messages.settle import Ending, Outcome, settle
from midstream.messages.wire_body import newest_user_texts
from midstream.providers.failures import classify_response
from midstream.providers.sse import SseReader

LINGER_S = 2.0
"""How long to wait for more after the terminal event."""
WHOLE_LIMIT_BYTES = 64 * 1024 * 1024


class GatewayConversation:
    """The attempts that answer one request."""

    def __init__(
        self,
        request: GatewayRequest,
        exchange: Exchange,
        rules: GatewayRules,
        windows: Windows,
        window: WindowKey,
        continuation: RequestContinuation,
    ) -> None:
        self._request = request
        self._continuation = continuation
        self._said = "\n".join(newest_user_texts(request.sent_body))
        self._windows = windows
        self._window = window
        self._asked_at_s = request.began_at_s
        self._is_heard = True
        """Whether what became of the newest attempt was told to the windows, or says nothing."""
        self._client = request.client
        self._wire = request.wire
        self._exchange = exchange
        self._rules = rules
        self._assembles = not request.streams and exchange.may_go_on
        self._scope = trio.CancelScope()
        self._stopped: str | None = None
        self._events = SseReader()
        self._assembler = request.wire.assembler()
        self._head: list[tuple[bytes, bytes]] = []
        self._hits_told = self._events_told = 0
        self.note: Callable[[Sequence[AnyEvent]], None] = _nobody
        """Hears at once what happens (`tell`)."""
        self._failure: ProviderFailure | None = None

    async def run(self, nursery: trio.Nursery) -> None:
        """Answer the client, with as many attempts as it takes; `nursery` is for the tasks
        that read them."""
        request, exchange = self._request, self._exchange
        if exchange.may_interrupt and asks_for_several(request.body):
            problem = "midstream watches one choice; ask for n=1"
            await say(self._client, self._wire, 400, FailureKind.INVALID_REQUEST, problem)
            return
        with self._scope:
            body: Json | None = request.sent_body
            while body is not None:
                exchange.begin()
                await self._attempt(nursery, self._raw(body))
                self.tell()
                body = await self._next()
        if self._stopped is not None and not self._client.ended:
            failure = ProviderFailure(FailureKind.INVALID_REQUEST, self._stopped)
            await self._write(exchange.give_up(failure))
        await self._conclude()

    def stop(self, reason: str | None) -> None:
        """Somebody wants this to end. The connection to the upstream is closed, and the
        client is told."""
        self._stopped = reason or "this request was cancelled"
        self._client.cancel_between_sends(self._scope)

    def tell(self) -> None:
        """Say what rules and continuations have done since the last time."""
        exchange, events = self._exchange, self._continuation.events
        hits = zip(
            exchange.verdict_attempts[self._hits_told :],
            exchange.verdicts[self._hits_told :],
            strict=True,
        )
        new = [*events[self._events_told :], *(RuleTriggered(*hit) for hit in hits)]
        self._hits_told, self._events_told = len(exchange.verdicts), len(events)
        if new:
            self.note(new)

    async def settle(self) -> None:
        """The answer is over: say what it means for the quota, and give back what was kept
        for a continuation that was never sent."""
        if self._client.ended:
            await self._hear(self._exchange.lost or self._why)
        await self._continuation.settle()
        self.tell()

    def begun(self) -> Begun:
        """That the request has begun. Whoever has it can stop the conversation, so it is not
        kept here: the two would need each other."""
        request = self._request
        return Begun(
            upstream=request.upstream.name,
            wire=request.wire,
            body=request.body,
            began_at_s=request.began_at_s,
            headers=request.client.shown_headers,
            stop=self.stop,
        )

    def finished(self, begun: Begun, local_answer: str | None) -> Finished:
        """What became of the request, of which nobody hears more."""
        self.note = _nobody
        return Finished(
            begun=begun,
            exchange=self._exchange,
            failure=self._why,
            gone=not self._client.ended,
            stopped=self._stopped is not None,
            conclusion=self._continuation.conclusion,
            local_answer=local_answer,
        )

    @property
    def _why(self) -> ProviderFailure | None:
        """Why there is no answer, or only a part of one."""
        return self._failure or self._exchange.failure

    def _raw(self, body: Json) -> bytes:
        """A request as it is sent; the client's own bytes where nothing has to change."""
        if self._assembles:
            return msgspec.json.encode(self._wire.streaming(body))
        if body is self._request.sent_body:
            return self._request.raw
        return msgspec.json.encode(body)

    # --- what follows an attempt

    async def _next(self) -> Json | None:
        """What is to be asked next; None if the client has its answer."""
        exchange = self._exchange
        match exchange.phase:
            case Phase.CUT:
                await trio.sleep(self._rules.retry_delay_s)
                await self._wait_for_quota()
                closing, body = exchange.retry(trio.current_time())
                await self._write(closing)
                return body
            case Phase.COMPLETE:
                return await self._after_reply()
            case Phase.LOST:
                return await self._after_bad(exchange.lost)
            case _:
                idle = self._continuation.has_state and not exchange.may_continue
                if idle and exchange.failure is None:
                    self._continuation.note(self._reply(), exchange.attempts)
                return None

    def _reply(self) -> FinishedReply:
        """The reply that is complete."""
        partial = self._exchange.outcome
        return FinishedReply(
            context=(UserItem(self._said),),
            items=settle(partial, Outcome(Ending.FINISHED), self._wire.format),
            stop_reason=partial.stop_reason,
            now_s=trio.current_time(),
            now_ms=self._continuation.now_ms,
        )

    async def _after_reply(self) -> Json | None:
        exchange, continuation = self._exchange, self._continuation
        reply = self._reply()
        if continuation.awaits_follow_up and reply.is_empty:
            return await self._after_bad(None)
        document = exchange.reply()
        decision = await continuation.after_reply(
            reply,
            exchange.attempts,
            can_follow=self._following(document, "...") is not None,
            spent=exchange.spent_budget(trio.current_time()),
        )
        if decision is None:
            await self._write(exchange.conclude())
            return None
        body = self._following(document, decision.text, decision.warning)
        assert body is not None
        self._said = decision.text
        closing, body = exchange.follow_up(body)
        await self._write(closing)
        return body

    def _following(
        self, document: Json | None, text: str, warning: str | None = None
    ) -> Json | None:
        """The request that goes on behind the reply in `document`; None without a way to."""
        if document is None:
            return None
        request = self._exchange.request
        return follow_up_body(request, document, text, stream=True, warning=warning)

    async def _after_bad(self, failure: ProviderFailure | None) -> Json | None:
        """A follow-up has failed, or came back empty."""
        exchange = self._exchange
        spent = exchange.spent_budget(trio.current_time())
        verdict = await self._continuation.after_bad(
            failure,
            exchange.outcome.stop_reason,
            may_repeat=spent is None and (failure is None or not exchange.has_sent),
        )
        if verdict.action is Action.RETRY:
            closing, body = exchange.again()
            await self._write(closing)
            return body
        if verdict.action is Action.KEEP_LAST:
            await self._write(exchange.keep_last())
        else:
            await self._write(exchange.give_up(verdict.failure or EMPTY_FOLLOW_UP))
        return None

    async def _hear(self, failure: ProviderFailure | None) -> None:
        """How the newest attempt has ended. That a quota is spent the others have to know at
        once, and not when the client has read it."""
        if not self._is_heard:
            self._is_heard = True
            await self._windows.hear(self._window, self._asked_at_s, failure)

    async def _hear_refusal(self) -> None:
        failure = self._exchange.lost or self._why
        if failure is not None and failure.kind in SPENT:
            await self._hear(failure)

    async def _may_ask(self) -> bool:
        """Whether the window is closed. Nothing may be awaited between this and the request.
        To wait for that is for a retry: the client reads its answer already."""
        exchange = self._exchange
        if exchange.attempts > 1 and not self._continuation.awaits_follow_up:
            await self._wait_for_quota()
        wait_s = self._windows.wait_s(self._window)
        if wait_s is None:
            return True
        request, self._is_heard = self._request, True
        failure = ProviderFailure(FailureKind.RATE_LIMITED, out_of_quota(request.upstream.name))
        if exchange.attempts == 1:
            self._failure = failure
            exchange.fail(failure)
            name, cap_s = request.upstream.name, self._rules.retry_after_cap_s
            await refuse_until(self._client, self._wire, name, wait_s, cap_s)
        else:
            await self._write(exchange.fail(failure))
        return False

    async def _wait_for_quota(self) -> None:
        """Another request with this key may have been told meanwhile that the quota is spent.
        Returns when the window is over, or what the request may take."""
        ends_at_s = self._request.began_at_s + self._rules.budget.max_s
        while (wait_s := self._windows.wait_s(self._window)) is not None:
            left_s = ends_at_s - trio.current_time()
            if left_s <= 0:
                return
            await trio.sleep(min(wait_s, left_s))

    async def _attempt(self, nursery: trio.Nursery, raw: bytes) -> None:
        """One upstream answer. When this returns its connection is closed."""
        if not await self._may_ask():
            return
        deadline_s = self._continuation.deadline_s
        with trio.CancelScope() as limit:
            if deadline_s is not None:
                nursery.start_soon(self._limit, limit, deadline_s)
            await self._ask(nursery, raw)
        if limit.cancelled_caught:
            problem = f"the continuation took longer than {deadline_s:g} s"
            await self._write(self._exchange.fail(ProviderFailure(FailureKind.TIMEOUT, problem)))

    async def _limit(self, attempt: trio.CancelScope, limit_s: float) -> None:
        await trio.sleep(limit_s)
        self._client.cancel_between_sends(attempt)

    async def _ask(self, nursery: trio.Nursery, raw: bytes) -> None:
        self._asked_at_s = trio.current_time()
        self._is_heard = False
        request, exchange = self._request, self._exchange
        headers = request.headers_for(raw)
        sending = self._continuation.asked
        try:
            opened = request.upstream.open(
                nursery, "POST", request.url, headers, raw, on_sending=sending
            )
            async with opened as answer:
                if _is_stream(answer):
                    self._continuation.heard()
                    await self._follow(answer)
                elif answer.status == 200:
                    self._continuation.heard()
                    await self._take_whole(answer)
                else:
                    await self._pass_refusal(answer)
        except UpstreamFailed as error:
            await self._write(exchange.fail(error.failure))

    async def _follow(self, answer: Answer) -> None:
        exchange = self._exchange
        self._head = self._head or answer.headers
        if not self._assembles and not self._client.started:
            # Its length is not known any more, and nobody in between may wait for the end.
            head = [(n, v) for n, v in answer.headers if n != b"content-length"]
            await self._client.start(answer.status, head)
        while exchange.phase is Phase.STREAMING:
            data: bytes | None = None
            if exchange.ending:
                with trio.move_on_after(LINGER_S):
                    data = await answer.read()
            else:
                data = await answer.read()
            out = exchange.end() if data is None else exchange.feed(data)
            if exchange.failure is not None or exchange.phase is not Phase.STREAMING:
                await self._hear_refusal()
            await self._write(out)
            # A cut is told when the connection is closed, which comes first.
            if len(exchange.verdicts) > self._hits_told and exchange.phase is Phase.STREAMING:
                self.tell()

    async def _take_whole(self, answer: Answer) -> None:
        """The upstream answered with one document."""
        body = await answer.read_all(WHOLE_LIMIT_BYTES)
        document = json_object(body)
        if document is None or self._client.started or self._continuation.awaits_follow_up:
            problem = "the upstream answered with a document that cannot be watched"
            await self._write(self._exchange.fail(protocol_failure(problem)))
            return
        self._exchange.whole(document)
        if self._exchange.phase is Phase.OVER and self._exchange.failure is None:
            await self._client.answer_whole(answer.status, answer.headers, body)

    async def _pass_refusal(self, answer: Answer) -> None:
        """The upstream refused: its own words, while the client can still get them."""
        if not self._client.started and self._exchange.attempts == 1:
            body = await answer.read_all(WHOLE_LIMIT_BYTES)
            self._failure = _refusal(answer, body)
            self._exchange.fail(self._failure)
            await self._hear_refusal()
            head = capped_retry_after(answer.headers, self._rules.retry_after_cap_s)
            await self._client.answer_whole(answer.status, head, body)
            return
        body = await answer.read_all(WHOLE_LIMIT_BYTES)
        out = self._exchange.fail(_refusal(answer, body))
        await self._hear_refusal()
        await self._write(out)

    async def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._assembles:
            for event in self._events.feed(data):
                self._assembler.take(event)
        elif self._client.started:
            await self._client.send(data)

    async def _conclude(self) -> None:
        """End the client's answer, if that was not done yet."""
        failure = self._exchange.failure
        if self._client.ended:
            return
        if self._client.started:
            await self._client.end()
            return
        answer = self._assembler.answer() if failure is None else None
        if answer is None:
            await give_up(
                self._client, self._wire, failure or protocol_failure("there was no answer")
            )
            return
        changed = (b"content-type", b"content-length", b"cache-control")
        head = [(name, value) for name, value in self._head if name not in changed]
        await self._client.answer_json(200, answer, head)


def _nobody(events: Sequence[AnyEvent]) -> None:
    """Nobody wants to hear."""


def _is_stream(answer: Answer) -> bool:
    """Whether the answer is to be read as events; some servers name no type."""
    kind = answer.content_type
    return answer.status == 200 and "json" not in kind and "html" not in kind


def asks_for_several(body: Json) -> bool:
    """Whether a request wants several answers at once."""
    wanted = body.get("n")
    return isinstance(wanted, int) and wanted > 1


def _refusal(answer: Answer, body: bytes) -> ProviderFailure:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
    return classify_response(answer.status, headers, body)
