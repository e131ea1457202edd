"""The server of `latency.py`, in a process of its own: it measures what it sees.

It answers each request with harmless deltas, then with the one that breaks a rule, and notes
how long it takes until the connection is closed. One loop over plain sockets, because its own
delays would count as those of the host.

    python bench/latency_server.py LEAST MOST PHASE

`LEAST` to `MOST` harmless deltas are sent, a different number in each stream. `PHASE` is
`apart`, where each stream's deltas come at instants of its own, or `together`, where those of
all streams come at the same instant.

Prints the port that it listens on. When standard input ends, it prints what it has measured
as JSON: `latencies_us`, microseconds for each stream, and `deltas`, how many were sent.
"""

import json
import selectors
import socket
import sys
import time
from heapq import heappop, heappush
from random import Random

PACE_S = 0.02
"""Between two deltas of a stream: 50 in a second, faster than most models."""


def _event(kind: str, **fields: object) -> bytes:
    data = f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _delta(text: str) -> bytes:
    return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + _event(
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
    )
    + _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
)
_HARMLESS = _delta("harmless words ")
_FORBIDDEN = _delta("now comes FORBIDDEN")


class _Stream:
    """One connection. `left` harmless deltas are still to be sent."""

    def __init__(self, connection: socket.socket, left: int) -> None:
        self.connection = connection
        self.left = left
        self.request = b""
        self.has_begun = False
        self.broken_at = 0.0
        """When the delta that breaks the rule was sent."""


class Server:
    """See the module."""

    def __init__(self, least: int, most: int, *, together: bool) -> None:
        self._least, self._most, self._together = least, most, together
        self._random = Random(1)
        self._due: list[tuple[float, int, _Stream]] = []
        self._latencies_us: list[float] = []
        self._deltas = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve until standard input ends."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        print(self._listener.getsockname()[1], flush=True)
        while True:
            wait_s = max(0.0, self._due[0][0] - time.perf_counter()) if self._due else None
            ready = self._selector.select(wait_s)
            now = time.perf_counter()
            for key, _ in ready:
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(key.data, now)
            while self._due and self._due[0][0] <= time.perf_counter():
                due, _, stream = heappop(self._due)
                self._send(stream, due)

    def report(self) -> str:
        """What was measured."""
        return json.dumps({"latencies_us": self._latencies_us, "deltas": self._deltas})

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = _Stream(connection, self._random.randint(self._least, self._most))
        self._selector.register(connection, selectors.EVENT_READ, stream)

    def _receive(self, stream: _Stream, now: float) -> None:
        try:
            data = stream.connection.recv(65536)
        except ConnectionResetError:
            data = b""  # gone all the same
        if not data:
            self._latencies_us.append((now - stream.broken_at) * 1e6)
            self._selector.unregister(stream.connection)
            stream.connection.close()
            return
        stream.request += data
        if not stream.has_begun and b"\r\n\r\n" in stream.request:
            stream.has_begun = True
            stream.connection.sendall(_HEAD)
            self._schedule(stream, self._first_due(now))

    def _first_due(self, now: float) -> float:
        if self._together:
            return (now // PACE_S + 1) * PACE_S
        return now + PACE_S * self._random.random()

    def _schedule(self, stream: _Stream, due: float) -> None:
        heappush(self._due, (due, id(stream), stream))

    def _send(self, stream: _Stream, due: float) -> None:
        self._deltas += 1
        if stream.left:
            stream.left -= 1
            stream.connection.sendall(_HARMLESS)
            self._schedule(stream, due + PACE_S)
        else:
            stream.broken_at = time.perf_counter()
            stream.connection.sendall(_FORBIDDEN)


if __name__ == "__main__":
    server = Server(int(sys.argv[1]), int(sys.argv[2]), together=sys.argv[3] == "together")
    server.serve()
    print(server.report())
