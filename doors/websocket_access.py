"""Who may come in by the websocket: tokens, and the `Host` and `Origin` of the handshake. Pure.

A door that is bound to loopback alone needs no token; any other does. But loopback is no
protection from the user's own browser: a page from anywhere may open a connection to
`localhost`, and a name of its own may lead there (DNS rebinding). So the `Host` has to be an
address or a name that is ours, and the `Origin`, which browsers send and other programs do
not, has to be the same host or one that is allowed (RFC 6455, section 10.2).
"""

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from midstream.messages.errors import ConfigError

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Access(msgspec.Struct, frozen=True):
    """The rules of one door. `hosts` are names, `origins` are like `https://app.example`."""

    token: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def admits(self, token: str | None) -> bool:
        """Whether this token opens the door. A wrong one takes as long as the right one."""
        if self.token is None:
            return True
        given = (token or "").encode("utf-8", "surrogatepass")
        return hmac.compare_digest(given, self.token.encode())

    def objection(self, host: str | None, origin: str | None) -> str | None:
        """Why a request with these headers may not come in; None if it may."""
        if host is None or not self._is_ours(host):
            return "the Host is none of this server's names; add it to `hosts`"
        if origin is None or origin in self.origins or _is_same(origin, host):
            return None
        return "pages of this Origin may not connect; add it to `origins`"

    def _is_ours(self, host: str) -> bool:
        name = _hostname(host)
        return name is not None and (
            _is_address(name) or _is_local_name(name) or name in map(str.lower, self.hosts)
        )


def access_for(
    bind: str,
    *,
    token: str | None = None,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
) -> Access:
    """The rules of a door that is bound to the address or name `bind`.

    Raises `ConfigError` if everybody could come in from the network.
    """
    if token is None and not is_loopback(bind):
        problem = f"is not set, and {bind} can be reached from other machines"
        mend = "name the environment variable that holds the token, or bind to 127.0.0.1"
        raise ConfigError("configuration", "websocket.token_env", problem, mend)
    own = () if _is_address(bind) else (bind.lower(),)
    return Access(token, (*own, *hosts), origins)


def is_loopback(bind: str) -> bool:
    """Whether only this machine reaches what is bound to `bind`."""
    return _is_local_name(bind) or (_is_address(bind) and ip_address(bind).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_local_name(name: str) -> bool:
    """RFC 6761, section 6.3."""
    name = name.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def _hostname(host: str) -> str | None:
    """The name in a `Host` header, without brackets and port; None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of this origin came from the host that it connects to."""
    try:
        page, ours = urlsplit(origin), urlsplit(f"{urlsplit(origin).scheme}://{host}")
        default = _DEFAULT_PORTS.get(page.scheme)
        return (
            default is not None
            and page.hostname is not None
            and page.hostname == ours.hostname
            and (page.port or default) == (ours.port or default)
        )
    except ValueError:
        return False
