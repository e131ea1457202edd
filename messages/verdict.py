"""What the rules say about a stream: one verdict for one violation.

Made by `RuleMatcher`, obeyed by `Session`, shown to the outside as part of events.
"""

from enum import StrEnum

import msgspec


class VerdictAction(StrEnum):
    """What is done about a match."""

    INTERRUPT = "interrupt"
    """The attempt is cut; the reminder goes before the next one."""
    DEFER = "defer"
    """The reminder follows when the message is complete (spec/ttsr.md 4.5)."""
    FOLD = "fold"
    """The reminder is put in front of the call's result (spec/ttsr.md 4.6)."""
    RIDE_ALONG = "ride_along"
    """The rule does not interrupt, but another of the same batch does; one injection."""
    OBSERVE = "observe"
    """Shadow mode: reported, nothing else."""
    EXHAUSTED = "exhausted"
    """The rule would interrupt, but its retry budget is spent; the output goes through."""
    SUPPRESSED = "suppressed"
    """The repeat policy, or a reservation, says no; `reason` tells which."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A rule has matched for good.

    `source` is `text`, `thinking` or `tool`; `tool`, `call_id` and `path` place a match in
    a tool call. `offset_chars` is where in its passage the match begins (None where the
    search for the place was given up), `excerpt` the text around it, at most 160
    characters. `reminder` is the rule's text for the model.
    """

    rule: str
    action: VerdictAction
    source: str
    condition: str = ""
    tool: str | None = None
    call_id: str | None = None
    path: str | None = None
    rule_path: str = ""
    offset_chars: int | None = None
    excerpt: str = ""
    reminder: str = ""
    reason: str | None = None
    interrupts: bool = False
    """Whether the rule may cut the stream at this place, whatever is done about it now."""
