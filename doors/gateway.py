"""The HTTP gateway: a client of OpenAI or Anthropic talks through it, and rules listen.

`gateway_app` is a Starlette application for Hypercorn's trio worker. It owns its upstreams,
what it remembers of sessions, and who has to wait. Each request is one task tree, in which one
task reads the upstream and writes the client (`gateway_conversation.py`), one watches whether
the client is still there, and one keeps a waiting client alive. A client that leaves ends its
tree, and with it the connection to the upstream.
"""

from collections.abc import Sequence

import trio
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount
from starlette.types import Receive, Scope, Send

from midstream.doors.gateway_backoff import Windows, window_key
from midstream.doors.gateway_client import BodyTooLarge, Client, ClientGone
from midstream.doors.gateway_conversation import GatewayConversation
from midstream.doors.gateway_exchange import Exchange
from midstream.doors.gateway_protocols import WIRES, give_up, json_object, say
from midstream.doors.gateway_request import Finished, GatewayRequest, OnFinished
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_sessions import GatewaySessions
from midstream.doors.gateway_upstream import Answer, Upstream, UpstreamFailed
from midstream.doors.gateway_wire import Json, Wire
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.providers.json_fields import text_of

KEEP_ALIVE_S = 10.0
"""How long a client that waits for a held text hears nothing (spec/gateway.md 2: clients
bear 35 seconds)."""


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
            await say(client, wire, 413, FailureKind.INVALID_REQUEST, str(error))
            return
        body = json_object(raw)
        upstream = upstream or self._choose(client, path, body)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_leave_with, client, nursery.cancel_scope)
                if wire is None or body is None:
                    await self._relay_unwatched(client, path, upstream, wire, raw, nursery)
                else:
                    request = GatewayRequest(
                        client, path, upstream, wire, body, raw, self._sessions
                    )
                    await self._converse(request, nursery)
                nursery.cancel_scope.cancel()
        except* OSError:
            pass  # the client went while it was written to

    async def _relay_unwatched(
        self,
        client: Client,
        path: str,
        upstream: Upstream,
        wire: Wire | None,
        raw: bytes,
        nursery: trio.Nursery,
    ) -> None:
        """A request that no rule concerns: bytes there, bytes back."""
        if wire is not None and self._rules.may_interrupt and client.header(b"content-encoding"):
            problem = "midstream cannot watch a compressed request; send it as it is"
            await say(client, wire, 415, FailureKind.INVALID_REQUEST, problem)
            return
        try:
            async with upstream.open(
                nursery,
                client.method,
                upstream.url(path, client.query),
                upstream.request_headers(client.headers),
                raw,
            ) as answer:
                await _relay(client, answer)
        except UpstreamFailed as error:
            await give_up(client, wire, error.failure)

    async def _converse(self, request: GatewayRequest, nursery: trio.Nursery) -> None:
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
        conversation = GatewayConversation(request, exchange, self._rules, self._windows, window)
        try:
            await conversation.run(nursery)
        finally:
            failure = conversation.failure or exchange.failure
            if request.client.ended:
                self._windows.hear(window, conversation.asked_at_s, failure)
            self._sessions.learn(request.session, exchange.reminders, request.turn)
            await self._report(request, exchange, conversation)

    async def _report(
        self, request: GatewayRequest, exchange: Exchange, conversation: GatewayConversation
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


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    """Codex asks for a websocket first and falls back to HTTP when it gets a 404."""
    await receive()
    body = b'{"error":{"type":"not_found","message":"there is no websocket here; use HTTP"}}'
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "websocket.http.response.start", "status": 404, "headers": head})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
