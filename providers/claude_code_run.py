"""What one run of an agent program came to, read from its output lines. Pure.

For sessions outside, whose babysitter keeps the whole output and reports at the end: the
transcript, the final answer, the usage and cost, the program's own session, and whether the
quota is spent. Claude Code's lines are understood; of other programs that print JSON lines
the lines are kept, and of one that prints text the end of it. Memory is bounded: of a very
long transcript the beginning is left out.

Sources: spec/animator.md 8.1, B14 and B19.
"""

from collections import deque

import msgspec

from midstream.messages.usage import Usage
from midstream.providers.claude_code_failures import is_failed
from midstream.providers.claude_code_limits import (
    LimitSignal,
    LimitWatch,
    assistant_text,
    is_synthetic,
)
from midstream.providers.claude_code_usage import RunUsage, usage_of_result
from midstream.providers.json_fields import list_of, object_of, text_of
from midstream.providers.ndjson import JsonObject, NdjsonReader
from midstream.providers.text_tail import TextTail

TRANSCRIPT_LIMIT_BYTES = 32 * 1024 * 1024
OUTPUT_LIMIT_CHARS = 20_000
"""How much of the end of a program's plain text is kept as its answer."""

_NO_MESSAGES = frozenset(
    ("system", "stream_event", "result", "rate_limit_event", "control_request", "control_response")
)
"""Lines of Claude Code that are no part of the conversation (8.1)."""


class RunReading:
    """Reads one run. The attributes are what is known so far."""

    def __init__(self, limit_bytes: int = TRANSCRIPT_LIMIT_BYTES) -> None:
        self.session_id: str | None = None
        self.usage: Usage | None = None
        self.result: JsonObject | None = None
        """The `result` line, once it has come."""
        self.is_claude_code = False
        """Whether the output is Claude Code's, so that a `result` is to be expected."""
        self._reader = NdjsonReader()
        self._limits = LimitWatch()
        self._run_usage = RunUsage()
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._dropped = 0
        self._transcript: deque[tuple[JsonObject, int]] = deque()
        self._answer: tuple[str | None, list[str]] = (None, [])
        self._text = TextTail(OUTPUT_LIMIT_CHARS)

    @property
    def limit(self) -> LimitSignal | None:
        """Whether the quota is spent."""
        return self._limits.signal

    @property
    def failed_result(self) -> str | None:
        """What the `result` line says of a failure; None without one."""
        if self.result is None or not is_failed(self.result):
            return None
        errors = "; ".join(filter(None, map(text_of, list_of(self.result.get("errors")))))
        said = text_of(self.result.get("result")) or errors
        return said or text_of(self.result.get("subtype")) or "the run failed"

    @property
    def output(self) -> str | None:
        """The prose of the last message of the model that has any; of a program that prints
        text, the end of that. None if there is neither."""
        _, texts = self._answer
        return "".join(texts) or (None if self._transcript else self._text.text or None)

    @property
    def transcript(self) -> list[JsonObject]:
        """The messages, as they came. If the beginning had to go, a line of ours says so."""
        kept = [line for line, _ in self._transcript]
        if not self._dropped:
            return kept
        return [{"type": "midstream", "subtype": "left_out", "lines": self._dropped}, *kept]

    def feed(self, data: bytes) -> None:
        """The next bytes of the output."""
        self._text.feed(data)
        for line in self._reader.feed(data):
            self._take(line)

    def end(self) -> None:
        """The output is over; a last line may lack its line feed."""
        for line in self._reader.end():
            self._take(line)

    def _take(self, line: JsonObject) -> None:
        self._limits.feed(line)
        kind = line.get("type")
        if kind == "system" and line.get("subtype") == "init":
            self.is_claude_code = True
            self.session_id = text_of(line.get("session_id")) or None
        if kind == "result":
            self._on_result(line)
        elif kind == "assistant" and not is_synthetic(line):
            self._on_message(line)
        if kind not in _NO_MESSAGES:
            self._keep(line)

    def _on_message(self, line: JsonObject) -> None:
        message = object_of(line.get("message"))
        message_id = text_of(message.get("id")) or None
        if message_id and message.get("usage"):
            self.usage = self._run_usage.add(message_id, message.get("usage"))
        text = assistant_text(line)
        if not text or line.get("parent_tool_use_id") is not None:
            return
        last_id, texts = self._answer
        if message_id is not None and message_id == last_id:
            texts.append(text)  # one message comes in several lines, a block in each
        else:
            self._answer = (message_id, [text])

    def _on_result(self, line: JsonObject) -> None:
        self.result = line
        self.session_id = text_of(line.get("session_id")) or self.session_id
        self.usage = usage_of_result(line)

    def _keep(self, line: JsonObject) -> None:
        size = len(msgspec.json.encode(line))
        self._transcript.append((line, size))
        self._held_bytes += size
        while self._held_bytes > self._limit_bytes and len(self._transcript) > 1:
            _, gone = self._transcript.popleft()
            self._held_bytes -= gone
            self._dropped += 1
