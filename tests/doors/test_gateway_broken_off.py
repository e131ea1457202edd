"""An upstream that breaks off at any byte: what the client reads are whole events all the same,
and an error behind them unless the message was complete."""

import msgspec
import pytest
from gateway_streams import STREAMS
from gateway_world import gateway_rules, rule

from midstream.doors.gateway_exchange import Exchange, Phase
from midstream.doors.gateway_protocols import WIRES
from midstream.providers.sse import SseEvent, SseReader

NO_FOO = gateway_rules(rule("foo"))


def read(data: bytes) -> list[SseEvent]:
    """What a client that keeps to the standard reads: an event needs its blank line."""
    return SseReader().feed(data)


def is_error(event: SseEvent) -> bool:
    if event.data == b"[DONE]":
        return False
    said = msgspec.json.decode(event.data)
    return said.get("type") in ("error", "response.failed") or "error" in said


def beginning(path: str, *, is_cut: bool, is_watched: bool) -> tuple[Exchange, bytes]:
    """An exchange in its first attempt, or in the one behind a cut."""
    rules = NO_FOO if is_watched else gateway_rules()
    exchange = Exchange(WIRES[path], rules, {}, streams=True, recorded={}, turn=1, now_s=0.0)
    exchange.begin()
    if not is_cut:
        return exchange, b""
    out = exchange.feed(b"".join(STREAMS[path]("well, foo")))
    assert exchange.phase is not Phase.STREAMING
    closing, body = exchange.retry(1.0)
    assert body is not None
    exchange.begin()
    return exchange, out + closing


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize(
    ("is_cut", "is_watched"), [(False, False), (False, True), (True, True)], ids=str
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_wherever_it_breaks_off_the_client_reads_whole_events_and_an_error(
    path: str, line_end: bytes, *, is_cut: bool, is_watched: bool
) -> None:
    whole = b"".join(STREAMS[path]("a bar")).replace(b"\n", line_end)
    for at in range(len(whole)):
        exchange, out = beginning(path, is_cut=is_cut, is_watched=is_watched)
        out += exchange.feed(whole[:at]) + exchange.end()
        events = read(out)
        for event in events:
            assert event.data == b"[DONE]" or msgspec.json.decode(event.data), (at, out)
        ends_well = not events or not is_error(events[-1])
        assert ends_well == (exchange.failure is None), (at, out)
