"""The request that continues a conversation: what was asked, what was answered, and the text.

Made from the request that the client sent, once for our own requests and once for decoded
bodies of the three wire formats. The reply is always part of it, or the model would not
know what it said (spec/stop_message.md 7, G7). Pure; nothing of the original is changed.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ModelRequest,
    SystemItem,
    UserItem,
)
from midstream.messages.reply_shape import natural_choice
from midstream.messages.wire_body import JsonObject, as_array, as_object

_NOT_REPEATED = ("stream", "tool_choice")
"""A forced tool call must not be forced again, and who sends decides about the stream."""
_REQUEST_ID_SUFFIX = ":stop_followup"


def follow_up_request(
    request: ModelRequest, reply: AssistantItem | None, text: str, *, warning: str | None = None
) -> ModelRequest | None:
    """The continuation of one of our own requests; None without a model to send it to."""
    if not request.model:
        return None
    added: list[AnyItem] = [reply] if reply else []
    if warning:
        added.append(SystemItem(warning))
    added.append(UserItem(text))
    options = repeatable(request.options)
    return msgspec.structs.replace(request, items=(*request.items, *added), options=options)


def repeatable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request as far as its continuation has them too."""
    return {key: value for key, value in options.items() if key not in _NOT_REPEATED}


def follow_up_body(
    captured: JsonObject,
    reply: Mapping[str, Any],
    text: str,
    *,
    stream: bool,
    warning: str | None = None,
) -> JsonObject | None:
    """The continuation of a client's request, in the client's own wire format.

    `captured` is the request as it was sent, `reply` the decoded body of the answer to it.
    Keys of the body stay where they are; an inner `parameters` object stays inner, because
    its keys are not ours to spread. None when the body has no model or no known shape.
    """
    if not captured.get("model"):
        return None
    if as_array(reply.get("choices")) is not None:
        added = _chat_messages(reply, text, warning)
    elif as_array(reply.get("output")) is not None:
        added = _responses_items(captured, reply, text, warning)
    elif as_array(reply.get("content")) is not None:
        added = _anthropic_messages(reply, text, warning)
    else:
        return None
    key = "input" if as_array(reply.get("output")) is not None else "messages"
    conversation = _as_entries(captured.get(key))
    if conversation is None:
        return None
    body = {name: value for name, value in captured.items() if name not in _NOT_REPEATED}
    if (parameters := as_object(body.get("parameters"))) is not None:
        body["parameters"] = {
            name: value for name, value in parameters.items() if name not in _NOT_REPEATED
        }
    if not stream:
        body.pop("stream_options", None)
    return {**body, key: [*conversation, *added], "stream": stream}


def follow_up_request_id(request_id: str) -> str:
    """The id of a follow-up: the request's own with a suffix that is never doubled."""
    if request_id.endswith(_REQUEST_ID_SUFFIX):
        return request_id
    return request_id + _REQUEST_ID_SUFFIX


def _as_entries(conversation: object) -> list[Any] | None:
    """A conversation as entries; one text stands for one message of the user."""
    if isinstance(conversation, str):
        return [{"role": "user", "content": conversation}]
    return as_array(conversation)


def _chat_messages(reply: Mapping[str, Any], text: str, warning: str | None) -> list[JsonObject]:
    message = as_object((natural_choice(reply) or {}).get("message")) or {}
    content = message.get("content")
    added: list[JsonObject] = []
    if content:
        added.append({"role": "assistant", "content": content})
    if warning:
        added.append({"role": "system", "content": warning})
    return [*added, {"role": "user", "content": text}]


def _anthropic_messages(
    reply: Mapping[str, Any], text: str, warning: str | None
) -> list[JsonObject]:
    """The Messages API takes no empty text, and its system prompt stands elsewhere."""
    blocks = [block for block in as_array(reply["content"]) or () if not _is_empty_text(block)]
    said: list[JsonObject] = [{"role": "assistant", "content": blocks}] if blocks else []
    texts = [text] if warning is None else [text, warning]
    return [*said, {"role": "user", "content": [{"type": "text", "text": one} for one in texts]}]


def _is_empty_text(block: object) -> bool:
    fields = as_object(block) or {}
    return fields.get("type") == "text" and not str(fields.get("text", "")).strip()


def _responses_items(
    captured: JsonObject, reply: Mapping[str, Any], text: str, warning: str | None
) -> list[JsonObject]:
    """Reasoning that the provider neither stores nor encrypted cannot be sent back."""
    is_stored = captured.get("store") is not False
    outputs = [as_object(item) or {} for item in as_array(reply["output"]) or ()]
    added = [
        item
        for item in outputs
        if item and (is_stored or item.get("type") != "reasoning" or item.get("encrypted_content"))
    ]
    if warning:
        added.append(_responses_message("system", warning))
    return [*added, _responses_message("user", text)]


def _responses_message(role: str, text: str) -> JsonObject:
    return {
        "type": "message",
        "role": role,
        "content": [{"type": "input_text", "text": text}],
    }
