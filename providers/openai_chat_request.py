"""A request in the form of the Chat Completions API. Pure.

Reminders and system items go as `user` messages, and what the user's side says in a row
becomes one message, its pieces parted by a blank line: many compatible servers accept neither
a system or developer message in the middle of a conversation nor two of one role in a row.
Reasoning text is never sent back; `reasoning_details` that are signed or encrypted are.
"""

from typing import Any

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

FORMAT = "openai_chat"


def openai_chat_body(
    request: ModelRequest, max_tokens_key: str = "max_completion_tokens"
) -> dict[str, Any]:
    """The body of `POST /chat/completions`. Its values may hold `msgspec.Raw` JSON.

    `max_tokens_key` is `max_tokens` for the servers that know no other; OpenAI refuses that
    one for its reasoning models.
    """
    body: dict[str, Any] = {
        "model": request.model,
        "messages": _messages(request),
        "stream_options": {"include_usage": True},
    }
    if request.max_tokens is not None:
        body[max_tokens_key] = request.max_tokens
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.schema,
                },
            }
            for tool in request.tools
        ]
    return {**body, **request.options, "stream": True}


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    ids = CallIds(strict=False)
    messages: list[dict[str, Any]] = []
    if system := system_text(request):
        messages.append({"role": "system", "content": system})
    for item in ready_items(request, FORMAT):
        if isinstance(item, AssistantItem):
            _add_answer(messages, item, ids)
        elif isinstance(item, ToolResultItem):
            wire_id = ids.of_result(item.call_id)
            messages.append({"role": "tool", "tool_call_id": wire_id, "content": item.content})
        elif messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += f"\n\n{said_text(item)}"
        else:
            messages.append({"role": "user", "content": said_text(item)})
    return messages


def _add_answer(messages: list[dict[str, Any]], item: AssistantItem, ids: CallIds) -> None:
    own = item.provider == FORMAT
    text = "".join(part.text for part in item.parts if isinstance(part, TextPart))
    calls = [_call(part, ids, own=own) for part in item.parts if isinstance(part, ToolCallPart)]
    if not text and not calls:
        return
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    for part in item.parts:
        if own and isinstance(part, OpaquePart):
            message[part.kind] = raw_json(part.data)
    messages.append(message)


def _call(call: ToolCallPart, ids: CallIds, *, own: bool) -> dict[str, Any]:
    return {
        "id": ids.of_call(call.call_id, own=own),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
        **(json_object(call.extra) if own else {}),
    }
