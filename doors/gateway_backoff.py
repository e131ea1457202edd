"""Who has to wait: one window for each upstream and key that is out of quota.

The decisions are those of the shared pause (`messages/dispatch.py`): a window only grows
while it is open, and what is told of requests that began before it escalates nothing. A key
is known here by a digest, never by itself. With a `document` the open windows survive a
restart of the gateway; then the clock is that of the wall.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from hashlib import blake2b

import msgspec
import trio

from midstream.actors.state_document import StateDocument
from midstream.doors.gateway_client import Client
from midstream.messages.backoff import BackoffSettings
from midstream.messages.dispatch import (
    NEVER_PAUSED,
    DispatchStatus,
    OtherEnd,
    QuotaSpent,
    decide,
    is_dispatchable,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.timestamps import format_timestamp, parse_timestamp

GATEWAY_BACKOFF = BackoffSettings(initial_ms=1_000, max_ms=60_000)
"""Shorter than the pause of sessions: clients of a gateway wait and ask again by themselves,
and their providers mostly say for how long."""
WINDOWS_LIMIT = 10_000

SPENT = (FailureKind.RATE_LIMITED, FailureKind.OVERLOADED)
"""Failures that say that the quota is spent."""

DOCUMENT_ID = "gateway-windows"
KEPT_LIMIT = 500
"""Open windows in the document."""

WindowKey = tuple[str, str]


class _KeptWindow(msgspec.Struct, frozen=True):
    """An open window as the document has it; `key` is a digest."""

    upstream: str
    key: str
    status: DispatchStatus


_WINDOWS = msgspec.json.Decoder(list[_KeptWindow])


class Windows:
    """The windows of one gateway. `now_ms` gives the time, by default trio's."""

    def __init__(
        self,
        settings: BackoffSettings = GATEWAY_BACKOFF,
        *,
        now_ms: Callable[[], int] | None = None,
        document: StateDocument | None = None,
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms or _trio_ms
        self._document = document
        self._statuses: OrderedDict[WindowKey, DispatchStatus] = OrderedDict()

    async def recall(self) -> None:
        """Go on with the windows that were open when an earlier run ended."""
        if self._document is not None:
            for window in _decoded(await self._document.read()):
                self._statuses[window.upstream, window.key] = window.status

    def wait_s(self, key: WindowKey) -> int | None:
        """Whole seconds until the window closes, at least 1; None if it is not open."""
        status = self._statuses.get(key)
        now_ms = self._now_ms()
        if status is None or is_dispatchable(status, now_ms):
            return None
        until_ms = parse_timestamp(status.paused_until) or now_ms
        return max(1, math.ceil((until_ms - now_ms) / 1000))

    async def hear(
        self, key: WindowKey, began_at_s: float, failure: ProviderFailure | None
    ) -> None:
        """How a request that reached the upstream ended, which it did since trio's time
        `began_at_s`."""
        status = self._statuses.get(key, NEVER_PAUSED)
        took_ms = round((trio.current_time() - began_at_s) * 1000)
        started_at = format_timestamp(self._now_ms() - took_ms)
        if failure is not None and failure.kind in SPENT:
            asked_s = failure.retry_after_s
            event = QuotaSpent(
                session_id="",
                started_at=started_at,
                reason=failure.message,
                retry_after_ms=None if asked_s is None else round(asked_s * 1000),
            )
        elif key in self._statuses:
            event = OtherEnd(session_id="", started_at=started_at)
        else:
            return
        after = decide(status, event, self._now_ms(), self._settings).status
        self._statuses[key] = after
        self._statuses.move_to_end(key)
        while len(self._statuses) > WINDOWS_LIMIT:
            self._statuses.popitem(last=False)
        if self._document is not None and after != status:
            await self._document.change(partial(self._with_window, key, after))

    def _with_window(
        self, key: WindowKey, status: DispatchStatus, kept: bytes | None
    ) -> list[_KeptWindow]:
        """The document with this window; those that are over are left out."""
        now_ms = self._now_ms()
        windows = {(one.upstream, one.key): one for one in _decoded(kept)}
        windows[key] = _KeptWindow(*key, status)
        open_ones = [one for one in windows.values() if not is_dispatchable(one.status, now_ms)]
        return open_ones[-KEPT_LIMIT:]


def window_key(upstream: str, client: Client) -> WindowKey:
    """The window that a request belongs to."""
    key = client.header(b"x-api-key") or client.header(b"authorization")
    return upstream, blake2b(key.encode(), digest_size=16).hexdigest()


def _decoded(document: bytes | None) -> list[_KeptWindow]:
    try:
        return _WINDOWS.decode(document) if document else []
    except msgspec.DecodeError:
        return []


def _trio_ms() -> int:
    return round(trio.current_time() * 1000)
