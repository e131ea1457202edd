"""What a person has to be told although nothing stops: an alert (spec/file_ref.md 2.3)."""

from enum import StrEnum

import msgspec


class AlertLevel(StrEnum):
    """How bad it is."""

    WARN = "warn"
    ERROR = "error"


class Alert(msgspec.Struct, frozen=True):
    """One alert. `source` names the part that raises it, `timestamp_ms` is wall time."""

    level: AlertLevel
    source: str
    message: str
    timestamp_ms: int
