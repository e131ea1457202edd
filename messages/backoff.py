"""How long a pause lasts: the settings of the back-off, and its windows.

Pure. The configuration asks `parse_backoff` at start and lets its `ConfigError` refuse
the start; `decide` (dispatch.py) asks `window_ms`. Source: spec/animator.md 3.3, 6.
"""

import math
from collections.abc import Mapping
from typing import cast

import msgspec

from midstream.messages.errors import ConfigError


class BackoffSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`initial_ms` is the first window and `max_ms` the longest; each escalation
    multiplies by `factor`. With the defaults: 15, 30, 60, 60, ... minutes.

    `probe_limit` bounds how many sessions may probe after a window; 0 means any number,
    as the reference has it (spec/animator.md B10). `keep_level_on_boot` lets an expired
    pause that is found at start leave its level behind, so that the next pause is as long
    as the last one was (14.4).
    """

    initial_ms: int = 900_000
    max_ms: int = 3_600_000
    factor: float = 2.0
    probe_limit: int = 0
    keep_level_on_boot: bool = False


def window_ms(level: int, settings: BackoffSettings) -> int:
    """The window at `level`: min(initial * factor ** level, max), for any level.

    Compared as logarithms first: a float power raises where an integer would only grow.
    """
    growth = min(max(0, level), 1_000_000) * math.log(settings.factor)
    if growth >= math.log(settings.max_ms) - math.log(settings.initial_ms):
        return settings.max_ms
    return min(settings.max_ms, round(settings.initial_ms * settings.factor ** max(0, level)))


_KEYS = ("initialMs", "maxMs", "factor", "probeLimit", "keepLevelOnBoot")


def parse_backoff(
    block: object = msgspec.UNSET, *, where: str, key: str = "rateLimit.backoff"
) -> BackoffSettings:
    """The settings of a configuration block; defaults fill what it does not say.

    `block` is the value under `key`, or UNSET where the configuration has none. `where`
    names the file or argument. Raises `ConfigError` with the whole key.
    """
    if block is msgspec.UNSET:
        return BackoffSettings()
    if not isinstance(block, Mapping):
        raise ConfigError(where, key, f"must be an object, not {_kind(block)}", _example())
    given = cast("Mapping[object, object]", block)
    for name in given:
        if name not in _KEYS:
            raise ConfigError(where, f"{key}.{name}", "unknown key", f"use {', '.join(_KEYS)}")
    default = BackoffSettings()
    settings = BackoffSettings(
        initial_ms=_whole(given, "initialMs", default.initial_ms, 1, where, key),
        max_ms=_whole(given, "maxMs", default.max_ms, 1, where, key),
        factor=_factor(given.get("factor", default.factor), where, f"{key}.factor"),
        probe_limit=_whole(given, "probeLimit", default.probe_limit, 0, where, key),
        keep_level_on_boot=_flag(given.get("keepLevelOnBoot", False), where, key),
    )
    if settings.max_ms < settings.initial_ms:
        raise ConfigError(
            where,
            f"{key}.maxMs",
            f"{settings.max_ms} is less than initialMs, which is {settings.initial_ms}",
            "raise maxMs or lower initialMs",
        )
    return settings


def _whole(
    given: Mapping[object, object], name: str, default: int, least: int, where: str, key: str
) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        mend = f"write a whole number, at least {least}"
        raise ConfigError(where, f"{key}.{name}", f"{value!r} will not do", mend)
    return value


def _factor(value: object, where: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_factor(value):
        raise ConfigError(where, key, f"{value!r} will not do", "write a number above 1, say 2")
    return float(value)


def _is_factor(value: float) -> bool:
    try:
        return math.isfinite(value) and float(value) > 1
    except OverflowError:
        return False


def _flag(value: object, where: str, key: str) -> bool:
    if not isinstance(value, bool):
        problem = f"{value!r} will not do"
        raise ConfigError(where, f"{key}.keepLevelOnBoot", problem, "write true or false")
    return value


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _example() -> str:
    return "write initialMs, maxMs and factor under it, or leave it out"
