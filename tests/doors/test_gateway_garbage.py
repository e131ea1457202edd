"""What a request through the gateway leaves to Python's garbage collector: nothing.

The program collects rarely, because a full collection stops every stream
(`midstream/cli/garbage.py`), so what only the collector can free grows.
"""

import gc
import sys

import msgspec
import pytest
import trio
from gateway_streams import chat_stream
from gateway_world import Reply, Request, ScriptedUpstream, gateway_rules, rule
from starlette.types import Message, Scope

from midstream.doors.gateway import Gateway
from midstream.doors.gateway_request import Begun, Finished
from midstream.doors.gateway_upstream import Upstream

TIMES = 20
BOUND = 4
"""Objects for each request; with a cycle it is at least everything about the request, which is
some ninety."""

CLEAN, DIRTY = Reply(chat_stream("All is well.")), Reply(chat_stream("A SECRET")[:3], hold=True)
REFUSAL = Reply([b'{"error": {"message": "no"}}'], 400, "application/json")
BROKEN = Reply(chat_stream("All is")[:2], breaks=True)
HELD = Reply(chat_stream("All is")[:2], hold=True)
LEFT_BY_OTHERS = pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="httpcore translates errors in generators, whose frames Python 3.12 and later leave to "
    "the collector (python/cpython#129280)",
)


async def ask(gateway: Gateway, *, streams: bool, leaves: bool) -> list[Message]:
    """One request without a server; a client that leaves does so at the first text."""
    asks = {"model": "m", "stream": streams, "messages": [{"role": "user", "content": "Go"}]}
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
    scope["headers"] = []
    body, sent, has_left = [msgspec.json.encode(asks)], list[Message](), trio.Event()

    async def receive() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop()}
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if leaves and b"All" in message.get("body", b""):
            has_left.set()

    await gateway(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("replies", "streams"),
    [
        pytest.param([CLEAN], True, id="answered"),
        pytest.param([CLEAN], False, id="answered whole"),
        pytest.param([DIRTY, CLEAN], True, id="cut and tried again"),
        pytest.param([DIRTY, CLEAN], False, id="cut and tried again, whole"),
        pytest.param([REFUSAL], True, id="refused"),
        pytest.param([BROKEN], True, id="broken off", marks=LEFT_BY_OTHERS),
        pytest.param([BROKEN], False, id="broken off, whole", marks=LEFT_BY_OTHERS),
        pytest.param([HELD], True, id="left"),
    ],
)
async def test_a_request_that_is_over_leaves_no_garbage(
    replies: list[Reply], streams: bool
) -> None:
    ended, reports = trio.open_memory_channel[Finished](1)
    watched = gateway_rules(rule("SECRET"))
    async with trio.open_nursery() as nursery, ended, reports:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        scripted = ScriptedUpstream()
        replied = [0]

        def choose(_: object) -> Reply:
            replied[0] += 1
            return replies[(replied[0] - 1) % len(replies)]

        scripted.choose = choose
        nursery.start_soon(trio.serve_listeners, scripted.handle, [listener])
        upstream = Upstream("up", f"http://127.0.0.1:{listener.socket.getsockname()[1]}")

        def begin(begun: Begun) -> Request:
            return Request(begun, ended)

        gateway = Gateway([upstream], lambda: watched, begin)

        async def run(times: int) -> None:
            for _ in range(times):
                await ask(gateway, streams=streams, leaves=replies == [HELD])
                reports.receive_nowait()
            scripted.asked.clear()

        await run(3)
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        gc.disable()
        try:
            await run(TIMES)
            await trio.testing.wait_all_tasks_blocked(0.01)
            found = gc.collect()
        finally:
            gc.enable()
        await upstream.aclose()
        nursery.cancel_scope.cancel()
    assert found <= TIMES * BOUND
