"""Lines as Claude Code prints them, for tests: shortened, in the shapes of version 2.1.197."""

from typing import Any

Line = dict[str, Any]

SESSION = "11111111-0000-4000-8000-000000000001"
INIT: Line = {"type": "system", "subtype": "init", "session_id": SESSION, "model": "claude-x"}


def event(kind: str, **fields: Any) -> Line:
    """A `stream_event` line."""
    return {
        "type": "stream_event",
        "event": {"type": kind, **fields},
        "session_id": SESSION,
        "parent_tool_use_id": None,
    }


def message_start(message_id: str = "msg_1", **usage: int) -> Line:
    message: Line = {"id": message_id, "role": "assistant", "model": "claude-x"}
    return event("message_start", message={**message, "content": [], "usage": usage})


def block_start(index: int, kind: str = "text", **fields: Any) -> Line:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, text: str, kind: str = "text_delta", field: str = "text") -> Line:
    return event("content_block_delta", index=index, delta={"type": kind, field: text})


def json_delta(index: int, text: str) -> Line:
    return delta(index, text, "input_json_delta", "partial_json")


def block_stop(index: int) -> Line:
    return event("content_block_stop", index=index)


def message_end(reason: str = "end_turn", **usage: int) -> list[Line]:
    return [
        event("message_delta", delta={"stop_reason": reason}, usage=usage),
        event("message_stop"),
    ]


def text(said: str) -> Line:
    return {"type": "text", "text": said}


def call(name: str = "Bash", call_id: str = "toolu_1", **arguments: Any) -> Line:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def assistant(*content: Line, message_id: str = "msg_1", **fields: Any) -> Line:
    """An `assistant` line: whole blocks of one message."""
    message: Line = {"id": message_id, "role": "assistant", "model": "claude-x"}
    message["content"] = list(content)
    line = {"type": "assistant", "message": message, "parent_tool_use_id": None}
    return {**line, "session_id": SESSION, **fields}


def synthetic(said: str, **fields: Any) -> Line:
    """A message that the program wrote itself."""
    line = assistant(text(said), message_id="00000000-0000-4000-8000-00000000000f", **fields)
    line["message"]["model"] = "<synthetic>"
    return line


def tool_result(content: Any, call_id: str = "toolu_1", **fields: Any) -> Line:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "session_id": SESSION}


def result(said: str = "", **fields: Any) -> Line:
    """A `result` line of a run that succeeded, unless `fields` say otherwise."""
    return {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": said,
        "stop_reason": "end_turn",
        "session_id": SESSION,
        "total_cost_usd": 0.25,
        "usage": {"input_tokens": 7, "output_tokens": 5},
        **fields,
    }


def failed(said: str = "", **fields: Any) -> Line:
    """A `result` line of a run that failed; the subtype is what it really says then."""
    return result(said, is_error=True, **fields)
