"""The test kit for hosts: a model that says what a test has written down, time that jumps, a
store in memory, a wire without a network, and checkers for the promises of midstream.

`docs/testing.md` shows how to use it. What this module lists is public.
"""

from midstream.actors.clock import ManualClock, TrioClock
from midstream.providers.scripted import (
    Call,
    Hang,
    Leave,
    Pause,
    Raise,
    Script,
    ScriptedProvider,
    ScriptExhausted,
    SlowClose,
    SlowStart,
    Step,
    answer,
)
from midstream.stores.memory import MemoryStore
from midstream.testing.explore import Violation, explore
from midstream.testing.faults import Faults
from midstream.testing.host import host_runtime
from midstream.testing.invariants import (
    InvariantBroken,
    check_attempts,
    check_context,
    check_cut_independence,
    check_nothing_after_the_abort,
    check_one_outcome,
    check_sequence,
    check_session,
    check_stop_is_an_epoch,
    check_store,
)
from midstream.testing.race import Race
from midstream.testing.screen import visible_text
from midstream.testing.virtual_time import in_virtual_time
from midstream.testing.wire import Wire, open_wire
from midstream.testing.world import ObservedSession, World, open_world

__all__ = [
    "Call",
    "Faults",
    "Hang",
    "InvariantBroken",
    "Leave",
    "ManualClock",
    "MemoryStore",
    "ObservedSession",
    "Pause",
    "Race",
    "Raise",
    "Script",
    "ScriptExhausted",
    "ScriptedProvider",
    "SlowClose",
    "SlowStart",
    "Step",
    "TrioClock",
    "Violation",
    "Wire",
    "World",
    "answer",
    "check_attempts",
    "check_context",
    "check_cut_independence",
    "check_nothing_after_the_abort",
    "check_one_outcome",
    "check_sequence",
    "check_session",
    "check_stop_is_an_epoch",
    "check_store",
    "explore",
    "host_runtime",
    "in_virtual_time",
    "open_wire",
    "open_world",
    "visible_text",
]
