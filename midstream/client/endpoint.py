"""Where a server is, and how a stream to it is opened. TLS as the URL says (`wss`)."""

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

import msgspec
import trio

from midstream.client.errors import CannotConnect

PATH = "/v1"

OpenStream = Callable[[], Awaitable[trio.abc.Stream]]


class Endpoint(msgspec.Struct, frozen=True):
    """`host` is as the server shall see it (`Host`), `path` is that of the websocket."""

    url: str
    host: str
    path: str
    open_stream: OpenStream


def endpoint_of(url: str, tls: ssl.SSLContext | None = None) -> Endpoint:
    """The endpoint of a URL such as `ws://127.0.0.1:7472` or `wss://host.example/v1`.

    `tls` replaces the usual verification of certificates. Raises `CannotConnect` for what is
    no such URL.
    """
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError as error:
        raise CannotConnect(f"{url} is no URL of a websocket: {error}") from None
    if parts.scheme not in ("ws", "wss") or not name:
        raise CannotConnect(f"{url} is no URL of a websocket; write ws://host:port")
    secure = parts.scheme == "wss"
    shown = f"[{name}]" if ":" in name else name
    host = shown if port is None else f"{shown}:{port}"
    port = port or (443 if secure else 80)
    path = parts.path if parts.path not in ("", "/") else PATH
    if not secure:
        return Endpoint(url, host, path, partial(trio.open_tcp_stream, name, port))
    context = tls or ssl.create_default_context()
    return Endpoint(url, host, path, partial(_open_tls, name, port, context))


async def _open_tls(name: str, port: int, context: ssl.SSLContext) -> trio.abc.Stream:
    stream = await trio.open_ssl_over_tcp_stream(
        name, port, ssl_context=context, https_compatible=True
    )
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream
