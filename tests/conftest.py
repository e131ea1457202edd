"""For all tests: property tests try the same examples in every run, and Ctrl-C is heard.

A run that fails for everybody is worth more than one that fails for somebody. Set
`HYPOTHESIS_PROFILE=explore` to try other examples, as many as you have time for.
"""

import gc
import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell's job in the background ignores SIGINT, and what it starts would ignore it as well.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was loaded and collected lives as long as the run: Python's garbage collector would
    look at these million objects again and again, a tenth of the time of many tests."""
    gc.freeze()
