"""What one stream has said so far: stream messages in, a partial transcript out.

Whoever reads a stream feeds an `Accumulator`; when the stream ends, or is cut, `snapshot`
gives the `PartialTranscript` that `settle` makes a valid part of a conversation from. Pure:
no I/O, no clock. Feeding costs one list append for each delta; everything else is left for
the snapshot.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from midstream.messages.conversation import (
    AnyPart,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from midstream.messages.failure import ProviderFailure
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    OpaqueBlock,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ThinkingSigned,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
    UsageReported,
)
from midstream.messages.usage import Usage, UsageSource

CHARS_PER_TOKEN = 4
"""For estimates of what a cut stream cost: OpenAI's rule of thumb for English text
(help.openai.com, "What are tokens and how to count them")."""


OWN_CALL = "tool_use"
"""The kind of an opaque block that has taken the place of a call which its provider ran."""


class StreamState(StrEnum):
    """Where a stream stands."""

    RUNNING = "running"
    """No terminal message yet; a stream that was cut stays so."""
    FINISHED = "finished"
    FAILED = "failed"


class PartialBlock(msgspec.Struct, frozen=True):
    """One block so far. While a call is not complete its arguments may stop anywhere."""

    index: int
    part: AnyPart
    complete: bool


class PartialTranscript(msgspec.Struct, frozen=True):
    """One stream so far. `provider` is the format name of who wrote it."""

    provider: str = ""
    message_id: str | None = None
    model: str | None = None
    session_id: str | None = None
    """The provider's own session, where it has one."""
    blocks: tuple[PartialBlock, ...] = ()
    state: StreamState = StreamState.RUNNING
    stop_reason: StopReason | None = None
    raw_reason: str | None = None
    failure: ProviderFailure | None = None
    usage: Usage = Usage()
    """Reported if the stream is finished, else estimated from what was received."""

    @property
    def text(self) -> str:
        """All prose, in order."""
        return "".join(b.part.text for b in self.blocks if isinstance(b.part, TextPart))

    @property
    def last_words(self) -> str:
        """The prose behind the last call that the provider has run itself, which is its answer
        where one stream holds the messages of a whole run; all prose if there is none."""
        texts: list[str] = []
        for block in reversed(self.blocks):
            if isinstance(block.part, TextPart):
                texts.append(block.part.text)
            elif isinstance(block.part, OpaquePart) and block.part.kind == OWN_CALL:
                break
        return "".join(reversed(texts)) or self.text

    @property
    def thinking(self) -> str:
        """All reasoning text, in order."""
        return "".join(b.part.text for b in self.blocks if isinstance(b.part, ThinkingPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The calls of the host's tools, complete or not."""
        return tuple(b.part for b in self.blocks if isinstance(b.part, ToolCallPart))


class _Growing:
    """A block while it grows; `part` is set once an opaque block has come."""

    __slots__ = ("complete", "kind", "opening", "part", "pieces", "signature")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.signature: str | None = None
        self.opening: ToolCallStarted | None = None
        self.part: AnyPart | None = None
        self.complete = False


class Accumulator:
    """Collects one stream. `provider` is the format name of who writes it."""

    def __init__(self, provider: str = "") -> None:
        self._provider = provider
        self._started: StreamStarted | None = None
        self._blocks: dict[int, _Growing] = {}
        self._usage = Usage()
        self._finished: StreamFinished | None = None
        self._failed: StreamFailed | None = None

    @property
    def state(self) -> StreamState:
        if self._failed is not None:
            return StreamState.FAILED
        return StreamState.RUNNING if self._finished is None else StreamState.FINISHED

    def feed(self, messages: Iterable[AnyStreamMessage]) -> None:
        """Take the next messages of the stream, in order."""
        for message in messages:
            if isinstance(message, TextDelta | ThinkingDelta):
                kind = "text" if isinstance(message, TextDelta) else "thinking"
                self._grow(message.index, kind, message.text)
            elif isinstance(message, ToolArgumentsDelta):
                self._grow(message.index, "call", message.fragment)
            else:
                self._take(message)

    def snapshot(self) -> PartialTranscript:
        """The transcript as it is now; feeding may go on afterwards."""
        finished, failed, started = self._finished, self._failed, self._started
        blocks = [(index, self._blocks[index]) for index in sorted(self._blocks)]
        return PartialTranscript(
            provider=self._provider,
            message_id=started.message_id if started else None,
            model=started.model if started else None,
            session_id=started.session_id if started else None,
            blocks=tuple(
                PartialBlock(index, part, growing.complete)
                for index, growing in blocks
                if (part := _part(growing)) is not None
            ),
            state=self.state,
            stop_reason=finished.stop_reason if finished else None,
            raw_reason=finished.raw_reason if finished else None,
            failure=failed.failure if failed else None,
            usage=self._usage if finished and not failed else self._estimate(),
        )

    def _take(self, message: AnyStreamMessage) -> None:
        match message:
            case StreamStarted():
                self._started = self._started or message
            case BlockStarted(index=index, kind=kind):
                self._blocks[index] = _Growing(kind)
            case ThinkingSigned(index=index, signature=signature):
                self._block(index, "thinking").signature = signature
            case ToolCallStarted(index=index):
                self._block(index, "call").opening = message
            case ToolCallFinished():
                self._finish_call(message)
            case OpaqueBlock(index=index, kind=kind, data=data):
                growing = self._block(index, "opaque")
                growing.part = OpaquePart(self._provider, kind, data)
                growing.complete = True
            case BlockFinished(index=index):
                self._block(index, "text").complete = True
            case UsageReported(usage=usage):
                self._usage = usage
            case StreamFinished():
                self._finished = message
            case StreamFailed():
                self._failed = message
            case _:
                pass  # a ping, or a delta, which `feed` takes

    def _grow(self, index: int, kind: str, piece: str) -> None:
        block = self._blocks.get(index) or self._block(index, kind)
        block.pieces.append(piece)

    def _block(self, index: int, kind: str) -> _Growing:
        """The block at `index`; one that was never announced is of this `kind`."""
        return self._blocks.setdefault(index, _Growing(kind))

    def _finish_call(self, call: ToolCallFinished) -> None:
        growing = self._block(call.index, "call")
        growing.part = ToolCallPart(call.call_id, call.name, call.arguments, call.extra)
        growing.complete = True

    def _estimate(self) -> Usage:
        """What a stream that is not finished has cost: input as reported, output counted."""
        received = sum(len(piece) for block in self._blocks.values() for piece in block.pieces)
        counted = -(-received // CHARS_PER_TOKEN)
        if not received and self._usage.source is UsageSource.UNKNOWN:
            return self._usage
        return msgspec.structs.replace(
            self._usage,
            output_tokens=max(counted, self._usage.output_tokens or 0),
            source=UsageSource.ESTIMATED,
        )


def accumulate(messages: Iterable[AnyStreamMessage], provider: str = "") -> PartialTranscript:
    """The transcript of a stream that is at hand as a whole."""
    accumulator = Accumulator(provider)
    accumulator.feed(messages)
    return accumulator.snapshot()


def _part(growing: _Growing) -> AnyPart | None:
    """The block as a part; None for an opaque one of which only the beginning came."""
    if growing.part is not None:
        return growing.part
    text = "".join(growing.pieces)
    if growing.kind == "text":
        return TextPart(text)
    if growing.kind == "thinking":
        return ThinkingPart(text, growing.signature)
    if growing.kind == "call" and growing.opening is not None:
        return ToolCallPart(growing.opening.call_id, growing.opening.name, text)
    return None
