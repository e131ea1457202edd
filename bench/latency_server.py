"""The server of `latency.py`, in a process of its own: it measures what it sees.

Prints the port that it listens on, serves until standard input ends, then prints the
latencies in microseconds as a JSON list.
"""

import json
import sys
from functools import partial
from random import Random

import trio

PACE_S = 0.02
LEAST_DELTAS, MOST_DELTAS = 64, 128
"""Harmless deltas before the one that breaks a rule, different for each stream, and the
seconds between them."""


def _event(kind: str, **fields: object) -> bytes:
    data = f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


_START = _event(
    "message_start",
    message={
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
) + _event("content_block_start", index=0, content_block={"type": "text", "text": ""})


def _delta(text: str) -> bytes:
    return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


async def _answer(latencies_us: list[float], random: Random, stream: trio.SocketStream) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive_some()
    await stream.send_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        b"transfer-encoding: chunked\r\n\r\n" + _START
    )
    for _ in range(random.randint(LEAST_DELTAS, MOST_DELTAS)):
        await stream.send_all(_delta("harmless words "))
        await trio.sleep(PACE_S)
    sent_at = trio.current_time()
    await stream.send_all(_delta("now comes FORBIDDEN"))
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass  # reset instead of closed: gone all the same
    latencies_us.append((trio.current_time() - sent_at) * 1e6)


async def serve() -> None:
    """Serve until standard input ends; then print what was measured."""
    latencies_us: list[float] = []
    answer = partial(_answer, latencies_us, Random(1))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        print(listeners[0].socket.getsockname()[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.buffer.read)
        nursery.cancel_scope.cancel()
    print(json.dumps(latencies_us))


if __name__ == "__main__":
    trio.run(serve)
