"""The reader of JSON lines: any cut, any rubbish, no line lost."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.providers.ndjson import NdjsonReader, parse_line

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
objects = st.dictionaries(texts, st.one_of(texts, st.integers(-99, 99), st.none()), max_size=3)
noise = st.sampled_from(
    [b"", b"  ", b"\r", b"not json", b"[1]", b'"text"', b"{", b"3", b"\xff\xfe"]
)
lines = st.lists(st.one_of(objects, noise), max_size=8)


def read(data: bytes, cuts: list[int]) -> list[dict[str, Any]]:
    reader = NdjsonReader()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found: list[dict[str, Any]] = []
    for start, end in pairwise(edges):
        found += reader.feed(data[start:end])
    return found + reader.end()


@given(lines, st.lists(st.integers(0, 500), max_size=12), st.booleans())
@settings(deadline=None, max_examples=150)
def test_every_way_of_cutting_the_bytes_gives_the_same_objects(
    said: list[dict[str, Any] | bytes], cuts: list[int], final_newline: bool
):
    encoded = [
        line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
        for line in said
    ]
    data = b"\n".join(encoded) + (b"\n" if final_newline else b"")
    assert read(data, cuts) == [line for line in said if isinstance(line, dict)]


def test_b14_a_character_split_between_two_reads_is_read_whole():
    data = '{"text":"Grüße 🎈"}\n'.encode()
    for cut in range(len(data)):
        reader = NdjsonReader()
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == [{"text": "Grüße 🎈"}]
        assert reader.skipped == 0


def test_b14_a_last_line_without_its_line_feed_is_given_out_at_the_end():
    reader = NdjsonReader()
    assert reader.feed(b'{"a":1}\n{"b":2}') == [{"a": 1}]
    assert reader.end() == [{"b": 2}]


def test_what_is_no_object_is_skipped_and_counted():
    reader = NdjsonReader()
    data = b'\n  \nwarning: low disk\n[1,2]\n{"type":"x"}\r\nnull\n{"cut":'
    assert reader.feed(data) == [{"type": "x"}]
    assert reader.end() == []
    assert reader.skipped == 4


def test_a_line_over_the_limit_is_dropped_and_the_next_is_read():
    reader = NdjsonReader(limit_bytes=20)
    assert reader.feed(b'{"big":"' + b"x" * 15) == []
    assert reader.feed(b"x" * 1000) == []
    assert reader.feed(b'"}\n{"a":1}\n') == [{"a": 1}]
    assert (reader.oversized, reader.skipped) == (1, 0)


def test_memory_is_bounded_while_an_endless_line_arrives():
    reader = NdjsonReader(limit_bytes=100)
    for _ in range(50):
        reader.feed(b"x" * 60)
    assert sum(map(len, reader._partial)) <= 100  # pyright: ignore[reportPrivateUsage]  # the bound is on what is held


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (rb'{"t":"\ud83d"}', {"t": "\ufffd"}),
        (rb'{"t":"\ud83d\ude00","\udc00":1}', {"t": "😀", "\ufffd": 1}),
        (b'{"t":"\xff"}', {"t": "\ufffd"}),
        (b'{"t":NaN}', None),
        (b'{"a":' * 100_000, None),
        (b"[" * 100_000, None),
    ],
)
def test_text_that_no_store_would_take_is_mended(line: bytes, found: object):
    assert parse_line(line) == found


def test_every_recorded_line_is_an_object(recordings: Path):
    paths = [*recordings.glob("claude-code-ndjson/*"), *recordings.glob("agent-cli-output/*")]
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert read(data, [1, 17, 333]) == [json.loads(line) for line in data.splitlines()]
