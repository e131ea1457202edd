"""Whatever is said, however it is cut: what breaks a rule never goes out, and what does go out
is a beginning of the first answer, then the whole of a clean one."""

import msgspec
from gateway_streams import STREAMS
from gateway_world import gateway_rules, rule
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.doors.gateway_exchange import Exchange, Phase
from midstream.doors.gateway_protocols import WIRES
from midstream.doors.sse_frames import FrameReader
from midstream.messages.accumulate import Accumulator
from midstream.messages.conversation import TextPart
from midstream.providers.stream_parser import StreamParser
from midstream.rules.rule_set import RuleSet

PATTERNS = ("ab", "a+b", "b$", "^ab", r"\bba\b", "a(?!b)", "aab|bba", "a.b", "c[ab]*c", "(a|b)c")
TEXTS = st.text("abc ", min_size=1, max_size=24)
CUTS = st.lists(st.integers(1, 400), min_size=1, max_size=8)


def text_of(path: str, data: bytes) -> list[str]:
    """The texts that a client reads, block by block; the stream must be valid for it."""
    parser = StreamParser(WIRES[path].decoder())
    accumulator = Accumulator()
    accumulator.feed(parser.feed(data))
    accumulator.feed(parser.end())
    partial = accumulator.snapshot()
    assert partial.failure is None, partial.failure
    return [block.part.text for block in partial.blocks if isinstance(block.part, TextPart)]


def in_cuts(data: bytes, cuts: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    turn = 0
    while data:
        size = cuts[turn % len(cuts)]
        pieces.append(data[:size])
        data, turn = data[size:], turn + 1
    return pieces


@settings(max_examples=250, deadline=None)
@given(
    path=st.sampled_from(sorted(STREAMS)),
    pattern=st.sampled_from(PATTERNS),
    answers=st.lists(TEXTS, min_size=1, max_size=3),
    size=st.integers(1, 5),
    cuts=CUTS,
)
def test_the_client_reads_a_prefix_and_a_clean_continuation(
    path: str, pattern: str, answers: list[str], size: int, cuts: list[int]
) -> None:
    watched = rule(pattern)
    searched = RuleSet([watched]).conditions[0].require_pattern()
    exchange = Exchange(
        WIRES[path], gateway_rules(watched), {}, streams=True, recorded={}, turn=1, now_s=0.0
    )
    out = b""
    for attempt, answer in enumerate([*answers, "c" if not searched.search("c") else " "]):
        exchange.begin()
        before = len(exchange.output)
        stream = STREAMS[path](answer, size=size, message_id=f"m{attempt}")
        for piece in in_cuts(b"".join(stream), cuts):
            if exchange.phase is Phase.STREAMING:
                out += exchange.feed(piece)
        if exchange.phase is Phase.STREAMING:
            out += exchange.end()
        went_out = exchange.output[before:]
        assert answer.startswith(went_out)
        if exchange.phase is Phase.OVER:
            assert went_out == answer
            assert not searched.search(answer)
            break
        assert searched.search(answer)
        closing, body = exchange.retry(1.0)
        assert body is not None
        out += closing
    assert exchange.phase is Phase.OVER
    assert "".join(text_of(path, out)) == exchange.output
    if not set(pattern) & set("$^!\\"):  # those look at where a passage begins or ends
        assert not searched.search(exchange.output)
    check_numbers(path, out)


def check_numbers(path: str, out: bytes) -> None:
    """One beginning, one end, and numbers without a gap."""
    events = [f.event for f in FrameReader().feed(out) if f.event is not None]
    read = [msgspec.json.decode(e.data) for e in events if e.data.startswith(b"{")]
    if path == "/v1/chat/completions":
        assert len({chunk["id"] for chunk in read}) == 1
        reasons = [c["finish_reason"] for chunk in read for c in chunk["choices"]]
        assert [reason for reason in reasons if reason] == ["stop"]
        roles = [c["delta"].get("role") for chunk in read for c in chunk["choices"]]
        assert roles.count("assistant") == 1
        return
    kinds = [event["type"] for event in read]
    if path == "/v1/messages":
        assert kinds.count("message_start") == kinds.count("message_stop") == 1
        assert kinds.count("message_delta") == 1
        started = [event["index"] for event in read if event["type"] == "content_block_start"]
        stopped = [event["index"] for event in read if event["type"] == "content_block_stop"]
        assert started == stopped == list(range(len(started)))
        return
    assert [event["sequence_number"] for event in read] == list(range(len(read)))
    assert kinds.count("response.created") == kinds.count("response.completed") == 1
    added = [e["output_index"] for e in read if e["type"] == "response.output_item.added"]
    done = [e["item"] for e in read if e["type"] == "response.output_item.done"]
    assert added == list(range(len(added)))
    assert read[-1]["response"]["output"] == done
    assert read[-1]["response"]["id"] == read[0]["response"]["id"]
