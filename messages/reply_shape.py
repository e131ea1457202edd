"""What a finished reply says about itself: did the model stop by itself, did it say anything.

Auto-continue acts on natural stops only (spec/stop_message.md 5, decision 10): the model
had its say and waits for the user. A reply that was cut, refused, filtered, paused or that
calls a tool is none, nor is a reason that this version does not know. Works on our own
vocabulary and on decoded reply bodies of the three wire formats. Pure.
"""

from collections.abc import Mapping
from typing import Any

from midstream.messages.conversation import AssistantItem, OpaquePart, TextPart, ToolCallPart
from midstream.messages.stream import StopReason
from midstream.messages.wire_body import JsonObject, as_array, as_object

_NATURAL_REASONS = ("end_turn", "stop_sequence")
_CLIENT_CALLS = (
    "function_call",
    "computer_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "mcp_approval_request",
)
"""Responses output items that wait for the client and whose type says nothing of a tool."""


def is_natural_stop(stop_reason: StopReason, reply: AssistantItem | None) -> bool:
    """Whether a finished stream ended because the model was done."""
    if stop_reason not in (StopReason.END_TURN, StopReason.STOP_SEQUENCE):
        return False
    parts = reply.parts if reply else ()
    return not any(isinstance(part, ToolCallPart) for part in parts)


def is_natural_stop_body(reply: Mapping[str, Any]) -> bool:
    """The same for a decoded reply body of Chat, Responses or Anthropic Messages."""
    if as_array(reply.get("choices")) is not None:
        return _is_chat_stop(reply)
    if as_array(reply.get("output")) is not None or reply.get("object") == "response":
        return _is_responses_stop(reply)
    return _is_anthropic_stop(reply)


def natural_choice(reply: Mapping[str, Any]) -> JsonObject | None:
    """The first choice of a Chat reply that stopped naturally."""
    choices = [as_object(choice) or {} for choice in as_array(reply.get("choices")) or ()]
    return next((choice for choice in choices if _finish_reason(choice) == "stop"), None)


def is_empty_reply(reply: AssistantItem | None) -> bool:
    """Whether a reply has nothing that a client could show or act on."""
    for part in reply.parts if reply else ():
        if isinstance(part, ToolCallPart | OpaquePart):
            return False
        if isinstance(part, TextPart) and part.text.strip():
            return False
    return True


def is_empty_body(reply: Mapping[str, Any]) -> bool:
    """The same for a decoded reply body: no text, no call, no other content."""
    messages = [
        as_object((as_object(choice) or {}).get("message")) or {}
        for choice in as_array(reply.get("choices")) or ()
    ]
    outputs = [as_object(item) or {} for item in as_array(reply.get("output")) or ()]
    return all(_is_blank(message) for message in [reply, *messages, *outputs])


def _is_chat_stop(reply: Mapping[str, Any]) -> bool:
    """At least one choice stopped, and none of them calls a tool."""
    for item in as_array(reply["choices"]) or ():
        choice = as_object(item) or {}
        message = as_object(choice.get("message")) or {}
        if _finish_reason(choice) in ("tool_calls", "function_call"):
            return False
        if message.get("tool_calls") or message.get("function_call"):
            return False
    return natural_choice(reply) is not None


def _finish_reason(choice: Mapping[str, Any]) -> str:
    reason = choice.get("finish_reason")
    return reason.strip().lower() if isinstance(reason, str) else ""


def _is_responses_stop(reply: Mapping[str, Any]) -> bool:
    output = as_array(reply.get("output")) or []
    status = reply.get("status")
    if status != "completed" and not (status is None and output):
        return False
    if reply.get("required_action") or reply.get("error"):
        return False
    kinds = [str((as_object(item) or {}).get("type", "")) for item in output]
    return not any("tool" in kind or kind in _CLIENT_CALLS for kind in kinds)


def _is_anthropic_stop(reply: Mapping[str, Any]) -> bool:
    if reply.get("stop_reason") not in _NATURAL_REASONS:
        return False
    blocks = as_array(reply.get("content")) or ()
    return not any((as_object(block) or {}).get("type") == "tool_use" for block in blocks)


def _is_blank(message: Mapping[str, Any]) -> bool:
    """Whether a message, or an output item, says nothing."""
    kind = message.get("type", "message")
    if kind == "reasoning":
        return True
    if kind not in ("message", "response"):
        return False
    if any(message.get(key) for key in ("tool_calls", "function_call", "refusal")):
        return False
    content = message.get("content")
    if isinstance(content, str):
        return not content.strip()
    return all(_is_blank_part(as_object(part) or {}) for part in as_array(content) or ())


def _is_blank_part(part: Mapping[str, Any]) -> bool:
    if part.get("type") in ("thinking", "redacted_thinking"):
        return True
    text = part.get("text", "" if part.get("type") is None else None)
    return isinstance(text, str) and not text.strip()
