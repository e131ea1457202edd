"""A request in the form of the Responses API. Pure.

The conversation is midstream's, so nothing is stored at the provider (`store` false, unless
the options say otherwise) and every item is sent as a whole. Reminders and system items go as
`user` messages, as in `openai_chat_request.py`. Reasoning items go back only with their
encrypted content: without it, an item that was not stored is unknown to the provider.

Calls and messages go without the provider's item ids. With one, the API demands the reasoning
item that once stood before it, and the server of another vendor refuses its form.
"""

from typing import Any

import msgspec

from midstream.messages.conversation import (
    AssistantItem,
    ModelRequest,
    OpaquePart,
    TextPart,
    ToolCallPart,
    ToolResultItem,
)
from midstream.providers.wire_conversation import (
    CallIds,
    json_object,
    raw_json,
    ready_items,
    said_text,
    system_text,
)

FORMAT = "openai_responses"


def openai_responses_body(request: ModelRequest) -> dict[str, Any]:
    """The body of `POST /responses`. Its values may hold `msgspec.Raw` JSON."""
    body: dict[str, Any] = {"model": request.model, "input": _input(request), "store": False}
    if system := system_text(request):
        body["instructions"] = system
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
                "strict": False,
            }
            for tool in request.tools
        ]
    return {**body, **request.options, "stream": True}


def _input(request: ModelRequest) -> list[Any]:
    ids = CallIds(strict=False)
    kinds: dict[str, str] = {}
    items: list[Any] = []
    for item in ready_items(request, FORMAT):
        if isinstance(item, AssistantItem):
            for part in item.parts:
                if isinstance(part, ToolCallPart):
                    call = _call(part, ids, own=item.provider == FORMAT)
                    kinds[call["call_id"]] = call["type"]
                    items.append(call)
                elif isinstance(part, TextPart):
                    items.append(_message("assistant", "output_text", part.text))
                elif isinstance(part, OpaquePart) and item.provider == FORMAT:
                    items += _own_item(part)
        elif isinstance(item, ToolResultItem):
            wire_id = ids.of_result(item.call_id)
            items.append(_output(kinds.get(wire_id, "function_call"), wire_id, item))
        else:
            items.append(_message("user", "input_text", said_text(item)))
    return items


def _message(role: str, part_type: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": part_type, "text": text}]}


def _own_item(part: OpaquePart) -> list[msgspec.Raw]:
    if part.kind == "reasoning" and not json_object(part.data).get("encrypted_content"):
        return []
    return [raw_json(part.data)]


def _call(call: ToolCallPart, ids: CallIds, *, own: bool) -> dict[str, Any]:
    """The call as the item that it was; what the decoder made an object of is taken apart."""
    extra = json_object(call.extra) if own else {}
    kind = extra.get("type", "function_call")
    wire: dict[str, Any] = {"type": kind, "call_id": ids.of_call(call.call_id, own=own)}
    if kind == "function_call":
        wire |= {"name": call.name, "arguments": call.arguments}
    elif kind == "custom_tool_call":
        wire |= {"name": call.name, "input": json_object(call.arguments).get("input", "")}
    else:
        field = "operation" if kind == "apply_patch_call" else "action"
        wire[field] = raw_json(call.arguments)
    return wire | extra


def _output(kind: str, wire_id: str, item: ToolResultItem) -> dict[str, Any]:
    output: dict[str, Any] = {"type": f"{kind}_output", "call_id": wire_id, "output": item.content}
    if kind == "local_shell_call":
        return {"type": f"{kind}_output", "id": wire_id, "output": item.content}
    if kind == "apply_patch_call":
        output["status"] = "failed" if item.is_error else "completed"
    elif kind == "shell_call":
        outcome = {"type": "exit", "exit_code": 1 if item.is_error else 0}
        output["output"] = [{"stdout": item.content, "stderr": "", "outcome": outcome}]
    return output
