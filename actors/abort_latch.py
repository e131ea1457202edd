"""AbortLatch: which attempts of a session are aborted, known at once to who holds the stream.

A message would wait for its turn: with a hundred streams each hand-over costs a round of all
that is ready to run, while the model writes on and is paid for. So whoever decides that an
attempt is over sets the latch, before anything else is done, and in that moment the attempt's
cancel scope is cancelled. The RuleMatcher does so when a verdict interrupts, the Session for
every reason, and for all attempts once it is over itself. An abort is never taken back, and
aborting again changes nothing.
"""

import math
from types import TracebackType

import trio


class AbortLatch:
    """See the module. Set by RuleMatcher and Session; the StreamMonitor streams within it.

    Attempts are numbered upwards, and one is live at a time.
    """

    __slots__ = ("_aborted", "_live")

    def __init__(self) -> None:
        self._aborted: float = 0
        """The newest attempt that was aborted; those before it are over as well."""
        self._live: LiveAttempt | None = None

    @property
    def live_attempt(self) -> int:
        """The attempt whose stream is open, or waits to be opened; 0 if none is."""
        live = self._live
        return 0 if live is None or live.closed.is_set() else live.number

    def abort(self, attempt: int) -> None:
        """The attempt is over, with all before it. One that comes later is left alone."""
        self._abort_to(attempt)

    def abort_all(self) -> None:
        """Every attempt is over, whatever its number: nothing is streamed any more."""
        self._abort_to(math.inf)

    def _abort_to(self, attempt: float) -> None:
        self._aborted = max(self._aborted, attempt)
        if self._live and self._live.number <= self._aborted:
            self._live.scope.cancel()

    def is_aborted(self, attempt: int) -> bool:
        """Whether it is, even if it has not begun."""
        return attempt <= self._aborted

    def begin(self, attempt: int) -> "LiveAttempt":
        """The block to stream within; until it is left this is the live attempt."""
        self._live = LiveAttempt(attempt)
        self._abort_to(self._aborted)
        return self._live

    async def closed(self, attempt: int) -> None:
        """Wait until the scope of the attempt was left, if it is the live one."""
        live = self._live
        if live and live.number == attempt:
            await live.closed.wait()


class LiveAttempt:
    """A block that aborting its attempt ends; entering it gives the cancel scope.

    No generator: from Python 3.12 on, one that ends an exception leaves all frames that the
    exception went through to the garbage collector (python/cpython#129280).
    """

    __slots__ = ("closed", "number", "scope")

    def __init__(self, number: int) -> None:
        self.number = number
        self.scope = trio.CancelScope()
        self.closed = trio.Event()
        """Set when the block was left."""

    def __enter__(self) -> trio.CancelScope:
        return self.scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            return self.scope.__exit__(kind, error, traceback)
        finally:
            self.closed.set()
