"""Sessions as the routes of the reference show them. Pure: records and events to plain JSON.

Records keep their names (spec/animator.md 3.1). A row of the list has what a page shows; a
transcript's entry becomes a role and content, whatever program wrote it (B18).
"""

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from midstream.messages.events import (
    AnyEvent,
    Retracted,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from midstream.messages.record import SessionRecord

Json = dict[str, Any]

_ROW = (
    "id",
    "status",
    "provider",
    "startedAt",
    "endedAt",
    "durationMs",
    "exitCode",
    "costUsd",
    "tokenUsage",
)
_ROW_OF_METADATA = ("role", "writId", "writTitle")


def record_view(record: SessionRecord) -> Json:
    """The record as it is kept."""
    return msgspec.to_builtins(record)


def row_view(record: SessionRecord) -> Json:
    """The record as a row of the list; role and writ come from its metadata."""
    kept = record_view(record)
    row = {name: kept[name] for name in _ROW if name in kept}
    metadata = record.metadata or {}
    named = {name: metadata[name] for name in _ROW_OF_METADATA if name in metadata}
    return {**row, **named}


def chunk_view(event: AnyEvent) -> Json | None:
    """A piece of the answer (spec/animator.md 3.2); None for what is none.

    Thinking and retractions are ours; a retraction voids the text of its attempt.
    """
    match event:
        case Text(_, text):
            return {"type": "text", "text": text}
        case Thinking(_, text):
            return {"type": "thinking", "text": text}
        case ToolUse(tool=tool):
            return {"type": "tool_use", "tool": tool}
        case ToolResult(call_id=call_id):
            return {"type": "tool_result", "tool": call_id}
        case Retracted(attempt, reason):
            return {"type": "retracted", "attempt": attempt, "reason": reason}
        case _:
            return None


def message_view(entry: object) -> Json:
    """An entry of a transcript as a message with `role` and `content`.

    Claude Code wraps its messages (`{"type": ..., "message": {...}}`); what has another
    shape is shown as it is, under its type.
    """
    fields = cast("Json", entry) if isinstance(entry, dict) else {"type": "text", "text": entry}
    wrapped = fields.get("message")
    message = cast("Json", wrapped) if isinstance(wrapped, dict) else fields
    role = message.get("role") or fields.get("type") or "unknown"
    content = message.get("content", fields)
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not isinstance(content, list):
        content = [content]
    return {"role": role, "content": content}


def messages_of(events: Iterable[AnyEvent]) -> list[Json]:
    """The transcript of a session whose events are on record, in the same form: what the
    model said in attempts that stood, and what its tools came to."""
    told = list(events)
    void = {event.attempt for event in told if isinstance(event, Retracted)}
    messages: list[Json] = []
    for event in told:
        match event:
            case Text(attempt, text) if attempt not in void:
                _add_text(_said(messages, "assistant"), text)
            case ToolUse(attempt, call_id, tool, arguments) if attempt not in void:
                call = {"type": "tool_use", "id": call_id, "name": tool, "input": arguments}
                _said(messages, "assistant").append(call)
            case ToolResult(call_id, _, content, is_error):
                result = {"type": "tool_result", "tool_use_id": call_id, "content": content}
                _said(messages, "user").append({**result, "is_error": is_error})
            case _:
                pass
    return messages


def _said(messages: list[Json], role: str) -> list[Json]:
    """The content of the last message, or of a new one if that has another role."""
    if not messages or messages[-1]["role"] != role:
        messages.append({"role": role, "content": []})
    return messages[-1]["content"]


def _add_text(content: list[Json], text: str) -> None:
    if content and content[-1]["type"] == "text":
        content[-1]["text"] += text
    else:
        content.append({"type": "text", "text": text})


def sse(event: str, data: object) -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))
