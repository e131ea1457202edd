"""One upstream stream of an exchange: its frames, what they say, and which of them wait.

A frame is offered once its text was judged. It goes out behind every frame that came
before it, as soon as the blocks of text that it carries are free of what a rule may still
forbid, and the calls that it is part of are complete. Owned by `Exchange`; pure.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from midstream.doors.gateway_wire import Wire
from midstream.doors.sse_frames import Frame, FrameReader
from midstream.messages.accumulate import Accumulator
from midstream.messages.stream import (
    AnyStreamMessage,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.providers.sse import SseEvent


class Held(msgspec.Struct):
    """A frame, and what has to be known before it goes out: for blocks of text how far they
    must be free, for calls that they are finished."""

    frame: Frame
    messages: Sequence[AnyStreamMessage]
    ends: list[tuple[int, int]] = msgspec.field(default_factory=list[tuple[int, int]])
    calls: list[int] = msgspec.field(default_factory=list[int])
    is_ending: bool = False
    """Whether it is a part of how the message ends, to be kept back until it has to."""


class Attempt:
    """See the module. `heard` is all that was said, `sent` what of it went out, and `events`
    everything that came, both as far as they are kept; `reaches_call` says of which tools a
    rule may forbid a call."""

    def __init__(self, wire: Wire, reaches_call: Callable[[str], bool]) -> None:
        self.frames = FrameReader()
        self.decoder = wire.decoder()
        self.heard = Accumulator(wire.format)
        self.queue: deque[Held] = deque()
        self.held_bytes = 0
        self.sent: list[AnyStreamMessage] = []
        self.events: list[SseEvent] = []
        self.has_sent = False
        self._reaches_call = reaches_call
        self._chars: dict[int, int] = {}
        self._open_calls: set[int] = set()

    def hold(self, frame: Frame, messages: Sequence[AnyStreamMessage]) -> Held:
        """The frame with what it waits for; not queued yet."""
        held = Held(frame, messages)
        for message in messages:
            self._place(message, held)
        return held

    def close_call(self, finished: ToolCallFinished) -> None:
        """A call is complete, and clean."""
        self._open_calls.discard(finished.index)

    def queue_up(self, held: Held) -> None:
        self.queue.append(held)
        self.held_bytes += len(held.frame.raw)

    def is_free(self, held: Held, held_from: Callable[[int], int | None]) -> bool:
        """Whether what is known by now lets the frame go out."""
        if held.is_ending and self.decoder.stopping:
            return False
        for index in held.calls:
            if index in self._open_calls:
                return False
        for index, end in held.ends:
            free = held_from(index)
            if free is not None and end > free:
                return False
        return True

    def free(self, held_from: Callable[[int], int | None]) -> Iterator[Held]:
        """Take from the queue what may go out; `held_from` says from which character on a
        block of text is not free."""
        while self.queue and self.is_free(self.queue[0], held_from):
            yield self._take_first()

    def rest(self) -> Iterator[Held]:
        """Take all that waits."""
        while self.queue:
            yield self._take_first()

    def drop_held(self) -> None:
        self.queue.clear()
        self.held_bytes = 0

    def _take_first(self) -> Held:
        held = self.queue.popleft()
        self.held_bytes -= len(held.frame.raw)
        return held

    def _place(self, message: AnyStreamMessage, held: Held) -> None:
        match message:
            case TextDelta(index, text) | ThinkingDelta(index, text):
                self._chars[index] = self._chars.get(index, 0) + len(text)
                held.ends.append((index, self._chars[index]))
            case ToolCallStarted(index, _, name) if self._reaches_call(name):
                self._open_calls.add(index)
                held.calls.append(index)
            case ToolArgumentsDelta(index) if index in self._open_calls:
                held.calls.append(index)
            case _:
                pass
