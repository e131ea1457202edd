"""The routes `/api/session/*`: what sessions outside report, and what operators do to sessions.

Names and shapes are those of the reference's tools (spec/animator.md 5.5 to 5.7). Reports
come from the session itself, which says so in the header `X-Session-Id`; a session may
neither speak for another nor cancel any. A report that was not kept is answered with 503,
so that whoever sent it keeps it (B6).
"""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from midstream.doors.requests import BadRequest, json_body, limit_of, required
from midstream.doors.session_desk import SessionDesk
from midstream.doors.session_views import record_view
from midstream.messages.record import SessionStatus
from midstream.messages.session_reports import (
    AnyReport,
    HeartbeatReport,
    RecordReport,
    RunningReport,
)
from midstream.stores.session_list import SessionFilter

DEFAULT_LIMIT = 20
SESSION_HEADER = "x-session-id"


class CancelRequest(Struct, frozen=True):
    """The body of `session-cancel`."""

    id: str
    reason: str | None = None


def session_routes(desk: SessionDesk) -> list[Route]:
    """The routes for the sessions of `desk`."""
    door = _SessionDoor(desk)
    return [
        Route("/api/session/running", door.running, methods=["POST"]),
        Route("/api/session/heartbeat", door.heartbeat, methods=["POST"]),
        Route("/api/session/record", door.record, methods=["POST"]),
        Route("/api/session/list", door.list, methods=["GET"]),
        Route("/api/session/show", door.show, methods=["GET"]),
        Route("/api/session/cancel", door.cancel, methods=["POST"]),
    ]


class _SessionDoor:
    def __init__(self, desk: SessionDesk) -> None:
        self._desk = desk

    async def running(self, request: Request) -> Response:
        return await self._take(request, await json_body(request, RunningReport))

    async def heartbeat(self, request: Request) -> Response:
        return await self._take(request, await json_body(request, HeartbeatReport), refused=200)

    async def record(self, request: Request) -> Response:
        return await self._take(request, await json_body(request, RecordReport))

    async def list(self, request: Request) -> Response:
        """Records, the newest first: `status`, `provider`, `conversationId`, `limit`."""
        which = SessionFilter(
            statuses=statuses_of(request),
            provider=request.query_params.get("provider"),
            conversation_id=request.query_params.get("conversationId"),
        )
        page = await self._desk.list_sessions(which, limit=limit_of(request, DEFAULT_LIMIT))
        return JSONResponse([record_view(record) for record in page.records])

    async def show(self, request: Request) -> Response:
        record = await self._desk.session(required(request, "id", "sessionId"))
        return JSONResponse(record_view(record))

    async def cancel(self, request: Request) -> Response:
        if request.headers.get(SESSION_HEADER) is not None:
            raise BadRequest("a session may not cancel sessions; an operator may", 403)
        asked = await json_body(request, CancelRequest)
        return JSONResponse(record_view(await self._desk.cancel(asked.id, asked.reason)))

    async def _take(self, request: Request, report: AnyReport, refused: int = 503) -> Response:
        speaker = request.headers.get(SESSION_HEADER)
        if speaker is None:
            raise BadRequest(f"the header {SESSION_HEADER} is missing")
        if speaker != report.session_id:
            raise BadRequest(f"{speaker} may not report for {report.session_id}", 403)
        answer = await self._desk.report(report)
        body = {"ok": answer.ok, "sessionId": answer.session_id}
        if answer.status is not None:
            body["status"] = answer.status
        if answer.error is not None:
            body["error"] = answer.error
        return JSONResponse(body, 200 if answer.ok else refused)


def statuses_of(request: Request) -> tuple[SessionStatus, ...]:
    """The parameter `status`: one, several with commas, or several times; none means all."""
    named = [
        name.strip()
        for value in request.query_params.getlist("status")
        for name in value.split(",")
        if name.strip()
    ]
    try:
        return tuple(SessionStatus(name) for name in named)
    except ValueError:
        known = ", ".join(SessionStatus)
        raise BadRequest(f"unknown status in {', '.join(named)}; there are: {known}") from None
