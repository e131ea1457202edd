"""The provider behind bench/gateway.py, in a process of its own: it says what it is asked to.

A prompt holds a plan, `plan:COUNT:PAUSE_MS:ID`: so many deltas, so far apart; without a pause
they are sent as fast as the socket takes them. Every delta is a chunk of its own, as providers
send them. One that is paced holds the instant at which it was sent (nanoseconds of the
machine's monotonic clock, which all processes share). `GET /open` answers how many streams are
open, `GET /closed/ID` the instant at which the other side closed that one.

Prints its port, then serves until its standard input is closed.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

_PLAN = re.compile(rb"plan:(\d+):(\d+):(\w+)")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_WORDS = ("Here is what I would do:", " read", " the", " file,", " never", " say", " more", "\n")
_BURST = 64 * 1024

Say = Callable[[str], bytes]


def _event(data: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _chat() -> tuple[list[bytes], Say, list[bytes]]:
    def chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
        return _event({**head, "model": "m", "choices": [choice]})

    last = [chunk({}, "stop"), b"data: [DONE]\n\n"]
    return [chunk({"role": "assistant"})], lambda text: chunk({"content": text}), last


def _anthropic() -> tuple[list[bytes], Say, list[bytes]]:
    def say(kind: str, **data: Any) -> bytes:
        return _event({"type": kind, **data}, kind)

    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    start = say("message_start", message={**message, "content": [], "usage": usage})
    block = say("content_block_start", index=0, content_block={"type": "text", "text": ""})
    delta = partial(say, "content_block_delta", index=0)
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    return (
        [start, block],
        lambda text: delta(delta={"type": "text_delta", "text": text}),
        [
            say("content_block_stop", index=0),
            say("message_delta", delta=stop, usage={"output_tokens": 9}),
            say("message_stop"),
        ],
    )


def _responses() -> tuple[list[bytes], Say, list[bytes]]:
    def say(kind: str, **data: Any) -> bytes:
        return _event({"type": kind, **data, "sequence_number": 1}, kind)

    response: dict[str, Any] = {"id": "resp_1", "object": "response", "model": "m", "output": []}
    item: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    first = [
        say("response.created", response={**response, "status": "in_progress"}),
        say("response.output_item.added", output_index=0, item=item),
    ]
    last = say("response.completed", response={**response, "status": "completed"})
    return first, lambda text: say("response.output_text.delta", **at, delta=text), [last]


_PROTOCOLS = {b"/v1/messages": _anthropic, b"/v1/responses": _responses}


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Provider:
    """Serves connections, and knows of each stream that is open or was closed on it."""

    def __init__(self) -> None:
        self._open = 0
        self._closed_at_ns: dict[str, int] = {}
        self._closes = trio.Condition()

    async def serve(self, stream: trio.SocketStream) -> None:
        rest = b""
        async with stream:
            try:
                while (request := await _request(stream, rest)) is not None:
                    head, body, rest = request
                    await self._answer(stream, head, body)
            except trio.BrokenResourceError:
                pass  # the other side is gone

    async def _answer(self, stream: trio.SocketStream, head: bytes, body: bytes) -> None:
        path = head.split()[1].partition(b"?")[0]
        if path == b"/open":
            await _say_number(stream, self._open)
        elif path.startswith(b"/closed/"):
            await _say_number(stream, await self._when_closed(path.rpartition(b"/")[2].decode()))
        elif (plan := _PLAN.search(body)) is not None:
            build = _PROTOCOLS.get(path, _chat)
            await self._stream(stream, build(), int(plan[1]), int(plan[2]), plan[3].decode())

    async def _when_closed(self, stream_id: str) -> int:
        async with self._closes:
            while stream_id not in self._closed_at_ns:
                await self._closes.wait()
        return self._closed_at_ns[stream_id]

    async def _stream(
        self,
        stream: trio.SocketStream,
        parts: tuple[list[bytes], Say, list[bytes]],
        count: int,
        pause_ms: int,
        stream_id: str,
    ) -> None:
        self._open += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_closed, stream, nursery.cancel_scope)
                await _say(stream, parts, count, pause_ms / 1000)
                nursery.cancel_scope.cancel()
        except* trio.BrokenResourceError:
            pass
        finally:
            self._open -= 1
            self._closed_at_ns[stream_id] = time.monotonic_ns()
            async with self._closes:
                self._closes.notify_all()


async def _until_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    await stream.receive_some()
    scope.cancel()


async def _say(
    stream: trio.SocketStream,
    parts: tuple[list[bytes], Say, list[bytes]],
    count: int,
    pause_s: float,
) -> None:
    first, say, last = parts
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    await stream.send_all(head + b"\r\n" + b"".join(map(_chunked, first)))
    if not pause_s:
        words = [_chunked(say(word)) for word in _WORDS]
        data = b"".join(words[number % len(words)] for number in range(count))
        for at in range(0, len(data), _BURST):
            await stream.send_all(data[at : at + _BURST])
    began_at_s = trio.current_time()
    for number in range(count if pause_s else 0):
        await trio.sleep_until(began_at_s + number * pause_s)
        await stream.send_all(_chunked(say(f"{number}:{time.monotonic_ns()};")))
    await stream.send_all(b"".join(map(_chunked, last)) + b"0\r\n\r\n")


async def _say_number(stream: trio.SocketStream, number: int) -> None:
    body = str(number).encode()
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def _request(stream: trio.SocketStream, data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Head and body of the next request, and what came behind it."""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    size = int(length[1]) if length else 0
    while len(body) < size:
        body += await stream.receive_some()
    return head, body[:size], body[size:]


async def main() -> None:
    provider = Provider()
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, provider.serve, 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        sys.stdout.write(f"{listener.socket.getsockname()[1]}\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
