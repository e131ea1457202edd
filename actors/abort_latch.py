"""AbortLatch: which attempts of a session are aborted, known at once to who holds the stream.

A message would wait for its turn: with a hundred streams each hand-over costs a round of all
that is ready to run, while the model writes on and is paid for. So whoever decides that an
attempt is over sets the latch, before anything else is done, and in that moment the attempt's
cancel scope is cancelled. The RuleMatcher does so when a verdict interrupts, the Session for
every reason. An abort is never taken back, and aborting again changes nothing.
"""

import trio


class AbortLatch:
    """See the module. Set by RuleMatcher and Session; the StreamMonitor streams within it.

    Attempts are numbered upwards, and one is live at a time.
    """

    __slots__ = ("_aborted", "_live", "_scope")

    def __init__(self) -> None:
        self._aborted = 0
        """The newest attempt that was aborted; those before it are over as well."""
        self._live = 0
        self._scope = trio.CancelScope()

    def abort(self, attempt: int) -> None:
        """The attempt is over, with all before it. One that comes later is left alone."""
        self._aborted = max(self._aborted, attempt)
        if self._live <= self._aborted:
            self._scope.cancel()

    def is_aborted(self, attempt: int) -> bool:
        """Whether it is, even if it has not begun."""
        return attempt <= self._aborted

    def begin(self, attempt: int) -> trio.CancelScope:
        """The scope to stream within; from now on this is the live attempt."""
        self._live = attempt
        self._scope = trio.CancelScope()
        self.abort(self._aborted)
        return self._scope
