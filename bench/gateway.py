"""What the gateway costs: CPU for each chunk, beside a bare pass-through in the same run.

Both are ASGI applications that are called directly; the upstream is a transport of httpx2 in
the same process, and the client takes every chunk at once. So the figures hold the HTTP
client's work and Starlette's, and no sockets. The bare one is what one would write in ten
lines: Starlette's StreamingResponse over httpx2's raw bytes.

    python bench/gateway.py [--json]
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from midstream.actors.turn_settings import PromptBudget
from midstream.doors.gateway import Gateway, gateway_app
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.rules.policy import PolicySettings
from midstream.rules.rule import Rule
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments
from tables import report

CHUNKS = 3000
ROUNDS = 5
RULES = 100
URL = "http://upstream"


def _event(**data: Any) -> bytes:
    return f"event: {data['type']}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def _chunks() -> list[bytes]:
    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
    }
    text = {"type": "text_delta", "text": " and so"}
    return [
        _event(type="message_start", message=message),
        _event(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *[_event(type="content_block_delta", index=0, delta=text)] * CHUNKS,
        _event(type="content_block_stop", index=0),
        _event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={}),
        _event(type="message_stop"),
    ]


class _Bytes(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in STREAM:
            yield chunk


class _Transport(httpx2.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=_Bytes(), request=request
        )


STREAM = _chunks()


def _bare() -> ASGIApp:
    client = httpx2.AsyncClient(transport=_Transport())

    async def handle(request: Request) -> StreamingResponse:
        body = await request.body()
        asked = client.build_request("POST", f"{URL}/v1/messages", content=body)
        answer = await client.send(asked, stream=True)
        return StreamingResponse(answer.aiter_raw(), 200, dict(answer.headers))

    return Starlette(routes=[Route("/v1/messages", handle, methods=["POST"])])


def _gateway(rules: int) -> ASGIApp:
    rule_set = RuleSet(
        Rule(name=f"r{n}", body="No.", conditions=(f"forbidden{n}\\b",)) for n in range(rules)
    )
    watched = GatewayRules(
        rule_set=rule_set,
        new_arguments=lambda call_id, tool: ToolArguments(call_id, tool),
        policy=PolicySettings(),
        budget=PromptBudget(),
    )
    return gateway_app(Gateway([Upstream("up", URL, transport=_Transport)], watched))


async def _cpu_us(app: ASGIApp) -> float:
    """CPU of one answer, in microseconds for each chunk."""
    body = b'{"model":"m","stream":true}'
    received = 0
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await trio.sleep_forever()
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal received
        received += len(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "POST",
        "path": "/v1/messages",
        "raw_path": b"/v1/messages",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    began = time.process_time()
    await app(scope, receive, send)
    took = time.process_time() - began
    assert received == sum(map(len, STREAM)), received
    return took / CHUNKS * 1e6


async def main() -> None:
    apps = {
        "bare pass-through": _bare(),
        "gateway, no rules": _gateway(0),
        f"gateway, {RULES} rules": _gateway(RULES),
    }
    best = dict.fromkeys(apps, float("inf"))
    for _ in range(ROUNDS):
        for name, app in apps.items():
            best[name] = min(best[name], await _cpu_us(app))
    bare = best["bare pass-through"]
    rows = [
        {"application": name, "CPU µs/chunk": cost, "added": cost - bare, "ratio": cost / bare}
        for name, cost in best.items()
    ]
    report(f"{CHUNKS} chunks of one event, best of {ROUNDS}", rows)


if __name__ == "__main__":
    trio.run(main)
