"""Anthropic's Messages stream: its server-sent events to stream messages. Pure.

Source: platform.claude.com/docs/en/build-with-claude/streaming. What it survives beyond that
(spec/gateway.md 1): padded JSON, a second `message_start` in one stream, a message whose
content comes whole inside `message_start`, unknown events (ignored) and unknown blocks and
deltas (carried as opaque blocks), a block without its start or its end.

Messages that follow each other in one stream become one answer: their blocks are numbered on,
their usage is added up, and the last one's stop reason counts. Citations of a text block come
behind it as an opaque block of the kind `citations`.
"""

from typing import Any, cast

import msgspec

from midstream.messages.stream import StopReason
from midstream.messages.usage import Usage
from midstream.providers.anthropic_wire import (
    EVENTS,
    NAMES,
    STARTS,
    TREES,
    BlockStart,
    Delta,
    Message,
    WireUsage,
)
from midstream.providers.failures import classify_error, decode_lax
from midstream.providers.sse import SseEvent
from midstream.providers.stream_parser import decode_event, decode_known
from midstream.providers.stream_writer import Block, StreamWriter

STOP_REASONS = {
    "end_turn": StopReason.END_TURN,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "refusal": StopReason.REFUSAL,
    "pause_turn": StopReason.PAUSE_TURN,
}


_KNOWN_EVENTS = frozenset(
    (
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    )
)
_CALL_FIELDS = frozenset(("type", "id", "name", "input"))
_EMPTY_INPUT = ("{}", "null", "")


class _WireBlock:
    """A block as Anthropic numbers it, with what its end will need."""

    __slots__ = ("block", "citations", "grown", "kind", "start")

    def __init__(self, block: Block, kind: str, start: str) -> None:
        self.block = block
        self.kind = kind
        self.start = start
        self.citations: list[Any] = []
        self.grown: dict[str, Any] = {}


class AnthropicStreamDecoder:
    """Decodes one stream of the format `anthropic`."""

    def __init__(self) -> None:
        self.writer = StreamWriter()
        self._blocks: dict[int, _WireBlock] = {}
        self._stop_reason: str | None = None
        self._stopped = False
        self._earlier = Usage()
        self._current = WireUsage()

    @property
    def ending(self) -> bool:
        return self._stopped

    @property
    def stopping(self) -> bool:
        return self._stop_reason is not None

    def feed(self, event: SseEvent) -> None:
        if event.name == "error":
            self.writer.fail(classify_error(decode_lax(event.data)))
        if not event.data or self.writer.over:
            return
        wire = decode_known(EVENTS, event, self.writer, _KNOWN_EVENTS)
        if wire is None:
            return
        if wire.type == "content_block_delta" and wire.delta is not None:
            self._delta(wire.index, wire.delta, event.data)
        elif wire.type == "content_block_start" and wire.content_block:
            self._start_block(wire.index, bytes(wire.content_block))
        elif wire.type == "content_block_stop":
            self._stop_block(wire.index)
        elif wire.type == "message_delta":
            self._report(wire.usage)
            if wire.delta is not None and wire.delta.stop_reason:
                self._stop_reason = wire.delta.stop_reason
        elif wire.type == "message_start":
            self._start_message(wire.message or Message())
        elif wire.type == "message_stop":
            self._close_blocks()
            self._stopped = True
        elif wire.type == "ping":
            self.writer.ping()
        elif wire.type == "error":
            self.writer.fail(classify_error(decode_lax(event.data)))

    def end(self) -> None:
        if self._stopped:
            raw = self._stop_reason
            reason = STOP_REASONS.get(raw, StopReason.OTHER) if raw else self._likely_reason()
            self.writer.finish(reason, raw)

    def _likely_reason(self) -> StopReason:
        return StopReason.TOOL_USE if self.writer.has_calls else StopReason.END_TURN

    def _start_message(self, message: Message) -> None:
        self.writer.begin(message.id, message.model)
        self._close_blocks()
        if self._stopped:
            self._stopped = False
            self._earlier = self._earlier.plus(_usage(self._current))
            self._current = WireUsage()
        self._stop_reason = message.stop_reason
        self._report(message.usage)
        for index, content in enumerate(message.content or ()):
            self._start_block(index, bytes(content))
            self._stop_block(index)

    def _report(self, usage: WireUsage | None) -> None:
        """Counts of one message are running totals: a later one replaces an earlier one."""
        if usage is None:
            return
        for field in usage.__struct_fields__:
            value = getattr(usage, field)
            if value is not None:
                setattr(self._current, field, value)
        self.writer.use(self._earlier.plus(_usage(self._current)))

    def _start_block(self, index: int, raw: bytes) -> None:
        if index in self._blocks:
            self._stop_block(index)
        try:
            start = STARTS.decode(raw)
        except msgspec.DecodeError:
            start = BlockStart(NAMES.decode(raw).type or "unknown")
        if start.type == "text":
            wire = self._hold(index, self.writer.open("text"), "text")
            wire.citations = list(start.citations or ())
            self.writer.say(wire.block, start.text or "")
        elif start.type == "thinking":
            wire = self._hold(index, self.writer.open("thinking"), "thinking")
            self.writer.say(wire.block, start.thinking or "")
            if start.signature:
                self.writer.sign(wire.block, start.signature)
        elif start.type == "tool_use":
            self._hold(index, self.writer.open_call(start.id, start.name), "tool_use", raw)
        else:
            self._hold(index, self.writer.open("opaque"), start.type, raw)

    def _hold(self, index: int, block: Block, kind: str, raw: bytes = b"") -> _WireBlock:
        wire = _WireBlock(block, kind, raw.decode("utf-8", "replace"))
        self._blocks[index] = wire
        return wire

    def _delta(self, index: int, delta: Delta, data: bytes) -> None:
        wire = self._blocks.get(index)
        if wire is None:
            kind = "thinking" if delta.type in ("thinking_delta", "signature_delta") else "text"
            wire = self._hold(index, self.writer.open(kind), kind)
        if delta.type == "text_delta" and wire.kind == "text":
            self.writer.say(wire.block, delta.text or "")
        elif delta.type == "input_json_delta" and wire.kind != "text":
            self.writer.say(wire.block, delta.partial_json or "")
        elif delta.type == "thinking_delta" and wire.kind == "thinking":
            self.writer.say(wire.block, delta.thinking or "")
        elif delta.type == "signature_delta" and wire.kind == "thinking":
            self.writer.sign(wire.block, delta.signature or "")
        else:
            self._other_delta(wire, decode_event(TREES, data, self.writer)["delta"])

    def _other_delta(self, wire: _WireBlock, delta: dict[str, Any]) -> None:
        """Citations of a text, and deltas of blocks that only Anthropic understands."""
        if delta.get("type") == "citations_delta":
            wire.citations.append(delta.get("citation"))
            return
        for key, value in delta.items():
            known = wire.grown.get(key)
            if key == "type" or value is None:
                continue
            if isinstance(value, str) and isinstance(known, str):
                wire.grown[key] = known + value
            elif isinstance(value, list) and isinstance(known, list):
                wire.grown[key] = [*cast(list[Any], known), *cast(list[Any], value)]
            else:
                wire.grown[key] = value

    def _stop_block(self, index: int) -> None:
        wire = self._blocks.pop(index, None)
        if wire is None:
            return
        if wire.kind == "tool_use":
            self._stop_call(wire)
        elif wire.kind in ("text", "thinking"):
            self.writer.close(wire.block)
            if wire.citations:
                block = self.writer.open("opaque")
                self.writer.close_opaque(block, "citations", _text(wire.citations))
        else:
            self.writer.close_opaque(wire.block, wire.kind, _opaque_data(wire))

    def _stop_call(self, wire: _WireBlock) -> None:
        start = STARTS.decode(wire.start)
        given = bytes(start.input).decode().strip()
        extra = {k: v for k, v in TREES.decode(wire.start).items() if k not in _CALL_FIELDS}
        self.writer.close_call(
            wire.block,
            None if wire.block.pieces or given in _EMPTY_INPUT else given,
            _text(extra) if extra else None,
        )

    def _close_blocks(self) -> None:
        for index in list(self._blocks):
            self._stop_block(index)


def _opaque_data(wire: _WireBlock) -> str:
    """The block as it began, with what its deltas added; untouched when there were none."""
    said = wire.block.text
    if not said and not wire.grown and not wire.citations:
        return wire.start
    tree = TREES.decode(wire.start)
    if said:
        try:
            tree["input"] = msgspec.json.decode(said)
        except msgspec.DecodeError:
            tree["input"] = {}  # cut by the token limit; without a result it is dropped anyway
    tree |= wire.grown
    if wire.citations:
        tree["citations"] = wire.citations
    return _text(tree)


def _usage(usage: WireUsage) -> Usage:
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
