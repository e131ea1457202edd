"""Who may come in: tokens, names, origins."""

import pytest

from midstream.doors.websocket_access import Access, access_for, is_loopback
from midstream.messages.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("localhost:7472", None, True),
        ("127.0.0.1:7472", None, True),
        ("[::1]:7472", None, True),
        ("192.168.1.7:7472", None, True),  # an address cannot be made to point elsewhere
        ("app.example", None, True),
        ("APP.example:443", None, True),
        ("evil.example:7472", None, False),
        ("localhost.evil.example", None, False),
        ("", None, False),
        (None, None, False),
        ("[::1", None, False),
        ("localhost:7472", "http://localhost:7472", True),
        ("app.example", "https://app.example", True),
        ("app.example", "https://app.example:443", True),
        ("app.example:8443", "https://app.example:8443", True),
        ("app.example:8443", "https://app.example", False),
        ("localhost:7472", "http://localhost:3000", False),
        ("localhost:7472", "https://ide.example", True),
        ("localhost:7472", "https://ide.example.evil.example", False),
        ("localhost:7472", "http://evil.example", False),
        ("localhost:7472", "null", False),
        ("localhost:7472", "", False),
        ("localhost:7472", "file://", False),
        ("localhost:7472", "http://[", False),
        ("localhost:7472", "http://localhost:7472, http://evil.example", False),
    ],
)
def test_only_our_names_and_known_origins_come_in(
    host: str | None, origin: str | None, allowed: bool
) -> None:
    access = Access(hosts=("app.example",), origins=("https://ide.example",))
    assert (access.objection(host, origin) is None) is allowed


@pytest.mark.parametrize(
    "token", [None, "", "s3cret ", "S3cret", "s3cre", "é", "\ud800", "x" * 9_999]
)
def test_a_wrong_token_does_not_open(token: str | None) -> None:
    assert Access("s3cret").admits("s3cret")
    assert not Access("s3cret").admits(token)


def test_without_a_token_anybody_is_admitted() -> None:
    assert Access().admits(None)
    assert Access().admits("whatever")


@pytest.mark.parametrize(
    "bind", ["0.0.0.0", "::", "192.168.1.7", "host.example", "example.localhost.evil"]
)
def test_a_door_to_the_network_needs_a_token(bind: str) -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        access_for(bind)
    assert access_for(bind, token="s3cret").token == "s3cret"


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "a.localhost"])
def test_a_door_to_this_machine_needs_none(bind: str) -> None:
    assert is_loopback(bind)
    assert access_for(bind).token is None
