"""Claude Code's output lines (`--output-format stream-json`) to stream messages. Pure.

One run of the program is one stream: all the messages that the model writes until its
`result`. What is made of them:

- The program runs its tools itself. A call is told as any call is, so that rules see it,
  and then an opaque block takes its place, with the result once there is one: it is nobody
  else's to run, and settled history needs no answer to it. From the moment a call is
  complete it may have had effects.
- Of sub-agents (lines with `parent_tool_use_id`) only the calls are told; what they write
  goes to the model as the result of a tool.
- `<synthetic>` messages are the program's own words about an error, and no answer.
- The session, from which the next prompt goes on, is an opaque block at the end. Only a run
  that came to its `result` has one (claude_code_request.py).

Sources: spec/animator.md 8.1 and B14, spec/gateway.md 3.9, and output of version 2.1.197.
"""

from collections.abc import Callable

from midstream.messages.stream import StopReason
from midstream.providers.anthropic_stream import STOP_REASONS
from midstream.providers.claude_code_answer import Answer
from midstream.providers.claude_code_failures import (
    failure_of_exit,
    failure_of_result,
    is_failed,
)
from midstream.providers.claude_code_limits import LimitWatch, assistant_text, is_synthetic
from midstream.providers.claude_code_parts import SESSION_KIND, SessionPart, encode_part
from midstream.providers.claude_code_results import tool_results
from midstream.providers.claude_code_usage import RunUsage, usage_of_result
from midstream.providers.json_fields import list_of, object_of, text_of
from midstream.providers.ndjson import JsonObject
from midstream.providers.stream_writer import StreamWriter


class ClaudeCodeDecoder:
    """Decodes one run. `wall_clock` tells seconds since 1970, for limits that say when they
    end."""

    def __init__(self, wall_clock: Callable[[], float] | None = None) -> None:
        self.writer = StreamWriter()
        self._answer = Answer(self.writer)
        self._wall_clock = wall_clock
        self._limits = LimitWatch()
        self._usage = RunUsage()
        self._session_id = ""
        self._notice: JsonObject = {}

    def feed(self, line: JsonObject) -> None:
        """Take the next line of the output."""
        if self.writer.over:
            return
        self._limits.feed(line)
        self._session_id = text_of(line.get("session_id")) or self._session_id
        match line.get("type"):
            case "stream_event" if line.get("parent_tool_use_id") is None:
                self._on_event(object_of(line.get("event")))
            case "assistant" if is_synthetic(line):
                self._notice = line
            case "assistant":
                self._on_message(line)
            case "user":
                for result in tool_results(line):
                    self._answer.answer_call(result)
            case "result":
                self._on_result(line)
            case "system" if line.get("subtype") == "init":
                self.writer.begin(None, text_of(line.get("model")), self._session_id)
            case _:
                self.writer.ping()

    def end(self, program: str, exit_code: int | None, stderr_tail: str) -> None:
        """The output is over. `exit_code` is None if the program has not ended."""
        limit = self._limits.signal
        self.writer.fail(failure_of_exit(program, exit_code, stderr_tail, limit, self._wall_clock))

    def _on_event(self, event: JsonObject) -> None:
        kind = event.get("type")
        if kind == "message_start":
            message = object_of(event.get("message"))
            self.writer.begin(None, text_of(message.get("model")), self._session_id)
            self._answer.start_message(text_of(message.get("id")) or None)
            self._use(self._answer.streamed_id, message.get("usage"))
        elif kind == "message_delta":
            self._use(self._answer.streamed_id, event.get("usage"))
        elif kind == "ping":
            self.writer.ping()
        else:
            self._answer.on_event(event)

    def _on_message(self, line: JsonObject) -> None:
        message = object_of(line.get("message"))
        message_id = text_of(message.get("id")) or None
        blocks = [object_of(block) for block in list_of(message.get("content"))]
        if line.get("parent_tool_use_id") is not None:
            blocks = [block for block in blocks if block.get("type") == "tool_use"]
        elif message_id is not None and message_id == self._answer.streamed_id:
            self._answer.confirm(blocks)
            return
        else:
            self._answer.retract()
        self._use(message_id, message.get("usage"))
        for block in blocks:
            self._answer.write(block)

    def _on_result(self, line: JsonObject) -> None:
        self._answer.retract()
        self.writer.use(usage_of_result(line))
        if is_failed(line):
            if not self._answer.is_empty:
                self._write_session()
            limit = self._limits.signal
            self.writer.fail(failure_of_result(line, self._notice, limit, self._wall_clock))
            return
        if not self._answer.has_text:
            # Commands of the program itself are answered without a message of the model.
            text = text_of(line.get("result")) or assistant_text(self._notice)
            if text:
                self._answer.write({"type": "text", "text": text})
        self._write_session()
        raw = text_of(line.get("stop_reason")) or None
        reason = STOP_REASONS.get(raw or "end_turn", StopReason.OTHER)
        # The calls were the program's own, so it waits for nobody.
        ended = StopReason.END_TURN if reason is StopReason.TOOL_USE else reason
        self.writer.finish(ended, raw)

    def _write_session(self) -> None:
        if self._session_id:
            block = self.writer.open("opaque")
            data = encode_part(SessionPart(self._session_id))
            self.writer.close_opaque(block, SESSION_KIND, data)

    def _use(self, message_id: str | None, usage: object) -> None:
        if message_id and usage:
            self.writer.use(self._usage.add(message_id, usage))
