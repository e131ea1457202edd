"""A request in the form of Anthropic's Messages API. Pure.

What the user's side says between two answers becomes one user message of text blocks, the
results of the calls first; reminders and system items are text blocks there, because a system
message in the middle of a conversation is not accepted everywhere. Thinking goes back only as
signed blocks of Anthropic's own.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from midstream.messages.conversation import (
    AssistantItem,
    ModelRequest,
    OpaquePart,
    TextPart,
    ThinkingPart,
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

_Block = dict[str, Any] | msgspec.Raw

FORMAT = "anthropic"
DEFAULT_MAX_TOKENS = 8192
"""The API demands a limit; this one is within that of every model since Claude 3.5."""
BEGINNING_LOST = "(The beginning of this conversation is not available.)"
"""Said when the first item is an answer: the API demands that a user speaks first."""
NO_OUTPUT = "(no output)"
"""The content of an error result without any: the API demands one."""


def anthropic_body(request: ModelRequest) -> dict[str, Any]:
    """The body of `POST /v1/messages`. Its values may hold `msgspec.Raw` JSON."""
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS,
        "messages": _messages(request),
    }
    if system := system_text(request):
        body["system"] = system
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in request.tools
        ]
    return {**body, **request.options, "stream": True}


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    ids = CallIds(strict=True)
    messages: list[dict[str, Any]] = []
    for item in ready_items(request, FORMAT):
        if isinstance(item, AssistantItem):
            if not messages:
                _add(messages, "user", [_text_block(BEGINNING_LOST)])
            _add(messages, "assistant", _assistant_blocks(item, ids))
        elif isinstance(item, ToolResultItem):
            _add(messages, "user", [_result_block(item, ids)])
        else:
            _add(messages, "user", [_text_block(said_text(item))])
    return messages


def _add(messages: list[dict[str, Any]], role: str, blocks: Sequence[_Block]) -> None:
    """Add blocks to the conversation: to its last message if that is of the same role."""
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"].extend(blocks)
    else:
        messages.append({"role": role, "content": list(blocks)})


def _assistant_blocks(item: AssistantItem, ids: CallIds) -> list[_Block]:
    own = item.provider == FORMAT
    blocks: list[_Block] = []
    calls: list[_Block] = []
    for part in item.parts:
        match part:
            case TextPart(text=text):
                blocks.append(_text_block(text))
            case ToolCallPart():
                calls.append(_call_block(part, ids, own=own))
            case ThinkingPart(text=text, signature=str(signature)) if own:
                blocks.append({"type": "thinking", "thinking": text, "signature": signature})
            case OpaquePart(kind="citations", data=data) if own:
                if blocks and isinstance(text_block := blocks[-1], dict):
                    text_block["citations"] = raw_json(data)
            case OpaquePart(data=data) if own:
                blocks.append(raw_json(data))
            case _:
                pass  # unsigned, or of a provider whose thoughts this one cannot read
    return blocks + calls


def _call_block(call: ToolCallPart, ids: CallIds, *, own: bool) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": ids.of_call(call.call_id, own=own),
        "name": call.name,
        "input": raw_json(call.arguments),
        **(json_object(call.extra) if own else {}),
    }


def _result_block(item: ToolResultItem, ids: CallIds) -> dict[str, Any]:
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": ids.of_result(item.call_id),
        "content": item.content or NO_OUTPUT,
    }
    if item.is_error:
        block["is_error"] = True
    return block


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
