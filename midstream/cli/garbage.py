"""How the program sets up Python's garbage collector. A library leaves that to its host.

A full collection looks at everything that lives: a session is some 900 objects, so with a
thousand of them it stops every stream for half a second, and by Python's own settings it comes
whenever a quarter more lives than last time. What ends here leaves nothing to it
(tests/midstream/test_garbage.py), so it may come rarely.
"""

import gc

COLLECT_AFTER = (700, 1, 3_500)
"""New objects before a collection of those (half a millisecond); how many of these before one
of the next older ones as well (one to two, and the longer, the larger these two are); and how
many of these before a full one: five million objects."""


def spare_collections() -> None:
    """What was loaded so far lives as long as the program: it is looked at no more. Whatever
    comes is looked at while it is young, and afterwards rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
