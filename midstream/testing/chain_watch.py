"""ChainWatch: what sessions have asked for by themselves, held against what is counted.

It hears which continuations were asked for, and whether the provider has begun to answer them.
Those are the ones that count, and no others do (invariant 7): one that reached the provider is not
given back, and one that ran into a spent quota is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from midstream.messages.failure import FailureKind
from midstream.messages.record import SessionStatus
from midstream.messages.stream import AnyStreamMessage, StreamFailed
from midstream.messages.work import AttemptHeld, AttemptReleased, StartAttempt, WatchedBatch
from midstream.testing.invariants import InvariantBroken, is_automatic
from midstream.testing.trace import session_of

QUOTA = frozenset({FailureKind.RATE_LIMITED, FailureKind.OVERLOADED})
MAY_HAVE_BEEN_READ = frozenset({FailureKind.TIMEOUT, FailureKind.PROTOCOL})
ENDED_IN_PEACE = frozenset(
    {SessionStatus.COMPLETED, SessionStatus.CAPPED, SessionStatus.RATE_LIMITED}
)
"""What ends otherwise may have counted a continuation that it did not come to ask for."""


@dataclass
class _Continuation:
    """One of a chain: how often it was asked for, and what has come of it."""

    asked: int = 0
    failures: list[FailureKind] = field(default_factory=list[FailureKind])
    is_heard: bool = False
    """Something has come that is no failure."""
    is_held: bool = False
    """It waits for the end of a pause."""

    @property
    def met_quota(self) -> bool:
        return bool(self.failures) and self.failures[-1] in QUOTA

    @property
    def may_be_returned(self) -> bool:
        refused = [kind for kind in self.failures if kind not in MAY_HAVE_BEEN_READ]
        was_refused = not self.is_heard and len(refused) == self.asked
        return was_refused or self.is_held or self.met_quota


@dataclass
class _Chain:
    """What one session has asked for by itself. `before` were there already."""

    before: int
    attempt: int = 0
    continuations: list[_Continuation] = field(default_factory=list[_Continuation])

    def ask(self, start: StartAttempt) -> None:
        """One more attempt is made."""
        self.attempt = start.attempt
        number = _count(start) - self.before
        while len(self.continuations) < number:
            self.continuations.append(_Continuation())
        if self.continuations:
            self.continuations[-1].asked += 1

    def hear(self, messages: Sequence[AnyStreamMessage]) -> None:
        """This came of the newest attempt."""
        if not self.continuations:
            return
        newest = self.continuations[-1]
        for message in messages:
            if isinstance(message, StreamFailed):
                newest.failures.append(message.failure.kind)
            else:
                newest.is_heard = True

    def hold(self, *, is_held: bool) -> None:
        """The newest attempt waits for the end of a pause, or has waited."""
        if self.continuations:
            self.continuations[-1].is_held = is_held


class ChainWatch:
    """See the module."""

    def __init__(self) -> None:
        self._chains: dict[str, _Chain] = {}

    def take(self, who: str, message: object) -> None:
        """The actor at the path `who` takes this out of its mailbox."""
        if not isinstance(message, StartAttempt | WatchedBatch | AttemptHeld | AttemptReleased):
            return
        session_id = session_of(who)
        chain = self._chains.get(session_id)
        if isinstance(message, StartAttempt):
            if chain is None:
                chain = self._chains[session_id] = _Chain(_count(message))
            chain.ask(message)
        elif chain is None or message.attempt != chain.attempt:
            return
        elif isinstance(message, WatchedBatch):
            chain.hear(message.messages)
        else:
            chain.hold(is_held=isinstance(message, AttemptHeld))

    def check(self, sessions: Mapping[str, SessionStatus], used: int) -> None:
        """Hold that so many are counted as these sessions of a conversation, which are over, have
        asked for. Raises `InvariantBroken`."""
        least = most = 0
        for session_id, status in sessions.items():
            chain = self._chains.get(session_id)
            asked = chain.continuations if chain is not None else []
            may = sum(each.may_be_returned for each in asked[-1:])
            has_to = status is SessionStatus.RATE_LIMITED and any(c.met_quota for c in asked[-1:])
            least += len(asked) - may
            most += len(asked) - has_to + (status not in ENDED_IN_PEACE)
        if not least <= used <= most:
            counted = f"{used} continuations are counted of {sessions}"
            raise InvariantBroken(7, f"{counted}, and {least} to {most} were asked for")


def _count(start: StartAttempt) -> int:
    return sum(map(is_automatic, start.request.items))
