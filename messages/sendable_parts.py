"""Which parts of an assistant message its provider takes back, and in which order.

A provider refuses the whole conversation for one part that is out of place, so these rules
decide between keeping a part exactly as it came and dropping it, and never edit one. Sources:
the providers' API references and spec/lessons.md E 2, 8, 13-19.

`anthropic`
- Thinking needs its signature. Thinking blocks belong together: if one cannot be sent, none of
  the message is (E 18). The same holds for `redacted_thinking`.
- A message must not end with thinking, and thinking must not follow a call.
- Calls end the message; what stands behind them moves in front of them.
- A server tool's use and its result need each other, unless the message pauses at the use, or
  a call of the host was made from inside it (`caller`).

`openai_responses`
- A `reasoning` item needs the item that it led to.
- A call that somebody else answers (`computer_call`, `shell_call`, ...) needs its output.

All: no blank text, no call whose arguments are not one JSON object. Thinking that is no
opaque block is never sent to the formats of OpenAI, and is kept in the item for people.
Parts of another provider stay in the item and are left out when it is rendered.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from midstream.messages.conversation import (
    AnyPart,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from midstream.messages.well_formed import well_formed, well_formed_arguments

ANSWERED_BY = {
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
    "program": "program_output",
}
"""Items of the Responses API that are calls and not answered by a tool of the host."""


def sendable_parts(
    parts: Iterable[AnyPart],
    wrote: str,
    to: str,
    *,
    run: Iterable[AnyPart] = (),
    paused: bool = False,
) -> tuple[AnyPart, ...]:
    """The parts of a message that the provider of format `wrote` wrote, valid for `to`.

    `run` are the parts of the messages that this one continues or is continued by, with
    nothing in between, and `paused` says that it stopped to be continued (Anthropic's
    `pause_turn`). An empty tuple means that there is nothing to send.
    """
    kept = [mended for part in parts if (mended := _mended(part)) is not None]
    if wrote != to:
        return tuple(kept) if any(_is_neutral(part) for part in kept) else ()
    kept = [part for part in kept if not isinstance(part, OpaquePart) or part.provider == to]
    if to == "anthropic":
        kept = _anthropic(kept, (*kept, *run), paused=paused)
    elif to == "openai_responses":
        # Citations ride on Anthropic's text; here every opaque part is an item of its own.
        kept = _openai_responses([part for part in kept if not _is_citations(part)])
    return tuple(kept) if any(_carries(part, to) for part in kept) else ()


def _mended(part: AnyPart) -> AnyPart | None:
    """The part with sound text, or None if there is nothing in it that can be sent."""
    match part:
        case TextPart(text=text):
            sound = well_formed(text)
            if not sound.strip():
                return None
            return part if sound == text else TextPart(sound)
        case ToolCallPart(arguments=arguments):
            sound = well_formed_arguments(arguments)
            if sound is None or not part.name:
                return None
            return msgspec.structs.replace(part, arguments=sound)
        case ThinkingPart(text=text, signature=signature):
            if text != (sound := well_formed(text)):
                return ThinkingPart(sound)  # no longer what was signed
            return part if text or signature else None
        case OpaquePart():
            return part


def _is_neutral(part: AnyPart) -> bool:
    return isinstance(part, TextPart | ToolCallPart)


def _carries(part: AnyPart, to: str) -> bool:
    """Whether a message that holds but this part says anything to its provider."""
    if _is_neutral(part):
        return True
    return isinstance(part, OpaquePart) and to != "openai_chat" and not _is_citations(part)


def _is_citations(part: AnyPart) -> bool:
    return isinstance(part, OpaquePart) and part.kind == "citations"


def _anthropic(parts: list[AnyPart], run: Sequence[AnyPart], *, paused: bool) -> list[AnyPart]:
    parts = _calls_last(parts)
    parts = _paired_server_tools(parts, run, paused=paused)
    if any(isinstance(part, ThinkingPart) and not part.signature for part in parts):
        parts = _without_thinking(parts)
    while parts and _is_thinking(parts[-1]):
        parts.pop()
    return parts


def _is_thinking(part: AnyPart) -> bool:
    return isinstance(part, ThinkingPart) or (
        isinstance(part, OpaquePart) and part.kind == "redacted_thinking"
    )


def _without_thinking(parts: list[AnyPart]) -> list[AnyPart]:
    return [part for part in parts if not _is_thinking(part)]


def _calls_last(parts: list[AnyPart]) -> list[AnyPart]:
    calls = _calls(parts)
    if parts[len(parts) - len(calls) :] == calls:
        return parts
    first = next(i for i, part in enumerate(parts) if isinstance(part, ToolCallPart))
    if any(map(_is_thinking, parts[first:])):
        parts = _without_thinking(parts)
    return [*(part for part in parts if not isinstance(part, ToolCallPart)), *calls]


def _paired_server_tools(
    parts: list[AnyPart], run: Sequence[AnyPart], *, paused: bool
) -> list[AnyPart]:
    elsewhere = [_server_tool(part) for part in run if part not in parts]
    uses = {fields["id"] for fields in elsewhere if "id" in fields}
    answered = {fields["tool_use_id"] for fields in elsewhere if "tool_use_id" in fields}
    calling = {_caller(part).get("tool_id") for part in _calls(run)}
    places: dict[str, int] = {}
    for place, part in enumerate(parts):
        fields = _server_tool(part)
        if "id" in fields:
            places.setdefault(fields["id"], place)
        elif places.get(fields.get("tool_use_id", ""), place) < place:
            answered.add(fields["tool_use_id"])

    def keeps(place: int, part: AnyPart) -> bool:
        fields = _server_tool(part)
        if "tool_use_id" in fields:
            use = fields["tool_use_id"]
            return use in uses or places.get(use, place) < place
        return "id" not in fields or paused or fields["id"] in answered | calling

    return [part for place, part in enumerate(parts) if keeps(place, part)]


def _caller(call: ToolCallPart) -> dict[str, Any]:
    """Whence a call was made, if not from the message itself."""
    caller = _fields(call.extra).get("caller")
    return cast(dict[str, Any], caller) if isinstance(caller, dict) else {}


def _server_tool(part: AnyPart) -> dict[str, Any]:
    """The id fields of a server tool's use or result; empty for any other part."""
    if isinstance(part, OpaquePart) and part.kind.endswith(("tool_use", "tool_result")):
        fields = _fields(part.data)
        return {key: fields[key] for key in ("id", "tool_use_id") if fields.get(key)}
    return {}


def _openai_responses(parts: list[AnyPart]) -> list[AnyPart]:
    kept: list[AnyPart] = []
    led_to_something = False
    for part in reversed(_answered_items(parts)):
        if isinstance(part, OpaquePart) and part.kind == "reasoning":
            if led_to_something:
                kept.append(part)
            continue
        led_to_something = led_to_something or not isinstance(part, ThinkingPart)
        kept.append(part)
    return kept[::-1]


def _answered_items(parts: list[AnyPart]) -> list[AnyPart]:
    outputs = {
        (part.kind, _fields(part.data).get("call_id"))
        for part in parts
        if isinstance(part, OpaquePart)
    }
    runs_a_program = any(map(_caller, _calls(parts)))

    def keeps(part: AnyPart) -> bool:
        if not isinstance(part, OpaquePart) or part.kind not in ANSWERED_BY:
            return True
        answer = (ANSWERED_BY[part.kind], _fields(part.data).get("call_id"))
        return answer in outputs or (part.kind == "program" and runs_a_program)

    return [part for part in parts if keeps(part)]


def _calls(parts: Iterable[AnyPart]) -> list[ToolCallPart]:
    return [part for part in parts if isinstance(part, ToolCallPart)]


def _fields(document: str | None) -> dict[str, Any]:
    """A JSON object, or nothing where there is none."""
    try:
        value: object = msgspec.json.decode(document or "{}")
    except msgspec.DecodeError:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
