"""What each provider demands of the body of a request; see `transcript_rules.py`.

Bodies are decoded JSON. Each function yields sentences that say what is wrong and where.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, cast

_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
_HALF = re.compile("[\ud800-\udfff]")
_THINKING = ("thinking", "redacted_thinking")
_OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "shell_call": "shell_call_output",
    "computer_call": "computer_call_output",
}


# --- Anthropic ----------------------------------------------------------------------------------


def in_anthropic_body(body: Mapping[str, Any]) -> Iterator[str]:
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        yield "max_tokens is missing"
    if "system" in body and not str(body["system"]).strip():
        yield "the system prompt is blank"
    messages = _list(body.get("messages"))
    if not messages:
        yield "there are no messages"
        return
    if messages[0].get("role") != "user":
        yield "the first message is not the user's"
    last_blocks = _list(messages[-1].get("content"))
    if messages[-1].get("role") == "assistant" and not _pauses(last_blocks):
        yield "the last message is the model's own"
    used: set[str] = set()
    asked: list[str] = []
    for number, message in enumerate(messages):
        where = f"message {number}"
        blocks = _list(message.get("content"))
        if number and messages[number - 1].get("role") == message.get("role"):
            yield f"{where}: the same role twice in a row"
        if not blocks:
            yield f"{where}: no content"
        if message.get("role") == "assistant":
            yield from _unanswered(asked, where)
            yield from in_blocks(blocks, where, paused=number == len(messages) - 1)
            asked = [block["id"] for block in blocks if block.get("type") == "tool_use"]
            yield from _in_tool_uses(blocks, used, where)
        else:
            yield from _in_user_blocks(blocks, asked, where)
            asked = []
    yield from _unanswered(asked, "the end")


def _pauses(blocks: list[dict[str, Any]]) -> bool:
    return bool(blocks) and blocks[-1].get("type") == "server_tool_use"


def _unanswered(asked: list[str], where: str) -> Iterator[str]:
    yield from (f"{where}: the tool_use {call_id} has no tool_result" for call_id in asked)


def _in_tool_uses(blocks: list[dict[str, Any]], used: set[str], where: str) -> Iterator[str]:
    for block in blocks:
        if block.get("type") != "tool_use":
            continue
        call_id = block["id"]
        if not _ANTHROPIC_ID.fullmatch(call_id):
            yield f"{where}: the tool_use id {call_id!r} has characters that are not allowed"
        if call_id in used:
            yield f"{where}: the tool_use id {call_id} is not unique"
        used.add(call_id)
        if not isinstance(block.get("input"), dict):
            yield f"{where}: the input of {call_id} is no object"
        if not block.get("name"):
            yield f"{where}: the tool_use {call_id} has no name"


def _in_user_blocks(blocks: list[dict[str, Any]], asked: list[str], where: str) -> Iterator[str]:
    waiting = list(asked)
    results_over = False
    for block in blocks:
        if block.get("type") == "tool_result":
            if results_over:
                yield f"{where}: a tool_result behind other content"
            if block.get("tool_use_id") not in waiting:
                yield f"{where}: a tool_result without a tool_use in the message before"
                continue
            waiting.remove(block["tool_use_id"])
            if block.get("is_error") and not block.get("content"):
                yield f"{where}: an error result without content"
        else:
            results_over = True
            if block.get("type") == "text" and not str(block.get("text")).strip():
                yield f"{where}: blank text"
    yield from _unanswered(waiting, where)


def in_blocks(blocks: list[dict[str, Any]], where: str, *, paused: bool) -> Iterator[str]:
    """The rules for the order and the pairs of an assistant message's blocks."""
    kinds = [str(block.get("type")) for block in blocks]
    for block in blocks:
        if block.get("type") == "thinking" and not block.get("signature"):
            yield f"{where}: thinking without a signature"
        if block.get("type") == "text" and not str(block.get("text")).strip():
            yield f"{where}: blank text"
    if kinds and kinds[-1] in _THINKING:
        yield f"{where}: the last block is thinking"
    if "tool_use" in kinds and set(kinds[kinds.index("tool_use") :]) != {"tool_use"}:
        yield f"{where}: something stands behind a tool_use"
    yield from _in_server_tools(blocks, where, paused=paused)


def _in_server_tools(blocks: list[dict[str, Any]], where: str, *, paused: bool) -> Iterator[str]:
    callers = {_fields(block.get("caller")).get("tool_id") for block in blocks}
    open_uses: list[Any] = []
    for block in blocks:
        kind = str(block.get("type"))
        if kind in ("server_tool_use", "mcp_tool_use"):
            open_uses.append(block.get("id"))
        elif kind.endswith("_tool_result"):
            if block.get("tool_use_id") in open_uses:
                open_uses.remove(block.get("tool_use_id"))
            else:
                yield f"{where}: a {kind} without its use"
    if not paused:
        for use in open_uses:
            if use not in callers:
                yield f"{where}: the server tool use {use} has no result"


# --- Chat Completions ---------------------------------------------------------------------------


def in_chat_body(body: Mapping[str, Any]) -> Iterator[str]:
    asked: list[str] = []
    previous = ""
    for number, message in enumerate(_list(body.get("messages"))):
        where = f"message {number}"
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") in asked:
                asked.remove(message["tool_call_id"])
            else:
                yield f"{where}: a tool message without a call before it"
            if not isinstance(message.get("content"), str):
                yield f"{where}: a tool message without content"
            previous = "tool"
            continue
        yield from (f"{where}: the call {call_id} has no answer" for call_id in asked)
        asked = []
        if role == "system" and number:
            yield f"{where}: a system message in the middle"
        if role in ("user", "system") and not str(message.get("content")).strip():
            yield f"{where}: blank content"
        if role == "user" and previous == "user":
            yield f"{where}: the same role twice in a row"
        if role == "assistant":
            calls = _list(message.get("tool_calls"))
            asked = [call["id"] for call in calls]
            yield from _in_chat_answer(message, calls, where)
        previous = str(role)
    yield from (f"the call {call_id} has no answer" for call_id in asked)


def _in_chat_answer(
    message: Mapping[str, Any], calls: list[dict[str, Any]], where: str
) -> Iterator[str]:
    if not str(message.get("content") or "").strip() and not calls:
        yield f"{where}: neither content nor calls"
    if "reasoning_content" in message or "reasoning" in message:
        yield f"{where}: reasoning is sent back"
    for call in calls:
        if call.get("type") != "function" or not call.get("id"):
            yield f"{where}: a call without type or id"
        yield from in_call(call["function"]["name"], call["function"]["arguments"], where)


# --- Responses ----------------------------------------------------------------------------------


def in_responses_body(body: Mapping[str, Any]) -> Iterator[str]:
    items = _list(body.get("input"))
    open_calls: dict[str, str] = {}
    for number, item in enumerate(items):
        where = f"input {number}"
        kind = str(item.get("type"))
        if kind in _OUTPUT_OF:
            open_calls[str(item.get("call_id"))] = _OUTPUT_OF[kind]
        elif kind in _OUTPUT_OF.values():
            call_id = str(item.get("call_id") or item.get("id"))
            if open_calls.pop(call_id, None) != kind and kind != "shell_call_output":
                yield f"{where}: an output without its call"
        elif kind == "message" and item.get("role") == "user":
            yield from (f"{where}: the call {call_id} has no output" for call_id in open_calls)
            open_calls = {}
        if kind == "function_call":
            yield from in_call(str(item.get("name")), str(item.get("arguments")), where)
        if kind == "message":
            yield from _in_content(_list(item.get("content")), where)
        if kind == "reasoning" and not item.get("encrypted_content"):
            yield f"{where}: reasoning that the provider does not have"
    yield from (f"the call {call_id} has no output" for call_id in open_calls)
    yield from in_output_items(items, "input")


def _in_content(parts: list[dict[str, Any]], where: str) -> Iterator[str]:
    if not parts or not all(str(part.get("text")).strip() for part in parts):
        yield f"{where}: blank content"


def in_output_items(items: list[dict[str, Any]], where: str) -> Iterator[str]:
    """Reasoning stands before what it led to; calls of OpenAI's own tools have outputs."""
    kinds = [str(item.get("type")) for item in items if item.get("type") != "unsent"]
    for kind, following in pairwise([*kinds, "nothing"]):
        ends = following == "nothing" or following.endswith("_output")
        if kind == "reasoning" and ends:
            yield f"{where}: reasoning without the item that it led to"
    outputs = {(str(item.get("type")), item.get("call_id")) for item in items}
    for item in items:
        kind = str(item.get("type"))
        wanted = {"tool_search_call": "tool_search_output", "shell_call": "shell_call_output"}
        if kind in wanted and (wanted[kind], item.get("call_id")) not in outputs:
            yield f"{where}: a {kind} without its output"
        if kind in ("computer_call", "mcp_approval_request"):
            yield f"{where}: a {kind} that nobody answers"


# --- Everywhere ---------------------------------------------------------------------------------


def in_call(name: str, arguments: str, where: str) -> Iterator[str]:
    if not name:
        yield f"{where}: a call without a name"
    try:
        value: Any = json.loads(arguments)
    except ValueError:
        yield f"{where}: the arguments of {name} are not JSON"
        return
    if not isinstance(value, dict):
        yield f"{where}: the arguments of {name} are no object"
    yield from in_strings(value, f"{where}: the arguments of {name}")


def in_strings(value: Any, where: str) -> Iterator[str]:
    """Halves of characters in any text of a tree."""
    for text in _strings(value):
        if _HALF.search(text):
            yield f"{where}: half a character in {text[:40]!a}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in cast(dict[Any, Any], value).items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in cast(Iterable[Any], value):
            yield from _strings(inner)


def _fields(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], value) if isinstance(value, list) else []


BODY_RULES: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "anthropic": in_anthropic_body,
    "openai_chat": in_chat_body,
    "openai_responses": in_responses_body,
}
"""The rules of each format."""
