"""The blocks of one run's answer, from two accounts of the same messages. Pure.

With `--include-partial-messages` a message is told twice: while it is written, as events of
Anthropic's Messages API, and in whole blocks, each as soon as it is complete. The whole ones
are what the program goes on with. So a streamed block is *confirmed* by a whole one; where a
message broke off and the program asked again, its unconfirmed blocks are taken back.
"""

from collections.abc import Iterable

import msgspec

from midstream.providers.claude_code_parts import (
    CALL_KIND,
    RESULT_LIMIT_CHARS,
    RETRACTED_KIND,
    CallPart,
    RetractedPart,
    encode_part,
)
from midstream.providers.claude_code_results import ResultOfTool
from midstream.providers.json_fields import count_of, object_of, text_of
from midstream.providers.ndjson import JsonObject
from midstream.providers.stream_writer import Block, StreamWriter

_PROSE = ("text", "thinking")
"""Blocks whose text has the name of their kind, in deltas too."""


class _Told:
    """A block of the answer, with what the program said at its start."""

    def __init__(self, block: Block, start: JsonObject) -> None:
        self.block = block
        self.start = start
        self.kind = text_of(start.get("type"))


class Answer:
    """Writes the blocks of one run to `writer`."""

    def __init__(self, writer: StreamWriter) -> None:
        self.has_text = False
        """Whether any prose was said."""
        self.is_empty = True
        """Whether no block was begun."""
        self.streamed_id: str | None = None
        """The id of the message that is, or was last, told as events."""
        self._writer = writer
        self._unconfirmed: dict[int, _Told] = {}
        self._stopped = True
        self._calls: dict[str, tuple[Block, CallPart]] = {}

    # --- told as events

    def start_message(self, message_id: str | None) -> None:
        self.retract()
        self.streamed_id = message_id
        self._stopped = False

    def on_event(self, event: JsonObject) -> None:
        """An event about a block, or the end of the message."""
        index = count_of(event.get("index"))
        kind = event.get("type")
        if kind == "message_stop":
            self._stopped = True
            for told in self._unconfirmed.values():
                self._close(told)
        elif index is None:
            return
        elif kind == "content_block_start":
            self._start_block(index, object_of(event.get("content_block")))
        elif kind == "content_block_delta":
            self._on_delta(index, object_of(event.get("delta")))
        elif kind == "content_block_stop" and index in self._unconfirmed:
            self._close(self._unconfirmed[index])

    def retract(self) -> None:
        """Another message begins. If the last never ended, the program has dropped what it
        did not say in whole blocks."""
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        if self._stopped:
            return
        self._stopped = True
        for told in unconfirmed.values():
            if told.kind in _PROSE:
                self._writer.close(told.block)
            data = encode_part(RetractedPart(told.block.text))
            self._writer.take_place(told.block, RETRACTED_KIND, data)

    # --- told as whole blocks

    def confirm(self, blocks: Iterable[JsonObject]) -> None:
        """Blocks of the streamed message that are whole now."""
        for whole in blocks:
            index = self._index_of(whole)
            if index is None:
                self.write(whole)
            else:
                self._complete(self._unconfirmed.pop(index), whole)

    def write(self, whole: JsonObject) -> None:
        """A block that was not streamed."""
        self._complete(self._begin(whole), whole)

    def answer_call(self, result: ResultOfTool) -> None:
        """A tool has returned. Of a call that was never told nothing is said."""
        known = self._calls.get(result.call_id)
        if known is not None:
            block, call = known
            text = result.text[:RESULT_LIMIT_CHARS]
            answered = msgspec.structs.replace(call, result=text, is_error=result.is_error)
            self._writer.take_place(block, CALL_KIND, encode_part(answered))
            self._writer.answer(block, text, is_error=result.is_error)

    # --- blocks

    def _index_of(self, whole: JsonObject) -> int | None:
        """The streamed block that `whole` is."""
        for index, told in self._unconfirmed.items():
            same_kind = told.kind == whole.get("type")
            if same_kind and told.start.get("id") == whole.get("id"):
                return index
        return None

    def _start_block(self, index: int, start: JsonObject) -> None:
        earlier = self._unconfirmed.pop(index, None)
        if earlier is not None:
            self._close(earlier)
        told = self._unconfirmed[index] = self._begin(start)
        self._say(told, text_of(start.get(told.kind)))

    def _on_delta(self, index: int, delta: JsonObject) -> None:
        kind = text_of(delta.get("type"))
        told = self._unconfirmed.get(index)
        if told is None:
            told = self._unconfirmed[index] = self._begin({"type": kind.removesuffix("_delta")})
        if kind == "signature_delta" and told.kind == "thinking":
            self._writer.sign(told.block, text_of(delta.get("signature")))
        elif kind == "input_json_delta":
            self._writer.say(told.block, text_of(delta.get("partial_json")))
        else:
            self._say(told, text_of(delta.get(told.kind)))

    def _begin(self, start: JsonObject) -> _Told:
        self.is_empty = False
        kind = text_of(start.get("type"))
        if kind == "tool_use":
            name = text_of(start.get("name"))
            return _Told(self._writer.open_call(text_of(start.get("id")), name), start)
        return _Told(self._writer.open(kind if kind in _PROSE else "opaque"), start)

    def _say(self, told: _Told, text: str) -> None:
        if text and told.kind in _PROSE:
            self.has_text = self.has_text or told.kind == "text"
            self._writer.say(told.block, text)

    def _complete(self, told: _Told, whole: JsonObject) -> None:
        """The block is whole; what was lost of its text on the way is added
        (spec/lessons.md E 10)."""
        text, said = text_of(whole.get(told.kind)), told.block.text
        if text.startswith(said):
            self._say(told, text[len(said) :])
        signature = text_of(whole.get("signature"))
        if told.kind == "thinking" and signature and not said:
            self._writer.sign(told.block, signature)
        told.start = whole
        self._close(told)

    def _close(self, told: _Told) -> None:
        block = told.block
        if block.closed:
            return
        if told.kind in _PROSE:
            self._writer.close(block)
        elif told.kind == "tool_use":
            self._close_call(told)
        else:
            self._writer.close_opaque(block, told.kind or "unknown", _json(told.start))

    def _close_call(self, told: _Told) -> None:
        """The call as any other, and then in its place one that is nobody's to run."""
        block = told.block
        arguments = block.text or _json(object_of(told.start.get("input")))
        self._writer.close_call(block, arguments)
        call = CallPart(block.call_id, block.name, arguments)
        self._calls[text_of(told.start.get("id"))] = (block, call)
        self._writer.take_place(block, CALL_KIND, encode_part(call))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
