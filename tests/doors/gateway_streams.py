"""Streams of the three protocols that say a text, and may call a tool; one event a piece."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Call = tuple[str, str, str]
"""Id, name, arguments."""


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {data['type']}\n" if name is None else (f"event: {name}\n" if name else "")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


def anthropic_stream(
    text: str = "", *, size: int = 5, calls: Sequence[Call] = (), message_id: str = "msg_1"
) -> list[bytes]:
    message: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    out = [event({"type": "message_start", "message": message}), event({"type": "ping"})]
    index = 0
    if text:
        block: dict[str, Any] = {"type": "text", "text": ""}
        out.append(event({"type": "content_block_start", "index": 0, "content_block": block}))
        for piece in pieces_of(text, size):
            delta = {"type": "text_delta", "text": piece}
            out.append(event({"type": "content_block_delta", "index": 0, "delta": delta}))
        out.append(event({"type": "content_block_stop", "index": 0}))
        index = 1
    for call_id, name, arguments in calls:
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        out.append(event({"type": "content_block_start", "index": index, "content_block": block}))
        for piece in pieces_of(arguments, size):
            delta = {"type": "input_json_delta", "partial_json": piece}
            out.append(event({"type": "content_block_delta", "index": index, "delta": delta}))
        out.append(event({"type": "content_block_stop", "index": index}))
        index += 1
    reason = "tool_use" if calls else "end_turn"
    delta = {"stop_reason": reason, "stop_sequence": None}
    out.append(event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}))
    out.append(event({"type": "message_stop"}))
    return out


def chat_stream(
    text: str = "", *, size: int = 5, calls: Sequence[Call] = (), message_id: str = "chatcmpl-1"
) -> list[bytes]:
    def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]
        return event({**head, "choices": choices, **more}, "")

    head = {"id": message_id, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    out = [chunk({"role": "assistant", "content": ""})]
    out += [chunk({"content": piece}) for piece in pieces_of(text, size)]
    for number, (call_id, name, arguments) in enumerate(calls):
        first = {
            "index": number,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        out.append(chunk({"tool_calls": [first]}))
        for piece in pieces_of(arguments, size):
            more = {"index": number, "function": {"arguments": piece}}
            out.append(chunk({"tool_calls": [more]}))
    out.append(chunk({}, "tool_calls" if calls else "stop"))
    usage = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    out.append(event({**head, "choices": [], "usage": usage}, ""))
    out.append(b"data: [DONE]\n\n")
    return out


def responses_stream(
    text: str = "", *, size: int = 5, calls: Sequence[Call] = (), message_id: str = "resp_1"
) -> list[bytes]:
    out: list[bytes] = []

    def say(kind: str, **data: Any) -> None:
        out.append(event({"type": kind, **data, "sequence_number": len(out)}))

    response: dict[str, Any] = {
        "id": message_id,
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    say("response.created", response=response)
    say("response.in_progress", response=response)
    output: list[dict[str, Any]] = []
    if text:
        item_id = f"msg_{message_id}"
        item: dict[str, Any] = {"id": item_id, "type": "message", "role": "assistant"}
        begun: dict[str, Any] = {**item, "status": "in_progress", "content": []}
        say("response.output_item.added", output_index=0, item=begun)
        at = {"item_id": item_id, "output_index": 0, "content_index": 0}
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
        say("response.content_part.added", **at, part=part)
        for piece in pieces_of(text, size):
            say("response.output_text.delta", **at, delta=piece, logprobs=[])
        say("response.output_text.done", **at, text=text, logprobs=[])
        part = {**part, "text": text}
        say("response.content_part.done", **at, part=part)
        item = {**item, "status": "completed", "content": [part]}
        say("response.output_item.done", output_index=0, item=item)
        output.append(item)
    for call_id, name, arguments in calls:
        index = len(output)
        item_id = f"fc_{call_id}"
        item = {"id": item_id, "type": "function_call", "call_id": call_id, "name": name}
        begun = {**item, "status": "in_progress", "arguments": ""}
        say("response.output_item.added", output_index=index, item=begun)
        at = {"item_id": item_id, "output_index": index}
        for piece in pieces_of(arguments, size):
            say("response.function_call_arguments.delta", **at, delta=piece)
        say("response.function_call_arguments.done", **at, arguments=arguments, name=name)
        item = {**item, "status": "completed", "arguments": arguments}
        say("response.output_item.done", output_index=index, item=item)
        output.append(item)
    usage = {
        "input_tokens": 10,
        "output_tokens": 7,
        "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    ended = {**response, "status": "completed", "output": output, "usage": usage}
    say("response.completed", response=ended)
    return out


STREAMS: dict[str, Callable[..., list[bytes]]] = {
    "/v1/messages": anthropic_stream,
    "/v1/chat/completions": chat_stream,
    "/v1/responses": responses_stream,
}
"""By the path of their protocol."""
