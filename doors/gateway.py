"""The HTTP gateway: a client of OpenAI or Anthropic talks through it, and rules listen.

`gateway_app` is an ASGI application for Hypercorn's trio worker. `Gateway` owns its upstreams,
what it remembers of sessions, and who has to wait. Each request is one task tree, in which one
task reads the upstream and writes the client (`gateway_conversation.py`), one watches whether
the client is still there, and one keeps a waiting client alive. A client that leaves ends its
tree, and with it the connection to the upstream.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import msgspec
import trio
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from midstream.actors.clock import SystemClock
from midstream.actors.stop_message_book import StopMessageBook, StopMessageSettings
from midstream.doors.gateway_answer import own_answer, own_stream
from midstream.doors.gateway_backoff import Windows, window_key
from midstream.doors.gateway_body import UnreadableBody, object_of_body, without_coding
from midstream.doors.gateway_client import (
    BodyTooLarge,
    Client,
    ClientGone,
    Headers,
)
from midstream.doors.gateway_continuing import (
    OpenedBody,
    RequestContinuation,
    open_body,
    without_directives,
)
from midstream.doors.gateway_conversation import GatewayConversation, asks_for_several
from midstream.doors.gateway_exchange import Exchange
from midstream.doors.gateway_files import GatewayFiles
from midstream.doors.gateway_protocols import give_up, refuse_until, say, wire_at, wire_under
from midstream.doors.gateway_request import GatewayRequest, OnBegun
from midstream.doors.gateway_response_ids import ResponseIds
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_sessions import GatewaySessions, session_key
from midstream.doors.gateway_upstream import Answer, Upstream, UpstreamFailed
from midstream.doors.gateway_wire import Json, Wire
from midstream.messages.bd_stage import StageTemplatesMissing
from midstream.messages.events import AlertRaised
from midstream.messages.failure import FailureKind
from midstream.messages.session_identity import identify_session
from midstream.providers.json_fields import text_of

SETTLING_LIMIT = 128
"""Requests that are answered and of which something is still to be written down, beyond which
new ones wait: clients can ask faster than a store can write, and what waits is memory."""
KEEP_ALIVE_S = 10.0
"""How long a client that waits for a held text hears nothing (spec/gateway.md 2: clients
bear 35 seconds)."""


class Gateway:
    """The ASGI application behind `gateway_app`. `rules` says what is watched for when a
    request begins, which keeps that to its end."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        rules: Callable[[], GatewayRules],
        on_begun: OnBegun | None = None,
        keep_alive_s: float = KEEP_ALIVE_S,
        stop_messages: StopMessageBook | None = None,
        windows: Windows | None = None,
        response_ids: ResponseIds | None = None,
        files: GatewayFiles | None = None,
    ) -> None:
        self._upstreams = upstreams
        self._rules = rules
        self._on_begun = on_begun
        self._settling = 0
        self._settled = trio.lowlevel.ParkingLot()
        self._stop_messages = stop_messages or StopMessageBook(SystemClock(), StopMessageSettings())
        self._own_answers = 0
        self._keep_alive_s = keep_alive_s
        self._sessions = GatewaySessions(rules().cwd, rules().home)
        self._windows = windows or Windows()
        self._response_ids = response_ids or ResponseIds()
        self._files = files

    async def recall(self) -> None:
        """Read what an earlier run has kept, before requests come."""
        await self._windows.recall()
        await self._response_ids.recall()

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
        wire = wire_at(path) if client.method == "POST" else None
        try:
            raw = await client.read_body()
        except ClientGone:
            return
        except BodyTooLarge as error:
            await say(client, wire, 413, FailureKind.INVALID_REQUEST, str(error))
            return
        try:
            body = await object_of_body(raw, client.headers)
            if body is None and wire is not None and self._rules().may_interrupt:
                problem = "the request is no JSON object, so its answer cannot be watched"
                raise UnreadableBody(400, problem)
        except UnreadableBody as error:
            if (speaks := wire_under(path)) is not None:
                kind = FailureKind.INVALID_REQUEST
                await say(client, speaks, error.status, kind, str(error), error.headers)
                return
            body = None
        upstream = upstream or self._choose(client, path, body)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_leave_with, client, nursery.cancel_scope)
                if wire is None or body is None:
                    sent = self._without_directives(path, body, raw, client.headers)
                    await _relay_unwatched(client, path, upstream, wire, sent, nursery)
                else:
                    await self._watch(client, path, upstream, wire, body, raw, nursery)
                nursery.cancel_scope.cancel()
        except* OSError:
            pass  # the client went while it was written to

    def _without_directives(
        self, path: str, body: Json | None, raw: bytes, headers: Headers
    ) -> tuple[bytes, Headers]:
        """What goes to the upstream of a request that only counts or looks at a conversation:
        its body, and the client's headers as they fit to that."""
        if body is None or wire_under(path) is None:
            return raw, headers
        keep_in_code = self._stop_messages.settings.keep_in_code
        cleaned = without_directives(body, keep_in_code=keep_in_code)
        if cleaned is body:
            return raw, headers
        return msgspec.json.encode(cleaned), without_coding(headers)

    async def _watch(
        self,
        client: Client,
        path: str,
        upstream: Upstream,
        wire: Wire,
        body: Json,
        raw: bytes,
        nursery: trio.Nursery,
    ) -> None:
        """A request that is watched, from its directives to its record."""
        while self._settling >= SETTLING_LIMIT:
            await self._settled.park()
        rules = self._rules()
        window = window_key(upstream.name, client)
        wait_s = self._windows.wait_s(window)
        if wait_s is not None:
            await refuse_until(client, wire, upstream.name, wait_s, rules.retry_after_cap_s)
            return
        identity = identify_session(client.shown_headers, body)
        key = None if identity is None else identity.state_key
        try:
            opened = await open_body(self._stop_messages, key, body)
        except StageTemplatesMissing as error:
            await say(client, wire, 400, FailureKind.INVALID_REQUEST, str(error))
            return
        continuation = RequestContinuation(
            self._stop_messages, key, opened, lambda: not client.gone
        )
        asked = await self._asked(client, body, opened, continuation)
        request = GatewayRequest(client, path, upstream, wire, body, raw, self._sessions, asked)
        exchange = _exchange(request, rules, continuation)
        conversation = GatewayConversation(
            request, exchange, rules, self._windows, window, continuation
        )
        begun = conversation.begun()
        record = self._on_begun(begun) if self._on_begun is not None else None
        if record is not None:
            conversation.note = record.note
        nursery.start_soon(self._keep_alive, request, exchange)
        try:
            if opened.local_answer is None:
                await conversation.run(nursery)
            else:
                await self._answer_locally(request, opened.local_answer)
        finally:
            self._sessions.learn(request.session, exchange.reminders, request.turn)
            with self._settles(), trio.CancelScope(shield=True):
                await self._response_ids.learn(exchange.aliases)
                await conversation.settle()
                if record is not None:
                    await record.finish(conversation.finished(begun, opened.local_answer))

    async def _asked(
        self, client: Client, body: Json, opened: OpenedBody, continuation: RequestContinuation
    ) -> Json:
        """What the upstream is to be asked: with its own ids, and the files that the client
        refers to."""
        asked = self._response_ids.translated(opened.body)
        if self._files is None or opened.local_answer is not None:
            return asked
        session = session_key(client.shown_headers, body)
        asked, alerts = await self._files.attach(session, asked)
        continuation.events += map(AlertRaised, alerts)
        return asked

    @contextmanager
    def _settles(self) -> Generator[None]:
        """Something of a request is still to be written down."""
        self._settling += 1
        try:
            yield
        finally:
            self._settling -= 1
            self._settled.unpark()

    async def _answer_locally(self, request: GatewayRequest, text: str) -> None:
        """Answer a message that was nothing but directives."""
        self._own_answers += 1
        answer_id = f"midstream{self._own_answers:06d}"
        now_s = self._stop_messages.clock.now_ms() // 1000
        answer = own_answer(request.wire.format, answer_id, text, request.body, now_s)
        if not request.streams:
            await request.client.answer_json(200, answer)
            return
        stream = own_stream(request.wire.format, answer)
        await request.client.answer(200, stream, b"text/event-stream; charset=utf-8")

    async def _keep_alive(self, request: GatewayRequest, exchange: Exchange) -> None:
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


def gateway_app(gateway: Gateway, routes: Sequence[Route] = ()) -> ASGIApp:
    """The application to be served: `routes` at their paths, the gateway at all others.

    Starlette serves the routes alone. It would put three calls of its own around each delta.
    """
    operators = Starlette(routes=routes)
    paths = frozenset(route.path for route in routes)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_operators = scope["type"] == "lifespan" or scope["path"] in paths
        await (operators if is_operators else gateway)(scope, receive, send)

    return app


def _exchange(
    request: GatewayRequest, rules: GatewayRules, continuation: RequestContinuation
) -> Exchange:
    return Exchange(
        request.wire,
        rules,
        request.sent_body,
        streams=request.streams,
        recorded=request.recorded,
        turn=request.turn,
        now_s=trio.current_time(),
        may_continue=continuation.may_continue and not asks_for_several(request.body),
    )


async def _leave_with(client: Client, scope: trio.CancelScope) -> None:
    await client.wait_gone()
    # The server says so too when the answer is complete, while it closes the connection.
    if not client.ended:
        scope.cancel()


async def _relay_unwatched(
    client: Client,
    path: str,
    upstream: Upstream,
    wire: Wire | None,
    sent: tuple[bytes, Headers],
    nursery: trio.Nursery,
) -> None:
    """A request that no rule concerns: bytes there, bytes back."""
    body, headers = sent
    url = upstream.url(path, client.query)
    headers = upstream.request_headers(headers)
    try:
        async with upstream.open(nursery, client.method, url, headers, body) as answer:
            await _relay(client, answer)
    except UpstreamFailed as error:
        await give_up(client, wire, error.failure)


async def _relay(client: Client, answer: Answer) -> None:
    await client.start(answer.status, answer.headers)
    while (data := await answer.read()) is not None:
        await client.send(data)
    await client.end()


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    """Codex asks for a websocket first. At a 426 it goes on over HTTP at once, at any other
    status only after seven attempts (seen with 0.171.0)."""
    await receive()
    body = b'{"error":{"type":"upgrade_required","message":"there is no websocket here; use HTTP"}}'
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"upgrade", b"HTTP/1.1"),  # RFC 9110, 15.5.22
    ]
    await send({"type": "websocket.http.response.start", "status": 426, "headers": head})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
