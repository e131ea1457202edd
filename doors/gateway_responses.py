"""The Responses protocol for the gateway: one response out of several attempts.

Source: platform.openai.com/docs/api-reference/responses-streaming; what clients accept:
spec/gateway.md 2. The client has one `response.created`, output items that are numbered
without a gap, sequence numbers that count on, and one last event whose response bears the
first id, holds every item that went out, and has the usage of all attempts.
"""

from collections.abc import Sequence

import msgspec

from midstream.doors.gateway_wire import (
    Json,
    added,
    decoded,
    openai_error,
    raw,
    sse,
)
from midstream.messages.conversation import AnyItem, ModelRequest
from midstream.messages.failure import ProviderFailure
from midstream.messages.usage import Usage
from midstream.providers.json_fields import list_of, object_of
from midstream.providers.openai_responses_request import openai_responses_body
from midstream.providers.openai_responses_stream import OpenAIResponsesStreamDecoder
from midstream.providers.sse import SseEvent

_OPENINGS = ("response.created", "response.in_progress", "response.queued")
_ENDINGS = ("response.completed", "response.incomplete", "response.failed")
_CONTENT = {
    "response.output_text.delta": ("output_text", "text"),
    "response.refusal.delta": ("refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning_text", "text"),
}
"""By the event of a piece: the type of the content part, and the key of its text."""


class _OpenItem:
    """An output item that the client has not seen the end of."""

    def __init__(self, item: Json) -> None:
        self.item = item
        self.content: dict[int, Json] = {}
        self.summary: dict[int, Json] = {}
        self.closed: set[tuple[str, int]] = set()


class ResponsesReframer:
    """See `Reframer`."""

    def __init__(self) -> None:
        self._response: Json = {}
        self._sequence = -1
        self._next_index = 0
        self._places: dict[int, int] = {}
        self._open: dict[int, _OpenItem] = {}
        self._done: dict[int, Json] = {}
        self._earlier_output: list[Json] = []
        self._earlier_ids: set[str] = set()
        self._renamed: dict[str, str] = {}
        self._earlier: dict[str, int] = {}
        self._latest_id: str | None = None
        self._unkept: list[str] = []

    def note(self, event: SseEvent) -> None:
        data = decoded(event)
        if data is not None:
            self._see(data)

    def cut(self, spent: Usage) -> bytes:
        items = [*self._done.values(), *(each.item for each in self._open.values())]
        self._unkept += [str(item.get("id")) for item in items if item.get("type") == "reasoning"]
        return self.follow(spent)

    def follow(self, spent: Usage) -> bytes:
        out = b"".join(self._close(index) for index in sorted(self._open))
        self._open.clear()
        self._places.clear()
        self._earlier_output += [self._done[index] for index in sorted(self._done)]
        self._done.clear()
        self._earlier_ids.update(str(item.get("id")) for item in self._earlier_output)
        self._renamed.clear()
        read, wrote = spent.input_tokens or 0, spent.output_tokens or 0
        counts = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
        self._earlier = added(self._earlier, counts)
        return out

    def without_ending(self, event: SseEvent) -> bytes:
        data = decoded(event)
        if data is None or data.get("type") in _ENDINGS:
            return b""
        return self.reframe(event)

    def end_as(self, event: SseEvent) -> bytes:
        data = decoded(event)
        if data is None:
            return raw(event)
        response = object_of(data.get("response"))
        usage = {
            key: 0 if isinstance(count, int) else count
            for key, count in object_of(response.get("usage")).items()
        }
        alone: Json = {**data, "response": {**response, "output": [], "usage": usage or None}}
        return self.reframe(SseEvent(event.name, msgspec.json.encode(alone)))

    @property
    def aliases(self) -> dict[str, str]:
        """The response by its last id, and the reasoning of attempts that were cut."""
        ids = dict.fromkeys(self._unkept, "")
        known = self._response.get("id")
        if isinstance(known, str) and self._latest_id not in (None, known):
            ids[known] = str(self._latest_id)
        return ids

    def reframe(self, event: SseEvent) -> bytes:
        known = decoded(event)
        if known is None:
            return raw(event)
        data: Json = known
        kind = str(data.get("type", event.name))
        if isinstance(its_id := object_of(data.get("response")).get("id"), str):
            self._latest_id = its_id
        if kind in _OPENINGS and self._response:
            return b""
        if isinstance(index := data.get("output_index"), int):
            place = self._places.get(index)
            if place is None:
                place = self._places[index] = self._next_index
            data = {**data, "output_index": place}
        if item := object_of(data.get("item")):
            data = {**data, "item": self._identified(item)}
        if isinstance(item_id := data.get("item_id"), str):
            data = {**data, "item_id": self._renamed.get(item_id, item_id)}
        if response := object_of(data.get("response")):
            data = {**data, "response": self._whole(response, kind)}
        if "sequence_number" in data:
            data = {**data, "sequence_number": self._sequence + 1}
        self._see(data)
        return sse(data, event.name)

    def finish(self) -> bytes:
        return b""

    def fail(self, failure: ProviderFailure) -> bytes:
        """Both events, as the API itself sends them (spec/gateway.md 1)."""
        error = openai_error(failure)
        code, message = error["code"], error["message"]
        first = {"type": "error", "code": code, "message": message, "param": None}
        failed = {
            **self._response,
            "object": "response",
            "status": "failed",
            "error": {"code": code, "message": message},
            "output": self._earlier_output,
        }
        return self._say(first) + self._say({"type": "response.failed", "response": failed})

    def _whole(self, response: Json, kind: str) -> Json:
        """The response of an event with everything that the client knows of it."""
        kept = {key: self._response[key] for key in ("id", "created_at") if key in self._response}
        response = {**response, **kept}
        if kind in _ENDINGS:
            own = [self._identified(object_of(item)) for item in list_of(response.get("output"))]
            response["output"] = [*self._earlier_output, *own]
        if usage := object_of(response.get("usage")):
            response["usage"] = added(usage, self._earlier)
        return response

    def _identified(self, item: Json) -> Json:
        """The item with an id of its own: some servers use theirs again in each response."""
        known = item.get("id")
        if not isinstance(known, str) or known not in self._earlier_ids:
            return item
        return {**item, "id": self._renamed.setdefault(known, self._unused(known))}

    def _unused(self, known: str) -> str:
        n = 2
        while f"{known}_{n}" in self._earlier_ids:
            n += 1
        return f"{known}_{n}"

    def _see(self, data: Json) -> None:
        kind = data.get("type")
        if isinstance(number := data.get("sequence_number"), int):
            self._sequence = max(self._sequence, number)
        if kind in _OPENINGS:
            self._response = object_of(data.get("response"))
        index = data.get("output_index")
        if not isinstance(index, int):
            return
        self._next_index = max(self._next_index, index + 1)
        if kind == "response.output_item.added":
            self._open[index] = _OpenItem(dict(object_of(data.get("item"))))
        elif kind == "response.output_item.done":
            self._open.pop(index, None)
            self._done[index] = object_of(data.get("item"))
        elif index in self._open:
            self._grow(self._open[index], str(kind), data)

    def _grow(self, item: _OpenItem, kind: str, data: Json) -> None:
        if kind in _CONTENT:
            part_type, key = _CONTENT[kind]
            empty: Json = {"type": part_type, key: ""}
            if part_type == "output_text":
                empty["annotations"] = []
            part = item.content.setdefault(data.get("content_index", 0), empty)
            part[key] += data.get("delta") or ""
        elif kind == "response.reasoning_summary_text.delta":
            number = data.get("summary_index", 0)
            part = item.summary.setdefault(number, {"type": "summary_text", "text": ""})
            part["text"] += data.get("delta") or ""
        elif kind == "response.content_part.done":
            item.content[data.get("content_index", 0)] = object_of(data.get("part"))
            item.closed.add(("content", data.get("content_index", 0)))
        elif kind == "response.reasoning_summary_part.done":
            item.closed.add(("summary", data.get("summary_index", 0)))

    def _close(self, index: int) -> bytes:
        """The end of an item that was cut. A call has none: the client would run it."""
        item = self._open[index]
        kind = item.item.get("type")
        if kind not in ("message", "reasoning"):
            return b""
        out = b""
        place = {"item_id": item.item.get("id"), "output_index": index}
        for number, part in item.summary.items():
            if ("summary", number) not in item.closed:
                at = {**place, "summary_index": number}
                out += self._say(
                    {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]}
                )
                ended: Json = {"type": "response.reasoning_summary_part.done", **at, "part": part}
                out += self._say(ended)
        for number, part in item.content.items():
            if ("content", number) not in item.closed:
                out += self._close_part({**place, "content_index": number}, part)
        whole = {**item.item, "status": "incomplete"}
        if kind == "message":
            whole["content"] = [item.content[number] for number in sorted(item.content)]
        else:
            whole["summary"] = [item.summary[number] for number in sorted(item.summary)]
            if item.content:
                whole["content"] = [item.content[number] for number in sorted(item.content)]
        self._done[index] = whole
        done = {"type": "response.output_item.done", "output_index": index, "item": whole}
        return out + self._say(done)

    def _close_part(self, at: Json, part: Json) -> bytes:
        kind = part.get("type")
        if kind == "refusal":
            said: Json = {"type": "response.refusal.done", **at, "refusal": part["refusal"]}
        elif kind == "reasoning_text":
            return self._say({"type": "response.reasoning_text.done", **at, "text": part["text"]})
        else:
            said = {
                "type": "response.output_text.done",
                **at,
                "text": part.get("text", ""),
                "logprobs": [],
            }
        ended: Json = {"type": "response.content_part.done", **at, "part": part}
        return self._say(said) + self._say(ended)

    def _say(self, data: Json) -> bytes:
        self._sequence += 1
        return sse({**data, "sequence_number": self._sequence}, data["type"])


class ResponsesAssembler:
    """See `Assembler`: the last event holds the whole response."""

    def __init__(self) -> None:
        self._response: Json | None = None

    def take(self, event: SseEvent) -> None:
        data = decoded(event) or {}
        if data.get("type") in _ENDINGS:
            self._response = object_of(data.get("response"))

    def answer(self) -> Json | None:
        return self._response


class ResponsesWire:
    """See `Wire`."""

    format = "openai_responses"
    keep_alive = b": keep-alive\n\n"

    def decoder(self) -> OpenAIResponsesStreamDecoder:
        return OpenAIResponsesStreamDecoder()

    def reframer(self) -> ResponsesReframer:
        return ResponsesReframer()

    def assembler(self) -> ResponsesAssembler:
        return ResponsesAssembler()

    def continued(self, body: Json, items: Sequence[AnyItem]) -> Json:
        tail = openai_responses_body(ModelRequest(model="", items=tuple(items)))["input"]
        known = body.get("input")
        if isinstance(known, str):
            known = [{"type": "message", "role": "user", "content": known}]
        return {**body, "input": [*list_of(known), *tail]}

    def streaming(self, body: Json) -> Json:
        return {**body, "stream": True}

    def whole(self, answer: Json) -> list[SseEvent]:
        data = msgspec.json.encode({"type": "response.completed", "response": answer})
        return [SseEvent("response.completed", data)]

    def error_body(self, failure: ProviderFailure) -> Json:
        return {"error": openai_error(failure)}
