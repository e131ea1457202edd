"""Which code points match a one-character pattern of the `regex` package.

`regex` itself is asked, over all code points: so properties, POSIX classes and case are
exactly those of the installed version.
"""

from array import array
from functools import cache, lru_cache

import regex

from midstream.rules.character_classes import LAST_CODE_POINT
from midstream.rules.syntax import Ranges


@lru_cache(maxsize=4096)
def matching_ranges(fragment: str, flags: str) -> Ranges | None:
    """The code points that `fragment` matches under the inline `flags` (such as `ai`).

    None if `fragment` is more than one character. About 10 ms, once.
    """
    prefix = f"(?{flags})" if flags else ""
    pattern = regex.compile(f"{prefix}(?:{fragment})+", regex.V0, cache_pattern=False)
    ranges = tuple(
        (found.start(), found.end() - 1) for found in pattern.finditer(_all_code_points())
    )
    if ranges and not pattern.fullmatch(chr(ranges[0][0])):
        return None
    return ranges


@cache
def _all_code_points() -> str:
    codes = array("I", range(LAST_CODE_POINT + 1))
    return codes.tobytes().decode("utf-32", "surrogatepass")
