"""What the three providers that speak HTTP have in common: keys, addresses, `open`.

A provider of this kind is a format (a request body and a decoder) at an address. The key is
taken from the argument or the environment and stays in the headers: it is in no failure, no
repr and no log of ours.
"""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any, TypedDict

import httpx2
import msgspec

from midstream.messages.conversation import ModelRequest
from midstream.messages.errors import ConfigError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.providers.http import HttpUpstream, Timeouts
from midstream.providers.http_connections import Lanes, TransportFactory
from midstream.providers.provider import StreamBatches, refused
from midstream.providers.recording import Tap
from midstream.providers.stream_parser import StreamDecoder


class HttpSettings(TypedDict, total=False):
    """What every HTTP provider can be told.

    `headers` are added to each request and win over those that the provider sets.
    `abort_stops_billing` is for servers of which that is known; by default it is believed of
    the format's own provider and of servers on this machine, and of no other.
    The rest is as in `HttpUpstream` and `Lanes`.
    """

    headers: Mapping[str, str]
    abort_stops_billing: bool
    timeouts: Timeouts
    max_connections: int
    wall_clock: Callable[[], float]
    transport: TransportFactory
    tap: Callable[[], Tap]


class HttpProvider:
    """A provider at `url` that takes `body_of` a request and answers as `decoder` reads.

    `key_variable` is the environment's name for the key, and `key_headers` makes headers of
    one. A server on this machine needs no key.
    """

    def __init__(
        self,
        *,
        name: str,
        format: str,
        url: httpx2.URL,
        official_host: str,
        api_key: str | None,
        key_variable: str,
        key_headers: Callable[[str], Mapping[str, str]],
        body_of: Callable[[ModelRequest], dict[str, Any]],
        decoder: Callable[[], StreamDecoder],
        settings: HttpSettings,
    ) -> None:
        key = _key(api_key, key_variable)
        local = _is_loopback(url.host)
        self.name = name
        self.format = format
        self.abort_stops_billing = settings.get(
            "abort_stops_billing", local or url.host == official_host
        )
        self._url = url
        self._body_of = body_of
        self._decoder = decoder
        self._missing_key = None if key or local else key_variable
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "user-agent": "midstream",
            **(key_headers(key) if key else {}),
            **settings.get("headers", {}),
        }
        self._lanes = Lanes(
            settings.get("max_connections", 100),
            tls=url.scheme == "https",
            transport=settings.get("transport"),
        )
        self._upstream = HttpUpstream(
            self._lanes,
            timeouts=settings.get("timeouts", Timeouts()),
            secrets=[key] if key else [],
            wall_clock=settings.get("wall_clock"),
            tap=settings.get("tap"),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self._url.host}>"

    @asynccontextmanager
    async def open(self, request: ModelRequest) -> AsyncGenerator[StreamBatches]:
        """Start one stream, as `Provider.open` says."""
        if self._missing_key:
            mend = f"set {self._missing_key}, or give api_key"
            yield refused(ProviderFailure(FailureKind.AUTH, f"{self.name} has no key: {mend}"))
            return
        try:
            body = msgspec.json.encode(self._body_of(request))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            message = f"the request cannot be written as JSON: {error}"
            yield refused(ProviderFailure(FailureKind.INVALID_REQUEST, message))
            return
        stream = self._upstream.stream(str(self._url), self._headers, body, self._decoder())
        async with stream as batches:
            yield batches

    async def aclose(self) -> None:
        """Close the idle connections; streams that run go on."""
        await self._lanes.aclose()


def endpoint(base_url: str | None, variable: str, default: str, path: str) -> httpx2.URL:
    """The address of `path` under the base that is given, in the environment, or the default.

    Raises ConfigError for what is no address of a web server.
    """
    where = "base_url" if base_url else variable
    base = (base_url or os.environ.get(variable) or default).strip()
    try:
        url = httpx2.URL(base)
    except httpx2.InvalidURL as error:
        raise ConfigError(where, "", f"{base!r} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(where, "", f"{base!r} is no http URL", f"write it like {default}")
    return url.copy_with(path=url.path.rstrip("/") + path)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _key(given: str | None, variable: str) -> str | None:
    key = (given or os.environ.get(variable) or "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("api_key" if given else variable, "", "has characters no key has")
    return key or None
