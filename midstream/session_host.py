"""What a runtime is to its doors: requests of the wire in, results and refusals out."""

import msgspec

from midstream.actors.announcer import UnknownSession
from midstream.actors.errors import AskFailed
from midstream.actors.event_channel import GapError
from midstream.actors.replay import Replay
from midstream.doors.session_host import Refusal, SessionHost
from midstream.messages import wire
from midstream.messages.errors import MidstreamError, StoreError
from midstream.messages.segments import AnySegment, SegmentFormatError, decode_segments
from midstream.messages.wire import ErrorCode
from midstream.runtime import Runtime
from midstream.stores.conversations import ConversationBusy
from midstream.stores.session_list import SessionFilter
from midstream.stores.store import Cursor
from midstream.tools import ToolError

_CODES: tuple[tuple[type[MidstreamError], ErrorCode], ...] = (
    (UnknownSession, ErrorCode.UNKNOWN_SESSION),
    (ConversationBusy, ErrorCode.BUSY),
    (GapError, ErrorCode.GAP),
    (StoreError, ErrorCode.STORE),
    (AskFailed, ErrorCode.STORE),
    (SegmentFormatError, ErrorCode.BAD_REQUEST),
    (ToolError, ErrorCode.BAD_REQUEST),
)
"""What a client is told of our errors, the first that fits."""


class _Status(msgspec.Struct, frozen=True):
    live_sessions: int
    dispatchable: bool
    paused_until: str | None


class RuntimeHost(SessionHost):
    """See the module."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def submit(self, prompt: wire.Submit) -> wire.Submitted:
        try:
            handle = self._runtime.animate(
                _segments(prompt),
                conversation_id=prompt.conversation,
                model=prompt.model,
                system=prompt.system,
                tools=prompt.tools,
            )
        except MidstreamError as error:
            raise self.refusal_for(error) from error
        if not await handle.admitted():
            reason = handle.ended.reason if handle.ended is not None else None
            raise Refusal(ErrorCode.PAUSED, reason or "the provider's quota is spent")
        return wire.Submitted(session=handle.session_id, conversation=handle.conversation_id)

    async def interrupt(self, session_id: str) -> None:
        handle = self._runtime.handle(session_id)
        if handle is not None:
            await handle.interrupt()
            return
        record = (await self.record(session_id)).session
        if not record.is_terminal:
            message = f"{session_id} lives in another process; cancel it, or ask there"
            raise Refusal(ErrorCode.BAD_REQUEST, message)

    async def detach(self, session_id: str) -> None:
        handle = self._runtime.handle(session_id)
        if handle is not None:
            await handle.detach()

    async def cancel(self, session_id: str, reason: str | None) -> None:
        try:
            await self._runtime.cancel(session_id, reason)
        except MidstreamError as error:
            raise self.refusal_for(error) from error

    async def answer(self, result: wire.ToolResult) -> bool:
        handle = self._runtime.handle(result.session)
        if handle is None:
            await self.record(result.session)
            return False
        return await handle.answer(
            result.call_id, result.content, is_error=result.is_error, attempt=result.attempt
        )

    async def list_sessions(self, which: wire.List) -> wire.Listed:
        chosen = SessionFilter(statuses=which.statuses, conversation_id=which.conversation)
        after = Cursor(*which.after) if which.after is not None else None
        try:
            page = await self._runtime.sessions.list_sessions(
                chosen, limit=which.limit, after=after
            )
        except MidstreamError as error:
            raise self.refusal_for(error) from error
        following = None if page.next is None else (page.next.value, page.next.id)
        rows = tuple(msgspec.structs.replace(record, output=None) for record in page.records)
        return wire.Listed(sessions=rows, next=following)

    async def record(self, session_id: str) -> wire.Record:
        try:
            return wire.Record(session=await self._runtime.sessions.session(session_id))
        except MidstreamError as error:
            raise self.refusal_for(error) from error

    async def status(self) -> _Status:
        dispatchable = self._runtime.is_dispatchable()
        until = None if dispatchable else (await self._runtime.status()).paused_until
        return _Status(self._runtime.live_sessions, dispatchable, until)

    def replay(self, session_id: str, after: int, epoch: int | None, limit_bytes: int) -> Replay:
        return self._runtime.replay(session_id, after, epoch, limit_bytes)

    def refusal_for(self, error: MidstreamError) -> Refusal:
        if isinstance(error, Refusal):
            return error
        code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
        after = error.after if isinstance(error, GapError) else None
        return Refusal(code or ErrorCode.INTERNAL, str(error), after)


def _segments(prompt: wire.Submit) -> tuple[AnySegment, ...]:
    """Raises `SegmentFormatError`."""
    try:
        return decode_segments(msgspec.json.encode(prompt.segments))
    except (TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        # MessagePack can carry what JSON, in which segments are kept, cannot.
        raise SegmentFormatError(f"input segments: {error}") from error
