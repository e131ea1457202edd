"""What goes through the gateway, held against every recorded stream."""

from pathlib import Path

import pytest
from gateway_streams import event, responses_stream
from gateway_world import FIXTURES, cut, gateway_rules, needs_fixtures, rule

from midstream.doors.gateway_exchange import Exchange, Phase
from midstream.doors.gateway_protocols import WIRES
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_wire import Wire
from midstream.doors.sse_frames import FrameReader
from midstream.rules.rule import Source

_FOLDERS = {
    "anthropic-messages": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}


def recorded_streams() -> list[tuple[str, Path]]:
    folders = [(path, FIXTURES / folder) for folder, path in _FOLDERS.items()]
    return [
        (p, f)
        for p, folder in folders
        for f in sorted(folder.glob("*"))
        if f.suffix in (".sse", ".jsonl")
    ]


def stream_of(file: Path) -> bytes:
    """The bytes of a recording; those kept as bare chunks get their frames back."""
    data = file.read_bytes()
    if file.suffix == ".sse":
        return data
    if file.suffix == ".jsonl":
        return b"".join(b"data: " + line + b"\n\n" for line in data.splitlines() if line)
    raise AssertionError(f"{file} is not a stream")


def exchange(wire: Wire, rules: GatewayRules, *, streams: bool = True) -> Exchange:
    made = Exchange(wire, rules, {}, streams=streams, recorded={}, turn=1, now_s=0.0)
    made.begin()
    return made


def through(wire: Wire, rules: GatewayRules, pieces: list[bytes]) -> tuple[bytes, Exchange]:
    passing = exchange(wire, rules)
    out = b"".join(passing.feed(piece) for piece in pieces)
    return out + (passing.end() if passing.phase is Phase.STREAMING else b""), passing


@needs_fixtures
@pytest.mark.parametrize("size", [1, 7, 1000, 10**9])
@pytest.mark.parametrize(
    ("path", "file"), recorded_streams(), ids=[f.name for _, f in recorded_streams()]
)
@pytest.mark.parametrize("rules", ["none", "far"])
def test_a_recorded_stream_goes_through_byte_for_byte(
    path: str, file: Path, size: int, rules: str
) -> None:
    data = stream_of(file)
    if size == 1 and len(data) > 20_000:
        size = 3  # what is long takes too long byte by byte
    watched = gateway_rules(rule("THIS NEVER COMES 4711")) if rules == "far" else gateway_rules()
    out, passing = through(WIRES[path], watched, cut(data, size))
    if passing.failure is None:
        assert out == data
    else:  # a stream that broke off: the client is told, behind everything that came
        assert out.startswith(data.rstrip(b"\r\n"))
    assert passing.phase is Phase.OVER


@needs_fixtures
@pytest.mark.parametrize(
    ("path", "file"), recorded_streams(), ids=[f.name for _, f in recorded_streams()]
)
def test_with_no_rule_close_to_matching_nothing_waits(path: str, file: Path) -> None:
    """Each frame goes out with the read that completes it."""
    data = stream_of(file)
    scope = (Source.TEXT, Source.THINKING)
    passing = exchange(WIRES[path], gateway_rules(rule("\x01\x02", scope=scope)))
    sent = b""
    for frame in FrameReader().feed(data):
        out = passing.feed(frame.raw)
        assert out.startswith(frame.raw)
        sent += out
    assert not passing.holding


def test_words_of_a_failing_upstream_do_not_carry_what_is_held() -> None:
    """A `response.failed` repeats the output so far."""
    begun = [p for p in responses_stream("It is SECRET-1") if b".done" not in p][:-1]
    item = {"type": "message", "content": [{"type": "output_text", "text": "It is SECRET-1"}]}
    error = {"code": "server_error", "message": "Broken"}
    failed = {"id": "resp_1", "status": "failed", "output": [item], "error": error}
    last = event({"type": "response.failed", "response": failed, "sequence_number": 99})
    watched = gateway_rules(rule(r"SECRET-\d+ and more"))
    out, passing = through(WIRES["/v1/responses"], watched, [*begun, last])
    assert b"SECRET" not in out
    assert b"Broken" in out
    assert passing.failure is not None
