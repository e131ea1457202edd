"""Who has to wait: one window for each upstream and key that is out of quota.

The decisions are those of the shared pause (`messages/dispatch.py`): a window only grows
while it is open, and what is told of requests that began before it escalates nothing. A key
is known here by a digest, never by itself. Kept in memory; the clock is trio's.
"""

import math
from collections import OrderedDict
from hashlib import blake2b

import trio

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

_SPENT = (FailureKind.RATE_LIMITED, FailureKind.OVERLOADED)

WindowKey = tuple[str, str]


class Windows:
    """The windows of one gateway."""

    def __init__(self, settings: BackoffSettings = GATEWAY_BACKOFF) -> None:
        self._settings = settings
        self._statuses: OrderedDict[WindowKey, DispatchStatus] = OrderedDict()

    def wait_s(self, key: WindowKey) -> int | None:
        """Whole seconds until the window closes, at least 1; None if it is not open."""
        status = self._statuses.get(key)
        now_ms = _now_ms()
        if status is None or is_dispatchable(status, now_ms):
            return None
        until_ms = parse_timestamp(status.paused_until) or now_ms
        return max(1, math.ceil((until_ms - now_ms) / 1000))

    def hear(self, key: WindowKey, began_at_s: float, failure: ProviderFailure | None) -> None:
        """How a request that reached the upstream ended."""
        status = self._statuses.get(key, NEVER_PAUSED)
        started_at = format_timestamp(round(began_at_s * 1000))
        if failure is not None and failure.kind in _SPENT:
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
        self._statuses[key] = decide(status, event, _now_ms(), self._settings).status
        self._statuses.move_to_end(key)
        while len(self._statuses) > WINDOWS_LIMIT:
            self._statuses.popitem(last=False)


def window_key(upstream: str, client: Client) -> WindowKey:
    """The window that a request belongs to."""
    key = client.header(b"x-api-key") or client.header(b"authorization")
    return upstream, blake2b(key.encode(), digest_size=16).hexdigest()


def _now_ms() -> int:
    return round(trio.current_time() * 1000)
