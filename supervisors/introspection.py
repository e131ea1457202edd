"""What a supervisor tells of itself and its children, for operators and tests."""

from enum import StrEnum

import msgspec

from midstream.supervisors.child_spec import ChildSpec
from midstream.supervisors.restart import Intensity


class Phase(StrEnum):
    """What a child is at."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """For its restart."""


class ChildInfo(msgspec.Struct, frozen=True):
    """A snapshot of one child. `spec` leads on: to its statistics, or to its children."""

    spec: ChildSpec
    phase: Phase
    incarnation: int


class SupervisorStatistics(msgspec.Struct, frozen=True):
    """A snapshot of one supervisor. The counts of children are 0 while it does not run."""

    who: str
    children: int
    running: int
    waiting: int
    """How many wait for their restart."""
    supervisors: int
    """How many are supervisors themselves."""
    restarts: int
    """How many restarts the intensity counted when it last had to decide."""
    intensity: Intensity
