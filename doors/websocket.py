"""WebsocketDoor: listens, and gives whoever connects to the service (`websocket_service.py`).

Started when its address is bound. At a stop it takes nobody in any more, and every client is
told to come back before anything is cut.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.doors.session_host import SessionHost
from midstream.doors.websocket_service import PATH, WebsocketService, WebsocketSettings
from midstream.messages.errors import MidstreamError
from midstream.messages.reply import Reply


class CannotListen(MidstreamError):
    """The address cannot be bound."""


class DoorStatus(msgspec.Struct, frozen=True):
    """Where a door listens, and how many are here."""

    urls: tuple[str, ...]
    connections: int
    subscriptions: int


class AskStatus(msgspec.Struct, frozen=True, tag=True):
    """Answered with a `DoorStatus`."""

    reply: Reply[DoorStatus]


class WebsocketDoor(Actor[AskStatus]):
    """The actor: listens at the address of its settings, and sees everybody out at the end."""

    def __init__(self, host: SessionHost, settings: WebsocketSettings) -> None:
        self._settings = settings
        self._service = WebsocketService(host, settings, self._spawn)
        self._urls: tuple[str, ...] = ()

    async def started(self) -> None:
        settings = self._settings
        try:
            listeners = await trio.open_tcp_listeners(settings.port, host=settings.host)
        except OSError as error:
            place = f"{settings.host}:{settings.port}"
            raise CannotListen(f"nobody can listen at {place}: {error.strerror}") from error
        self._urls = tuple(_url(listener, settings.tls) for listener in listeners)
        self.spawn(self._listen, [_with_tls(listener, settings.tls) for listener in listeners])
        self.spawn(self._service.run)
        self.spawn(self._until_stopped)

    async def handle(self, message: AskStatus) -> None:
        service = self._service
        status = DoorStatus(self._urls, service.connections, service.subscriptions)
        message.reply.send(status)

    async def _listen(self, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]]) -> None:
        await trio.serve_listeners(self._service.serve, list(listeners))

    async def _until_stopped(self) -> None:
        """Connections are shielded, so that they can say goodbye; this sees to it that they
        do not stay."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self._service.see_everybody_out()

    def _spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        self.spawn(function)


def _with_tls(
    listener: trio.SocketListener, tls: ssl.SSLContext | None
) -> trio.abc.Listener[trio.abc.Stream]:
    if tls is None:
        return listener
    return trio.SSLListener(listener, tls, https_compatible=True)


def _url(listener: trio.SocketListener, tls: ssl.SSLContext | None) -> str:
    address, port = listener.socket.getsockname()[:2]
    name = f"[{address}]" if ":" in address else address
    return f"{'ws' if tls is None else 'wss'}://{name}:{port}{PATH}"
