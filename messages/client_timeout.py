"""How long a client will wait, from the headers of its request.

After that it is gone, and nothing may be started for it any more (spec/stop_message.md 10).
The two headers count in different units: mixing them up ended sessions 850 ms after they
began (G10).
"""

import math
from collections.abc import Mapping

_SECONDS = {"x-stainless-timeout": 1.0, "x-request-timeout-ms": 0.001}
"""Seconds in one unit of the header. The SDKs of OpenAI and Anthropic send seconds, or
`NOT_GIVEN`."""


def client_timeout_s(headers: Mapping[str, str]) -> float | None:
    """Seconds from the arrival of the request; None where the client does not say.

    Header names in any case. Values that are no positive number are ignored.
    """
    waits_s: list[float] = []
    for name, value in headers.items():
        unit_s = _SECONDS.get(name.strip().lower())
        if unit_s is not None and (number := _positive(value)) is not None:
            waits_s.append(number * unit_s)
    return min(waits_s, default=None)


def _positive(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None
