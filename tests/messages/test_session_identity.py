"""Which session a request belongs to, and under which key its state is kept."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.session_identity import SessionIdentity, identify_session
from midstream.messages.wire_body import as_object

FIXTURES = Path(
    os.environ.get("MIDSTREAM_FIXTURES", Path(__file__).parents[3] / "shared" / "fixtures")
)
UUID = "0a1b2c3d-0000-4000-8000-00000000000f"


def session_of(
    headers: dict[str, str] | None = None, body: dict[str, Any] | None = None, **metadata: Any
) -> str | None:
    found = identify_session(headers or {}, body or {}, metadata)
    return found.session_id if found else None


def test_the_host_comes_before_headers_and_headers_before_the_user_id():
    headers = {"x-session-id": "from-header"}
    body = {"metadata": {"user_id": f"user_1_session_{UUID}"}}
    assert session_of(headers, body, sessionId="from-host") == "from-host"
    assert session_of(headers, body) == "from-header"
    assert session_of({}, body) == UUID
    assert session_of(headers, {"metadata": {"sessionId": "from-body"}}) == "from-body"


@pytest.mark.parametrize(
    "name",
    [
        "session_id",
        "Session-Id",
        "X-Session-ID",
        "anthropic_session_id",
        " x_session-id ",
        "X-Claude-Code-Session-Id",
        "sessionId",
    ],
)
def test_session_headers_are_compared_without_case_and_separators(name: str):
    assert session_of({name: " abc "}) == "abc"


@pytest.mark.parametrize(
    "name",
    [
        "conversation_id",
        "X-Conversation-Id",
        "anthropic-conversation-id",
        "thread-id",
        "OpenAI-Conversation-ID",
    ],
)
def test_a_missing_one_of_the_pair_mirrors_the_other(name: str):
    assert identify_session({name: "c"}, {}) == SessionIdentity("c", "c")
    assert identify_session({"session-id": "s"}, {}) == SessionIdentity("s", "s")
    assert identify_session({"session-id": "s", name: "c"}, {}) == SessionIdentity("s", "c")


@pytest.mark.parametrize(
    ("user_id", "expected"),
    [
        (f"user_00ff_account__session_{UUID}", UUID),
        (f"SESSION:{UUID.upper()}", UUID.upper()),
        ("session-0123abcd", "0123abcd"),
        ("session 0123abcd", "0123abcd"),
        ("session0123abcd", "0123abcd"),
        (f"session_{UUID}-1111-22", f"{UUID}-1111"),
        ("session_0123abc", None),
        ("session__0123abcd", None),
        ("user_0123abcd", None),
        (json.dumps({"device_id": "d", "session_id": UUID}), UUID),
        ('{"session_id": ', None),
        ("[" * 5000, None),
        (7, None),
    ],
)
def test_the_session_within_the_user_id(user_id: Any, expected: str | None):
    assert session_of({}, {"metadata": {"user_id": user_id}}) == expected


def test_a_cache_key_counts_only_when_a_client_generated_it():
    assert session_of({}, {"prompt_cache_key": UUID}) == UUID
    assert session_of({}, {"prompt_cache_key": "ses_00000000000000000000000000"}) is not None
    assert session_of({}, {"prompt_cache_key": "my-app"}) is None


def test_nothing_named_is_nobodys_session():
    assert identify_session({}, {}) is None
    assert identify_session({"session-id": "  "}, {"metadata": {"sessionId": 5}}) is None
    assert identify_session({}, {"metadata": "x"}) is None


def test_g11_an_id_quoted_in_the_conversation_is_not_looked_for():
    text = f'see session_{UUID} and {{"session_id": "{UUID}"}}'
    body = {
        "messages": [{"role": "user", "content": text, "session_id": UUID}],
        "input": text,
        "system": text,
        "tools": [{"metadata": {"sessionId": UUID}}],
        "metadata": {"note": text},
    }
    assert identify_session({}, body) is None


def test_g11_different_ids_never_share_a_key():
    keys = {
        SessionIdentity(session_id, "c").state_key
        for session_id in ("a/b", "a_b", "a:b", "a b", "A_b", "x" * 65, "x" * 66, "会话", "对话")
    }
    assert len(keys) == 9
    assert SessionIdentity("ses.A-1_b", "c").state_key.startswith("session-ses.A-1_b-")


@settings(deadline=None)
@given(st.text(min_size=1), st.text(min_size=1))
def test_g11_a_key_is_a_safe_file_name_and_as_different_as_the_ids(one: str, other: str):
    keys = [SessionIdentity(session_id, "c").state_key for session_id in (one, other)]
    for key in keys:
        assert len(key) < 100
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    assert (keys[0] == keys[1]) == (one == other)


def test_recorded_requests_of_real_clients_are_recognised():
    folder = FIXTURES / "client-requests"
    if not folder.is_dir():
        pytest.skip(f"no recorded client requests at {folder}")
    anonymous: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        for request in json.loads(path.read_text("utf-8")):
            body = as_object(request.get("body"))
            if body is not None and identify_session(dict(request["headers"]), body) is None:
                anonymous.add(path.stem)
    assert anonymous <= {"omp-chat", "pi-chat", "pi-messages", "python-sdks"}
