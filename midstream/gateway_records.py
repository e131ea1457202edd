"""What a runtime keeps of the requests that go through its gateway.

Each watched request is a session on record while it runs: it beats, can be cancelled,
and is found dead when its host is. What rules and continuations do in it is told when it
happens; its end says what it cost. Nothing of that delays the request: its beginning is
written when it has had the time to reach the upstream, its events are told beside it, its end
is written when it is answered.
Only when many ends are still to be written do new requests wait (`gateway.py`). A store that
cannot take a record costs the record, never the client's answer.
"""

import logging
from collections.abc import Sequence
from typing import Any

import trio

from midstream.actors.clock import Clock, Ids
from midstream.actors.errors import AskFailed
from midstream.actors.outcome import Outcome
from midstream.doors.gateway_metrics import GatewayMetrics
from midstream.doors.gateway_request import Begun, Finished
from midstream.messages.dispatch import GATEWAY_TRIGGER
from midstream.messages.enrolment import Enrolment, ending, opening, record_unless_kept
from midstream.messages.errors import MidstreamError
from midstream.messages.events import (
    AnyEvent,
    LocalAnswer,
    SessionEnded,
    SessionStarted,
)
from midstream.messages.record import Fence, SessionRecord
from midstream.messages.session_identity import identify_session
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import AnyTransition
from midstream.runtime import Runtime

OPEN_AFTER_S = 0.02
"""Seconds for which a request has the processor before its beginning is written, unless it ends
before: writing is as much work as sending it."""

_log = logging.getLogger("midstream.gateway")


class GatewayRecords:
    """See the module. What it has to write beside a request runs in `nursery`."""

    def __init__(
        self,
        runtime: Runtime,
        metrics: GatewayMetrics,
        clock: Clock,
        ids: Ids,
        nursery: trio.Nursery,
    ) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._clock = clock
        self._ids = ids
        self._nursery = nursery

    def begin(self, begun: Begun) -> "LiveRequest":
        """A watched request has begun."""
        identity = identify_session(begun.headers, begun.body)
        session_id = self._ids.session_id()
        metadata: dict[str, Any] = {
            "trigger": GATEWAY_TRIGGER,
            "upstream": begun.upstream,
            "protocol": begun.wire.format,
            "model": begun.body.get("model"),
        }
        if identity is not None:
            metadata["client_session"] = identity.session_id
        enrolment = Enrolment(
            session_id=session_id,
            conversation_id=identity.state_key if identity else session_id,
            provider=begun.wire.format,
            started_at=format_timestamp(self._clock.now_ms()),
            fence=Fence(owner=self._runtime.owner, token=1),
            metadata=metadata,
        )
        request = LiveRequest(
            self._runtime, self._metrics, self._clock, enrolment, begun, self._nursery
        )
        self._runtime.enter(request)
        self._nursery.start_soon(request.open)
        return request


class LiveRequest:
    """One request, as a session of this process."""

    def __init__(
        self,
        runtime: Runtime,
        metrics: GatewayMetrics,
        clock: Clock,
        enrolment: Enrolment,
        begun: Begun,
        nursery: trio.Nursery,
    ) -> None:
        self.enrolment = enrolment
        self.outcome = Outcome()
        self._runtime = runtime
        self._metrics = metrics
        self._clock = clock
        self._begun = begun
        self._due = trio.Event()
        self._opened = trio.Event()
        self._nursery = nursery
        self._untold: list[AnyEvent] = []
        self._telling = trio.Lock()

    async def cancel(self, reason: str | None) -> None:
        """End it; its client is told."""
        self._begun.stop(reason)

    async def open(self) -> None:
        """Put it on record as running."""
        with trio.move_on_after(OPEN_AFTER_S):
            await self._due.wait()
        enrolment, model = self.enrolment, self._begun.body.get("model")
        started = SessionStarted(enrolment.conversation_id, enrolment.provider, str(model or ""))
        try:
            await self._write(opening(enrolment))
            await self._runtime.announce(enrolment.session_id, (started,))
        finally:
            self._opened.set()

    async def _is_open(self) -> None:
        """Let its beginning be written now, if it was not, and wait until it is."""
        self._due.set()
        await self._opened.wait()

    def note(self, events: Sequence[AnyEvent]) -> None:
        """These things have happened in it. They are told beside it, in their order."""
        self._untold += events
        self._nursery.start_soon(self._tell)

    async def _tell(self, *more: AnyEvent) -> None:
        """Tell what was not told yet. One at a time, so that all of it stays in order."""
        await self._is_open()
        async with self._telling:
            count = len(self._untold)
            await self._runtime.announce(self.enrolment.session_id, (*self._untold, *more))
            del self._untold[:count]

    async def finish(self, finished: Finished) -> None:
        """It is over."""
        self._metrics.count(finished)
        await self._is_open()
        ended = self._ended(finished)
        answered = finished.local_answer
        try:
            at = format_timestamp(self._clock.now_ms())
            kept = await self._write(ending(self.enrolment, ended, at, _learned(finished)))
            said = () if answered is None else (LocalAnswer(answered),)
            await self._tell(*said, ended)
            self.outcome.settle(ended, kept or record_unless_kept(self.enrolment, ended))
        finally:
            self._runtime.leave(self)

    def _ended(self, finished: Finished) -> SessionEnded:
        exchange = finished.exchange
        took_s = trio.current_time() - self._begun.began_at_s
        return SessionEnded(
            status=finished.status,
            output=finished.local_answer or exchange.output,
            stop_reason=exchange.outcome.stop_reason,
            reason=finished.reason,
            failure=finished.failure,
            usage=exchange.usage,
            attempts=exchange.attempts,
            duration_ms=max(0, round(took_s * 1000)),
        )

    async def _write(self, transition: AnyTransition) -> SessionRecord | None:
        try:
            return await self._runtime.put_on_record(transition)
        except (MidstreamError, AskFailed) as error:
            _log.warning("a request is not on record: %s", error)
            return None


def _learned(finished: Finished) -> dict[str, Any]:
    """What is only known of a request once it is over."""
    exchange = finished.exchange
    rules = dict.fromkeys(verdict.rule for verdict in exchange.verdicts)
    learned: dict[str, Any] = {
        "attempts": exchange.attempts,
        "follow_ups": exchange.follow_ups,
        "rules": list(rules),
    }
    model = exchange.outcome.model
    return learned if model is None else {**learned, "model": model}
