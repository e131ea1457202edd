"""How supervision fails."""

from midstream.messages.errors import MidstreamError


class ChildSpecError(MidstreamError):
    """A tree cannot be built as it is described."""


class ChildStartFailed(MidstreamError):
    """`started` of a child failed; `__cause__` is the error.

    Raised by the start of a supervisor, after it has stopped the children that it had
    started before, in reverse; and by `DynamicSupervisor.start_child`.
    """

    def __init__(self, who: str) -> None:
        self.who = who
        super().__init__(f"{who} could not be started")


class RestartIntensityExceeded(MidstreamError):
    """A supervisor gave up, after it has stopped its children; `__cause__` is the last error.

    `child` is the path of the child for which one restart too many was needed.
    """

    def __init__(self, who: str, child: str, restarts: int, within_s: float) -> None:
        self.who = who
        self.child = child
        self.restarts = restarts
        self.within_s = within_s
        super().__init__(
            f"{who} gives up: {child} needs a restart, and it would be number {restarts} "
            f"within {within_s} s"
        )


class SupervisorNotRunning(MidstreamError):
    """There is no incarnation of the supervisor that could take a child."""

    def __init__(self, who: str) -> None:
        self.who = who
        super().__init__(f"{who} is not running, so it cannot start or stop children")


class ChildNotFound(MidstreamError):
    """The supervisor has no child of this id; it may have ended a moment ago."""

    def __init__(self, who: str, child_id: str) -> None:
        self.who = who
        self.child_id = child_id
        super().__init__(f"{who} has no child {child_id!r}")
