"""Announcer: gives every event of a session its number and tells whoever listens.

It is the only one that numbers events. For each session it keeps the last events in a
ring, bounded in bytes (`event_channel.py`), so that somebody who comes late, or comes back,
gets what it missed: a suffix of the live sequence, or `GapError` where the ring no longer
reaches. What is numbered goes to the EventRecorder too, for the event log, which reaches
further back (`replay.py`) and is all there is of sessions that ended some time ago, or before
many others (`ended_sessions.py`). A slow subscriber costs bounded memory and never slows a stream
(`subscription.py`). What becomes known of sessions as a whole goes the same way, over a
board of its own (`notice_board.py`). What it had in hand when it crashed is a hole in the
numbers, so that its listeners are told of a gap; the outcome of a session is not lost.
"""

from contextlib import suppress
from copy import deepcopy

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.ended_sessions import EndedSessions
from midstream.actors.errors import MailboxFull
from midstream.actors.event_channel import Channel, GapError
from midstream.actors.event_numbers import EventNumbers
from midstream.actors.event_recorder import RecordEvents
from midstream.actors.notice_board import NoticeBoard, NoticeStream
from midstream.actors.subscription import DEFAULT_LIMIT_BYTES, Subscription
from midstream.messages.errors import MidstreamError
from midstream.messages.event_log import Position
from midstream.messages.events import AnyEvent
from midstream.messages.lifecycle import AnyExit
from midstream.messages.notices import AnyNotice
from midstream.messages.reply import Reply
from midstream.messages.rule_counters import RuleCounters

RING_LIMIT_BYTES = 262_144
"""Events remembered of one session."""

FORGET_EVERY_S = 0.5
"""Seconds between two looks at what is to be forgotten: one timer for all sessions."""


class UnknownSession(MidstreamError):
    """Nothing is known of a session of this name."""


class Announce(msgspec.Struct, frozen=True, tag=True):
    """These things have happened in a session, in this order. None makes it known."""

    session_id: str
    events: tuple[AnyEvent, ...]


class Subscribe(msgspec.Struct, frozen=True, tag=True):
    """Follow a session from behind number `after`; 0 is from its beginning.

    `epoch` is that of the number; None for the current one. Answered with a `Subscription`
    that holds at most `limit_bytes`; fails with `GapError` or `UnknownSession`.
    """

    session_id: str
    after: int
    reply: Reply[Subscription]
    epoch: int | None = None
    limit_bytes: int = DEFAULT_LIMIT_BYTES


class Continue(msgspec.Struct, frozen=True, tag=True):
    """The session goes on here, under a new owner: number its events behind `position`."""

    session_id: str
    position: Position


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The session has been over for long enough."""

    session_id: str


class Notify(msgspec.Struct, frozen=True, tag=True):
    """These things became known of sessions, in this order. Who has to know whether that was
    said, as an Announcer that goes says nothing any more, gives a `reply`."""

    notices: tuple[AnyNotice, ...]
    reply: Reply[None] | None = None


class FollowNotices(msgspec.Struct, frozen=True, tag=True):
    """Follow the notices of this runtime from behind number `after`.

    Answered with a `NoticeStream`; fails with `GapError`.
    """

    after: int
    reply: Reply[NoticeStream]


class CountRules(msgspec.Struct, frozen=True, tag=True):
    """Answered with what the rules have done in all sessions so far, as counts."""

    reply: Reply[RuleCounters]


AnnouncerMessage = Announce | Subscribe | Continue | Forget | Notify | FollowNotices | CountRules


class Announcer(Actor[AnnouncerMessage]):
    """See the module. Without a `recorder` no log is kept. `numbers` outlive an incarnation."""

    drains = True

    def __init__(
        self,
        recorder: Address[RecordEvents] | None = None,
        numbers: EventNumbers | None = None,
        ring_limit_bytes: int = RING_LIMIT_BYTES,
    ) -> None:
        self._recorder = recorder
        self._numbers = numbers or EventNumbers()
        self._ring_limit_bytes = ring_limit_bytes
        self._channels: dict[str, Channel] = {}
        self._ended = EndedSessions()
        self._forgets = False
        """Whether somebody sees to it that they are forgotten in time."""
        self._board = NoticeBoard(self._numbers.notices)
        self._counters = RuleCounters()
        self._handled: list[AnnouncerMessage] = []
        """Of the batch in hand."""

    async def started(self) -> None:
        for session_id in self._numbers.ended:
            self._keep_ended(session_id, 0)
        for session_id, end in self._numbers.take_lost().items():
            self._announce(session_id, () if end is None else (end,))

    async def handle_batch(self, messages: tuple[AnnouncerMessage, ...]) -> None:
        self._handled.clear()
        for message in messages:
            self._handle(message)
            self._handled.append(message)

    def _handle(self, message: AnnouncerMessage) -> None:
        match message:
            case Announce(session_id, events):
                self._announce(session_id, events)
            case Subscribe():
                self._subscribe(message)
            case Continue(session_id, position):
                self._continue(session_id, position)
            case Forget(session_id):
                self._forget(session_id)
            case Notify(notices, reply):
                self._board.post(notices)
                self._numbers.notices = self._board.last
                if reply is not None:
                    reply.send(None)
            case FollowNotices():
                self._follow(message)
            case CountRules(reply):
                reply.send(deepcopy(self._counters))

    def lost(self, messages: tuple[AnnouncerMessage, ...]) -> None:
        """What nobody was told leaves a hole."""
        for message in messages:
            if any(message is handled for handled in self._handled):
                continue
            match message:
                case Announce(session_id, events):
                    self._numbers.lose(session_id, events)
                case Continue(session_id, position):
                    self._numbers.advance(session_id, position)
                case Notify(notices):
                    self._numbers.notices += len(notices)
                case _:
                    pass

    async def stopped(self, reason: AnyExit) -> None:
        """What this incarnation remembers goes with it, so nobody may wait for it."""
        for channel in self._channels.values():
            channel.close()
        self._board.close()

    def _channel(self, session_id: str) -> Channel:
        channel = self._channels.get(session_id)
        if channel is None:
            start = self._numbers[session_id]
            channel = Channel(session_id, start, self._ring_limit_bytes)
            self._channels[session_id] = channel
        return channel

    def _announce(self, session_id: str, events: tuple[AnyEvent, ...]) -> None:
        channel = self._channel(session_id)
        for event in events:
            self._counters.take(event)
        numbered = channel.announce(events)
        self._numbers.advance(session_id, channel.position, ended=channel.ended)
        if self._recorder is not None and numbered:
            # A recorder that is so far behind gets a hole, and says so.
            with suppress(MailboxFull):
                self._recorder.tell_nowait(RecordEvents(numbered))
        if channel.ended:
            self._keep_ended(session_id, channel.ring_bytes)

    def _continue(self, session_id: str, position: Position) -> None:
        if (former := self._channels.pop(session_id, None)) is not None:
            former.close()
        self._ended.remove(session_id)
        self._numbers.advance(session_id, position)
        self._channel(session_id)

    def _subscribe(self, request: Subscribe) -> None:
        known = request.session_id in self._channels or request.session_id in self._numbers
        if not known:
            request.reply.fail(UnknownSession(f"no session {request.session_id} is known here"))
            return
        channel = self._channel(request.session_id)
        try:
            subscription = channel.subscribe(request.after, request.epoch, request.limit_bytes)
        except GapError as error:
            request.reply.fail(error)
        else:
            request.reply.send(subscription)

    def _keep_ended(self, session_id: str, ring_bytes: int) -> None:
        """Remember a session that is over, for a while and as long as there is room."""
        self._ended.put(session_id, ring_bytes, trio.current_time())
        for crowded_out in self._ended.crowded_out():
            self._forget(crowded_out)
        if not self._forgets:
            self._forgets = True
            self.spawn(self._forget_in_time)

    async def _forget_in_time(self) -> None:
        while len(self._ended):
            soonest_s = trio.current_time() + FORGET_EVERY_S
            await trio.sleep_until(max(self._ended.first_due_s, soonest_s))
            for session_id in self._ended.due(trio.current_time()):
                await self.address.tell(Forget(session_id))
        self._forgets = False

    def _forget(self, session_id: str) -> None:
        self._ended.remove(session_id)
        if self._numbers.has_ended(session_id):
            self._channels.pop(session_id, None)
            self._numbers.forget(session_id)

    def _follow(self, request: FollowNotices) -> None:
        stream = self._board.follow(request.after)
        if stream is None:
            request.reply.fail(GapError(f"notices behind {request.after} are not remembered"))
        else:
            request.reply.send(stream)
