"""What is said about actors and supervisors themselves: how they exit, and what became known.

`Down` goes to the mailboxes of watchers. The events go to the sink that a runtime was
opened with, in the order in which things happened. They hold no time: whoever takes them
stamps them.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec


class Exit(msgspec.Struct, frozen=True, tag_field="exit"):
    """Base of the ways in which one incarnation of an actor or a supervisor ends."""


class EndedNormally(Exit, frozen=True, tag="ended_normally"):
    """It ended itself, by its own decision and without an error."""


class ShutDown(Exit, frozen=True, tag="shut_down"):
    """Its supervisor stopped it."""

    cut: bool = False
    """Whether it was cancelled, because its deadline passed or everything had to go."""


class Crashed(Exit, frozen=True, tag="crashed"):
    """An exception came out of it."""

    error: str
    """Type and message, such as `ValueError: no such rule`."""
    traceback: str = ""
    """As Python prints it."""


AnyExit = EndedNormally | ShutDown | Crashed
OwnExit = EndedNormally | Crashed
"""The exits that a child makes by itself, and that a supervisor has to decide about."""


class Down(msgspec.Struct, frozen=True, tag="down"):
    """To a watcher: an incarnation of the watched actor is over.

    It says nothing of what follows: the actor may be restarted under the same address.
    """

    who: str
    reason: AnyExit


class LetterReason(StrEnum):
    """Why a message became a dead letter."""

    CRASHED = "crashed"
    """It was being handled when the actor crashed."""
    CUT = "cut"
    """It was being handled when the actor was cancelled."""
    UNREAD = "unread"
    """It still waited in the mailbox when the actor ended for good."""
    ENDED = "ended"
    """It was sent to an actor that had ended for good."""
    ASKER_GONE = "asker_gone"
    """It was a question, and its asker had given up before it was read."""


class LifecycleEvent(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of all lifecycle events. `who` is a path from the root, as `runtime/ledger`."""

    who: str


class ChildStarted(LifecycleEvent, frozen=True, tag="child_started"):
    """`started` has returned. Incarnations of a child count from 1."""

    incarnation: int


class ChildStopped(LifecycleEvent, frozen=True, tag="child_stopped"):
    """An incarnation is over, without an error."""

    incarnation: int
    reason: EndedNormally | ShutDown


class ChildCrashed(LifecycleEvent, frozen=True, tag="child_crashed"):
    """An incarnation is over by an exception; `starting` if `started` never returned.

    The message that it was handling is in the `DeadLetter` of the same incarnation.
    """

    incarnation: int
    reason: Crashed
    starting: bool = False


class ChildRestarting(LifecycleEvent, frozen=True, tag="child_restarting"):
    """`who` will be started again after `delay_s` seconds, it and the siblings with it.

    `restarts` counts those of its supervisor within the window, this one included.
    """

    delay_s: float
    restarts: int


class SupervisorEscalated(LifecycleEvent, frozen=True, tag="supervisor_escalated"):
    """`who` gives up: a further restart of `child` would exceed its restart intensity."""

    child: str
    restarts: int
    within_s: float


class DeadLetter(LifecycleEvent, frozen=True, tag="dead_letter"):
    """A message that `who` will not handle, or has not finished handling.

    `incarnation` is 0 if none had begun. `error` and `traceback` are those of the crash,
    empty for other reasons. `number` counts the letters of a runtime from 1.
    """

    number: int
    incarnation: int
    message: Any
    reason: LetterReason
    error: str = ""
    traceback: str = ""


AnyLifecycleEvent = (
    ChildStarted | ChildStopped | ChildCrashed | ChildRestarting | SupervisorEscalated | DeadLetter
)

LifecycleSink = Callable[[AnyLifecycleEvent], None]
"""Takes events at once and in order. It must not block and must not raise."""
