"""A supervisor whose children come and go while it runs, such as the sessions of a runtime.

Its children know nothing of each other, so the strategy is always one_for_one, and they
are stopped all at the same time. When the supervisor itself goes, by whatever way, its
children end for good: a next incarnation begins empty (as in OTP).
"""

import math

from midstream.supervisors.child_spec import ChildSpec
from midstream.supervisors.errors import SupervisorNotRunning
from midstream.supervisors.restart import (
    DEFAULT_BACKOFF,
    DEFAULT_INTENSITY,
    Backoff,
    Intensity,
    Restart,
    Strategy,
    SupervisionState,
)
from midstream.supervisors.supervision import Supervision
from midstream.supervisors.supervisor import AnySupervisor


class DynamicSupervisor(AnySupervisor):
    """Declared without children; they are started and stopped through this object.

    Children are usually temporary, and often supervisors with an intensity of their own,
    so that one that crashes does not use up what the others may need.

    >>> await sessions.start_child(session_tree("ses-mfx1-00c0ffee"))
    """

    def __init__(
        self,
        id: str,
        *,
        intensity: Intensity = DEFAULT_INTENSITY,
        backoff: Backoff = DEFAULT_BACKOFF,
        restart: Restart = Restart.PERMANENT,
        significant: bool = False,
        shutdown_s: float = math.inf,
    ) -> None:
        policy = SupervisionState(Strategy.ONE_FOR_ONE, intensity, backoff)
        super().__init__(
            id, policy, restart=restart, significant=significant, shutdown_s=shutdown_s
        )

    async def start_child(self, spec: ChildSpec) -> None:
        """Start one more child; returns when it has started. If cancelled, it is gone again.

        Raises `ChildStartFailed` if it cannot be started, which is no restart and is not
        counted; `ChildSpecError` if there is a child of that id; `SupervisorNotRunning`.
        """
        await self._running_life().add(spec)

    async def stop_child(self, child_id: str) -> None:
        """Stop a child for good, within its `shutdown_s`. If cancelled, it is cancelled.

        Raises `ChildNotFound`, or `SupervisorNotRunning`.
        """
        await self._running_life().remove(child_id)

    def incarnate(self) -> Supervision:
        return self._begin_life((), dynamic=True)

    def retire(self) -> None:
        """Nothing to do: the children were retired with the incarnation that had them."""

    def _running_life(self) -> Supervision:
        if self._life is None:
            raise SupervisorNotRunning(self.who)
        return self._life
