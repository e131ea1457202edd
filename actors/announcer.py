"""Announcer: gives every event of a session its number and tells whoever listens.

It is the only one that numbers events. For each session it keeps the last events in a
ring, bounded in bytes, so that somebody who comes late, or comes back, gets what it
missed: a suffix of the live sequence, or `GapError` where the ring no longer reaches. A slow
subscriber costs bounded memory and never slows a stream (`subscription.py`). What becomes
known of sessions as a whole goes the same way, over a board of its own (`notice_board.py`).
"""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.actors.notice_board import NoticeBoard, NoticeStream
from midstream.actors.subscription import Subscription, event_bytes
from midstream.messages.errors import MidstreamError
from midstream.messages.events import AnyEvent, SessionEnded, SessionEvent
from midstream.messages.lifecycle import AnyExit
from midstream.messages.notices import AnyNotice
from midstream.messages.reply import Reply

RING_LIMIT_BYTES = 262_144
"""Events remembered of one session."""

KEPT_AFTER_END_S = 30.0
"""Seconds after its end for which a session can still be subscribed to
(spec/animator.md 5.1)."""


class GapError(MidstreamError):
    """The events after the number asked for are not remembered any more."""


class UnknownSession(MidstreamError):
    """Nothing is known of a session of this name."""


class Announce(msgspec.Struct, frozen=True, tag=True):
    """These things have happened in a session, in this order. None makes it known."""

    session_id: str
    events: tuple[AnyEvent, ...]


class Subscribe(msgspec.Struct, frozen=True, tag=True):
    """Follow a session from behind number `after`; 0 is from its beginning.

    Answered with a `Subscription`; fails with `GapError` or `UnknownSession`.
    """

    session_id: str
    after: int
    reply: Reply[Subscription]


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The session has been over for long enough."""

    session_id: str


class Notify(msgspec.Struct, frozen=True, tag=True):
    """These things became known of sessions, in this order."""

    notices: tuple[AnyNotice, ...]


class FollowNotices(msgspec.Struct, frozen=True, tag=True):
    """Follow the notices of this runtime from behind number `after`.

    Answered with a `NoticeStream`; fails with `GapError`.
    """

    after: int
    reply: Reply[NoticeStream]


AnnouncerMessage = Announce | Subscribe | Forget | Notify | FollowNotices


@dataclass(slots=True)
class _Channel:
    """What is known of one session's events."""

    last: int = 0
    ring: deque[SessionEvent] = field(default_factory=deque[SessionEvent])
    ring_bytes: int = 0
    subscribers: list[Subscription] = field(default_factory=list[Subscription])
    ended: bool = False


class Announcer(Actor[AnnouncerMessage]):
    """See the module."""

    def __init__(self, ring_limit_bytes: int = RING_LIMIT_BYTES) -> None:
        self._ring_limit_bytes = ring_limit_bytes
        self._channels: dict[str, _Channel] = {}
        self._board = NoticeBoard()

    async def handle_batch(self, messages: tuple[AnnouncerMessage, ...]) -> None:
        for message in messages:
            match message:
                case Announce(session_id, events):
                    self._announce(session_id, events)
                case Subscribe():
                    self._subscribe(message)
                case Forget(session_id):
                    self._channels.pop(session_id, None)
                case Notify(notices):
                    self._board.post(notices)
                case FollowNotices():
                    self._follow(message)

    async def stopped(self, reason: AnyExit) -> None:
        """Numbers begin anew with the next incarnation, so nobody may wait for the last."""
        for channel in self._channels.values():
            for subscriber in channel.subscribers:
                subscriber.close()
        self._board.close()

    def _announce(self, session_id: str, events: tuple[AnyEvent, ...]) -> None:
        channel = self._channels.setdefault(session_id, _Channel())
        numbered = [
            SessionEvent(session_id, number, event)
            for number, event in enumerate(events, channel.last + 1)
        ]
        channel.last += len(numbered)
        self._remember(channel, numbered)
        for subscriber in channel.subscribers:
            subscriber.push(numbered)
        channel.subscribers = [s for s in channel.subscribers if not s.is_closed]
        if any(isinstance(event, SessionEnded) for event in events):
            channel.ended = True
            self.spawn(self._forget_later, session_id)

    def _remember(self, channel: _Channel, events: list[SessionEvent]) -> None:
        channel.ring.extend(events)
        channel.ring_bytes += sum(map(event_bytes, events))
        while channel.ring_bytes > self._ring_limit_bytes and len(channel.ring) > 1:
            channel.ring_bytes -= event_bytes(channel.ring.popleft())

    async def _forget_later(self, session_id: str) -> None:
        await trio.sleep(KEPT_AFTER_END_S)
        await self.address.tell(Forget(session_id))

    def _follow(self, request: FollowNotices) -> None:
        stream = self._board.follow(request.after)
        if stream is None:
            request.reply.fail(GapError(f"notices behind {request.after} are not remembered"))
        else:
            request.reply.send(stream)

    def _subscribe(self, request: Subscribe) -> None:
        channel = self._channels.get(request.session_id)
        if channel is None:
            request.reply.fail(UnknownSession(f"no session {request.session_id} is known here"))
            return
        first = channel.ring[0].sequence if channel.ring else channel.last + 1
        if not first - 1 <= request.after <= channel.last:
            problem = f"events of {request.session_id} are remembered from number {first} on"
            request.reply.fail(GapError(problem))
            return
        subscription = Subscription(request.after)
        subscription.push(event for event in channel.ring if event.sequence > request.after)
        if not channel.ended:
            channel.subscribers.append(subscription)
        request.reply.send(subscription)
