"""The Chat Completions protocol for the gateway: one completion out of several attempts.

Source: platform.openai.com/docs/api-reference/chat-streaming; what clients accept:
spec/gateway.md 2. All chunks bear the id of the first attempt, the role is said once, calls
are numbered on, and the usage chunk, where the client asked for one, is the sum of all.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from midstream.doors.gateway_wire import (
    Json,
    added,
    decoded,
    openai_error,
    raw,
    sse,
)
from midstream.messages.conversation import AnyItem, ModelRequest, UserItem
from midstream.messages.failure import ProviderFailure
from midstream.messages.usage import Usage
from midstream.providers.json_fields import list_of, object_of
from midstream.providers.openai_chat_request import openai_chat_body
from midstream.providers.openai_chat_stream import OpenAIChatStreamDecoder
from midstream.providers.sse import SseEvent

_KEPT = ("id", "created")
_JOINED = frozenset(("content", "refusal", "reasoning", "reasoning_content"))


class ChatReframer:
    """See `Reframer`."""

    def __init__(self) -> None:
        self._first: Json | None = None
        self._has_role = False
        self._has_text = False
        self._wants_break = False
        self._calls = 0
        self._earlier_calls = 0
        self._earlier: dict[str, int] = {}

    def note(self, event: SseEvent) -> None:
        self._see(decoded(event) or {})

    def cut(self, spent: Usage) -> bytes:
        prompt, completion = spent.input_tokens or 0, spent.output_tokens or 0
        counts = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        self._earlier = added(self._earlier, counts)
        self._earlier_calls = self._calls
        return b""

    def without_ending(self, event: SseEvent) -> bytes:
        data = decoded(event)
        if data is None:
            return b""
        choices = [
            {**object_of(choice), "finish_reason": None} for choice in list_of(data.get("choices"))
        ]
        said = [choice for choice in choices if _says_something(choice)]
        if not said:
            return b""
        rest = {key: value for key, value in data.items() if key != "usage"}
        return self.reframe(_changed(event, {**rest, "choices": said}))

    def follow(self, spent: Usage) -> bytes:
        self._wants_break = self._has_text
        return self.cut(spent)

    def end_as(self, event: SseEvent) -> bytes:
        data = decoded(event)
        if data is None:
            return raw(event)
        choices: list[Json] = [
            {**object_of(choice), "delta": {}} for choice in list_of(data.get("choices"))
        ]
        usage = {
            key: 0 if isinstance(count, int) else count
            for key, count in object_of(data.get("usage")).items()
        }
        counted = {"usage": usage} if usage else {}
        return self.reframe(_changed(event, {**data, **counted, "choices": choices}))

    @property
    def aliases(self) -> dict[str, str]:
        return {}

    def reframe(self, event: SseEvent) -> bytes:
        data = decoded(event)
        if data is None or "choices" not in data:
            return raw(event)
        if self._first is not None:
            data = {**data, **{key: self._first[key] for key in _KEPT if key in self._first}}
        choices = [self._continued(object_of(choice)) for choice in list_of(data["choices"])]
        data = {**data, "choices": choices}
        if usage := object_of(data.get("usage")):
            data = {**data, "usage": added(usage, self._earlier)}
        self._see(data)
        return sse(data, event.name)

    def finish(self) -> bytes:
        return b""

    def fail(self, failure: ProviderFailure) -> bytes:
        return sse({"error": openai_error(failure)})

    def _continued(self, choice: Json) -> Json:
        """A choice of a later attempt as the continuation of what the client has."""
        delta = dict(object_of(choice.get("delta")))
        if self._has_role:
            delta.pop("role", None)
        if self._wants_break and isinstance(delta.get("content"), str) and delta["content"]:
            # The replies would run into each other: here a message is one text.
            delta["content"] = f"\n\n{delta['content']}"
            self._wants_break = False
        if delta.get("tool_calls"):
            delta["tool_calls"] = [
                {**call, "index": call.get("index", 0) + self._earlier_calls}
                for call in map(object_of, list_of(delta["tool_calls"]))
            ]
        reason = choice.get("finish_reason")
        if reason == "stop" and self._earlier_calls:
            reason = "tool_calls"
        return {**choice, "delta": delta, "finish_reason": reason}

    def _see(self, data: Json) -> None:
        if self._first is None and data.get("id"):
            self._first = data
        for choice in map(object_of, list_of(data.get("choices"))):
            delta = object_of(choice.get("delta"))
            self._has_role |= bool(delta.get("role"))
            self._has_text |= bool(delta.get("content"))
            for call in map(object_of, list_of(delta.get("tool_calls"))):
                self._calls = max(self._calls, call.get("index", 0) + 1)


class ChatAssembler:
    """See `Assembler`: what the chunks of one completion add up to."""

    def __init__(self) -> None:
        self._head: Json | None = None
        self._choices: dict[int, Json] = {}
        self._calls: dict[int, dict[int, Json]] = {}

    def take(self, event: SseEvent) -> None:
        data = decoded(event)
        if data is None or "choices" not in data:
            return
        head = self._head if self._head is not None else {}
        for key, value in data.items():
            if key not in ("choices", "obfuscation", "p") and value is not None:
                head[key] = value
        head["object"] = "chat.completion"
        self._head = head
        for choice in map(object_of, list_of(data["choices"])):
            self._add(choice.get("index") or 0, choice)

    def answer(self) -> Json | None:
        if self._head is None:
            return None
        choices: list[Json] = []
        for index in sorted(self._choices):
            choice = self._choices[index]
            calls = self._calls.get(index, {})
            if calls:
                choice["message"]["tool_calls"] = [calls[slot] for slot in sorted(calls)]
            choices.append(choice)
        return {**self._head, "choices": choices}

    def _add(self, index: int, choice: Json) -> None:
        whole = self._choices.setdefault(
            index,
            {"index": index, "message": {"role": "assistant", "content": None}, "logprobs": None},
        )
        for key, value in choice.items():
            if key not in ("delta", "index", "logprobs") and value is not None:
                whole[key] = value
        if logprobs := object_of(choice.get("logprobs")):
            known = object_of(whole["logprobs"])
            whole["logprobs"] = {
                k: [*list_of(known.get(k)), *list_of(v)] for k, v in logprobs.items()
            }
        message = whole["message"]
        for key, value in object_of(choice.get("delta")).items():
            if key == "tool_calls":
                for call in map(object_of, list_of(value)):
                    self._add_call(index, call)
            elif key in _JOINED and isinstance(value, str):
                message[key] = (message.get(key) or "") + value
            elif isinstance(value, list):
                message[key] = [*list_of(message.get(key)), *list_of(cast(object, value))]
            elif value is not None:
                message[key] = value

    def _add_call(self, index: int, piece: Json) -> None:
        calls = self._calls.setdefault(index, {})
        slot = piece.get("index", len(calls))
        call = calls.setdefault(slot, {"type": "function", "function": {"arguments": ""}})
        call |= {k: v for k, v in piece.items() if k not in ("index", "function") and v}
        function = object_of(piece.get("function"))
        if function.get("name"):
            call["function"]["name"] = function["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["function"]["arguments"] += arguments


class ChatWire:
    """See `Wire`."""

    format = "openai_chat"
    keep_alive = b": keep-alive\n\n"

    def decoder(self) -> OpenAIChatStreamDecoder:
        return OpenAIChatStreamDecoder()

    def reframer(self) -> ChatReframer:
        return ChatReframer()

    def assembler(self) -> ChatAssembler:
        return ChatAssembler()

    def continued(self, body: Json, items: Sequence[AnyItem]) -> Json:
        request = ModelRequest(model="", items=(UserItem("..."), *items))
        first, *rest = openai_chat_body(request)["messages"]
        said = str(first["content"]).removeprefix("...").removeprefix("\n\n")
        tail = [{**first, "content": said}, *rest] if said else rest
        return {**body, "messages": [*list_of(body.get("messages")), *tail]}

    def streaming(self, body: Json) -> Json:
        options = {**object_of(body.get("stream_options")), "include_usage": True}
        return {**body, "stream": True, "stream_options": options}

    def whole(self, answer: Json) -> list[SseEvent]:
        choices: list[Any] = []
        for choice in map(object_of, list_of(answer.get("choices"))):
            rest = {key: value for key, value in choice.items() if key != "message"}
            choices.append({**rest, "delta": _numbered(object_of(choice.get("message")))})
        chunk = msgspec.json.encode({**answer, "choices": choices})
        return [SseEvent("", chunk), SseEvent("", b"[DONE]")]

    def error_body(self, failure: ProviderFailure) -> Json:
        return {"error": openai_error(failure)}


def _says_something(choice: Json) -> bool:
    delta = object_of(choice.get("delta"))
    return any(value for key, value in delta.items() if key != "role")


def _changed(event: SseEvent, data: Json) -> SseEvent:
    return SseEvent(event.name, msgspec.json.encode(data))


def _numbered(message: Json) -> Json:
    """A whole message as a delta: its calls need numbers."""
    calls = list_of(message.get("tool_calls"))
    if not calls:
        return message
    numbered = [{**object_of(call), "index": number} for number, call in enumerate(calls)]
    return {**message, "tool_calls": numbered}
