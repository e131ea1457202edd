"""Blocks of events: from any number on, exactly what was said behind it."""

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.event_log import Block, block_behind, block_of, events_of, joined
from midstream.messages.events import (
    AnyEvent,
    AttemptStarted,
    Retracted,
    SessionEvent,
    Text,
    Thinking,
)

EVENTS = st.lists(
    st.one_of(
        st.builds(Text, st.integers(1, 2), st.text(max_size=3)),
        st.builds(Thinking, st.integers(1, 2), st.text(max_size=3)),
        st.builds(AttemptStarted, st.integers(1, 2)),
        st.builds(Retracted, st.integers(1, 2), st.just("rule")),
    ),
    min_size=1,
    max_size=30,
)


def numbered(events: Sequence[AnyEvent], first: int = 1) -> list[SessionEvent]:
    return [SessionEvent("ses", number, event) for number, event in enumerate(events, first)]


def said(events: Sequence[SessionEvent]) -> list[AnyEvent]:
    """What a client has in the end: joined as far as it can be."""
    return [event.event for event in joined(events)]


@given(EVENTS, st.integers(1, 100), st.integers(0, 140))
@settings(deadline=None)
def test_a_block_gives_exactly_what_was_said_behind_any_number(
    events: list[AnyEvent], first: int, after: int
) -> None:
    all_events = numbered(events, first)
    kept = msgspec.json.decode(msgspec.json.encode(block_of(all_events)), type=Block)
    assert (kept.first, kept.last) == (first, first + len(events) - 1)
    rest = block_behind(kept, after)
    behind = [event for event in all_events if event.sequence > after]
    if rest is None:
        assert not behind
        return
    assert (rest.first, rest.last) == (behind[0].sequence, behind[-1].sequence)
    given_out = list(events_of("ses", rest))
    assert said(given_out) == said(behind)
    numbers = [event.sequence for event in given_out]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == behind[-1].sequence


@given(EVENTS, st.lists(st.integers(0, 31), max_size=4))
@settings(deadline=None)
def test_however_often_a_block_is_cut_the_pieces_are_the_whole(
    events: list[AnyEvent], places: list[int]
) -> None:
    block: Block | None = block_of(numbered(events))
    for place in sorted(places):
        block = block_behind(block, place) if block is not None else None
    behind = numbered(events)[max(places, default=0) :]
    rest = [] if block is None else list(events_of("ses", block))
    assert said(rest) == said(behind)


def test_deltas_of_one_attempt_are_one_run_and_others_are_not() -> None:
    block = block_of(numbered([Text(1, "a"), Text(1, "bc"), Thinking(1, "d"), Text(2, "e")]))
    assert [run.event for run in block.runs] == [Text(1, "abc"), Thinking(1, "d"), Text(2, "e")]
    assert [run.cuts for run in block.runs] == [(1,), (), ()]
