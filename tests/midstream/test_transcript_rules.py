"""The strict check of transcripts finds each thing that a provider refuses."""

from typing import Any

import pytest

from midstream.messages.conversation import (
    AnyItem,
    AnyPart,
    AssistantItem,
    OpaquePart,
    SystemItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.testing.transcript_rules import violations

HELLO, GO_ON = UserItem("Hello"), UserItem("Go on")
CALL = ToolCallPart("c", "look", "{}")
RESULT = ToolResultItem("c", "look", "seen")


def said(*parts: AnyPart, provider: str = "anthropic") -> AssistantItem:
    return AssistantItem(parts, provider)


def opaque(kind: str, data: str, provider: str = "anthropic") -> OpaquePart:
    return OpaquePart(provider, kind, data)


USE = opaque("server_tool_use", '{"type":"server_tool_use","id":"s"}')
FOUND = opaque("web_search_tool_result", '{"type":"web_search_tool_result","tool_use_id":"s"}')
REASONING = opaque("reasoning", '{"type":"reasoning"}', "openai_responses")


@pytest.mark.parametrize(
    ("format", "items"),
    [
        ("anthropic", []),
        ("anthropic", [HELLO, said(ThinkingPart("Hm.", "sig"), TextPart("So."), CALL), RESULT]),
        ("anthropic", [HELLO, said(CALL), SystemItem("Note."), RESULT, GO_ON]),
        ("anthropic", [HELLO, said(USE, FOUND, TextPart("So."))]),
        ("anthropic", [HELLO, said(USE)]),
        ("anthropic", [HELLO, said(USE), said(FOUND, TextPart("So.")), GO_ON]),
        (
            "openai_chat",
            [HELLO, said(ThinkingPart("Hm."), TextPart("So."), provider="openai_chat")],
        ),
        ("openai_responses", [HELLO, said(REASONING, CALL, provider="openai_responses"), RESULT]),
    ],
)
def test_what_providers_accept_passes(format: str, items: list[AnyItem]):
    assert violations(items, format) == []


@pytest.mark.parametrize(
    ("problem", "format", "items"),
    [
        ("no result", "anthropic", [HELLO, said(CALL)]),
        ("no result before", "anthropic", [HELLO, said(CALL), said(TextPart("So.")), RESULT]),
        ("without a call", "openai_chat", [HELLO, RESULT]),
        ("without a call", "openai_chat", [HELLO, said(CALL), RESULT, RESULT]),
        ("not JSON", "openai_chat", [HELLO, said(ToolCallPart("c", "look", "{")), RESULT]),
        ("no object", "openai_chat", [HELLO, said(ToolCallPart("c", "look", "[]")), RESULT]),
        ("without a name", "openai_chat", [HELLO, said(ToolCallPart("c", "", "{}")), RESULT]),
        ("with one id", "openai_chat", [HELLO, said(CALL, CALL), RESULT, RESULT]),
        ("nothing in the message", "anthropic", [HELLO, said()]),
        ("nothing in the message", "openai_chat", [HELLO, said(ThinkingPart("Hm.", "sig"))]),
        ("blank", "openai_chat", [HELLO, said(TextPart(" "))]),
        ("blank", "openai_chat", [UserItem("")]),
        ("without a signature", "anthropic", [HELLO, said(ThinkingPart("Hm."), TextPart("So."))]),
        ("last block is thinking", "anthropic", [said(TextPart("So."), ThinkingPart("Hm.", "s"))]),
        ("behind a tool_use", "anthropic", [HELLO, said(CALL, TextPart("So.")), RESULT]),
        ("has no result", "anthropic", [HELLO, said(USE, TextPart("So.")), GO_ON]),
        ("without its use", "anthropic", [HELLO, said(FOUND, TextPart("So."))]),
        ("led to", "openai_responses", [HELLO, said(REASONING, provider="openai_responses")]),
        ("half a character", "openai_chat", [UserItem("\ud83d")]),
        (
            "half a character",
            "openai_chat",
            [HELLO, said(ToolCallPart("c", "look", '{"a":"\\ud83d"}')), RESULT],
        ),
    ],
)
def test_what_a_provider_refuses_in_a_conversation_is_found(
    problem: str, format: str, items: list[AnyItem]
):
    assert any(problem in found for found in violations(items, format)), violations(items, format)


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


HI = {"type": "text", "text": "Hi"}
TOOL_USE: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "seen"}


@pytest.mark.parametrize(
    ("problem", "messages"),
    [
        ("no messages", []),
        ("first message", [assistant(HI), user(HI)]),
        ("last message", [user(HI), assistant(HI)]),
        ("same role twice", [user(HI), user(HI)]),
        ("no content", [user()]),
        ("blank", [user({"type": "text", "text": " "})]),
        ("has no tool_result", [user(HI), assistant(TOOL_USE), user(HI)]),
        ("without a tool_use", [user(TOOL_RESULT)]),
        ("behind other content", [user(HI), assistant(TOOL_USE), user(HI, TOOL_RESULT)]),
        (
            "not unique",
            [user(HI), assistant(TOOL_USE), user(TOOL_RESULT)] * 2,
        ),
        (
            "not allowed",
            [
                user(HI),
                assistant({**TOOL_USE, "id": "a b"}),
                user({**TOOL_RESULT, "tool_use_id": "a b"}),
            ],
        ),
        ("is no object", [user(HI), assistant({**TOOL_USE, "input": "{}"}), user(TOOL_RESULT)]),
        (
            "error result without",
            [user(HI), assistant(TOOL_USE), user({**TOOL_RESULT, "is_error": True, "content": ""})],
        ),
        ("without a signature", [user(HI), assistant({"type": "thinking"}, HI), user(HI)]),
    ],
)
def test_what_anthropic_refuses_in_a_body_is_found(problem: str, messages: list[dict[str, Any]]):
    found = violations({"max_tokens": 1, "messages": messages}, "anthropic")
    assert any(problem in each for each in found), found


def call(arguments: str = "{}") -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}


ASKED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call()]}
ANSWER = {"role": "tool", "tool_call_id": "c", "content": "seen"}
WORDS = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("problem", "messages"),
    [
        ("has no answer", [WORDS, ASKED]),
        ("has no answer", [WORDS, ASKED, WORDS, ANSWER]),
        ("without a call", [WORDS, ANSWER]),
        ("without content", [WORDS, ASKED, {**ANSWER, "content": None}]),
        ("in the middle", [WORDS, {"role": "system", "content": "x"}]),
        ("same role twice", [WORDS, WORDS]),
        ("blank", [{"role": "user", "content": ""}]),
        ("neither content nor calls", [WORDS, {"role": "assistant", "content": ""}]),
        ("reasoning is sent", [{"role": "assistant", "content": "x", "reasoning_content": "y"}]),
        ("not JSON", [WORDS, {**ASKED, "tool_calls": [call("{")]}, ANSWER]),
        ("type or id", [WORDS, {**ASKED, "tool_calls": [{**call(), "type": None}]}, ANSWER]),
    ],
)
def test_what_a_chat_server_refuses_in_a_body_is_found(
    problem: str, messages: list[dict[str, Any]]
):
    found = violations({"messages": messages}, "openai_chat")
    assert any(problem in each for each in found), found


FUNCTION: dict[str, Any] = {
    "type": "function_call",
    "call_id": "c",
    "name": "look",
    "arguments": "{}",
}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "seen"}
ASK: dict[str, Any] = {"type": "message", "role": "user", "content": [{"text": "Hi"}]}
THOUGHT: dict[str, Any] = {"type": "reasoning", "encrypted_content": "x"}


@pytest.mark.parametrize(
    ("problem", "items"),
    [
        ("has no output", [ASK, FUNCTION]),
        ("has no output", [ASK, FUNCTION, ASK, OUTPUT]),
        ("without its call", [ASK, OUTPUT]),
        ("without its call", [FUNCTION, {**OUTPUT, "type": "custom_tool_call_output"}]),
        ("not JSON", [{**FUNCTION, "arguments": "{"}, OUTPUT]),
        ("blank", [{**ASK, "content": [{"text": ""}]}]),
        ("does not have", [{"type": "reasoning"}, FUNCTION, OUTPUT]),
        ("led to", [ASK, THOUGHT]),
        ("led to", [FUNCTION, THOUGHT, OUTPUT]),
        ("nobody answers", [{"type": "computer_call", "call_id": "k"}]),
        ("without its output", [{"type": "tool_search_call", "call_id": None}]),
    ],
)
def test_what_the_responses_api_refuses_in_a_body_is_found(
    problem: str, items: list[dict[str, Any]]
):
    found = violations({"input": items}, "openai_responses")
    assert any(problem in each for each in found), found


def test_a_body_that_cannot_be_written_is_found():
    assert "cannot be written" in violations({"messages": "\ud83d"}, "openai_chat")[0]
