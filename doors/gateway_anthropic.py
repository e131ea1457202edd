"""Anthropic's Messages protocol for the gateway: one client message out of several attempts.

Source: platform.claude.com/docs/en/build-with-claude/streaming; what clients accept:
spec/gateway.md 2. The client has one `message_start`, blocks that are numbered without a
gap, one `message_delta` with the sum of what all attempts cost, and one `message_stop`.
A block of text that was cut is written on by the first block of the next attempt.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from midstream.doors.gateway_wire import (
    ANTHROPIC_ERRORS,
    Json,
    added,
    decoded,
    raw,
    sse,
)
from midstream.messages.conversation import AnyItem, ModelRequest, UserItem
from midstream.messages.failure import ProviderFailure
from midstream.messages.usage import Usage
from midstream.providers.anthropic_request import anthropic_body
from midstream.providers.anthropic_stream import AnthropicStreamDecoder
from midstream.providers.json_fields import list_of, object_of
from midstream.providers.sse import SseEvent

_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)

_ENDINGS = ("message_delta", "message_stop")


class AnthropicReframer:
    """See `Reframer`."""

    def __init__(self) -> None:
        self._started = False
        self._next_index = 0
        self._open: dict[int, str] = {}
        self._unfinished: int | None = None
        self._has_call = False
        self._places: dict[int, int] = {}
        self._earlier: dict[str, int] = {}
        self._current: dict[str, int] = {}
        self._last_delta: Json | None = None
        self._stopped = False

    def note(self, event: SseEvent) -> None:
        data = decoded(event) or {}
        match data.get("type"):
            case "message_start":
                self._started = True
                self._count(object_of(object_of(data.get("message")).get("usage")))
            case "content_block_start":
                index = data.get("index", 0)
                self._begin(index, data)
            case "content_block_stop":
                self._open.pop(data.get("index", 0), None)
            case "message_delta":
                self._count(object_of(data.get("usage")))
            case _:
                pass

    def cut(self, spent: Usage) -> bytes:
        # Text is written on in the same block: several clients take the last one for the
        # answer. Only one that nothing stands behind can be.
        last = self._next_index - 1
        if self._open.get(last) == "text":
            self._unfinished = last
            del self._open[last]
        out = b"".join(_stop(index) for index in sorted(self._open))
        self._open.clear()
        self._places.clear()
        figures = (
            spent.input_tokens,
            spent.output_tokens,
            spent.cache_read_tokens,
            spent.cache_write_tokens,
        )
        known = {n: c for n, c in zip(_COUNTS, figures, strict=True) if c is not None}
        self._earlier = added(self._earlier, known)
        self._current = {}
        self._last_delta = None
        self._stopped = False
        return out

    def without_ending(self, event: SseEvent) -> bytes:
        kind = (decoded(event) or {}).get("type")
        return b"" if kind in _ENDINGS else self.reframe(event)

    def follow(self, spent: Usage) -> bytes:
        return self.cut(spent)

    def end_as(self, event: SseEvent) -> bytes:
        data = decoded(event) or {}
        if data.get("type") == "message_delta":
            self._last_delta = {key: value for key, value in data.items() if key != "usage"}
        elif data.get("type") == "message_stop":
            self._stopped = True
        return b""

    @property
    def aliases(self) -> dict[str, str]:
        return {}

    def reframe(self, event: SseEvent) -> bytes:
        data = decoded(event)
        if data is None:
            return raw(event)
        match data.get("type"):
            case "message_start":
                return self._start(event, data)
            case "content_block_start":
                return self._start_block(event, data)
            case "content_block_stop":
                self._open.pop(self._places.get(data.get("index", 0), -1), None)
                return self._placed(event, data)
            case "message_delta":
                self._count(object_of(data.get("usage")))
                self._last_delta = data
                return b""
            case "message_stop":
                self._stopped = True
                return b""
            case "error" | "ping":
                return raw(event)
            case _:
                return self._placed(event, data)

    def finish(self) -> bytes:
        if not self._stopped:
            return b""
        delta = self._last_delta or {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        inner = object_of(delta.get("delta"))
        if self._has_call and inner.get("stop_reason") == "end_turn":
            inner = {**inner, "stop_reason": "tool_use"}
        usage = added({**object_of(delta.get("usage")), **self._current}, self._earlier)
        last = {**delta, "delta": inner, "usage": usage}
        return (
            self._finish_text()
            + sse(last, "message_delta")
            + sse({"type": "message_stop"}, "message_stop")
        )

    def fail(self, failure: ProviderFailure) -> bytes:
        return sse(_error(failure), "error")

    def _start(self, event: SseEvent, data: Json) -> bytes:
        self._count(object_of(object_of(data.get("message")).get("usage")))
        if self._started:
            return b""
        self._started = True
        return raw(event)

    def _start_block(self, event: SseEvent, data: Json) -> bytes:
        block = object_of(data.get("content_block"))
        if self._unfinished is None or block.get("type") != "text" or block.get("citations"):
            out = self._finish_text()
            self._places[data.get("index", 0)] = self._next_index
            self._begin(self._next_index, data)
            return out + self._placed(event, data)
        place, self._unfinished = self._unfinished, None
        self._places[data.get("index", 0)] = place
        self._open[place] = "text"
        if not block.get("text"):
            return b""
        delta = {"type": "text_delta", "text": block["text"]}
        known = {"type": "content_block_delta", "index": place, "delta": delta}
        return sse(known, "content_block_delta")

    def _finish_text(self) -> bytes:
        """The end of a block of text that was cut, if no other text goes on in it."""
        index, self._unfinished = self._unfinished, None
        return b"" if index is None else _stop(index)

    def _begin(self, index: int, data: Json) -> None:
        kind = str(object_of(data.get("content_block")).get("type"))
        self._open[index] = kind
        self._next_index = max(self._next_index, index + 1)
        self._has_call |= kind == "tool_use"

    def _placed(self, event: SseEvent, data: Json) -> bytes:
        if "index" not in data:
            return raw(event)
        place = self._places.get(data["index"], data["index"])
        return sse({**data, "index": place}, event.name or str(data.get("type", "")))

    def _count(self, usage: Json) -> None:
        self._current |= {n: usage[n] for n in _COUNTS if isinstance(usage.get(n), int)}


class AnthropicAssembler:
    """See `Assembler`: what the events of one message add up to."""

    def __init__(self) -> None:
        self._message: Json | None = None
        self._blocks: dict[int, Json] = {}
        self._arguments: dict[int, str] = {}
        self._usage: Json = {}

    def take(self, event: SseEvent) -> None:
        data = decoded(event) or {}
        index: int = data.get("index", 0)
        match data.get("type"):
            case "message_start" if self._message is None:
                self._message = dict(object_of(data.get("message")))
                self._usage = dict(object_of(self._message.get("usage")))
                for number, block in enumerate(list_of(self._message.get("content"))):
                    self._blocks[number] = dict(object_of(block))
            case "content_block_start":
                self._blocks[index] = dict(object_of(data.get("content_block")))
            case "content_block_delta" if index in self._blocks:
                self._grow(index, object_of(data.get("delta")))
            case "content_block_stop" if index in self._arguments:
                self._blocks[index]["input"] = _input(self._arguments.pop(index))
            case "message_delta" if self._message is not None:
                self._message |= object_of(data.get("delta"))
                usage = object_of(data.get("usage"))
                self._usage |= {k: v for k, v in usage.items() if v is not None}
                for key in data.keys() - {"type", "delta", "usage"}:
                    self._message[key] = data[key]
            case _:
                pass

    def answer(self) -> Json | None:
        if self._message is None:
            return None
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._message, "content": content, "usage": self._usage}

    def _grow(self, index: int, delta: Json) -> None:
        block = self._blocks[index]
        match delta.get("type"):
            case "input_json_delta":
                piece = delta.get("partial_json") or ""
                self._arguments[index] = self._arguments.get(index, "") + piece
            case "citations_delta":
                block["citations"] = [*list_of(block.get("citations")), delta.get("citation")]
            case _:
                for key, value in delta.items():
                    known = block.get(key)
                    if key == "type":
                        continue
                    if isinstance(value, str) and isinstance(known, str) and key != "signature":
                        value = known + value
                    block[key] = value


class AnthropicWire:
    """See `Wire`."""

    format = "anthropic"
    keep_alive = sse({"type": "ping"}, "ping")

    def decoder(self) -> AnthropicStreamDecoder:
        return AnthropicStreamDecoder()

    def reframer(self) -> AnthropicReframer:
        return AnthropicReframer()

    def assembler(self) -> AnthropicAssembler:
        return AnthropicAssembler()

    def continued(self, body: Json, items: Sequence[AnyItem]) -> Json:
        # A user speaks first there, so the reader's words stand in for the conversation.
        request = ModelRequest(model="", items=(UserItem("..."), *items))
        first, *rest = anthropic_body(request)["messages"]
        # What the user's side says at once follows the stand-in in the same message.
        first["content"].pop(0)
        tail = [first, *rest] if first["content"] else rest
        return {**body, "messages": [*list_of(body.get("messages")), *tail]}

    def streaming(self, body: Json) -> Json:
        return {**body, "stream": True}

    def whole(self, answer: Json) -> list[SseEvent]:
        start = {"type": "message_start", "message": answer}
        return [_event(start), _event({"type": "message_stop"})]

    def error_body(self, failure: ProviderFailure) -> Json:
        return _error(failure)


def without_unsigned_thinking(body: Json) -> Json:
    """The body without thinking that was cut before its signature came: the API refuses it.

    The very same object where there is none.
    """
    messages: list[Any] = []
    changed = False
    for message in list_of(body.get("messages")):
        if object_of(message).get("role") == "assistant":
            content = list_of(object_of(message).get("content"))
            kept = [block for block in content if not _unsigned(object_of(block))]
            if len(kept) < len(content):
                changed = True
                if not kept:
                    continue
                message = {**message, "content": kept}
        messages.append(message)
    return {**body, "messages": messages} if changed else body


def _unsigned(block: Json) -> bool:
    return block.get("type") == "thinking" and not block.get("signature")


def _input(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments) if arguments else {}
    except msgspec.DecodeError:
        return {}  # cut by the token limit; the stop reason says so


def _stop(index: int) -> bytes:
    return sse({"type": "content_block_stop", "index": index}, "content_block_stop")


def _error(failure: ProviderFailure) -> Json:
    word = ANTHROPIC_ERRORS.get(failure.kind, "api_error")
    return {"type": "error", "error": {"type": word, "message": failure.message}}


def _event(data: Json) -> SseEvent:
    return SseEvent(str(data["type"]), msgspec.json.encode(data))
