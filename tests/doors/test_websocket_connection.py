"""The state of a connection: whatever is said, in whatever order, the answer is in order."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.doors.websocket_access import Access
from midstream.doors.websocket_connection import (
    BAD_FRAMES_LIMIT,
    Admit,
    Carry,
    Close,
    Connection,
    Effect,
    Follow,
    Phase,
    Send,
    Unfollow,
)
from midstream.messages import events, wire
from midstream.messages.wire import CloseCode, ErrorCode
from midstream.messages.wire_codec import JSON_PROTOCOL, SERVER_CODECS

WELCOME = wire.Welcome(
    server="srv",
    version="1",
    limits=wire.Limits(message_bytes=1, frames_per_s=1, bytes_per_s=1, subscriptions=2),
)


def connection(token: str | None = None) -> Connection:
    return Connection(Access(token), SERVER_CODECS[JSON_PROTOCOL], WELCOME)


def opened(**hello: Any) -> Connection:
    one = connection()
    assert one.receive(frame("hello", **hello)) == [Admit(), Send(WELCOME)]
    return one


def frame(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


def error_of(effects: list[Effect]) -> wire.Error:
    first = effects[0]
    assert isinstance(first, Send)
    assert isinstance(first.frame, wire.Error)
    return first.frame


def test_nothing_but_hello_opens() -> None:
    one = connection()
    [closed] = one.receive(frame("list", id=1))
    assert closed == Close(CloseCode.POLICY, "the first frame has to be hello")
    assert one.phase is Phase.CLOSED
    assert one.receive(frame("hello")) == []


def test_a_wrong_token_is_answered_and_closed() -> None:
    one = connection(token="s3cret")
    effects = one.receive(frame("hello", token="guess"))
    assert error_of(effects).code is ErrorCode.UNAUTHORIZED
    assert effects[1] == Close(CloseCode.UNAUTHORIZED, "unauthorized")
    assert connection(token="s3cret").receive(frame("hello", token="s3cret"))[0] == Admit()


def test_a_bad_frame_is_answered_under_its_number_where_it_has_one() -> None:
    one = opened()
    error = error_of(one.receive('{"type": "interrupt", "id": 7}'))
    assert (error.code, error.id) == (ErrorCode.BAD_REQUEST, 7)
    assert "session" in error.message
    error = error_of(one.receive("{"))
    assert (error.code, error.id) == (ErrorCode.BAD_FRAME, None)
    assert one.phase is Phase.OPEN


def test_bad_frames_without_end_close() -> None:
    one = opened()
    for _ in range(BAD_FRAMES_LIMIT - 1):
        one.receive("{")
    one.receive(frame("ping", id=1))  # not in a row
    for _ in range(BAD_FRAMES_LIMIT - 1):
        assert len(one.receive("{")) == 1
    assert one.receive("{")[1] == Close(CloseCode.POLICY, "too many messages that are no frames")


def test_binary_in_the_text_protocol_closes() -> None:
    [closed] = opened().receive(b"{}")
    assert isinstance(closed, Close)
    assert closed.code is CloseCode.UNSUPPORTED


def test_a_ping_is_answered_at_once() -> None:
    [answer] = opened().receive(frame("ping", id=3))
    assert answer == Send(wire.Ack(id=3, result=wire.Pong()))


def test_a_session_is_followed_once_and_no_more_than_the_limit() -> None:
    one = opened()
    assert isinstance(one.receive(frame("subscribe", id=1, session="a"))[0], Follow)
    assert error_of(one.receive(frame("subscribe", id=2, session="a"))).code is (
        ErrorCode.BAD_REQUEST
    )
    assert isinstance(one.receive(frame("subscribe", id=3, session="b"))[0], Follow)
    assert error_of(one.receive(frame("subscribe", id=4, session="c"))).code is ErrorCode.TOO_MANY
    submit = {"segments": [{"kind": "text", "content": "x"}]}
    assert error_of(one.receive(frame("submit", id=5, **submit))).code is ErrorCode.TOO_MANY
    assert isinstance(one.receive(frame("submit", id=6, follow=False, **submit))[0], Carry)
    assert isinstance(one.receive(frame("unsubscribe", id=7, session="b"))[0], Unfollow)
    one.stop_following("b")
    assert isinstance(one.receive(frame("subscribe", id=8, session="c"))[0], Follow)


@pytest.mark.parametrize(
    ("event", "only_with_deltas"),
    [
        (events.Text(1, "a"), True),
        (events.Thinking(1, "a"), True),
        (events.ToolUse(1, "c", "t", "{}"), True),
        (events.Retracted(1, "rule"), True),
        (events.ToolWanted(1, "c", "t", "{}"), False),
        (events.AttemptStarted(1), False),
    ],
)
def test_who_cannot_take_back_gets_nothing_that_may_be_retracted(
    event: events.AnyEvent, only_with_deltas: bool
) -> None:
    shown = wire.Event(session="a", epoch=1, sequence=1, event=event)
    assert opened(capabilities=["deltas", "levitation"]).shows(shown)
    assert opened().shows(shown) is not only_with_deltas


FIELDS = st.dictionaries(
    st.sampled_from(["id", "session", "segments", "after", "token", "call_id", "content", "limit"]),
    st.one_of(st.integers(), st.text(max_size=5), st.none(), st.just([{"kind": "text"}])),
)
WORDS = "hello submit interrupt cancel subscribe unsubscribe tool_result list status ping event ?"
KINDS = st.sampled_from(WORDS.split())


@given(st.lists(st.tuples(KINDS, FIELDS) | st.text(max_size=20) | st.binary(max_size=20)))
@settings(deadline=None)
def test_whatever_comes_is_answered_in_order_and_raises_nothing(
    messages: list[tuple[str, dict[str, Any]] | str | bytes],
) -> None:
    one = connection(token="s3cret")
    open_seen = False
    for message in messages:
        said = frame(message[0], **message[1]) if isinstance(message, tuple) else message
        was = one.phase
        effects = one.receive(said)
        assert effects or was is Phase.CLOSED
        open_seen = open_seen or Admit() in effects
        carried = [e for e in effects if isinstance(e, Carry | Follow | Unfollow)]
        assert open_seen or not carried
        closes = [e for e in effects if isinstance(e, Close)]
        assert closes == effects[-1:] or not closes
        assert (one.phase is Phase.CLOSED) == bool(closes or was is Phase.CLOSED)
