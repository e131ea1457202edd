"""PauseWatch: the shared pause, as stores are given it, held against the records of sessions.

Whether a change of it is right is judged from what is on record, and from nothing that a host
remembers (invariant 8):

- an open window only grows, and no more sessions probe than may;
- a window lasts as long as the provider has asked for, and the next one is of a higher level;
- a window that is over is ended, or followed by a longer one, by a session that began behind the
  beginning of the pause, or was let go on after its window; or a host that has just started
  ends it;
- a session that is over holds no place among those that probe.
"""

from collections.abc import Mapping

import trio

from midstream.actors.backoff_machine import Hear
from midstream.messages.dispatch import (
    NEVER_PAUSED,
    Booted,
    DispatchState,
    DispatchStatus,
    QuotaSpent,
)
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.timestamps import parse_timestamp
from midstream.testing.invariants import InvariantBroken

RELEASED_S = 12.0
"""Seconds within which the place of a probe is free that has ended: its own host has 6 to say so,
and the others look every second."""

SILENT = frozenset(
    {SessionStatus.CANCELLED, SessionStatus.DEAD_LETTERED, SessionStatus.RATE_LIMITED}
)
"""Ends that do not say that the provider answers."""


class PauseWatch:
    """See the module. `records` are those of all sessions, as they are kept."""

    def __init__(self, records: Mapping[str, SessionRecord]) -> None:
        self.probe_limit = 0
        """How many sessions may probe; 0 is any number."""
        self.blamed: set[str] = set()
        """The sessions that a spent quota has been kept of."""
        self._records = records
        self._status = NEVER_PAUSED
        self._booted_s: float | None = None
        """When a host has started last."""
        self._began_s: dict[str | None, float] = {}
        """When pauses, by their beginning on record, were kept first."""
        self._over_since: dict[str, float] = {}
        """When sessions that have a place among the probes were first seen to be over."""
        self._asked_ms: dict[str, int | None] = {}
        """How long the providers of sessions that had no quota left do not want to be asked."""
        self._heard: dict[str, float] = {}
        """Of which sessions a host has heard that since the pause was kept last, and when."""

    def take(self, message: Hear) -> None:
        """A host's BackoffMachine hears this."""
        now_s = trio.current_time()
        if isinstance(message.event, Booted):
            self._booted_s = now_s
        if isinstance(message.event, QuotaSpent):
            self._asked_ms[message.event.session_id] = message.event.retry_after_ms
            self._heard[message.event.session_id] = now_s

    def is_waited_for_by(self, session_id: str) -> bool:
        """Whether others probe the quota, so that this session has to wait for what they find."""
        return bool(self._status.probes) and session_id not in self._status.probes

    def commit(self, new: DispatchStatus) -> None:
        """This is kept from now on. Raises `InvariantBroken`."""
        old, self._status = self._status, new
        if new.last_triggering_session is not None:
            self.blamed.add(new.last_triggering_session)
        if new.state is DispatchState.PAUSED:
            self._began_s.setdefault(new.paused_since, trio.current_time())
            self.blamed |= self._others_heard(old, new)
        self._heard.clear()
        if self.probe_limit and len(new.probes) > self.probe_limit:
            raise InvariantBroken(8, f"{new.probes} probe, of {self.probe_limit}")
        if old.state is DispatchState.PAUSED:
            self._check_window(old, new)
        if new.backoff_last_hit_at != old.backoff_last_hit_at:
            self._check_length(new)

    def check(self) -> None:
        """Hold that who is over probes no more. Raises `InvariantBroken`."""
        if not self._status.probes:
            return
        now_s = trio.current_time()
        over = [probe for probe in self._status.probes if self._is_over(probe)]
        self._over_since = {probe: self._over_since.get(probe, now_s) for probe in over}
        for probe, since_s in self._over_since.items():
            if now_s - since_s > RELEASED_S:
                raise InvariantBroken(8, f"{probe} is over, and the others wait for it to probe")

    def _others_heard(self, old: DispatchStatus, new: DispatchStatus) -> set[str]:
        """Who has made this pause, beside the one that it names: without the store, if not before
        it. One spent quota alone can have made it if its window begins when that was heard."""
        level = old.backoff_level + 1 if old.state is DispatchState.PAUSED else old.backoff_level
        if new.paused_since != new.backoff_last_hit_at or new.backoff_level > level:
            return set(self._heard)
        heard_s = self._heard.get(new.last_triggering_session or "")
        return {each for each, at_s in self._heard.items() if at_s == heard_s}

    def _has_booted(self, paused: DispatchStatus) -> bool:
        """Whether a host has started since this pause has begun; so it may also end it when an
        older host, which was not told that it is kept, has it kept once more."""
        began_s = self._began_s[paused.paused_since]
        return self._booted_s is not None and self._booted_s >= began_s

    def _check_window(self, old: DispatchStatus, new: DispatchStatus) -> None:
        if new.state is DispatchState.RUNNING:
            answered = (r for r in self._records.values() if r.is_terminal and not r.presumed_dead)
            heard = (r.id for r in answered if r.status not in SILENT)
            if not self._has_booted(old) and not any(self._may_judge(old, each) for each in heard):
                raise InvariantBroken(8, f"{old} has ended, and none that probed it has")
            return
        until_before, until = parse_timestamp(old.paused_until), parse_timestamp(new.paused_until)
        if until_before is not None and (until is None or until < until_before):
            raise InvariantBroken(8, f"paused until {old.paused_until}, then {new.paused_until}")
        by = new.last_triggering_session
        if new.paused_since == old.paused_since or self._has_booted(old):
            return  # whoever has started has ended the old one first, if not on record
        if not self._may_judge(old, by or ""):
            raise InvariantBroken(8, f"{by} has not probed {old}, and opens {new}")
        if new.backoff_level <= old.backoff_level:
            raise InvariantBroken(8, f"{old} was not long enough, and {new} is of no higher level")

    def _check_length(self, new: DispatchStatus) -> None:
        hit_ms, until_ms = map(parse_timestamp, (new.backoff_last_hit_at, new.paused_until))
        asked_ms = self._asked_ms.get(new.last_triggering_session or "")
        if hit_ms is None or asked_ms is None:
            return
        if until_ms is None or until_ms < hit_ms + asked_ms:
            raise InvariantBroken(8, f"{new}, and the provider wants {asked_ms} ms")

    def _may_judge(self, paused: DispatchStatus, session_id: str) -> bool:
        """Whether what has become of a session says that the pause is over, or not long enough."""
        since = parse_timestamp(paused.paused_since)
        record = self._records.get(session_id)
        began = parse_timestamp(record.started_at) if record is not None else None
        is_later = since is None or (began is not None and began > since)
        return is_later or session_id in paused.probes

    def _is_over(self, session_id: str) -> bool:
        record = self._records.get(session_id)
        return record is not None and record.is_terminal
