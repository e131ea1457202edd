"""A watched request as the gateway got it, and what became of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
import trio

from midstream.doors.gateway_anthropic import without_unsigned_thinking
from midstream.doors.gateway_client import Client
from midstream.doors.gateway_exchange import Exchange
from midstream.doors.gateway_sessions import GatewaySessions, session_key
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.gateway_wire import Json, Wire
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
    """A watched request as it came, and as it goes on."""

    def __init__(
        self,
        client: Client,
        path: str,
        upstream: Upstream,
        wire: Wire,
        body: Json,
        raw: bytes,
        sessions: GatewaySessions,
    ) -> None:
        self.client = client
        self.path = path
        self.upstream = upstream
        self.wire = wire
        self.body = body
        self.began_at_s = trio.current_time()
        self.streams = bool(body.get("stream"))
        self.session = session_key(client.shown_headers, body)
        self.sent_body, self.recorded = sessions.prepare(wire, self.session, body)
        if wire.format == "anthropic":
            self.sent_body = without_unsigned_thinking(self.sent_body)
        self.raw = raw if self.sent_body is body else msgspec.json.encode(self.sent_body)
        key = messages_key(body)
        entries = list_of(body.get(key)) if key else []
        self.turn = sum(object_of(entry).get("role") == "assistant" for entry in entries) + 1

    @property
    def url(self) -> str:
        return self.upstream.url(self.path, self.client.query)


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of one watched request. `failure` is why it failed, if it did; `gone`
    that the client left."""

    upstream: str
    wire: Wire
    body: Json
    exchange: Exchange
    began_at_s: float
    failure: ProviderFailure | None
    gone: bool
    headers: Mapping[str, str]
    """The client's, without those that hold a key."""

    @property
    def status(self) -> SessionStatus:
        """How it ended, as records have it."""
        if self.gone:
            return SessionStatus.CANCELLED
        if self.exchange.capped is not None:
            return SessionStatus.CAPPED
        if self.failure is None:
            return SessionStatus.COMPLETED
        return _RECORDED.get(self.failure.kind, SessionStatus.FAILED)


OnFinished = Callable[[Finished], Awaitable[None]]
