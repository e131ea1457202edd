"""How the program sets up Python's garbage collector. A library leaves that to its host.

A full collection looks at everything that lives: a session is some 900 objects, so with a
thousand of them it stops every stream for half a second, and by Python's own settings it comes
whenever a quarter more lives than last time. What ends here leaves nothing to it
(tests/midstream/test_garbage.py), so it may come rarely. The HTTP server leaves some thirty
objects a connection, which a server collects while nobody speaks.
"""

import gc
from collections.abc import Callable

import trio

COLLECT_AFTER = (700, 1, 3_500)
"""New objects before a collection of those (half a millisecond); how many of these before one
of the next older ones as well (one to two, and the longer, the larger these two are); and how
many of these before a full one: five million objects."""

IDLE_EVERY_S = 10.0
"""How often a server collects everything at most: with nobody there that is ten milliseconds."""
LOOK_EVERY_S = 0.25


def postpone_collections() -> None:
    """Look for no garbage while the program is loaded: there is hardly any, and looking is a
    sixth of the time."""
    gc.disable()


def spare_collections() -> None:
    """What was loaded so far lives as long as the program: it is looked at no more. Whatever
    comes is looked at while it is young, and afterwards rarely."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


async def collect_when_idle(is_idle: Callable[[], bool]) -> None:
    """Collect everything now and then, while nobody has to wait for it."""
    while True:
        if is_idle() and any(gc.get_count()[1:]):
            gc.collect()
            await trio.sleep(IDLE_EVERY_S)
        else:
            await trio.sleep(LOOK_EVERY_S)
