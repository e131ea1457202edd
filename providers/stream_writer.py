"""The bookkeeping that all wire formats share: block numbers, call ids, order of messages.

A decoder tells its writer what the provider said, and the writer turns that into stream
messages that are well formed (`messages/stream.py`): a start before anything else, indexes
that count up, call ids that are unique, every block closed before `StreamFinished`, one
terminal message and nothing after it.
"""

from midstream.messages.failure import ProviderFailure
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    OpaqueBlock,
    Ping,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ThinkingSigned,
    ToolArgumentsDelta,
    ToolCallAnswered,
    ToolCallFinished,
    ToolCallStarted,
    UsageReported,
)
from midstream.messages.usage import Usage, UsageSource
from midstream.providers.surrogates import join_halves


class Block:
    """A block of the answer that has begun. `kind` is `text`, `thinking`, `opaque` or `call`."""

    __slots__ = ("call_id", "closed", "held", "index", "kind", "name", "pieces")

    def __init__(self, index: int, kind: str, call_id: str = "", name: str = "") -> None:
        self.index = index
        self.kind = kind
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.held = ""
        self.closed = False

    @property
    def text(self) -> str:
        """All that was said in it so far."""
        return "".join(self.pieces)


class StreamWriter:
    """Collects the messages of one stream. `over` once the terminal message is written."""

    def __init__(self) -> None:
        self.over = False
        self.has_calls = False
        self.halves_marked = False
        """Whether texts may hold the marks of `surrogates.py`; the parser sets it."""
        self._out: list[AnyStreamMessage] = []
        self._begun = False
        self._next_index = 0
        self._open: dict[int, Block] = {}
        self._call_ids: set[str] = set()
        self._usage = Usage()

    def take(self) -> list[AnyStreamMessage]:
        """What was written since the last call."""
        out, self._out = self._out, []
        return out

    def begin(
        self,
        message_id: str | None = None,
        model: str | None = None,
        session_id: str | None = None,
    ) -> None:
        """The provider has begun to answer; only the first call counts."""
        if not self._begun:
            self._begun = True
            started = StreamStarted(message_id or None, model or None, session_id or None)
            self._out.append(started)

    def ping(self) -> None:
        self._out.append(Ping())

    def open(self, kind: str) -> Block:
        """Begin a block of text, thinking or opaque content."""
        self.begin()
        block = self._new_block(kind)
        self._out.append(BlockStarted(block.index, kind))
        return block

    def open_call(self, call_id: str, name: str) -> Block:
        """Begin a call of one of the host's tools.

        An id that this stream has used already gets a suffix, an empty one a name of ours.
        """
        self.begin()
        wanted = call_id or f"call_{self._next_index}"
        unique, n = wanted, 1
        while unique in self._call_ids:
            n += 1
            unique = f"{wanted}_{n}"
        self._call_ids.add(unique)
        self.has_calls = True
        block = self._new_block("call", unique, name)
        self._out.append(ToolCallStarted(block.index, unique, name))
        return block

    def say(self, block: Block, text: str) -> None:
        """More text of a block: prose, thinking or argument text, as the block is."""
        if self.halves_marked:
            text, block.held = join_halves(block.held, text)
        if text and not block.closed:
            self._say(block, text)

    def sign(self, block: Block, signature: str) -> None:
        self._out.append(ThinkingSigned(block.index, signature))

    def close(self, block: Block) -> None:
        """A block of text or thinking is complete."""
        if not self._end(block):
            return
        self._out.append(BlockFinished(block.index))

    def close_call(
        self, block: Block, arguments: str | None = None, extra: str | None = None
    ) -> None:
        """A call is complete. `arguments` is the provider's own whole text, if it sent one.

        What of it had not come in pieces goes out as a last piece first, so that whoever
        only listens to the pieces has heard it all. Where the two differ the whole counts.
        """
        arguments = self._whole(arguments or "")
        if not block.closed:
            said = block.text
            if arguments.startswith(said):
                self.say(block, arguments[len(said) :])
        if self._end(block):
            whole = arguments or block.text or "{}"
            message = ToolCallFinished(block.index, block.call_id, block.name, whole, extra)
            self._out.append(message)

    def close_opaque(self, block: Block, kind: str, data: str) -> None:
        """An opaque block is complete; `data` is the JSON text of it."""
        if self._end(block):
            self._out.append(OpaqueBlock(block.index, kind, self._whole(data)))

    def take_place(self, block: Block, kind: str, data: str) -> None:
        """An opaque block stands from now on where this one stood, complete or not: a call
        that the provider runs itself, or text that it has taken back."""
        self._end(block)
        self._out.append(OpaqueBlock(block.index, kind, self._whole(data)))

    def answer(self, block: Block, content: str, *, is_error: bool) -> None:
        """The provider has run a call itself; its place was taken before."""
        name, call_id = block.name, block.call_id
        self._out.append(ToolCallAnswered(block.index, call_id, name, content, is_error))

    def use(self, usage: Usage) -> None:
        """New figures; those that `usage` leaves out stay as they were reported before."""
        merged = Usage(
            _newer(usage.input_tokens, self._usage.input_tokens),
            _newer(usage.output_tokens, self._usage.output_tokens),
            _newer(usage.cache_read_tokens, self._usage.cache_read_tokens),
            _newer(usage.cache_write_tokens, self._usage.cache_write_tokens),
            UsageSource.REPORTED,
            self._usage.cost_usd if usage.cost_usd is None else usage.cost_usd,
        )
        if merged != self._usage:
            self._usage = merged
            self._out.append(UsageReported(merged))

    def close_all(self) -> None:
        """The provider is done with its message: what is still open is complete as it is.

        An opaque block without its data cannot be completed and is dropped.
        """
        for block in list(self._open.values()):
            if block.kind == "call":
                self.close_call(block)
            elif block.kind == "opaque":
                self._end(block)
            else:
                self.close(block)

    def finish(self, reason: StopReason, raw_reason: str | None) -> None:
        """The terminal event was seen and the stream is over."""
        if not self.over:
            self.begin()
            self.close_all()
            self.over = True
            self._out.append(StreamFinished(reason, raw_reason))

    def fail(self, failure: ProviderFailure) -> None:
        """The stream is over without being finished. Open blocks stay open."""
        if not self.over:
            self.over = True
            self._out.append(StreamFailed(failure))

    def _say(self, block: Block, text: str) -> None:
        block.pieces.append(text)
        kind = block.kind
        if kind == "text":
            self._out.append(TextDelta(block.index, text))
        elif kind == "call":
            self._out.append(ToolArgumentsDelta(block.index, text))
        elif kind == "thinking":
            self._out.append(ThinkingDelta(block.index, text))

    def _whole(self, text: str) -> str:
        return join_halves("", text, final=True)[0] if self.halves_marked else text

    def _new_block(self, kind: str, call_id: str = "", name: str = "") -> Block:
        block = Block(self._next_index, kind, call_id, name)
        self._next_index += 1
        self._open[block.index] = block
        return block

    def _end(self, block: Block) -> bool:
        """Take the block off the open ones; False when it was closed before."""
        if block.closed:
            return False
        if block.held:
            self._say(block, self._whole(block.held))
            block.held = ""
        block.closed = True
        del self._open[block.index]
        return True


def _newer(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
