"""The state book: the two documents that all hosts of one store share (spec/animator.md 2)."""

from typing import NamedTuple

from midstream.messages.dispatch import DISPATCH_STATUS_ID, NEVER_PAUSED, DispatchStatus
from midstream.messages.errors import StoreError
from midstream.messages.record import Shape
from midstream.messages.timestamps import parse_timestamp
from midstream.stores.store import Book, Store

GUILD_HEARTBEAT_ID = "guild-heartbeat"


class GuildHeartbeat(Shape, frozen=True, kw_only=True):
    """When a host of this store was last known to live."""

    id: str
    guild_alive_at: str
    guild_alive_since: str | None = None
    """Ours. Since when the hosts of this store have beaten without a gap; None if nobody knows of
    one."""

    @property
    def alive_ms(self) -> int | None:
        """`guild_alive_at` in milliseconds since 1970; None if it is no instant."""
        return parse_timestamp(self.guild_alive_at)

    @property
    def since_ms(self) -> int:
        """`guild_alive_since` in milliseconds since 1970; 0 without one."""
        return parse_timestamp(self.guild_alive_since) or 0


class KeptStatus(NamedTuple):
    """The dispatch status and its version; 0 for one that nobody wrote.

    A document that cannot be read pauses nobody (spec/animator.md 14.19): then `problem`
    says what is wrong with it.
    """

    status: DispatchStatus
    version: int
    problem: str | None = None


class KeptHeartbeat(NamedTuple):
    """The guild's heartbeat and its version."""

    heartbeat: GuildHeartbeat
    version: int


async def load_status(store: Store) -> KeptStatus:
    """The dispatch status. Raises `StoreError`."""
    stored = await store.get(Book.STATE, DISPATCH_STATUS_ID)
    if stored is None:
        return KeptStatus(NEVER_PAUSED, 0)
    try:
        return KeptStatus(stored.decode(DispatchStatus), stored.version)
    except StoreError as error:
        return KeptStatus(NEVER_PAUSED, stored.version, str(error))


async def load_heartbeat(store: Store) -> KeptHeartbeat | None:
    """The guild's heartbeat, or None. Raises `StoreError`."""
    stored = await store.get(Book.STATE, GUILD_HEARTBEAT_ID)
    if stored is None:
        return None
    return KeptHeartbeat(stored.decode(GuildHeartbeat), stored.version)
