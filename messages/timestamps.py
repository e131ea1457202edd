"""Instants as text and as numbers: ISO-8601 UTC with milliseconds and `Z`, milliseconds.

Records hold the text, decisions compare the numbers. Everything that writes a record
writes the one form of `format_timestamp`, in which text order is time order; everything
that reads one goes through `parse_timestamp`, which takes what other programs write and
answers None for what is no instant, so that a bad timestamp is a case and never a NaN
(spec/animator.md B17, 14.11). Nothing here reads a clock.
"""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_EARLIEST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_LATEST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def format_timestamp(ms: int) -> str:
    """Milliseconds since 1970 as `2026-03-01T12:00:00.000Z`.

    What lies outside the years 1 to 9999 becomes the nearest instant inside: a provider
    may ask for an absurd wait, and that must not be an exception.
    """
    clamped_ms = min(max(ms, _EARLIEST_MS), _LATEST_MS)
    instant = _EPOCH + clamped_ms * _MILLISECOND
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: object) -> int | None:
    """Milliseconds since 1970, or None when `text` is no instant.

    Takes any ISO-8601 form of a date with or without a time, in any offset; no offset
    means UTC. Fractions finer than a millisecond are cut.
    """
    if not isinstance(text, str):
        return None
    try:
        instant = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        return None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return (instant - _EPOCH) // _MILLISECOND


def canonical_timestamp(text: str) -> str:
    """The form of `format_timestamp` for any instant; other text stays as it is."""
    ms = parse_timestamp(text)
    return text if ms is None else format_timestamp(ms)


def duration_ms(started_at: str | None, ended_at: str | None) -> int:
    """Milliseconds between two instants: never negative, 0 where one of them is none."""
    start_ms, end_ms = parse_timestamp(started_at), parse_timestamp(ended_at)
    if start_ms is None or end_ms is None:
        return 0
    return max(0, end_ms - start_ms)
