"""The SSE reader against a model of the WHATWG rules, for every way of cutting the bytes."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.errors import StreamFormatError
from midstream.providers.sse import SseEvent, SseReader

Event = tuple[str, str]


def model(stream: bytes, *, flush: bool = True) -> list[Event]:
    """The standard's algorithm on the whole text, plus the event left open at the end."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\n|\r", text)
    last = lines.pop()
    if flush:
        lines += [last, ""] if last else [""]
    events: list[Event] = []
    name, data = "", ""
    for line in lines:
        if line == "":
            if data:
                events.append((name, data[:-1]))
            name, data = "", ""
            continue
        field, colon, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "" and colon:
            continue
        if field == "event":
            name = value
        elif field == "data":
            data += value + "\n"
    return events


def read(pieces: list[bytes]) -> list[Event]:
    reader = SseReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    last = reader.end()
    return [
        (event.name, event.data.decode("utf-8", "replace"))
        for event in [*events, *([last] if last else [])]
    ]


def every_cut(stream: bytes) -> list[list[bytes]]:
    """All cuts into at most three pieces, and the cut into single bytes."""
    ends = range(len(stream) + 1)
    cuts = [[stream[:i], stream[i:j], stream[j:]] for i in ends for j in ends if i <= j]
    return [*cuts, [stream[i : i + 1] for i in range(len(stream))]]


SMALL_STREAMS = {
    "line feeds": b"event: a\ndata: 1\n\ndata: 2\n\n",
    "carriage returns": b"event: a\rdata: 1\r\rdata: 2\r\r",
    "both": b"event: a\r\ndata: 1\r\n\r\ndata:2\r\n\r\n",
    "mixed": b"data: 1\r\n\ndata: 2\r\r\ndata: 3\n\r",
    "byte order mark": b"\xef\xbb\xbfdata: 1\n\n",
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\ndata: 2\n\n",
    "half a byte order mark": b"\xef\xbbdata: 1\n\ndata: 2\n\n",
    "only half a byte order mark": b"\xef\xbb",
    "data of several lines": b"data: a\ndata:\ndata:  b\ndata\n\n",
    "comments": b": hi\n\n:\ndata: 1\n: there\n\n",
    "characters of four bytes": "event: é\ndata: 🙂\n\n".encode(),
    "event after data": b"data: {}\nevent: late\n\n",
    "no final blank line": b"data: 1\n\ndata: 2\n",
    "no final newline": b"data: 1\n\ndata: 2",
    "no data": b"event: lost\n\nid: 3\nretry: 10\n\ndata\n\n",
    "leading space": b" data: 1\n\ndata: 2\n\n",
    "nothing": b"",
    "extra blank lines": b"\n\n\ndata: 1\n\n\n\ndata: 2\n\n\n",
}


@pytest.mark.parametrize("stream", SMALL_STREAMS.values(), ids=SMALL_STREAMS.keys())
def test_every_cut_of_a_small_stream_gives_the_events_of_the_standard(stream: bytes):
    expected = model(stream)
    for pieces in every_cut(stream):
        assert read(pieces) == expected, pieces


FIELDS = [b"data", b"event", b"id", b":", b" ", b"x"]
LINE_ENDS = [b"\r", b"\n", b"\r\n", b"\n\n"]
ODD_BYTES = ["é🙂".encode(), b"\xef\xbb\xbf", b"\xf0", b"\x00", "\u2028\x85\x0b\x0c".encode()]
STREAMS = st.lists(st.sampled_from([*FIELDS, *LINE_ENDS, *ODD_BYTES]), max_size=40).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(stream=STREAMS, cuts=st.lists(st.integers(0, 120), max_size=12))
def test_any_cut_of_any_stream_gives_the_events_of_the_standard(stream: bytes, cuts: list[int]):
    ends = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(ends)]
    assert read(pieces) == model(stream)


def test_an_event_comes_out_with_the_read_that_completed_it():
    reader = SseReader()
    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\ndata: 2\n\ndata: 3") == [SseEvent("", b"1"), SseEvent("", b"2")]
    assert reader.feed(b"\r") == []
    assert reader.feed(b"\r") == [SseEvent("", b"3")]
    assert reader.end() is None


def test_comments_are_counted_as_signs_of_life():
    reader = SseReader()
    assert reader.feed(b": OPENROUTER PROCESSING\n\n: keep-alive\n\n") == []
    assert reader.comments == 2


@pytest.mark.parametrize("line", [b"data: " + b"x" * 200, b"data: x\n" * 40, b":" + b"x" * 200])
def test_an_event_without_end_is_refused_and_not_kept(line: bytes):
    def feed_bytes(reader: SseReader) -> None:
        for i in range(len(line)):
            reader.feed(line[i : i + 1])

    with pytest.raises(StreamFormatError, match="larger than 100 bytes"):
        feed_bytes(SseReader(limit_bytes=100))


def test_any_number_of_small_events_and_comments_passes_the_limit():
    reader = SseReader(limit_bytes=100)
    for _ in range(100):
        assert len(reader.feed(b"data: 1\n\n: still here\n\n")) == 1
