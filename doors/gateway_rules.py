"""What the gateway watches for, and what it may do about a match.

One value for all requests: the compiled rules, the policy of repeats and retries, and the
limits of what is held. Pure.
"""

import msgspec

from midstream.actors.turn_settings import OnExhausted, PromptBudget
from midstream.rules.passage_watch import PASSAGE_CAP_CHARS
from midstream.rules.policy import PolicySettings
from midstream.rules.rule import Action, Rule, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.watch import NewArguments

HOLD_LIMIT_BYTES = 4 * 1024 * 1024
"""Held bytes of one attempt beyond which it is given up: they could neither be delivered
safely nor be kept (design.md section 5, invariant 11)."""


class GatewayRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is watched for, and what may be done about it. `cwd` and `home` shorten paths in
    reminders."""

    rule_set: RuleSet
    new_arguments: NewArguments
    policy: PolicySettings
    budget: PromptBudget
    passage_cap_chars: int = PASSAGE_CAP_CHARS
    on_exhausted: OnExhausted = OnExhausted.DELIVER
    retry_delay_s: float = 0.05
    retry_after_cap_s: int | None = None
    cwd: str = ""
    home: str = ""
    hold_limit_bytes: int = HOLD_LIMIT_BYTES

    def interrupts(self, rule: Rule, source: Source) -> bool:
        """Whether a match of `rule` in `source` may cut the stream."""
        mode = rule.interrupt_mode or self.policy.interrupt_mode
        return rule.action is not Action.OBSERVE and mode.interrupts(source)

    @property
    def may_interrupt(self) -> bool:
        """Whether any of the rules can cut anything at all."""
        return any(
            self.interrupts(compiled.rule, token.source)
            for compiled in self.rule_set.rules
            for token in compiled.rule.scope
        )

    def reaches_call(self, tool: str) -> bool:
        """Whether a rule that may cut watches calls of `tool`."""
        return any(
            self.interrupts(compiled.rule, Source.TOOL)
            for raw in (False, True)
            for compiled in self.rule_set.lineup(Source.TOOL, tool, raw=raw).rules
        )
