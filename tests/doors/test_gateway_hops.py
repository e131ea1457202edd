"""Hops in one message, as the pure state machine frames them: any texts, cuts and failures."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from gateway_streams import STREAMS
from gateway_world import cut, gateway_rules, rule
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.doors.gateway_exchange import Exchange, Phase
from midstream.doors.gateway_protocols import WIRES
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.follow_up import follow_up_body
from midstream.providers.sse import SseReader

paths = pytest.mark.parametrize("path", STREAMS)
LOST = ProviderFailure(FailureKind.NETWORK, "it broke")
texts = st.lists(st.text("abc é€\n", min_size=1, max_size=12), min_size=1, max_size=4)
sizes = st.integers(1, 300)


def exchange_of(path: str, *, streams: bool, watched: bool) -> Exchange:
    key = "input" if path.endswith("responses") else "messages"
    return Exchange(
        WIRES[path],
        gateway_rules(*([rule("never said")] if watched else [])),
        {"model": "m", key: [{"role": "user", "content": "go"}]},
        streams=streams,
        recorded={},
        turn=1,
        now_s=0.0,
        may_continue=True,
    )


def read(exchange: Exchange, pieces: Iterable[bytes], *, to_the_end: bool = True) -> bytes:
    """One attempt, as its driver reads it."""
    exchange.begin()
    out = b"".join(exchange.feed(piece) for piece in pieces)
    return out + exchange.end() if to_the_end else out


def events(data: bytes) -> list[Any]:
    found = SseReader().feed(data)
    return [msgspec.json.decode(one.data) for one in found if one.data != b"[DONE]"]


def said(path: str, said_events: list[Any]) -> list[str]:
    """The texts of a message, one for each of its parts; raises where its framing is wrong."""
    if path == "/v1/messages":
        return _anthropic(said_events)
    return _chat(said_events) if path.endswith("completions") else _responses(said_events)


def _anthropic(said_events: list[Any]) -> list[str]:
    kinds = [one["type"] for one in said_events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert (kinds.count("message_start"), kinds.count("message_stop")) == (1, 1)
    blocks: list[str] = []
    is_open = False
    for one in said_events:
        if one["type"] == "content_block_start":
            assert not is_open
            assert one["index"] == len(blocks)
            blocks.append("")
            is_open = True
        elif one["type"] == "content_block_delta":
            assert is_open
            assert one["index"] == len(blocks) - 1
            blocks[-1] += one["delta"]["text"]
        elif one["type"] == "content_block_stop":
            is_open = False
    assert not is_open
    return blocks


def _chat(said_events: list[Any]) -> list[str]:
    choices = [choice for one in said_events for choice in one["choices"]]
    reasons = [choice["finish_reason"] for choice in choices]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert len({one["id"] for one in said_events}) == 1
    assert sum("role" in choice["delta"] for choice in choices) == 1
    assert sum(bool(one.get("usage")) for one in said_events) <= 1
    return ["".join(choice["delta"].get("content") or "" for choice in choices)]


def _responses(said_events: list[Any]) -> list[str]:
    assert [one["sequence_number"] for one in said_events] == list(range(len(said_events)))
    kinds = [one["type"] for one in said_events]
    assert (kinds.count("response.created"), kinds.count("response.completed")) == (1, 1)
    assert kinds[-1] == "response.completed"
    last = said_events[-1]["response"]
    assert last["id"] == said_events[0]["response"]["id"]
    done = [one for one in said_events if one["type"] == "response.output_item.done"]
    assert [one["output_index"] for one in done] == list(range(len(done)))
    assert [one["item"] for one in done] == last["output"]
    assert len({item["id"] for item in last["output"]}) == len(done)
    return ["".join(part["text"] for part in item["content"]) for item in last["output"]]


def joined(path: str, parts: list[str]) -> list[str]:
    return ["\n\n".join(parts)] if path.endswith("completions") else parts


def output_tokens(path: str, said_events: list[Any]) -> int:
    for one in reversed(said_events):
        usage = one.get("usage") or one.get("response", {}).get("usage")
        if usage:
            return usage.get("output_tokens") or usage.get("completion_tokens")
    raise AssertionError("no usage")


@paths
@given(replies=texts, size=sizes, streams=st.booleans(), watched=st.booleans())
@settings(max_examples=40, deadline=None)
def test_hops_are_one_well_framed_message(
    path: str, replies: list[str], size: int, streams: bool, watched: bool
) -> None:
    exchange = exchange_of(path, streams=streams, watched=watched)
    out = b""
    for number, reply in enumerate(replies):
        stream = b"".join(STREAMS[path](reply, message_id=f"id_{number}"))
        out += read(exchange, cut(stream, size))
        assert exchange.phase is Phase.COMPLETE
        if number == len(replies) - 1:
            out += exchange.conclude()
            break
        document = exchange.reply()
        assert document is not None
        body = follow_up_body(exchange.request, document, "go on", stream=True)
        assert body is not None
        closing, _ = exchange.follow_up(body)
        out += closing
    assert said(path, events(out)) == joined(path, replies)
    assert output_tokens(path, events(out)) == 7 * len(replies)
    assert exchange.usage.output_tokens == 7 * len(replies)


@paths
@given(reply=st.text("ab", min_size=1, max_size=9), size=sizes, at=st.integers(0, 2_000))
@settings(max_examples=60, deadline=None)
def test_a_follow_up_that_breaks_anywhere_leaves_a_message_with_an_end(
    path: str, reply: str, size: int, at: int
) -> None:
    exchange = exchange_of(path, streams=True, watched=False)
    out = read(exchange, cut(b"".join(STREAMS[path](reply, message_id="id_0")), size))
    document = exchange.reply()
    assert document is not None
    body = follow_up_body(exchange.request, document, "go on", stream=True)
    assert body is not None
    closing, _ = exchange.follow_up(body)
    out += closing
    stream = b"".join(STREAMS[path]("and more", message_id="id_1"))
    out += read(exchange, cut(stream[:at], size), to_the_end=False)
    if exchange.phase is Phase.STREAMING:
        out += exchange.fail(LOST)
    out += exchange.conclude() if exchange.phase is Phase.COMPLETE else exchange.keep_last()
    assert exchange.phase is Phase.OVER
    assert exchange.failure is None
    parts = said(path, events(out))
    assert parts[0].startswith(reply)
    assert "and more".startswith("".join(parts)[len(reply) :].strip())


@paths
def test_a_follow_up_is_asked_again_while_nothing_of_it_went_out(path: str) -> None:
    exchange = exchange_of(path, streams=True, watched=False)
    out = read(exchange, STREAMS[path]("One.", message_id="id_0"))
    document = exchange.reply()
    assert document is not None
    body = follow_up_body(exchange.request, document, "go on", stream=True)
    assert body is not None
    closing, request = exchange.follow_up(body)
    out += closing
    exchange.begin()
    assert exchange.fail(LOST) == b""
    assert (exchange.phase, exchange.lost, exchange.has_sent) == (Phase.LOST, LOST, False)
    closing, again = exchange.again()
    assert again == request
    out += closing + read(exchange, STREAMS[path]("Two.", message_id="id_2"))
    out += exchange.conclude()
    assert said(path, events(out)) == joined(path, ["One.", "Two."])
