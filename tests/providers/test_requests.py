"""Conversations as each provider wants them: what is sent, what is not, and always valid."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.accumulate import accumulate
from midstream.messages.conversation import (
    AnyItem,
    AnyPart,
    AssistantItem,
    ModelRequest,
    OpaquePart,
    ReminderItem,
    SystemItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultItem,
    ToolSpec,
    UserItem,
)
from midstream.messages.settle import Ending, Outcome, open_calls, settle, settle_history
from midstream.providers.anthropic_request import anthropic_body
from midstream.providers.openai_chat_request import openai_chat_body
from midstream.providers.openai_responses_request import openai_responses_body
from midstream.providers.recording import parse_recording
from midstream.providers.replay import DECODERS
from midstream.providers.stream_parser import StreamParser
from midstream.testing.transcript_rules import violations

BODIES = {
    "anthropic": anthropic_body,
    "openai_chat": openai_chat_body,
    "openai_responses": openai_responses_body,
}
FORMATS = list(BODIES)


def body(format: str, *items: AnyItem, **fields: Any) -> dict[str, Any]:
    """The body as the provider reads it."""
    request = ModelRequest(model="m", items=items, **fields)
    return json.loads(msgspec.json.encode(BODIES[format](request)))


def said(format: str, *parts: AnyPart) -> AssistantItem:
    return AssistantItem(parts, format)


CALL = ToolCallPart("c1", "look", '{"at": "it"}')
RESULT = ToolResultItem("c1", "look", "seen")
TURN = (UserItem("Hello"), SystemItem("A file."), ReminderItem("Do not.", ("r",)))
TOOL = ToolSpec("look", "Looks.", {"type": "object"})


def test_anthropic_gets_blocks_with_the_results_first():
    answer = said("anthropic", ThinkingPart("Hm.", "sig"), TextPart("I look."), CALL)
    sent = body(
        "anthropic", *TURN, answer, UserItem("And?"), RESULT, system="Be kind.", tools=(TOOL,)
    )
    assert sent == {
        "model": "m",
        "max_tokens": 8192,
        "system": "Be kind.",
        "stream": True,
        "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hello"},
                    {"type": "text", "text": "A file."},
                    {"type": "text", "text": "Do not."},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "it"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "seen"},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    }


def test_chat_gets_one_user_message_for_what_is_said_in_a_row():
    answer = said("openai_chat", ThinkingPart("Hm."), TextPart("I "), TextPart("look."), CALL)
    sent = body(
        "openai_chat",
        *TURN,
        answer,
        RESULT,
        UserItem("And?"),
        system="Be kind.",
        tools=(TOOL,),
        max_tokens=9,
    )
    assert sent == {
        "model": "m",
        "max_completion_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello\n\nA file.\n\nDo not."},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at": "it"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            {"role": "user", "content": "And?"},
        ],
    }


def test_responses_gets_items_and_nothing_is_stored():
    reasoning = '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}'
    answer = said(
        "openai_responses",
        OpaquePart("openai_responses", "reasoning", reasoning),
        ThinkingPart("Hm."),
        TextPart("I look."),
        CALL,
    )
    sent = body(
        "openai_responses", UserItem("Hello"), answer, RESULT, system="Be kind.", tools=(TOOL,)
    )
    assert sent == {
        "model": "m",
        "store": False,
        "stream": True,
        "instructions": "Be kind.",
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": "Looks.",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hello"}],
            },
            json.loads(reasoning),
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look."}],
            },
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "look",
                "arguments": '{"at": "it"}',
            },
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        ],
    }


@pytest.mark.parametrize("format", FORMATS)
def test_options_win_but_the_answer_is_always_streamed(format: str):
    sent = body(format, UserItem("Hi"), options={"temperature": 0, "model": "n", "stream": False})
    assert (sent["temperature"], sent["model"], sent["stream"]) == (0, "n", True)


def test_the_chat_limit_has_the_name_that_the_server_knows():
    request = ModelRequest(model="m", items=(UserItem("Hi"),), max_tokens=9)
    assert openai_chat_body(request, "max_tokens")["max_tokens"] == 9


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_of_another_provider_is_sent_but_text_and_calls(format: str):
    other = next(name for name in FORMATS if name != format)
    answer = said(
        other,
        ThinkingPart("Hm.", "sig"),
        OpaquePart(other, "reasoning", '{"type":"reasoning","encrypted_content":"secret"}'),
        TextPart("I look."),
        ToolCallPart("c1", "look", "{}", '{"caller":"secret"}'),
    )
    sent = json.dumps(body(format, UserItem("Hi"), answer, RESULT))
    assert "secret" not in sent
    assert "Hm." not in sent
    assert "I look." in sent
    assert "seen" in sent


def test_unsigned_thinking_is_never_sent():
    answer = said("anthropic", ThinkingPart("Hm."), TextPart("So."))
    assert "Hm." not in json.dumps(body("anthropic", UserItem("Hi"), answer))


def test_blocks_of_anthropics_own_come_back_byte_for_byte():
    data = '{"type" : "redacted_thinking",  "data":"x"}'
    answer = said("anthropic", OpaquePart("anthropic", "redacted_thinking", data), TextPart("So."))
    request = ModelRequest(model="m", items=(UserItem("Hi"), answer))
    assert data.encode() in msgspec.json.encode(anthropic_body(request))


def test_citations_come_back_with_their_text():
    cited = OpaquePart("anthropic", "citations", '[{"type":"char_location"}]')
    sent = body("anthropic", UserItem("Hi"), said("anthropic", TextPart("So."), cited))
    assert sent["messages"][1]["content"] == [
        {"type": "text", "text": "So.", "citations": [{"type": "char_location"}]}
    ]


@pytest.mark.parametrize(
    ("format", "field"), [("anthropic", "caller"), ("openai_chat", "extra_content")]
)
def test_what_a_provider_put_on_its_call_comes_back_with_it(format: str, field: str):
    call = ToolCallPart("c1", "look", "{}", json.dumps({field: {"x": 1}}))
    sent = body(format, UserItem("Hi"), said(format, call), RESULT)
    message = sent["messages"][1]
    wire_call = (message.get("tool_calls") or message["content"])[0]
    assert wire_call[field] == {"x": 1}


def test_signed_reasoning_details_come_back_to_chat_servers():
    details = OpaquePart("openai_chat", "reasoning_details", '[{"signature":"s"}]')
    sent = body("openai_chat", UserItem("Hi"), said("openai_chat", TextPart("So."), details))
    assert sent["messages"][1]["reasoning_details"] == [{"signature": "s"}]


@pytest.mark.parametrize(
    ("call", "wire_call", "wire_result"),
    [
        (
            ToolCallPart("c1", "sql", '{"input":"SELECT 1"}', '{"type":"custom_tool_call"}'),
            {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "SELECT 1"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "seen"},
        ),
        (
            ToolCallPart(
                "c1", "local_shell", '{"command":["ls"]}', '{"type":"local_shell_call","id":"l"}'
            ),
            {
                "type": "local_shell_call",
                "id": "l",
                "call_id": "c1",
                "action": {"command": ["ls"]},
            },
            {"type": "local_shell_call_output", "id": "c1", "output": "seen"},
        ),
        (
            ToolCallPart("c1", "apply_patch", '{"diff":"+"}', '{"type":"apply_patch_call"}'),
            {"type": "apply_patch_call", "call_id": "c1", "operation": {"diff": "+"}},
            {
                "type": "apply_patch_call_output",
                "call_id": "c1",
                "output": "seen",
                "status": "completed",
            },
        ),
        (
            ToolCallPart("c1", "shell", '{"commands":["ls"]}', '{"type":"shell_call"}'),
            {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
            {
                "type": "shell_call_output",
                "call_id": "c1",
                "output": [
                    {
                        "stdout": "seen",
                        "stderr": "",
                        "outcome": {"type": "exit", "exit_code": 0},
                    }
                ],
            },
        ),
    ],
)
def test_calls_of_openais_own_kinds_go_back_as_what_they_were(
    call: ToolCallPart, wire_call: dict[str, Any], wire_result: dict[str, Any]
):
    sent = body("openai_responses", UserItem("Hi"), said("openai_responses", call), RESULT)
    assert sent["input"][1:] == [wire_call, wire_result]


@pytest.mark.parametrize("format", FORMATS)
def test_a_reminder_that_belongs_to_a_call_is_sent_in_front_of_its_result(format: str):
    reminder = ReminderItem("Do not look.", ("r",), interrupted=False, call_id="c1")
    items = (UserItem("Hi"), said(format, CALL), RESULT, reminder)
    sent = json.dumps(body(format, *items))
    assert json.dumps("Do not look.\n\nseen") in sent
    assert sent.count("Do not look.") == 1


def test_ids_of_other_providers_are_brought_into_a_form_that_all_accept():
    odd = ToolCallPart("functions.look:0", "look", "{}")
    long = ToolCallPart("x" * 60, "look", "{}")
    results = (ToolResultItem(odd.call_id, "look", "1"), ToolResultItem(long.call_id, "look", "2"))
    sent = body("anthropic", UserItem("Hi"), said("openai_chat", odd, long), *results)
    assert [block["id"] for block in sent["messages"][1]["content"]] == [
        "functions_look_0",
        "x" * 40,
    ]
    assert [block["tool_use_id"] for block in sent["messages"][2]["content"]] == [
        "functions_look_0",
        "x" * 40,
    ]


def test_ids_that_begin_anew_in_each_answer_are_made_unique_for_anthropic():
    items: list[AnyItem] = [UserItem("Hi")]
    for content in ("first", "second"):
        items += [said("anthropic", CALL), ToolResultItem("c1", "look", content)]
    messages = body("anthropic", *items)["messages"]
    assert [messages[i]["content"][0]["id"] for i in (1, 3)] == ["c1", "c1_2"]
    assert messages[4]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "c1_2",
        "content": "second",
    }


def test_a_conversation_that_begins_with_an_answer_still_begins_with_a_user():
    sent = body("anthropic", said("anthropic", TextPart("So.")), UserItem("And?"))
    assert violations(sent, "anthropic") == []


# --- Always valid -------------------------------------------------------------------------------

PARTS = st.one_of(
    st.builds(TextPart, st.sampled_from(["Hi", " ", "\ude00"])),
    st.builds(ThinkingPart, st.just("Hm."), st.sampled_from(["sig", None])),
    st.builds(
        ToolCallPart,
        st.sampled_from(["c1", "c2", "odd id"]),
        st.just("look"),
        st.sampled_from(["{}", "{", '{"a":"\\ud83d"}']),
    ),
    st.just(OpaquePart("anthropic", "redacted_thinking", '{"type":"redacted_thinking"}')),
    st.just(OpaquePart("openai_responses", "reasoning", '{"type":"reasoning"}')),
)
ITEMS = st.one_of(
    st.builds(UserItem, st.sampled_from(["Hi", "", "\ud83d"])),
    st.builds(ReminderItem, st.just("No."), st.just(()), call_id=st.sampled_from([None, "c1"])),
    st.builds(ToolResultItem, st.sampled_from(["c1", "c2"]), st.just("look"), st.just("seen")),
    st.builds(
        AssistantItem, st.lists(PARTS, max_size=4).map(tuple), st.sampled_from(["", *FORMATS])
    ),
)


@settings(max_examples=300, deadline=None)
@given(items=st.lists(ITEMS, max_size=8), format=st.sampled_from(FORMATS))
def test_any_conversation_makes_a_request_that_breaks_no_rule(items: list[AnyItem], format: str):
    sent = body(format, UserItem("Hello"), *items, UserItem("Go on"))
    assert violations(sent, format) == []


@pytest.mark.recordings(
    "anthropic-messages", "openai-chat", "openai-compatible", "openai-responses", "assembled"
)
def test_any_prefix_of_a_recorded_stream_can_be_sent_back(recording: Path):
    """Settled for its own provider and for the others, after each kind of ending."""
    format, pieces = parse_recording(recording.read_bytes())
    parser = StreamParser(DECODERS[format]())
    messages = [message for piece in pieces for message in parser.feed(piece.data)]
    messages += parser.end()
    step = max(1, len(messages) // 25)
    for length in [*range(0, len(messages), step), len(messages)]:
        partial = accumulate(messages[:length], format)
        for ending in Ending:
            for to in FORMATS if ending is Ending.STEERED else [format]:
                kept = settle(partial, Outcome(ending), to)
                results = [ToolResultItem(c.call_id, c.name, "seen") for c in open_calls(kept)]
                items = (UserItem("Hello"), *kept, *results, UserItem("Go on"))
                assert violations(items, to) == [], (length, ending)
                assert settle_history(items, to) == items
                assert violations(body(to, *items), to) == [], (length, ending)


def test_the_whole_of_a_finished_recording_comes_back(recordings: Path):
    """Thinking, its signature, server tools and their results: what came is what is sent."""
    recording = recordings / "anthropic-messages" / "code-execution-server-tool.sse"
    format, pieces = parse_recording(recording.read_bytes())
    parser = StreamParser(DECODERS[format]())
    messages = [message for piece in pieces for message in parser.feed(piece.data)] + parser.end()
    kept = settle(accumulate(messages, format), Outcome(Ending.FINISHED), format)
    blocks = body(format, UserItem("Hi"), *kept, UserItem("Go on"))["messages"][1]["content"]
    assert [block["type"] for block in blocks] == [
        "thinking",
        "text",
        "server_tool_use",
        "bash_code_execution_tool_result",
        "text",
    ]
    assert len(blocks[0]["signature"]) > 100
    assert "command" in blocks[2]["input"]
