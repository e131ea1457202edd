"""The Responses stream: its events to stream messages. Pure.

Source: platform.openai.com/docs/api-reference/responses-streaming. What it survives beyond
that (spec/gateway.md 1): item ids that change between events (only `output_index` counts),
events without a name, comments, `[DONE]`, texts and arguments that come only in the closing
event, items that overlap, a stream that is resumed in the middle, an `error` event followed by
`response.failed` (one failure), and several responses in one stream, which become one answer
as in `anthropic_stream.py`.

How the items of an answer are told:

- `message`: each content part is a block of text; a refusal is text too, with the stop reason
  REFUSAL.
- `reasoning`: the summary and the raw reasoning are thinking blocks, to be watched and shown;
  the item itself follows as an opaque block, to be sent back.
- `function_call` and the other calls of the host (`openai_responses_calls.py`): a tool call.
- any other item is opaque.
"""

from midstream.messages.stream import StopReason
from midstream.messages.usage import Usage
from midstream.providers.failures import classify_error, decode_lax
from midstream.providers.openai_responses_calls import called_tool, input_piece, whole_call
from midstream.providers.openai_responses_wire import (
    EVENTS,
    ITEMS,
    Event,
    Part,
    Response,
    TokenDetails,
    WireUsage,
)
from midstream.providers.sse import SseEvent
from midstream.providers.stream_parser import decode_known
from midstream.providers.stream_writer import Block, StreamWriter

_INCOMPLETE_REASONS = {
    "max_output_tokens": StopReason.MAX_TOKENS,
    "content_filter": StopReason.CONTENT_FILTER,
}
_PART_CLOSERS = frozenset(
    (
        "response.output_text.done",
        "response.refusal.done",
        "response.content_part.done",
        "response.reasoning_text.done",
        "response.reasoning_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    )
)
_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "thinking",
    "response.reasoning_summary_text.delta": "summary",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
_KNOWN_EVENTS = frozenset(
    (
        *_PART_CLOSERS,
        *_DELTAS,
        "error",
        "response.output_item.added",
        "response.output_item.done",
        "response.function_call_arguments.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    )
)


_PartKey = tuple[bool, int]
"""Whether it is a part of a summary, and its number there."""


class _WireItem:
    """An output item as the provider numbers it."""

    __slots__ = ("call", "kind", "opaque", "parts")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.parts: dict[_PartKey, Block] = {}
        self.call: Block | None = None
        self.opaque: Block | None = None


class OpenAIResponsesStreamDecoder:
    """Decodes one stream of the format `openai_responses`."""

    def __init__(self) -> None:
        self.writer = StreamWriter()
        self._items: dict[int, _WireItem] = {}
        self._earlier = Usage()
        self._current = Usage()
        self._refused = False
        self._ended = False
        self._raw_reason: str | None = None
        self._reason = StopReason.OTHER

    @property
    def ending(self) -> bool:
        return self._ended

    @property
    def stopping(self) -> bool:
        return self._ended

    def feed(self, event: SseEvent) -> None:
        if event.data.startswith(b"[DONE]"):
            self.end()
        elif event.name == "error":
            self.writer.fail(classify_error(decode_lax(event.data)))
        elif event.data:
            known = decode_known(EVENTS, event, self.writer, _KNOWN_EVENTS)
            if known is not None:
                self._event(known, event.data)

    def end(self) -> None:
        if self._ended:
            self.writer.finish(self._reason, self._raw_reason)

    def _event(self, event: Event, data: bytes) -> None:
        kind = _DELTAS.get(event.type)
        if kind is not None:
            self._delta(event, kind)
        elif event.type in _PART_CLOSERS:
            self._close_part(event)
        elif event.type == "response.output_item.added":
            self._add_item(event.output_index, bytes(event.item))
        elif event.type == "response.output_item.done":
            self._finish_item(event.output_index, bytes(event.item))
        elif event.type == "response.function_call_arguments.done":
            self._finish_arguments(event)
        elif event.type == "error":
            self.writer.fail(classify_error(decode_lax(data)))
        elif event.response is not None:
            self._lifecycle(event.type, event.response)

    def _lifecycle(self, event_type: str, response: Response) -> None:
        if self._ended and event_type in ("response.created", "response.queued"):
            self._start_next()
        self.writer.begin(response.id, response.model)
        self._use(response.usage)
        if event_type in ("response.completed", "response.incomplete"):
            self._complete(response)
        elif event_type in ("response.failed", "response.cancelled"):
            error = response.error or f"the response is {response.status or 'failed'}"
            self.writer.fail(classify_error({"error": error}))

    def _start_next(self) -> None:
        self._ended = False
        self._items = {}
        self._earlier = self._earlier.plus(self._current)
        self._current = Usage()

    def _complete(self, response: Response) -> None:
        if not self._items:
            # Nothing but the end was seen of it, as when a stream is resumed: all is new.
            for index, item in enumerate(response.output or ()):
                self._finish_item(index, bytes(item))
        self.writer.close_all()
        self._ended = True
        why = response.incomplete_details.reason if response.incomplete_details else None
        self._raw_reason = why or response.status
        if why or response.status == "incomplete":
            self._reason = _INCOMPLETE_REASONS.get(why or "", StopReason.OTHER)
        elif any(item.call for item in self._items.values()):
            self._reason = StopReason.TOOL_USE
        else:
            self._reason = StopReason.REFUSAL if self._refused else StopReason.END_TURN

    def _add_item(self, index: int, raw: bytes) -> _WireItem:
        item = ITEMS.decode(raw)
        wire = _WireItem(item.type)
        self._items[index] = wire
        name = called_tool(item, raw)
        if name is not None:
            wire.call = self.writer.open_call(item.call_id or "", name)
        elif item.type != "message":
            # A reasoning item's place is before the blocks that tell its text: it must be
            # sent back in front of what it led to.
            wire.opaque = self.writer.open("opaque")
        return wire

    def _delta(self, event: Event, kind: str) -> None:
        wire = self._item(event.output_index, kind)
        if not isinstance(event.delta, str) or not event.delta:
            return
        if kind == "arguments" and wire.call is not None:
            self.writer.say(wire.call, event.delta)
        elif kind == "input" and wire.call is not None:
            piece = input_piece(event.delta, first=not wire.call.pieces)
            self.writer.say(wire.call, piece)
        elif wire.call is None:
            self._refused |= kind == "refusal"
            self.writer.say(self._part(wire, event), event.delta)

    def _item(self, index: int, kind: str) -> _WireItem:
        """The item at `index`; one that was never announced is made up after its delta."""
        wire = self._items.get(index)
        if wire is None:
            made_up = {"thinking": "reasoning", "summary": "reasoning", "arguments": "call"}
            wire = self._items[index] = _WireItem(made_up.get(kind, "message"))
            if kind in ("arguments", "input"):
                wire.call = self.writer.open_call("", "")
        return wire

    def _part(self, wire: _WireItem, event: Event) -> Block:
        summary = event.summary_index >= 0
        key = (summary, event.summary_index if summary else event.content_index)
        block = wire.parts.get(key)
        if block is None:
            block = self.writer.open("thinking" if wire.kind == "reasoning" else "text")
            wire.parts[key] = block
        return block

    def _close_part(self, event: Event) -> None:
        wire = self._items.get(event.output_index)
        part = event.part or Part(text=event.text, refusal=event.refusal)
        whole = part.text or part.refusal
        if wire is None or wire.call is not None:
            return
        if whole:
            self._refused |= bool(part.refusal)
            self._say_rest(self._part(wire, event), whole)

    def _say_rest(self, block: Block, whole: str) -> None:
        """Say what of `whole` the deltas left out, and close the block."""
        said = block.text
        if whole.startswith(said):
            self.writer.say(block, whole[len(said) :])
        self.writer.close(block)

    def _finish_arguments(self, event: Event) -> None:
        wire = self._items.get(event.output_index)
        if wire is None or wire.call is None or not isinstance(event.arguments, str):
            return
        said = wire.call.text
        if event.arguments.startswith(said):
            self.writer.say(wire.call, event.arguments[len(said) :])

    def _finish_item(self, index: int, raw: bytes) -> None:
        wire = self._items.get(index) or self._add_item(index, raw)
        item = ITEMS.decode(raw)
        if wire.call is not None:
            wire.call.name = wire.call.name or called_tool(item, raw) or ""
            arguments, extra = whole_call(item, raw)
            self.writer.close_call(wire.call, arguments, extra)
            return
        self._finish_parts(wire, [(True, part) for part in item.summary or ()])
        self._finish_parts(wire, [(False, part) for part in item.content or ()])
        for block in wire.parts.values():
            self.writer.close(block)
        if wire.opaque is not None:
            self.writer.close_opaque(wire.opaque, item.type, raw.decode("utf-8", "replace"))

    def _finish_parts(self, wire: _WireItem, parts: list[tuple[bool, Part]]) -> None:
        """Compare the finished parts with those that were streamed, in their order: the
        numbers of some servers disagree with the finished item."""
        if wire.kind not in ("message", "reasoning"):
            return
        streamed = [
            block for (summary, _), block in wire.parts.items() if parts and summary == parts[0][0]
        ]
        for number, (summary, part) in enumerate(parts):
            whole = part.text or part.refusal
            if not whole:
                continue
            self._refused |= bool(part.refusal)
            if number < len(streamed):
                self._say_rest(streamed[number], whole)
                continue
            kind = "thinking" if wire.kind == "reasoning" else "text"
            # Below zero, where no part that was streamed is numbered.
            block = wire.parts[summary, -1 - number] = self.writer.open(kind)
            self._say_rest(block, whole)

    def _use(self, usage: WireUsage | None) -> None:
        if usage is None:
            return
        details = usage.input_tokens_details or TokenDetails()
        self._current = Usage(
            usage.input_tokens,
            usage.output_tokens,
            details.cached_tokens,
            details.cache_write_tokens,
        )
        self.writer.use(self._earlier.plus(self._current))
