"""The routes `/api/animator/*` of the operator's page (spec/animator.md 10), without the page.

`pending` is treated like `running` (B18): neither has a transcript that is over.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from midstream.doors.requests import BadRequest, limit_of, required
from midstream.doors.session_desk import Chunks, Follow, ReplayOf, SessionDesk
from midstream.doors.session_routes import statuses_of
from midstream.doors.session_views import (
    Json,
    chunk_view,
    message_view,
    messages_of,
    row_view,
    sse,
)
from midstream.messages.errors import MidstreamError
from midstream.messages.events import AnyEvent
from midstream.messages.record import SessionRecord
from midstream.stores.session_list import SessionFilter
from midstream.stores.store import MAX_LIMIT

DEFAULT_LIMIT = 50
REPLAY_S = 10.0
"""How long the events of a session that has ended may take to be read."""


def animator_routes(desk: SessionDesk, follow: Follow, replay: ReplayOf) -> list[Route]:
    """The routes; `follow` and `replay` tell what is said in sessions of this host."""
    door = _AnimatorDoor(desk, follow, replay)
    return [
        Route("/api/animator/sessions", door.sessions, methods=["GET"]),
        Route("/api/animator/session-transcript", door.transcript, methods=["GET"]),
        Route("/api/animator/session-stream", door.stream, methods=["GET"]),
        Route("/api/animator/status", door.status, methods=["GET"]),
    ]


class _AnimatorDoor:
    def __init__(self, desk: SessionDesk, follow: Follow, replay: ReplayOf) -> None:
        self._desk = desk
        self._follow = follow
        self._replay = replay

    async def sessions(self, request: Request) -> Response:
        """Rows, the newest first. `from` and `to` are instants or days; `to` a day means to
        its end (B18)."""
        which = SessionFilter(
            statuses=statuses_of(request),
            since=request.query_params.get("from") or None,
            until=request.query_params.get("to") or None,
        )
        try:
            page = await self._desk.list_sessions(which, limit=limit_of(request, DEFAULT_LIMIT))
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return JSONResponse({"sessions": [row_view(record) for record in page.records]})

    async def transcript(self, request: Request) -> Response:
        record = await self._desk.session(required(request, "id", "sessionId"))
        messages = await self._messages(record) if record.is_terminal else []
        return JSONResponse({"messages": messages, "sessionStatus": record.status})

    async def stream(self, request: Request) -> Response:
        record = await self._desk.session(required(request, "id", "sessionId"))
        return _EventStream(self._told(record))

    async def status(self, request: Request) -> Response:
        status = await self._desk.status()
        kept: Json = msgspec.to_builtins(status)
        return JSONResponse({**kept, "dispatchable": self._desk.is_dispatchable()})

    # --- what was said

    async def _told(self, record: SessionRecord) -> AsyncGenerator[bytes]:
        try:
            if not record.is_terminal:
                chunks = await self._follow(record.id)
                if chunks is None:
                    yield sse("done", {"status": record.status, "noStream": True})
                    return
                async with aclosing(_pieces(chunks)) as pieces:
                    async for piece in pieces:
                        yield piece
                record = await self._desk.session(record.id)
            yield sse("transcript", {"messages": await self._messages(record)})
            yield sse("done", {"status": record.status})
        except MidstreamError as error:
            yield sse("error", {"error": str(error)})

    async def _messages(self, record: SessionRecord) -> list[Json]:
        """The transcript that a session outside has sent, or what is on record of one that
        this program ran itself."""
        messages: list[Json] = []
        while True:
            entries = await self._desk.transcript(record.id, len(messages))
            messages += [message_view(msgspec.json.decode(entry)) for entry in entries]
            if len(entries) < MAX_LIMIT:
                break
        if messages or record.fence is None:
            return messages
        return messages_of(await self._events(record.id))

    async def _events(self, session_id: str) -> list[AnyEvent]:
        replay = self._replay(session_id)
        events: list[AnyEvent] = []
        try:
            with trio.move_on_after(REPLAY_S):
                while some := await replay.take():
                    events += [each.event for each in some]
        except MidstreamError:
            return events  # what is on record; the beginning of a long one may be gone
        finally:
            replay.close()
        return events


class _EventStream(StreamingResponse):
    """Server-sent events. Whatever ends the answer ends what makes them, at once."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )
        self._events = events

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events):
            await super().stream_response(send)


async def _pieces(chunks: Chunks) -> AsyncGenerator[bytes]:
    try:
        async for event in chunks:
            view = chunk_view(event)
            if view is not None:
                yield sse("chunk", view)
    finally:
        await chunks.aclose()
