"""A client that knows nothing of midstream: it sends what it is told, and reads what comes."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from midstream.messages.wire_codec import JSON_PROTOCOL, MSGPACK_PROTOCOL
from midstream.testing.wire import HOST, Wire

Frame = dict[str, Any]


class RawClient:
    """A connection. `close_code` is what the server closed it with."""

    def __init__(self, websocket: WebSocketConnection, protocol: str) -> None:
        self.websocket = websocket
        self.is_text = protocol == JSON_PROTOCOL

    @property
    def close_code(self) -> int | None:
        closed = self.websocket.closed
        return None if closed is None else closed.code

    async def say(self, kind: str, **fields: Any) -> None:
        frame = {"type": kind, **fields}
        text: str | bytes = json.dumps(frame)
        await self.websocket.send_message(text if self.is_text else msgspec.msgpack.encode(frame))

    async def hear(self) -> Frame:
        message = await self.websocket.get_message()
        if isinstance(message, str):
            return json.loads(message)
        return msgspec.msgpack.decode(message)

    async def ask(self, kind: str, **fields: Any) -> Frame:
        """Say something, and give its answer; what comes before is dropped."""
        await self.say(kind, **fields)
        while True:
            frame = await self.hear()
            if frame.get("id") == fields.get("id") and frame["type"] in ("ack", "error"):
                return frame

    async def events(self) -> list[Frame]:
        """Events to the end of a session."""
        heard: list[Frame] = []
        while True:
            frame = await self.hear()
            if frame["type"] == "event":
                heard.append(frame)
                if frame["event"]["event"] == "session.ended":
                    return heard

    async def submit(self, text: str = "hello", **fields: Any) -> Frame:
        segments = [{"kind": "text", "content": text}]
        return await self.ask("submit", **{"id": 1, "segments": segments, **fields})

    async def close_of_server(self) -> int:
        """Read until the server closes; its code."""
        with trio.fail_after(120):
            try:
                while True:
                    await self.websocket.get_message()
            except ConnectionClosed:
                assert self.close_code is not None
                return self.close_code


@asynccontextmanager
async def raw_client(
    wire: Wire | trio.abc.Stream,
    *,
    protocol: str = JSON_PROTOCOL,
    hello: Frame | None = None,
    host: str = HOST,
    path: str = "/v1",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> AsyncGenerator[RawClient]:
    """Connect over a wire, or a stream. `hello` are the fields of the first frame; {} sends
    none."""
    stream = wire.stream() if isinstance(wire, Wire) else wire
    async with trio.open_nursery() as nursery:
        websocket = await wrap_client_stream(
            nursery,
            stream,  # pyright: ignore[reportArgumentType] - typed for sockets, works for all
            host,
            path,
            subprotocols=[protocol],
            extra_headers=list(headers),
        )
        client = RawClient(websocket, protocol)
        if hello != {}:
            await client.say("hello", **(hello or {"capabilities": ["deltas"]}))
            welcome = await client.hear()
            assert welcome["type"] == "welcome", welcome
        yield client
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)


__all__ = ["JSON_PROTOCOL", "MSGPACK_PROTOCOL", "Frame", "RawClient", "raw_client"]
