"""What each provider demands of a conversation, as a strict check that stands on its own.

`violations` knows the rules from the providers' references and their error messages, and
shares no code with what makes transcripts valid (`messages/settle.py`) or renders them
(`providers/*_request.py`): it is what these are tested with. It takes either a conversation's
items or the body of a request, and answers with sentences that say what is wrong and where;
an empty list means that the provider has nothing to refuse.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from midstream.messages.conversation import (
    AnyItem,
    AnyPart,
    AssistantItem,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultItem,
)
from midstream.testing.request_rules import (
    BODY_RULES,
    in_blocks,
    in_call,
    in_output_items,
    in_strings,
)


def violations(subject: Sequence[AnyItem] | Mapping[str, Any], format: str) -> list[str]:
    """What the provider of `format` would refuse in a conversation or in a request's body.

    A conversation is checked for the format as far as that format wrote it. What the user's
    side says may stand between a message and its results there, for every format puts the
    results first. A body may hold `msgspec.Raw` values.
    """
    if not isinstance(subject, Mapping):
        return list(_in_items(subject, format))
    try:
        body: Any = json.loads(msgspec.json.encode(subject))
    except (ValueError, msgspec.MsgspecError) as error:
        return [f"the body cannot be written as JSON: {error}"]
    return [*in_strings(body, "body"), *BODY_RULES[format](body)]


def _in_items(items: Sequence[AnyItem], format: str) -> Iterator[str]:
    open_calls: list[str] = []
    for number, item in enumerate(items):
        where = f"item {number}"
        yield from in_strings(msgspec.to_builtins(item), where)
        if isinstance(item, ToolResultItem):
            if item.call_id in open_calls:
                open_calls.remove(item.call_id)
            else:
                yield f"{where}: a result without a call in the message before it"
        elif isinstance(item, AssistantItem):
            yield from (f"{where}: the call {id} has no result before it" for id in open_calls)
            yield from _in_message(item, format, where)
            open_calls = [part.call_id for part in item.parts if isinstance(part, ToolCallPart)]
        elif not item.text.strip():
            yield f"{where}: blank text"
    yield from (f"the call {call_id} has no result" for call_id in open_calls)
    yield from _in_runs(items, format)


def _in_runs(items: Sequence[AnyItem], format: str) -> Iterator[str]:
    """The order of parts; messages with nothing between them are one to the provider."""
    number = 0
    for is_message, run in groupby(items, lambda item: isinstance(item, AssistantItem)):
        messages = [*run]
        where = f"items {number} to {number + len(messages) - 1}"
        number += len(messages)
        parts = [
            part
            for item in messages
            if isinstance(item, AssistantItem) and item.provider == format
            for part in item.parts
        ]
        if is_message and format == "anthropic":
            yield from in_blocks([*map(_as_block, parts)], where, paused=number == len(items))
        elif is_message and format == "openai_responses":
            yield from in_output_items([*map(_as_output_item, parts)], where)


def _in_message(item: AssistantItem, format: str, where: str) -> Iterator[str]:
    own = item.provider == format
    if not any(_can_be_sent(part, format, own=own) for part in item.parts):
        yield f"{where}: nothing in the message can be sent"
    calls = [part for part in item.parts if isinstance(part, ToolCallPart)]
    if len({call.call_id for call in calls}) < len(calls):
        yield f"{where}: two calls with one id"
    for part in item.parts:
        if isinstance(part, TextPart) and not part.text.strip():
            yield f"{where}: blank text"
        elif isinstance(part, ToolCallPart):
            yield from in_call(part.name, part.arguments, where)


def _can_be_sent(part: AnyPart, format: str, *, own: bool) -> bool:
    if isinstance(part, TextPart | ToolCallPart):
        return True
    return own and isinstance(part, OpaquePart) and format != "openai_chat"


def _as_block(part: AnyPart) -> dict[str, Any]:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case ThinkingPart(text=text, signature=signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolCallPart(call_id=call_id, name=name):
            caller: Any = json.loads(part.extra or "{}").get("caller")
            return {"type": "tool_use", "id": call_id, "name": name, "caller": caller}
        case OpaquePart(kind="citations"):
            return {"type": "citations"}
        case OpaquePart(data=data):
            return json.loads(data)


def _as_output_item(part: AnyPart) -> dict[str, Any]:
    match part:
        case ToolCallPart(call_id=call_id):
            return {"type": "function_call", "call_id": call_id}
        case OpaquePart(data=data):
            return json.loads(data)
        case TextPart():
            return {"type": "message"}
        case ThinkingPart():
            return {"type": "unsent"}
