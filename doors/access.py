"""The gate in front of every HTTP route of a host: who may come in.

With a token, whoever brings it. Without one the host listens on this machine only, and what
a web page could do there through its visitor's browser is kept out: a name that points here
(DNS rebinding) by the Host header, a page of another origin by the Origin header, and a form
by the content type. Nothing is said about whether a token was close. Websockets have a door and
a gate of their own.
"""

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from midstream.messages.errors import ConfigError

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Gate:
    """See the module. `token` is None for a host that listens on the loopback interface."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            refused = self._refusal(request)
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> JSONResponse | None:
        if self._token is not None:
            if not _carries(request, self._token):
                challenge = {"www-authenticate": "Bearer"}
                return _refused(401, "a token is needed: Authorization: Bearer ...", challenge)
        elif not is_loopback(_host_of(request.headers.get("host", ""))):
            return _refused(403, "this host is only known as localhost")
        if not _is_own_origin(request):
            return _refused(403, "pages of other origins may not ask here")
        if request.method not in _SAFE_METHODS and not _is_json(request):
            return _refused(415, "the content type must be application/json")
        return None


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def require_token_unless_loopback(host: str, token: str | None, token_env: str) -> None:
    """Raises ConfigError for a host that the network can reach and anybody may use."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            "configuration",
            "http.host",
            f"{host} can be reached from the network, and there is no token",
            f"set the environment variable {token_env}, or listen on 127.0.0.1",
        )


def _carries(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode("utf-8", "replace"), token.encode()
    )


def _is_own_origin(request: Request) -> bool:
    """Programs send no Origin; a browser sends that of the page."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


def _is_json(request: Request) -> bool:
    content_type = request.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower() == "application/json"


def _host_of(header: str) -> str:
    return urlsplit(f"//{header}").hostname or ""


def _refused(status: int, problem: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": problem}, status, headers)
