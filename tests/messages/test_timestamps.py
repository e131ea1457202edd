"""Timestamps: one way to write them, many to read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.timestamps import (
    canonical_timestamp,
    duration_ms,
    format_timestamp,
    parse_timestamp,
)

NOON_MS = 1_772_366_400_000
"""2026-03-01T12:00:00Z."""

YEAR_1_MS = -62_135_596_800_000
YEAR_9999_MS = 253_402_300_799_999


def test_an_instant_is_written_in_utc_with_milliseconds_and_z() -> None:
    assert format_timestamp(NOON_MS) == "2026-03-01T12:00:00.000Z"
    assert format_timestamp(NOON_MS + 7) == "2026-03-01T12:00:00.007Z"
    assert format_timestamp(-1) == "1969-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00.000Z",
        "2026-03-01T12:00:00Z",
        "2026-03-01T12:00Z",
        "2026-03-01 12:00:00",
        "2026-03-01t12:00:00z",
        "2026-03-01T14:00:00+02:00",
        "2026-03-01T14:00:00.000+0200",
        "2026-03-01T07:00:00-05:00",
        "  2026-03-01T12:00:00.000999Z\n",
        "20260301T120000Z",
    ],
)
def test_every_iso_form_of_an_instant_is_read(text: str) -> None:
    assert parse_timestamp(text) == NOON_MS
    assert canonical_timestamp(text) == "2026-03-01T12:00:00.000Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "NaN",
        "2026-02-30T00:00:00Z",
        "2026-03-01T25:00:00Z",
        "Infinity",
        "12",
        None,
        3.5,
    ],
)
def test_what_is_no_instant_is_none_and_never_an_error(text: object) -> None:
    assert parse_timestamp(text) is None


def test_a_canonical_form_of_no_instant_is_the_text_itself() -> None:
    assert canonical_timestamp("yesterday") == "yesterday"


def test_an_instant_that_no_calendar_has_is_clamped() -> None:
    assert format_timestamp(10**30) == "9999-12-31T23:59:59.999Z"
    assert format_timestamp(-(10**30)) == "0001-01-01T00:00:00.000Z"


def test_an_offset_at_the_edge_of_the_calendar_is_read() -> None:
    assert parse_timestamp("0001-01-01T00:00:00+14:00") == YEAR_1_MS - 14 * 3_600_000


def test_a_duration_is_never_negative_and_never_missing() -> None:
    assert duration_ms("2026-03-01T12:00:00Z", "2026-03-01T12:00:01.500Z") == 1_500
    assert duration_ms("2026-03-01T12:00:01Z", "2026-03-01T12:00:00Z") == 0
    assert duration_ms("2026-03-01T12:00:00+02:00", "2026-03-01T10:00:01Z") == 1_000
    assert duration_ms("nonsense", "2026-03-01T12:00:00Z") == 0
    assert duration_ms("2026-03-01T12:00:00Z", None) == 0


@given(st.integers(YEAR_1_MS, YEAR_9999_MS))
@settings(deadline=None)
def test_writing_and_reading_an_instant_loses_nothing(ms: int) -> None:
    assert parse_timestamp(format_timestamp(ms)) == ms


@given(st.integers(YEAR_1_MS, YEAR_9999_MS), st.integers(YEAR_1_MS, YEAR_9999_MS))
@settings(deadline=None)
def test_text_order_is_time_order(left: int, right: int) -> None:
    assert (format_timestamp(left) < format_timestamp(right)) == (left < right)


@given(st.text(max_size=40))
@settings(deadline=None)
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert parse_timestamp(text) is None or isinstance(parse_timestamp(text), int)
