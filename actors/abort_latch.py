"""AbortLatch: which attempts of a session are aborted, known at once to who holds the stream.

A message would wait for its turn: with a hundred streams each hand-over costs a round of all
that is ready to run, while the model writes on and is paid for. So whoever decides that an
attempt is over sets the latch, before anything else is done, and in that moment the attempt's
cancel scope is cancelled. The RuleMatcher does so when a verdict interrupts, the Session for
every reason, and for all attempts once it is over itself. An abort is never taken back, and
aborting again changes nothing.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager

import trio


class AbortLatch:
    """See the module. Set by RuleMatcher and Session; the StreamMonitor streams within it.

    Attempts are numbered upwards, and one is live at a time.
    """

    __slots__ = ("_aborted", "_closed", "_live", "_scope")

    def __init__(self) -> None:
        self._aborted: float = 0
        """The newest attempt that was aborted; those before it are over as well."""
        self._live = 0
        self._scope = trio.CancelScope()
        self._closed = trio.Event()

    @property
    def live_attempt(self) -> int:
        """The attempt whose stream is open, or waits to be opened; 0 if none is."""
        return self._live

    def abort(self, attempt: int) -> None:
        """The attempt is over, with all before it. One that comes later is left alone."""
        self._abort_to(attempt)

    def abort_all(self) -> None:
        """Every attempt is over, whatever its number: nothing is streamed any more."""
        self._abort_to(math.inf)

    def _abort_to(self, attempt: float) -> None:
        self._aborted = max(self._aborted, attempt)
        if self._live <= self._aborted:
            self._scope.cancel()

    def is_aborted(self, attempt: int) -> bool:
        """Whether it is, even if it has not begun."""
        return attempt <= self._aborted

    @contextmanager
    def begin(self, attempt: int) -> Generator[trio.CancelScope]:
        """The scope to stream within; until it is left this is the live attempt."""
        self._live = attempt
        self._scope = trio.CancelScope()
        self._closed = closed = trio.Event()
        self._abort_to(self._aborted)
        try:
            with self._scope:
                yield self._scope
        finally:
            self._live = 0
            closed.set()

    async def closed(self, attempt: int) -> None:
        """Wait until the scope of the attempt was left, if it is the live one."""
        if self._live == attempt:
            await self._closed.wait()
