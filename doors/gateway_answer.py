"""An answer that midstream gives itself, in the words of the three protocols.

For a message that was nothing but directives: no model is asked, and the client gets a short
text as if one had answered, as a stream or as one document. Pure.
"""

from collections.abc import Callable, Mapping

from midstream.doors.gateway_wire import Json, sse

_ZERO = {"input_tokens": 0, "output_tokens": 0}


def own_answer(format: str, answer_id: str, text: str, body: Json, now_s: int) -> Json:
    """The document that answers `body` with `text`; `answer_id` makes its ids its own, and
    `now_s` is wall time."""
    return _DOCUMENTS[format](answer_id, text, body, now_s)


def own_stream(format: str, answer: Json) -> bytes:
    """The same answer as a stream."""
    return _STREAMS[format](answer)


def _anthropic(answer_id: str, text: str, body: Json, now_s: int) -> Json:
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", ""),
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": dict(_ZERO),
    }


def _anthropic_stream(answer: Json) -> bytes:
    [block] = answer["content"]
    start: Json = {**answer, "content": [], "stop_reason": None}
    stop = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {**block, "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": block["text"]},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 0}},
        {"type": "message_stop"},
    ]
    return b"".join(sse(event, event["type"]) for event in events)


def _chat(answer_id: str, text: str, body: Json, now_s: int) -> Json:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": f"chatcmpl-{answer_id}",
        "object": "chat.completion",
        "created": now_s,
        "model": body.get("model", ""),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _chat_stream(answer: Json) -> bytes:
    [choice] = answer["choices"]
    head = {key: answer[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"

    def chunk(delta: Json, reason: str | None) -> bytes:
        one = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return sse({**head, "choices": [one]})

    said: Json = {"role": "assistant", "content": choice["message"]["content"]}
    return chunk(said, None) + chunk({}, choice["finish_reason"]) + b"data: [DONE]\n\n"


def _responses(answer_id: str, text: str, body: Json, now_s: int) -> Json:
    item: Json = {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
    }
    return {
        "id": f"resp_{answer_id}",
        "object": "response",
        "created_at": now_s,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": body.get("model", ""),
        "output": [item],
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": {
            **_ZERO,
            "total_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _responses_stream(answer: Json) -> bytes:
    [item] = answer["output"]
    [part] = item["content"]
    begun: Json = {**answer, "status": "in_progress", "output": [], "usage": None}
    at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    opened: Json = {**item, "status": "in_progress", "content": []}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []},
        {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": answer},
    ]
    return b"".join(
        sse({**event, "sequence_number": number}, event["type"])
        for number, event in enumerate(events)
    )


_DOCUMENTS: Mapping[str, Callable[[str, str, Json, int], Json]] = {
    "anthropic": _anthropic,
    "openai_chat": _chat,
    "openai_responses": _responses,
}
_STREAMS: Mapping[str, Callable[[Json], bytes]] = {
    "anthropic": _anthropic_stream,
    "openai_chat": _chat_stream,
    "openai_responses": _responses_stream,
}
