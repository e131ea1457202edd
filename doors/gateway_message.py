"""The one message that a client reads, out of the frames of all attempts.

Frames of the first attempt go out as they came. When an attempt is cut, a reframer is told
what went out, and the frames of those that follow are made parts of the same message.
Owned by `Exchange`; pure.
"""

from collections.abc import Sequence

from midstream.doors.gateway_wire import Reframer, Wire
from midstream.doors.sse_frames import Frame
from midstream.messages.failure import ProviderFailure
from midstream.messages.stream import AnyStreamMessage, TextDelta
from midstream.messages.usage import Usage
from midstream.providers.sse import SseEvent


class ClientMessage:
    """See the module. `may_be_cut` says whether more than an error can follow the frames
    that go out unchanged."""

    def __init__(self, wire: Wire, *, may_be_cut: bool) -> None:
        self._wire = wire
        self._may_be_cut = may_be_cut
        self._noted: list[SseEvent] = []
        self._reframer: Reframer | None = None
        self._said: list[str] = []
        self._unchanged: Frame | None = None
        """The frame that went out last, if it went out as it came."""

    @property
    def is_reframed(self) -> bool:
        """Whether frames are rewritten, because an attempt was cut."""
        return self._reframer is not None

    @property
    def text(self) -> str:
        """The text that went out."""
        return "".join(self._said)

    def send(self, frame: Frame, messages: Sequence[AnyStreamMessage]) -> bytes:
        """A frame, and what it says, as it goes out."""
        for message in messages:
            if isinstance(message, TextDelta):
                self._said.append(message.text)
        event = frame.event
        if event is not None and self._reframer is not None:
            return self._behind(self._reframer.reframe(event))
        if event is not None:
            self._note(event)
        self._unchanged = frame
        return frame.raw

    def cut(self, spent: Usage) -> bytes:
        """Close what is open of an attempt that cost `spent`; another one follows."""
        return self._behind(self._known_reframer().cut(spent))

    def follow(self, ending: Sequence[SseEvent], spent: Usage) -> bytes:
        """Leave out the `ending` of a reply that cost `spent`: another one follows."""
        reframer = self._known_reframer()
        said = b"".join(reframer.without_ending(event) for event in ending)
        return self._behind(said + reframer.follow(spent))

    def end_as(self, ending: Sequence[SseEvent]) -> bytes:
        """End the message with the ending of a reply that was followed by another."""
        reframer = self._known_reframer()
        said = b"".join(reframer.end_as(event) for event in ending)
        return self._behind(said + reframer.finish())

    @property
    def aliases(self) -> dict[str, str]:
        """See `Reframer`."""
        return self._reframer.aliases if self._reframer is not None else {}

    def finish(self) -> bytes:
        """What ends the message after the last frame."""
        return self._behind(self._reframer.finish()) if self._reframer is not None else b""

    def fail(self, failure: ProviderFailure) -> bytes:
        """The protocol's own error event."""
        return self._behind(self._known_reframer().fail(failure))

    def _behind(self, ours: bytes) -> bytes:
        """Bytes of ours, as they may stand behind the frame that went out last."""
        before = self._unchanged
        if before is None or not ours:
            return ours
        self._unchanged = None
        return before.lacks + ours

    def _note(self, event: SseEvent) -> None:
        """Keep what a reframer will have to know. For an error alone that is the beginning
        and the place."""
        if self._may_be_cut or len(self._noted) < 2:
            self._noted.append(event)
        else:
            self._noted[1] = event

    def _known_reframer(self) -> Reframer:
        """The reframer, told of everything that went out unchanged."""
        if self._reframer is None:
            self._reframer = self._wire.reframer()
            for event in self._noted:
                self._reframer.note(event)
            self._noted = []
        return self._reframer
