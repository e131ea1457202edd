"""A watched request as the gateway got it, and what became of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import trio

from midstream.actors.turn_phases import Conclusion
from midstream.doors.gateway_anthropic import without_unsigned_thinking
from midstream.doors.gateway_body import without_coding
from midstream.doors.gateway_client import Client, Headers
from midstream.doors.gateway_exchange import Exchange
from midstream.doors.gateway_sessions import GatewaySessions, session_key
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.gateway_wire import Json, Wire
from midstream.messages.events import AnyEvent
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.wire_body import messages_key
from midstream.providers.json_fields import list_of, object_of

_RECORDED = {
    FailureKind.RATE_LIMITED: SessionStatus.RATE_LIMITED,
    FailureKind.OVERLOADED: SessionStatus.RATE_LIMITED,
    FailureKind.TIMEOUT: SessionStatus.TIMEOUT,
}


class GatewayRequest:
    """A watched request as it came, and as it goes on. `body` and `raw` are the client's,
    `asked` is the same without its directives."""

    def __init__(
        self,
        client: Client,
        path: str,
        upstream: Upstream,
        wire: Wire,
        body: Json,
        raw: bytes,
        sessions: GatewaySessions,
        asked: Json,
    ) -> None:
        self.client = client
        self.path = path
        self.upstream = upstream
        self.wire = wire
        self.body = body
        self.began_at_s = trio.current_time()
        self.streams = bool(body.get("stream"))
        self.session = session_key(client.shown_headers, body)
        self.sent_body, self.recorded = sessions.prepare(wire, self.session, asked)
        if wire.format == "anthropic":
            self.sent_body = without_unsigned_thinking(self.sent_body)
        self._client_raw = raw
        self.raw = raw if self.sent_body is body else msgspec.json.encode(self.sent_body)
        key = messages_key(body)
        entries = list_of(body.get(key)) if key else []
        self.turn = sum(object_of(entry).get("role") == "assistant" for entry in entries) + 1

    @property
    def url(self) -> str:
        return self.upstream.url(self.path, self.client.query)

    def headers_for(self, sent: bytes) -> Headers:
        """The headers that go to the upstream with a body; only the client's own may be
        compressed."""
        headers = self.client.headers
        if sent is not self._client_raw:
            headers = without_coding(headers)
        return self.upstream.request_headers(headers)


class Begun(msgspec.Struct, frozen=True):
    """A watched request has begun. `stop` ends it, for a reason that its client is told."""

    upstream: str
    wire: Wire
    body: Json
    began_at_s: float
    headers: Mapping[str, str]
    """The client's, without those that hold a key."""
    stop: Callable[[str | None], None]


class Finished(msgspec.Struct, frozen=True):
    """What became of one watched request. `failure` is why it failed, if it did; `gone`
    that the client left, `stopped` that somebody else ended it."""

    begun: Begun
    exchange: Exchange
    failure: ProviderFailure | None
    gone: bool
    stopped: bool = False
    conclusion: Conclusion | None = None
    """How auto-continue ended, where it did."""
    local_answer: str | None = None
    """What was answered without asking the upstream."""

    @property
    def status(self) -> SessionStatus:
        """How it ended, as records have it."""
        if self.gone or self.stopped:
            return SessionStatus.CANCELLED
        if self.exchange.capped is not None:
            return SessionStatus.CAPPED
        if self.failure is None and self.conclusion is not None:
            return self.conclusion.status
        if self.failure is None:
            return SessionStatus.COMPLETED
        return _RECORDED.get(self.failure.kind, SessionStatus.FAILED)

    @property
    def reason(self) -> str | None:
        """Why, for people."""
        if self.exchange.capped is not None:
            return self.exchange.capped
        if self.failure is not None:
            return self.failure.message
        return self.conclusion.reason if self.conclusion is not None else None


class RequestRecord(Protocol):
    """What is kept of one request while it runs, and when it is over."""

    def note(self, events: Sequence[AnyEvent]) -> None:
        """These things have happened in it. Whoever listens is told beside the request."""
        ...

    async def finish(self, finished: Finished) -> None: ...


OnBegun = Callable[[Begun], RequestRecord]
