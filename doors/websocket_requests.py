"""Carries out what a client asks for. Whatever happens, there is an answer."""

import logging
from collections.abc import Callable

from midstream.doors.answers import Answer
from midstream.doors.session_host import Refusal, SessionHost
from midstream.messages import wire
from midstream.messages.wire import ErrorCode

_log = logging.getLogger("midstream.websocket")

Once = wire.Submit | wire.Interrupt | wire.Cancel | wire.ToolResult
"""Requests that must not be carried out again when they are sent again."""

Carried = Once | wire.List | wire.Status


class Requests:
    """See the module. `door_status` gives the number of connections and subscriptions."""

    def __init__(self, host: SessionHost, door_status: Callable[[], tuple[int, int]]) -> None:
        self._host = host
        self._door_status = door_status

    async def carry_out(self, request: Carried) -> Answer:
        """Do it, and say what came of it."""
        try:
            return wire.Ack(id=request.id, result=await self._result_of(request))
        except Refusal as refusal:
            return wire.Error(
                code=refusal.code, message=str(refusal), id=request.id, after=refusal.after
            )
        except Exception:  # noqa: BLE001 - a mistake of ours ends no connection
            _log.exception("a request of type %s failed", type(request).__name__)
            message = "the server made a mistake; its log has the details"
            return wire.Error(code=ErrorCode.INTERNAL, message=message, id=request.id)

    async def _result_of(self, request: Carried) -> wire.AnyResult:
        host = self._host
        match request:
            case wire.Submit():
                return await host.submit(request)
            case wire.Interrupt(session=session):
                await host.interrupt(session)
                return wire.Told()
            case wire.Cancel(session=session, reason=reason):
                await host.cancel(session, reason)
                return wire.Told()
            case wire.ToolResult():
                return wire.Taken(taken=await host.answer(request))
            case wire.List():
                return await host.list_sessions(request)
            case wire.Status(session=session):
                return await (self._server_status() if session is None else host.record(session))

    async def _server_status(self) -> wire.ServerStatus:
        status = await self._host.status()
        connections, subscriptions = self._door_status()
        return wire.ServerStatus(
            live_sessions=status.live_sessions,
            connections=connections,
            subscriptions=subscriptions,
            dispatchable=status.dispatchable,
            paused_until=status.paused_until,
        )
