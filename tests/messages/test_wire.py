"""The frames of the websocket: both encodings, any bytes, and what the documentation says."""

import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from midstream.messages import events, wire
from midstream.messages.wire import AnyClientFrame, AnyServerFrame
from midstream.messages.wire_codec import (
    CLIENT_CODECS,
    JSON_PROTOCOL,
    MSGPACK_PROTOCOL,
    SERVER_CODECS,
    WireError,
)
from midstream.messages.wire_schema import schema_text

DOCS = Path(__file__).parents[2] / "docs"
BOTH = pytest.mark.parametrize("protocol", [JSON_PROTOCOL, MSGPACK_PROTOCOL])


def examples() -> list[Any]:
    """The JSON examples of the page."""
    page = (DOCS / "websocket.md").read_text(encoding="utf-8")
    return [json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]


def tags(union: Any, field: str) -> set[str]:
    return {
        kind.__struct_config__.tag
        for kind in union.__args__
        if kind.__struct_config__.tag_field == field
    }


def decoded(example: Any) -> AnyClientFrame | AnyServerFrame:
    known = example["type"] in tags(AnyClientFrame, "type")
    return msgspec.convert(example, AnyClientFrame if known else AnyServerFrame)


@BOTH
def test_every_example_of_the_page_is_a_frame_and_comes_back_the_same(protocol: str) -> None:
    assert len(examples()) > 20
    for example in examples():
        frame = decoded(example)
        if isinstance(frame, AnyClientFrame):
            encoded = CLIENT_CODECS[protocol].encode(frame)
            assert SERVER_CODECS[protocol].decode(encoded) == frame
        else:
            encoded = SERVER_CODECS[protocol].encode(frame)
            assert CLIENT_CODECS[protocol].decode(encoded) == frame


def test_the_page_shows_every_frame_every_result_and_every_code() -> None:
    page = (DOCS / "websocket.md").read_text(encoding="utf-8")
    shown = {example["type"] for example in examples()}
    assert shown == tags(AnyClientFrame, "type") | tags(AnyServerFrame, "type")
    kinds = {example["result"]["kind"] for example in examples() if example["type"] == "ack"}
    assert kinds == tags(wire.AnyResult, "kind")
    for tag in tags(events.AnyEvent, "event"):
        assert f"`{tag}`" in page, f"the page says nothing of the event {tag}"
    for code in wire.ErrorCode:
        assert f"| `{code}` |" in page
    for code in wire.CloseCode:
        assert f"| {int(code)} |" in page
    for capability in wire.Capability:
        assert f"`{capability}`" in page


def test_the_schema_is_that_of_the_types() -> None:
    kept = (DOCS / "websocket.schema.json").read_text(encoding="utf-8")
    assert kept == schema_text(), "frames or events have changed: make schema"


@cache
def schema_of(side: str) -> Draft202012Validator:
    kept = json.loads((DOCS / "websocket.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(kept)
    return Draft202012Validator({"$ref": f"#/$defs/{side}", "$defs": kept["$defs"]})


def is_valid(frame: Any, side: str) -> bool:
    """Whether somebody else, who has only the kept schema, takes it for a frame of this side."""
    try:
        schema_of(side).validate(frame)  # pyright: ignore[reportUnknownMemberType]  # an overload of its
    except ValidationError:
        return False
    return True


def test_every_example_of_the_page_is_valid_by_the_schema() -> None:
    for example in examples():
        of_client = example["type"] in tags(AnyClientFrame, "type")
        assert is_valid(example, "client") is of_client
        assert is_valid(example, "server") is not of_client


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "hallo"},
        {"type": "ping"},
        {"type": "ping", "id": -1},
        {"type": "ping", "id": "1"},
        {"type": "interrupt", "id": 1},
        {"type": "submit", "id": 1, "segments": []},
        {"type": "subscribe", "id": 1, "session": "ses", "after": -1},
        {"type": "subscribe", "id": 1, "session": ""},
        {"type": "list", "id": 1, "limit": 501},
        {"type": "tool_result", "id": 1, "session": "ses", "call_id": "c"},
        {"type": "hello", "client": "short"},
        [],
        "hello",
    ],
)
def test_what_the_schema_refuses_the_server_refuses_too(frame: Any) -> None:
    assert not is_valid(frame, "client")
    with pytest.raises(WireError):
        SERVER_CODECS[JSON_PROTOCOL].decode(json.dumps(frame))


def test_the_tags_of_deltas_are_those_of_events() -> None:
    assert tags(events.AnyEvent, "event") >= wire.DELTA_EVENTS


@BOTH
@given(noise=st.binary(max_size=60) | st.text(max_size=60))
@settings(deadline=None)
def test_any_message_is_a_frame_or_an_error(protocol: str, noise: bytes | str) -> None:
    for codec in (SERVER_CODECS[protocol], CLIENT_CODECS[protocol]):
        with suppress(WireError):
            codec.decode(noise)


@pytest.mark.parametrize("depth", [10, 1_000, 200_000])
def test_deep_nesting_is_an_error_and_no_crash(depth: int) -> None:
    deep = '{"type":"submit","id":1,"segments":[' + '{"a":' * depth + "1" + "}" * depth + "]}"
    codec = SERVER_CODECS[JSON_PROTOCOL]
    try:
        frame = codec.decode(deep)
    except WireError:
        assert depth > 100
    else:
        assert isinstance(frame, wire.Submit)


@BOTH
def test_a_lone_surrogate_is_replaced_on_the_way_out(protocol: str) -> None:
    event = wire.Event(session="s", epoch=1, sequence=1, event=events.Text(1, "a\ud800b"))
    back = CLIENT_CODECS[protocol].decode(SERVER_CODECS[protocol].encode(event))
    assert isinstance(back, wire.Event)
    assert back.event == events.Text(1, "a\ufffdb")


def test_what_a_newer_client_says_more_is_ignored() -> None:
    frame = SERVER_CODECS[JSON_PROTOCOL].decode('{"type":"ping","id":1,"mood":"fine"}')
    assert frame == wire.Ping(id=1)
