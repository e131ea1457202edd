"""The frame meter sees every frame, however its bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.frame_protocol import FrameProtocol, Opcode

from midstream.doors.frame_meter import FrameMeter, TooManyParts
from midstream.doors.token_bucket import TokenBucket

HEAD = b"GET /v1 HTTP/1.1\r\nHost: a\r\n\r\n"

FRAME = st.tuples(
    st.sampled_from([Opcode.TEXT, Opcode.BINARY, Opcode.CONTINUATION]),
    st.integers(0, 130) | st.sampled_from([65_535, 65_536]),
    st.booleans(),
)


def serialized(frames: list[tuple[Opcode, int, bool]], *, masked: bool) -> bytes:
    protocol = FrameProtocol(client=masked, extensions=[])
    return b"".join(
        protocol._serialize_frame(opcode, b"x" * size, fin=fin)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        for opcode, size, fin in frames
    )


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@given(st.lists(FRAME, max_size=8), st.booleans(), st.lists(st.integers(0, 10**6), max_size=12))
@settings(deadline=None, max_examples=80)
def test_every_frame_is_counted_once_however_the_bytes_are_cut(
    frames: list[tuple[Opcode, int, bool]], masked: bool, cuts: list[int]
) -> None:
    data = HEAD + serialized(frames, masked=masked)
    meter = FrameMeter()
    assert sum(meter.feed(piece) for piece in pieces(data, cuts)) == len(frames)


@given(st.binary(max_size=400), st.lists(st.integers(0, 10**6), max_size=6))
@settings(deadline=None)
def test_bytes_of_any_kind_do_no_harm(noise: bytes, cuts: list[int]) -> None:
    meter = FrameMeter()
    for piece in pieces(HEAD + noise, cuts):
        meter.feed(piece)


def test_a_message_without_end_is_noticed_even_if_its_parts_are_empty() -> None:
    meter = FrameMeter(parts_limit=10)
    meter.feed(HEAD)
    part = serialized([(Opcode.CONTINUATION, 0, False)], masked=True)
    ping = serialized([(Opcode.PING, 0, True)], masked=True)
    for _ in range(10):
        meter.feed(part + ping)
    with pytest.raises(TooManyParts):
        meter.feed(part)


def test_a_message_in_few_parts_ends_the_count() -> None:
    meter = FrameMeter(parts_limit=3)
    meter.feed(HEAD)
    for _ in range(20):
        meter.feed(
            serialized([(Opcode.TEXT, 5, False), (Opcode.CONTINUATION, 5, True)], masked=True)
        )


def test_a_bucket_lets_a_burst_through_and_then_so_much_a_second() -> None:
    bucket = TokenBucket(per_s=10, burst=20, now=0.0)
    assert [bucket.take(10, 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert bucket.take(10, 2.0) == 0.0
    assert bucket.take(0, 100.0) == 0.0
    assert bucket.take(30, 100.0) == pytest.approx(1.0)
