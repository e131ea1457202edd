"""Opens the websocket door of a runtime, as its configuration says (`[websocket]`).

    async with open_runtime() as runtime, open_websocket(runtime) as door:
        print("listening at", *door.urls)
        await trio.sleep_forever()

The door is kept alive by the runtime's supervisor. It is closed when the block ends: clients
are told to come back, and sessions run on.
"""

import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import trio

from midstream.actors.address import Address
from midstream.config import WebsocketConfig
from midstream.doors.websocket import AskStatus, CannotListen, DoorStatus, WebsocketDoor
from midstream.doors.websocket_access import Access, access_for
from midstream.doors.websocket_service import WebsocketSettings
from midstream.messages.errors import ConfigError, MidstreamError
from midstream.messages.wire import Limits
from midstream.runtime import Runtime
from midstream.session_host import RuntimeHost
from midstream.supervisors.child_spec import ActorSpec

STATUS_DEADLINE_S = 10.0
STOP_DEADLINE_S = 10.0
"""Seconds for a door to close; it takes two by itself."""


class OpenDoor:
    """A door that is open. `urls` are the places where it listens."""

    def __init__(self, address: Address[AskStatus], urls: tuple[str, ...]) -> None:
        self.urls = urls
        self._address = address

    async def status(self) -> DoorStatus:
        """How many are here."""
        return await self._address.ask(AskStatus, STATUS_DEADLINE_S)


@asynccontextmanager
async def open_websocket(
    runtime: Runtime, config: WebsocketConfig | None = None, *, token: str | None = None
) -> AsyncGenerator[OpenDoor]:
    """Listen for as long as the block lasts.

    `config` replaces the `[websocket]` of the runtime's configuration, and `token` what its
    environment variable holds. Port 0 is any that is free.

    Raises `ConfigError` if the network could come in without a token, or if a file of TLS
    cannot be read, and `CannotListen` if the place is taken.
    """
    settings = websocket_settings(runtime, config or runtime.config.websocket, token)
    host = RuntimeHost(runtime)
    spec = ActorSpec("websocket", lambda: WebsocketDoor(host, settings))
    try:
        await runtime.doors.start_child(spec)
    except MidstreamError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, CannotListen):
            cause = cause.__cause__
        raise cause or error from None
    try:
        status: DoorStatus = await spec.address.ask(AskStatus, STATUS_DEADLINE_S)
        yield OpenDoor(spec.address, status.urls)
    finally:
        with trio.move_on_after(STOP_DEADLINE_S) as patience:
            patience.shield = True
            await runtime.doors.stop_child(spec.id)


def websocket_settings(
    runtime: Runtime, config: WebsocketConfig, token: str | None = None
) -> WebsocketSettings:
    """The settings of a door. Raises `ConfigError`."""
    return WebsocketSettings(
        server_id=runtime.owner,
        version=version("midstream"),
        access=_access(config, token or os.environ.get(config.token_env) or None),
        host=config.host,
        port=config.port,
        tls=_tls(config),
        limits=Limits(
            message_bytes=config.message_bytes,
            frames_per_s=config.frames_per_s,
            bytes_per_s=config.bytes_per_s,
            subscriptions=config.subscriptions,
        ),
        connections=config.connections,
        half_open=config.half_open,
    )


def _access(config: WebsocketConfig, token: str | None) -> Access:
    return access_for(config.host, token=token, hosts=config.hosts, origins=config.origins)


def _tls(config: WebsocketConfig) -> ssl.SSLContext | None:
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(Path(config.tls_certificate), config.tls_key)
    except (OSError, ssl.SSLError) as error:
        key = "websocket.tls_certificate"
        raise ConfigError("configuration", key, f"cannot be used: {error}") from error
    return context
