"""Who may come in at a gateway that listens on this machine only.

A gateway may hold a key, and any web page that its user visits can send requests to this
machine. So a name that points here (DNS rebinding) is refused by the Host header, and a page
of another place by the Origin header. Programs send no Origin; those that are built of web
pages, such as editors, send one with a scheme of their own, which no web page has.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from midstream.doors.access import is_loopback
from midstream.doors.gateway_client import Client


class LocalOnly:
    """See the module. `hosts` are further names by which clients reach this machine."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            client = Client(scope, receive, send)
            problem = self._problem(client.header(b"host"), client.header(b"origin"))
            if problem is not None:
                error = {"type": "permission_error", "message": problem}
                body = msgspec.json.encode({"type": "error", "error": error})
                await client.answer(403, body, b"application/json")
                return
        await self._app(scope, receive, send)

    def _problem(self, host: str, origin: str) -> str | None:
        if not self._is_own(f"//{host}"):
            return (
                f"this gateway is not known as {host or 'nothing'}; ask for localhost, or name "
                "it in gateway.hosts"
            )
        if origin.startswith(("http:", "https:")) and not self._is_own(origin):
            return f"pages of {origin} may not ask here; name its host in gateway.hosts"
        return None

    def _is_own(self, place: str) -> bool:
        try:
            name = (urlsplit(place).hostname or "").lower()
        except ValueError:
            return False
        return name in self._hosts or is_loopback(name)
