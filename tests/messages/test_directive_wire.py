"""Directives in raw request bodies: all three shapes, and nothing else is touched."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.directive import ClearAll, SetMode, SetText, StageMode
from midstream.messages.directive_items import NO_TEXT
from midstream.messages.directive_wire import read_body
from midstream.messages.wire_body import JsonObject, as_object

SET = '<**stopMessage:"T",2**>'
FIXTURES = Path(
    os.environ.get("MIDSTREAM_FIXTURES", Path(__file__).parents[3] / "shared" / "fixtures")
)


def user(content: Any) -> JsonObject:
    return {"role": "user", "content": content}


def assistant(content: Any) -> JsonObject:
    return {"role": "assistant", "content": content}


def part(text: str, kind: str = "text", **more: Any) -> JsonObject:
    return {"type": kind, "text": text, **more}


def test_chat_strings_are_cleaned_in_every_user_message():
    body: JsonObject = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s <**clear**>"},
            user("one <**stopMessage:bad"),
            user(f"two {SET} x"),
            assistant("a <**clear**>"),
            user(f"three {SET}"),
        ],
        "temperature": 1,
    }
    before = copy.deepcopy(body)
    reading = read_body(body)
    assert body == before
    assert list(reading.body) == list(body)
    contents = [message["content"] for message in reading.body["messages"]]
    assert contents == [
        "s <**clear**>",
        "one <**stopMessage:bad",
        "two x",
        "a <**clear**>",
        "three ",
    ]
    assert reading.body["messages"][0] is body["messages"][0]
    assert reading.markers == 2
    assert reading.found is not None
    assert reading.found.directives == (SetText("T", 2),)


def test_a_body_without_markers_comes_back_as_itself():
    body = {"messages": [user([part("hi"), {"type": "image", "source": {}}])], "input": "x"}
    reading = read_body(body)
    assert reading.body is body
    assert not reading.changed


def test_anthropic_parts_are_cleaned_and_emptied_parts_left_out():
    image = {"type": "image", "source": {"data": "<**clear**>"}}
    cached = part("keep <**clear**> me", cache_control={"type": "ephemeral"})
    body = {"messages": [user([part(SET), image, cached])]}
    content = read_body(body).body["messages"][0]["content"]
    assert content == [image, part("keep me", cache_control={"type": "ephemeral"})]
    assert content[0] is image


def test_a_part_with_content_in_place_of_text_is_cleaned():
    body = {"messages": [user([{"type": "text", "content": f"a {SET}"}, f"b {SET}"])]}
    reading = read_body(body)
    assert reading.body["messages"][0]["content"] == [{"type": "text", "content": "a "}, "b "]


def test_what_a_tool_returned_is_not_the_users_text():
    result = {"type": "tool_result", "tool_use_id": "t", "content": "file says <**clear**>"}
    reading = read_body({"messages": [user(f"go {SET}"), assistant("x"), user([result])]})
    assert reading.body["messages"][2]["content"] == [result]
    assert reading.found is not None
    assert reading.found.directives == (SetText("T", 2),)
    assert not reading.found.is_tail


def test_text_beside_a_tool_result_is_the_users():
    result = {"type": "tool_result", "tool_use_id": "t", "content": "out"}
    reading = read_body({"messages": [assistant("x"), user([result, part("<**clear**>")])]})
    assert reading.found is not None
    assert reading.found.directives == (ClearAll(),)
    assert reading.found.is_tail
    assert reading.body["messages"][1]["content"] == [result]
    assert not reading.emptied_turn


def test_a_system_message_after_the_user_does_not_hide_the_tail():
    reading = read_body({"messages": [user(SET), {"role": "system", "content": "reminder"}]})
    assert reading.found is not None
    assert reading.found.is_tail


def test_responses_input_is_read_with_its_defaults():
    body: JsonObject = {
        "instructions": "i <**clear**>",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [part("<**clear**>", "input_text")],
            },
            {"content": f"go {SET}"},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "<**clear**>"},
        ],
    }
    reading = read_body(body)
    assert reading.body["input"][1] == {"content": "go "}
    assert reading.body["input"][0] is body["input"][0]
    assert reading.body["input"][4] is body["input"][4]
    assert reading.found is not None
    assert reading.found.directives == (SetText("T", 2),)
    assert not reading.found.is_tail


def test_responses_input_may_be_one_text():
    reading = read_body({"input": f"go {SET} on"})
    assert reading.body == {"input": "go on"}
    assert reading.found is not None
    assert reading.found.is_tail
    emptied = read_body({"input": SET})
    assert emptied.emptied_turn
    assert emptied.with_turn_text("T") == {"input": "T"}


def test_messages_are_read_before_input_and_both_are_cleaned():
    reading = read_body({"messages": [user("<**clear**>x")], "input": f"{SET}y"})
    assert reading.found is not None
    assert reading.found.directives == (ClearAll(),)
    assert reading.body == {"messages": [user("x")], "input": "y"}
    only_input = read_body({"messages": [], "input": [{"role": "user", "content": f"{SET}y"}]})
    assert only_input.found is not None


@pytest.mark.parametrize(
    ("key", "content", "filled"),
    [
        ("messages", SET, "T"),
        ("messages", [part(SET), part(" ")], [part("T")]),
        ("input", [part(SET, "input_text")], [part("T", "input_text")]),
    ],
)
def test_g5_an_emptied_last_message_takes_the_text_that_was_set(
    key: str, content: Any, filled: Any
):
    body = {key: [user("a"), assistant("b"), user(content)]}
    reading = read_body(body)
    assert reading.emptied_turn
    assert reading.with_turn_text("T") == {key: [user("a"), assistant("b"), user(filled)]}


def test_g5_an_emptied_older_message_is_dropped_unless_the_model_would_open():
    body = {"messages": [user("a"), assistant("b"), user(SET), assistant("c"), user("d")]}
    expected = [user("a"), assistant("b"), assistant("c"), user("d")]
    assert read_body(body).body["messages"] == expected
    opening = {"messages": [user([part("<**clear**>")]), assistant("b"), user("c")]}
    expected = [user([part(NO_TEXT)]), assistant("b"), user("c")]
    assert read_body(opening).body["messages"] == expected


def test_g5_the_order_of_a_turn_stays_while_its_tools_run():
    result = user([{"type": "tool_result", "tool_use_id": "t", "content": "out"}])
    mode = "<**stopMessage:on,3**>"
    body = {"messages": [user("a"), assistant("b"), user(mode), assistant("c"), result]}
    reading = read_body(body, armed_text="armed")
    assert reading.body["messages"][2] == user("armed")
    assert reading.found is not None
    assert reading.found.directives == (SetMode(StageMode.ON, 3),)


def test_an_internal_request_is_cleaned_but_executes_nothing():
    reading = read_body({"messages": [user(f"x {SET}")]}, internal=True)
    assert reading.found is None
    assert reading.body == {"messages": [user("x ")]}


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"messages": null}',
        '{"messages": [null, 3, "x", {}], "input": {"a": 1}}',
        '{"messages": [{"role": "user"}, {"role": "user", "content": {}}, {"role": ["user"]}]}',
        '{"messages": [{"role": "user", "content": [null, 3, {"text": 3}, ["<**clear**>"]]}]}',
    ],
)
def test_bodies_of_no_known_shape_pass_untouched(body: str):
    decoded = json.loads(body)
    assert read_body(decoded).body is decoded


JSON = st.recursive(
    st.none() | st.integers() | st.sampled_from([SET, "a <**clear**> b", "plain", "<**", "**>"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["text", "content", "type", "role", "x"]), inner),
    ),
    max_leaves=20,
)
ENTRY = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": JSON},
    optional={"type": st.sampled_from(["message", "tool_result", "function_call"])},
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(["messages", "input"]), st.lists(ENTRY | JSON, max_size=5))
def test_no_marker_is_left_in_the_users_texts_and_nothing_else_moves(key: str, entries: list[Any]):
    body = {"model": "m", key: entries}
    before = copy.deepcopy(body)
    reading = read_body(body)
    assert body == before
    again = read_body(reading.with_turn_text("T"))
    assert again.markers == 0
    if not reading.markers:
        assert reading.body is body
    kept = [entry for entry in reading.body[key] if any(entry is one for one in entries)]
    untouched = [entry for entry in entries if any(entry is one for one in kept)]
    assert kept == untouched


def test_recorded_requests_of_real_clients_pass_untouched():
    folder = FIXTURES / "client-requests"
    if not folder.is_dir():
        pytest.skip(f"no recorded client requests at {folder}")
    bodies = 0
    for path in sorted(folder.glob("*.json")):
        for request in json.loads(path.read_text("utf-8")):
            body = as_object(request.get("body"))
            if body is not None and ("messages" in body or "input" in body):
                bodies += 1
                reading = read_body(body)
                assert reading.body is body
                assert not reading.emptied_turn
    assert bodies > 20
