"""The errors that midstream raises, one small hierarchy under `MidstreamError`.

Every message says what was wrong, where (file, key, line) and what to do about it.
Failures of a model's provider are data, not exceptions of this tree: see `failure.py`.
"""

from pathlib import Path


class MidstreamError(Exception):
    """Base of every error that midstream raises on purpose."""


class ConfigError(MidstreamError):
    """A configuration value is missing, unknown or of the wrong type.

    `where` names the file or argument, `key` the dotted key, `mend` what to write instead.
    """

    def __init__(self, where: str, key: str, problem: str, mend: str = "") -> None:
        self.where = where
        self.key = key
        self.problem = problem
        self.mend = mend
        place = f"{where}: {key}" if key else where
        super().__init__(f"{place}: {problem}" + (f"; {mend}" if mend else ""))


class RuleError(MidstreamError):
    """A rule, or a part of one, cannot be used.

    `line` counts from 1 and is 0 where no line applies.
    """

    def __init__(self, path: Path | str, line: int, problem: str, mend: str = "") -> None:
        self.path = str(path)
        self.line = line
        self.problem = problem
        self.mend = mend
        place = f"{path}:{line}" if line else str(path)
        super().__init__(f"{place}: {problem}" + (f"; {mend}" if mend else ""))


class StoreError(MidstreamError):
    """The store could not do what was asked; nothing of the request was kept."""


class Unreadable(StoreError):
    """The store is well, but what it keeps at this place is nothing that this version knows."""


class VersionConflict(StoreError):
    """A compare-and-set found another version than the caller expected."""


class RecordError(MidstreamError):
    """A transition does not fit the session record that it was meant for."""


class FenceLost(MidstreamError):
    """The writer no longer owns what it writes; it must stop, and never try again.

    Not a `StoreError`: what a store could not take is tried again, this is not.
    """


class RuntimeStopped(MidstreamError):
    """The runtime is over, or is ending; nothing can be asked of it any more."""


class StreamFormatError(MidstreamError):
    """A recorded stream or a provider's bytes do not follow the format they claim."""
