"""What the outside sees of stream messages. Pure; used by `Turn` alone."""

from collections.abc import Iterable

from midstream.messages.events import AnyEvent, Text, Thinking, ToolResult, ToolUse
from midstream.messages.stream import (
    AnyStreamMessage,
    TextDelta,
    ThinkingDelta,
    ToolCallAnswered,
    ToolCallFinished,
)


def said(attempt: int, messages: Iterable[AnyStreamMessage]) -> Iterable[AnyEvent]:
    """The events for what an attempt has said."""
    for message in messages:
        match message:
            case TextDelta(_, text):
                yield Text(attempt, text)
            case ThinkingDelta(_, text):
                yield Thinking(attempt, text)
            case ToolCallFinished(_, call_id, name, arguments):
                yield ToolUse(attempt, call_id, name, arguments)
            case ToolCallAnswered(_, call_id, name, content, is_error):
                yield ToolResult(call_id, name, content, is_error)
            case _:
                pass
