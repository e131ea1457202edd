"""Frames of a stream: the bytes as they came, and the events that a reader of events sees."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from midstream.doors.sse_frames import Frame, FrameReader
from midstream.providers.sse import SseEvent, SseReader

PARTS = [
    "data: {}\n\n",
    "event: ping\ndata: {}\n\n",
    "event: odd\ndata:no space\n\n",
    "event:  two spaces\ndata:  two\n\n",
    "data: one\ndata: two\n\n",
    "event: named\n",
    "data: ",
    "data",
    ": comment\n\n",
    "id: 7\n",
    "\ufeff",
    "é",
    "\n",
    "\r",
    "\r\n",
]
streams = st.lists(st.sampled_from(PARTS), max_size=12).map("".join).map(str.encode)


@st.composite
def cut_streams(draw: st.DrawFn) -> list[bytes]:
    data = draw(streams)
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=6).map(sorted))
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


def frames_of(pieces: list[bytes]) -> list[Frame]:
    reader = FrameReader()
    return [*(frame for piece in pieces for frame in reader.feed(piece)), reader.end()]


def events_of(data: bytes) -> list[SseEvent]:
    reader = SseReader()
    events = reader.feed(data)
    last = reader.end()
    return events if last is None else [*events, last]


@given(cut_streams())
def test_frames_are_the_stream_and_hold_its_events_however_it_was_cut(pieces: list[bytes]) -> None:
    frames = frames_of(pieces)
    assert b"".join(frame.raw for frame in frames) == b"".join(pieces)
    events = [frame.event for frame in frames if frame.event is not None]
    assert events == events_of(b"".join(pieces))


@given(cut_streams())
def test_a_frame_is_given_out_with_its_last_byte(pieces: list[bytes]) -> None:
    at_once = FrameReader().feed(b"".join(pieces))
    reader = FrameReader()
    cut = [frame for piece in pieces for frame in reader.feed(piece)]
    assert [f.event for f in cut if f.event] == [f.event for f in at_once if f.event]
