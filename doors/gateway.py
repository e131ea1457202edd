"""The HTTP gateway: a client of OpenAI or Anthropic talks through it, and rules listen.

`gateway_app` is a Starlette application for Hypercorn's trio worker. It owns its upstreams,
what it remembers of sessions, and who has to wait. Each request is one task tree, in which one
task reads the upstream and writes the client, one watches whether the client is still there,
and one keeps a waiting client alive. What goes out, what is held and what is tried again,
`gateway_exchange.py` decides. A client that leaves ends its tree, and with it the connection to
the upstream.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import trio
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount
from starlette.types import Receive, Scope, Send

from midstream.doors.gateway_anthropic import AnthropicWire, without_unsigned_thinking
from midstream.doors.gateway_backoff import WindowKey, Windows, window_key
from midstream.doors.gateway_chat import ChatWire
from midstream.doors.gateway_client import BodyTooLarge, Client, ClientGone
from midstream.doors.gateway_exchange import Exchange, GatewayRules, Phase
from midstream.doors.gateway_responses import ResponsesWire
from midstream.doors.gateway_sessions import GatewaySessions, session_key
from midstream.doors.gateway_upstream import Answer, Upstream, UpstreamFailed
from midstream.doors.gateway_wire import Json, Wire
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.wire_body import messages_key
from midstream.providers.failures import classify_response
from midstream.providers.json_fields import list_of, object_of, text_of
from midstream.providers.sse import SseReader

KEEP_ALIVE_S = 10.0
"""How long a client that waits for a held text hears nothing (spec/gateway.md 2: clients
bear 35 seconds)."""
LINGER_S = 2.0
"""How long to wait for more after the terminal event."""
WHOLE_LIMIT_BYTES = 64 * 1024 * 1024

WIRES: Mapping[str, Wire] = {
    "/v1/messages": AnthropicWire(),
    "/v1/chat/completions": ChatWire(),
    "/v1/responses": ResponsesWire(),
}
_STATUSES = {
    FailureKind.RATE_LIMITED: 429,
    FailureKind.OVERLOADED: 503,
    FailureKind.AUTH: 401,
    FailureKind.INVALID_REQUEST: 400,
    FailureKind.TIMEOUT: 504,
}


_RECORDED = {
    FailureKind.RATE_LIMITED: SessionStatus.RATE_LIMITED,
    FailureKind.OVERLOADED: SessionStatus.RATE_LIMITED,
    FailureKind.TIMEOUT: SessionStatus.TIMEOUT,
}


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


class Gateway:
    """The ASGI application behind `gateway_app`."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        rules: GatewayRules,
        on_finished: OnFinished | None = None,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._upstreams = upstreams
        self._rules = rules
        self._on_finished = on_finished
        self._keep_alive_s = keep_alive_s
        self._sessions = GatewaySessions(rules.cwd, rules.home)
        self._windows = Windows()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _refuse_websocket(receive, send)
            return
        client = Client(scope, receive, send)
        upstream, path = self._by_prefix(client.path)
        if path in ("", "/") and client.method in ("GET", "HEAD"):
            await client.answer_json(200, {"service": "midstream gateway"})
        elif not path.startswith("/v1/"):
            problem = f"there is nothing at {client.path}; the API is under /v1"
            await client.answer_json(404, {"error": {"type": "not_found", "message": problem}})
        else:
            await self._serve(client, path, upstream)

    # --- one request

    async def _serve(self, client: Client, path: str, upstream: Upstream | None) -> None:
        wire = WIRES.get(path.rstrip("/")) if client.method == "POST" else None
        try:
            raw = await client.read_body()
        except ClientGone:
            return
        except BodyTooLarge as error:
            await _say(client, wire, 413, FailureKind.INVALID_REQUEST, str(error))
            return
        body = _json_object(raw)
        upstream = upstream or self._choose(client, path, body)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_leave_with, client, nursery.cancel_scope)
                if wire is None or body is None:
                    await self._relay_unwatched(client, path, upstream, wire, raw)
                else:
                    request = _Request(client, path, upstream, wire, body, raw, self._sessions)
                    await self._converse(request, nursery)
                nursery.cancel_scope.cancel()
        except* OSError:
            pass  # the client went while it was written to

    async def _relay_unwatched(
        self, client: Client, path: str, upstream: Upstream, wire: Wire | None, raw: bytes
    ) -> None:
        """A request that no rule concerns: bytes there, bytes back."""
        if wire is not None and self._rules.may_interrupt and client.header(b"content-encoding"):
            problem = "midstream cannot watch a compressed request; send it as it is"
            await _say(client, wire, 415, FailureKind.INVALID_REQUEST, problem)
            return
        try:
            async with upstream.open(
                client.method,
                upstream.url(path, client.query),
                upstream.request_headers(client.headers),
                raw,
            ) as answer:
                await _relay(client, answer)
        except UpstreamFailed as error:
            await _give_up(client, wire, error.failure)

    async def _converse(self, request: "_Request", nursery: trio.Nursery) -> None:
        window = window_key(request.upstream.name, request.client)
        wait_s = self._windows.wait_s(window)
        if wait_s is not None:
            problem = f"{request.upstream.name} is out of quota; midstream asks again then"
            failure = ProviderFailure(FailureKind.RATE_LIMITED, problem)
            retry_after = [(b"retry-after", str(wait_s).encode())]
            await request.client.answer_json(429, request.wire.error_body(failure), retry_after)
            return
        exchange = Exchange(
            request.wire,
            self._rules,
            request.sent_body,
            streams=request.streams,
            recorded=request.recorded,
            turn=request.turn,
            now_s=trio.current_time(),
        )
        nursery.start_soon(self._keep_alive, request, exchange)
        conversation = _Conversation(request, exchange, self._rules, self._windows, window)
        try:
            await conversation.run()
        finally:
            failure = conversation.failure or exchange.failure
            if request.client.ended:
                self._windows.hear(window, conversation.asked_at_s, failure)
            self._sessions.learn(request.session, exchange.reminders, request.turn)
            await self._report(request, exchange, conversation)

    async def _report(
        self, request: "_Request", exchange: Exchange, conversation: "_Conversation"
    ) -> None:
        if self._on_finished is None:
            return
        finished = Finished(
            upstream=request.upstream.name,
            wire=request.wire,
            body=request.body,
            exchange=exchange,
            began_at_s=request.began_at_s,
            failure=conversation.failure or exchange.failure,
            gone=not request.client.ended,
            headers=request.client.shown_headers,
        )
        with trio.CancelScope(shield=True):
            await self._on_finished(finished)

    async def _keep_alive(self, request: "_Request", exchange: Exchange) -> None:
        """Let a client hear something while it waits for what is held."""
        client = request.client
        while request.streams:
            due_at_s = client.sent_at_s + self._keep_alive_s
            if due_at_s > trio.current_time():
                await trio.sleep_until(due_at_s)
            elif client.started and not client.ended and exchange.holding:
                await client.send(request.wire.keep_alive)
            else:
                await trio.sleep(self._keep_alive_s)

    # --- which upstream

    def _by_prefix(self, path: str) -> tuple[Upstream | None, str]:
        """The upstream that a path names by its first part, and the rest of the path."""
        first, _, rest = path.lstrip("/").partition("/")
        for upstream in self._upstreams:
            if first == upstream.name:
                return upstream, f"/{rest}"
        return None, path

    def _choose(self, client: Client, path: str, body: Json | None) -> Upstream:
        """By the model, else the first that speaks the protocol."""
        model = text_of((body or {}).get("model"))
        for upstream in self._upstreams:
            if model and upstream.wants(model):
                return upstream
        anthropic = path.startswith("/v1/messages") or client.header(b"anthropic-version")
        family = "anthropic" if anthropic else "openai"
        for upstream in self._upstreams:
            if not upstream.serves or family in upstream.serves:
                return upstream
        return self._upstreams[0]


class _Request:
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


class _Conversation:
    """The attempts that answer one request."""

    def __init__(
        self,
        request: _Request,
        exchange: Exchange,
        rules: GatewayRules,
        windows: Windows,
        window: WindowKey,
    ) -> None:
        self._request = request
        self._windows = windows
        self._window = window
        self.asked_at_s = request.began_at_s
        """When the upstream was asked the last time."""
        self._client = request.client
        self._wire = request.wire
        self._exchange = exchange
        self._rules = rules
        self._assembles = not request.streams and exchange.may_interrupt
        self._events = SseReader()
        self._assembler = request.wire.assembler()
        self._head: list[tuple[bytes, bytes]] = []
        self.failure: ProviderFailure | None = None

    async def run(self) -> None:
        """Answer the client, with as many attempts as it takes."""
        request, exchange = self._request, self._exchange
        if exchange.may_interrupt and _asks_for_several(request.body):
            problem = "midstream watches one choice; ask for n=1"
            await _say(self._client, self._wire, 400, FailureKind.INVALID_REQUEST, problem)
            return
        raw = request.raw
        if self._assembles:
            raw = msgspec.json.encode(self._wire.streaming(request.sent_body))
        while True:
            exchange.begin()
            await self._attempt(raw)
            if exchange.phase is not Phase.CUT:
                break
            await trio.sleep(self._rules.retry_delay_s)
            await self._wait_for_quota()
            closing, body = exchange.retry(trio.current_time())
            await self._write(closing)
            if body is None:
                break
            body = self._wire.streaming(body) if self._assembles else body
            raw = msgspec.json.encode(body)
        await self._conclude()

    async def _wait_for_quota(self) -> None:
        """Another request with this key may have been told meanwhile that the quota is spent.
        Returns when the window is over, or what the request may take."""
        ends_at_s = self._request.began_at_s + self._rules.budget.max_s
        while (wait_s := self._windows.wait_s(self._window)) is not None:
            left_s = ends_at_s - trio.current_time()
            if left_s <= 0:
                return
            await trio.sleep(min(wait_s, left_s))

    async def _attempt(self, raw: bytes) -> None:
        """One upstream answer. When this returns its connection is closed."""
        self.asked_at_s = trio.current_time()
        request, exchange = self._request, self._exchange
        headers = request.upstream.request_headers(self._client.headers)
        try:
            async with request.upstream.open("POST", request.url, headers, raw) as answer:
                if _is_stream(answer):
                    await self._follow(answer)
                elif answer.status == 200:
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
            await self._write(exchange.end() if data is None else exchange.feed(data))

    async def _take_whole(self, answer: Answer) -> None:
        """The upstream answered with one document."""
        body = await answer.read_all(WHOLE_LIMIT_BYTES)
        document = _json_object(body)
        if document is None or self._client.started:
            problem = "the upstream answered with a document that cannot be watched"
            await self._write(self._exchange.fail(_protocol(problem)))
            return
        self._exchange.whole(document)
        if self._exchange.phase is Phase.OVER and self._exchange.failure is None:
            await self._client.start(answer.status, answer.headers)
            await self._client.send(body)
            await self._client.end()

    async def _pass_refusal(self, answer: Answer) -> None:
        """The upstream refused: its own words, while the client can still get them."""
        if not self._client.started and self._exchange.attempts == 1:
            body = await answer.read_all(WHOLE_LIMIT_BYTES)
            self.failure = _refusal(answer, body)
            self._exchange.fail(self.failure)
            await self._client.start(answer.status, answer.headers)
            await self._client.send(body)
            await self._client.end()
            return
        body = await answer.read_all(WHOLE_LIMIT_BYTES)
        await self._write(self._exchange.fail(_refusal(answer, body)))

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
            await _give_up(self._client, self._wire, failure or _protocol("there was no answer"))
            return
        changed = (b"content-type", b"content-length", b"cache-control")
        head = [(name, value) for name, value in self._head if name not in changed]
        await self._client.answer_json(200, answer, head)


def gateway_app(gateway: Gateway, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """The application to be served; `routes` are looked at first."""
    return Starlette(routes=[*routes, Mount("/", app=gateway)])


async def _leave_with(client: Client, scope: trio.CancelScope) -> None:
    await client.wait_gone()
    # The server says so too when the answer is complete, while it closes the connection.
    if not client.ended:
        scope.cancel()


async def _relay(client: Client, answer: Answer) -> None:
    await client.start(answer.status, answer.headers)
    while (data := await answer.read()) is not None:
        await client.send(data)
    await client.end()


async def _give_up(client: Client, wire: Wire | None, failure: ProviderFailure) -> None:
    """Say that there is no answer; one that has begun is broken off, its end never sent."""
    if client.started:
        return
    status = _STATUSES.get(failure.kind, 502)
    await _say(client, wire, status, failure.kind, failure.message)


async def _say(
    client: Client, wire: Wire | None, status: int, kind: FailureKind, message: str
) -> None:
    """An error of ours in the words of the protocol."""
    wire = wire or WIRES["/v1/chat/completions"]
    await client.answer_json(status, wire.error_body(ProviderFailure(kind, message)))


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    """Codex asks for a websocket first and falls back to HTTP when it gets a 404."""
    await receive()
    body = b'{"error":{"type":"not_found","message":"there is no websocket here; use HTTP"}}'
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "websocket.http.response.start", "status": 404, "headers": head})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _is_stream(answer: Answer) -> bool:
    """Whether the answer is to be read as events; some servers name no type."""
    kind = answer.content_type
    return answer.status == 200 and "json" not in kind and "html" not in kind


def _asks_for_several(body: Json) -> bool:
    wanted = body.get("n")
    return isinstance(wanted, int) and wanted > 1


def _refusal(answer: Answer, body: bytes) -> ProviderFailure:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
    return classify_response(answer.status, headers, body)


def _json_object(raw: bytes) -> Json | None:
    try:
        return msgspec.json.decode(raw, type=Json)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _protocol(message: str) -> ProviderFailure:
    return ProviderFailure(FailureKind.PROTOCOL, message)
