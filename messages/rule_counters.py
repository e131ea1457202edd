"""What rules have done in all sessions of a runtime, as counts (spec/ttsr.md 0.13).

A fold over events: the Announcer, which sees them all, keeps the sum.
"""

import msgspec

from midstream.messages.events import AnyEvent, AttemptDiscarded, ReminderInjected, RuleTriggered
from midstream.messages.verdict import VerdictAction


class RuleCount(msgspec.Struct):
    """One rule's counts.

    `matched` are all matches; each was one of the actions below. `reminded` counts the
    injections that held the rule, whatever the action was. `suppressed` counts by reason.
    """

    matched: int = 0
    interrupted: int = 0
    deferred: int = 0
    folded: int = 0
    rode_along: int = 0
    observed: int = 0
    exhausted: int = 0
    suppressed: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    reminded: int = 0


class RuleCounters(msgspec.Struct):
    """All rules' counts, and what their interrupts have thrown away.

    `thrown_away_tokens` are output tokens of the `discarded` attempts, as far as they are
    known or can be estimated.
    """

    rules: dict[str, RuleCount] = msgspec.field(default_factory=dict[str, RuleCount])
    discarded: int = 0
    thrown_away_tokens: int = 0

    def take(self, event: AnyEvent) -> None:
        """Count one event."""
        match event:
            case RuleTriggered(verdict=verdict):
                count = self._of(verdict.rule)
                count.matched += 1
                _count_action(count, verdict.action, verdict.reason or "")
            case ReminderInjected(rules=rules):
                for rule in rules:
                    self._of(rule).reminded += 1
            case AttemptDiscarded(usage=usage):
                self.discarded += 1
                self.thrown_away_tokens += usage.output_tokens or 0
            case _:
                pass

    def _of(self, rule: str) -> RuleCount:
        return self.rules.setdefault(rule, RuleCount())


_FIELD_OF_ACTION = {
    VerdictAction.INTERRUPT: "interrupted",
    VerdictAction.DEFER: "deferred",
    VerdictAction.FOLD: "folded",
    VerdictAction.RIDE_ALONG: "rode_along",
    VerdictAction.OBSERVE: "observed",
    VerdictAction.EXHAUSTED: "exhausted",
}


def _count_action(count: RuleCount, action: VerdictAction, reason: str) -> None:
    if action is VerdictAction.SUPPRESSED:
        count.suppressed[reason] = count.suppressed.get(reason, 0) + 1
        return
    name = _FIELD_OF_ACTION[action]
    setattr(count, name, getattr(count, name) + 1)
