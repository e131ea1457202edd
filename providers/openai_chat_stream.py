"""The Chat Completions stream: its chunks to stream messages. Pure.

Source: platform.openai.com/docs/api-reference/chat-streaming, and what the many compatible
servers make of it (spec/gateway.md 1): chunks without choices, reasoning in `reasoning`,
`reasoning_content`, `reasoning_details` or a list of content parts, a whole call in one chunk,
arguments that are null, a name or an id that is repeated or empty, calls without an index, an
error object inside a chunk, usage inside a choice, no `[DONE]`, legacy `text` and
`function_call`.

What ends a stream: a `finish_reason`, or `[DONE]`. Usage may follow, and so may an error, so
the stream is finished only when its bytes end or `[DONE]` came. Some servers send `[DONE]`
and never a reason; then the stop reason is TOOL_USE if there were calls, else END_TURN, and
`raw_reason` is None.

Only choice 0 is read. Others (`n` above 1) are dropped: what nobody watches is not delivered.
"""

from typing import Any, cast

import msgspec

from midstream.messages.stream import StopReason
from midstream.messages.usage import Usage
from midstream.providers.failures import classify_error, decode_lax
from midstream.providers.openai_chat_wire import (
    CHUNKS,
    CallPiece,
    Choice,
    Chunk,
    Delta,
    Function,
    TokenDetails,
    WireUsage,
)
from midstream.providers.sse import SseEvent
from midstream.providers.stream_parser import decode_event
from midstream.providers.stream_writer import Block, StreamWriter

STOP_REASONS = {
    "stop": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "eos": StopReason.END_TURN,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "length": StopReason.MAX_TOKENS,
    "model_length": StopReason.MAX_TOKENS,
    "content_filter": StopReason.CONTENT_FILTER,
    "sensitive": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
}
_FAILED_REASONS = ("error", "network_error", "insufficient_system_resource")


class _WireCall:
    """A call as the provider numbers it."""

    __slots__ = ("block", "extra", "id", "slot")

    def __init__(self, slot: int | None, call_id: str, block: Block) -> None:
        self.slot = slot
        self.id = call_id
        self.block = block
        self.extra: Any = None


class OpenAIChatStreamDecoder:
    """Decodes one stream of the format `openai_chat`."""

    def __init__(self) -> None:
        self.writer = StreamWriter()
        self._text: Block | None = None
        self._thinking: Block | None = None
        self._calls: list[_WireCall] = []
        self._details: list[dict[str, Any]] = []
        self._refused = False
        self._reason: str | None = None

    @property
    def ending(self) -> bool:
        return self._reason is not None

    @property
    def stopping(self) -> bool:
        return self._reason is not None

    def feed(self, event: SseEvent) -> None:
        if event.data.startswith(b"[DONE]"):
            self._finish()
        elif event.name == "error":
            self.writer.fail(classify_error(decode_lax(event.data)))
        elif event.data:
            self._chunk(decode_event(CHUNKS, event.data, self.writer), event.data)

    def end(self) -> None:
        if self._reason is not None:
            self._finish()

    def _chunk(self, chunk: Chunk, data: bytes) -> None:
        if chunk.error or chunk.object == "error":
            self._use(chunk.usage)
            self.writer.fail(classify_error(decode_lax(data)))
            return
        self.writer.begin(chunk.id, chunk.model)
        for choice in chunk.choices or ():
            if not choice.index:
                self._choice(choice)
        self._use(chunk.usage)

    def _choice(self, choice: Choice) -> None:
        if choice.delta is not None:
            self._delta(choice.delta)
        if choice.text:
            self._say(choice.text)
        self._use(choice.usage)
        if choice.finish_reason in _FAILED_REASONS:
            self.writer.fail(classify_error(f"the stream stopped with {choice.finish_reason!r}"))
        elif choice.finish_reason:
            self._reason = choice.finish_reason

    def _delta(self, delta: Delta) -> None:
        thinking = delta.reasoning_content or delta.reasoning
        if delta.reasoning_details:
            self._details.extend(delta.reasoning_details)
            thinking = thinking or "".join(map(_detail_text, delta.reasoning_details))
        if thinking:
            self._think(thinking)
        if isinstance(delta.content, str):
            if delta.content:
                self._say(delta.content)
        elif delta.content:
            self._content_parts(delta.content)
        if delta.refusal:
            self._refused = True
            self._say(delta.refusal)
        for call in delta.tool_calls or ():
            self._call(call)
        if delta.function_call is not None:
            self._call(CallPiece(index=0, function=delta.function_call))

    def _content_parts(self, parts: list[dict[str, Any]]) -> None:
        """Mistral's reasoning models stream lists of parts; thinking holds texts again."""
        for part in parts:
            if part.get("type") == "thinking":
                inner = part.get("thinking")
                texts = cast(list[Any], inner) if isinstance(inner, list) else [inner]
                self._think("".join(map(_detail_text, texts)))
            else:
                self._say(_detail_text(part))

    def _think(self, text: str) -> None:
        if self._thinking is None:
            self._thinking = self.writer.open("thinking")
        self.writer.say(self._thinking, text)

    def _say(self, text: str) -> None:
        """The content is one text, whatever comes between its pieces: one block."""
        self._end_thinking()
        if self._text is None:
            self._text = self.writer.open("text")
        self.writer.say(self._text, text)

    def _call(self, call: CallPiece) -> None:
        self._end_thinking()
        function = call.function or Function()
        wire = self._known_call(call, function)
        if wire is None:
            block = self.writer.open_call(call.id or "", function.name or "")
            wire = _WireCall(call.index, call.id or "", block)
            self._calls.append(wire)
        if call.extra_content is not None:
            wire.extra = call.extra_content
        if isinstance(function.arguments, str):
            self.writer.say(wire.block, function.arguments)
        elif function.arguments:
            self.writer.say(wire.block, _json(function.arguments))

    def _known_call(self, call: CallPiece, function: Function) -> _WireCall | None:
        """The call that this piece goes on with.

        A new id is a new call even under a known index (Gemini's endpoint numbers all 0); a
        piece without index and id belongs to the last call, unless it has a name.
        """
        if call.index is None and not call.id:
            return None if function.name or not self._calls else self._calls[-1]
        for wire in reversed(self._calls):
            if call.index is not None and wire.slot != call.index:
                continue
            if not call.id or not wire.id or call.id == wire.id:
                return wire
        return None

    def _end_thinking(self) -> None:
        if self._thinking is not None:
            self.writer.close(self._thinking)
            self._thinking = None

    def _use(self, usage: WireUsage | None) -> None:
        if usage is None:
            return
        details = usage.prompt_tokens_details or TokenDetails()
        cached = details.cached_tokens
        self.writer.use(
            Usage(
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.prompt_cache_hit_tokens if cached is None else cached,
                details.cache_write_tokens,
            )
        )

    def _finish(self) -> None:
        for wire in self._calls:
            extra = None if wire.extra is None else _json({"extra_content": wire.extra})
            self.writer.close_call(wire.block, extra=extra)
        if any(map(_must_return, self._details)):
            details = _json(_merge_details(self._details))
            self.writer.close_opaque(self.writer.open("opaque"), "reasoning_details", details)
        self.writer.finish(self._stop_reason(), self._reason)

    def _stop_reason(self) -> StopReason:
        reason = STOP_REASONS.get(self._reason or "stop", StopReason.OTHER)
        if reason == StopReason.END_TURN and self._refused:
            return StopReason.REFUSAL
        if reason == StopReason.END_TURN and self._calls:
            return StopReason.TOOL_USE  # several servers say `stop` after a call
        return reason


def _detail_text(detail: Any) -> str:
    if isinstance(detail, str):
        return detail
    if not isinstance(detail, dict):
        return ""
    fields = cast(dict[str, Any], detail)
    text = fields.get("text") or fields.get("summary")
    return text if isinstance(text, str) else ""


def _must_return(detail: dict[str, Any]) -> bool:
    """Whether a reasoning detail is more than text: signed or encrypted."""
    return bool(detail.get("signature") or detail.get("data"))


def _merge_details(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The details as one list: pieces of one text (same type and index) put together."""
    merged: list[dict[str, Any]] = []
    for detail in details:
        last = merged[-1] if merged else {}
        joins = _detail_text(detail) or detail.get("signature")
        if not joins or (last.get("type"), last.get("index")) != (
            detail.get("type"),
            detail.get("index"),
        ):
            merged.append(dict(detail))
            continue
        for key, value in detail.items():
            if key in ("text", "summary") and isinstance(value, str):
                last[key] = (last.get(key) or "") + value
            elif value is not None:
                last[key] = value
    return merged


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
