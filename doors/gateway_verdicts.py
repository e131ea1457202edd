"""What is decided about the matches in the answers to one client request.

Holds the repeat policy of the request over all its attempts. Owned by `Exchange`; pure.
"""

from collections.abc import Mapping, Sequence

import msgspec

from midstream.actors.turn_settings import OnExhausted
from midstream.doors.gateway_rules import GatewayRules
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.rules.finding import Match
from midstream.rules.policy import PolicyState, decide, next_attempt
from midstream.rules.rule import Source

_REMINDING = (VerdictAction.FOLD, VerdictAction.DEFER)
_CUTTING = (VerdictAction.INTERRUPT, VerdictAction.RIDE_ALONG)


class Verdicts:
    """See the module. `recorded` are the rules whose reminders the model has, with the turn
    of each; `turn` is the number of the answer in its conversation.

    `all` are the verdicts of all attempts, `attempts` the number of each one's attempt,
    counted from 1, `reminders` those of the last one that the model
    is still to be told of, `violations` those for which it was cut.
    """

    def __init__(self, rules: GatewayRules, recorded: Mapping[str, int], turn: int) -> None:
        self._rules = rules
        self._recorded = recorded
        self._policy = PolicyState()
        self.turn = turn
        self._attempt = 0
        self.all: list[Verdict] = []
        self.attempts: list[int] = []
        self.reminders: list[Verdict] = []
        self.violations: tuple[Verdict, ...] = ()

    def begin(self) -> None:
        """Another attempt begins."""
        self._attempt += 1
        self.reminders = []
        self.violations = ()
        self._policy = next_attempt(self._policy, self._recorded)

    def decide(self, matches: Sequence[Match]) -> Verdict | None:
        """Decide about the matches: look at `violations` afterwards. A verdict that comes
        back ends the answer, because the retries of its rule are spent."""
        # What goes out here cannot be taken back, and the reminder of an earlier request is
        # not in the client's conversation: a rule that may cut does so until its retries
        # are spent, whatever its repeat policy.
        cutting = {m.rule.name for m in matches if self._rules.interrupts(m.rule, m.source)}
        recorded = {n: t for n, t in self._recorded.items() if n not in cutting}
        state = msgspec.structs.replace(self._policy, recorded=recorded)
        self._policy, verdicts = decide(state, self._rules.policy, matches, self.turn)
        self.all += verdicts
        self.attempts += [self._attempt] * len(verdicts)
        self.reminders += [v for v in verdicts if v.action in _REMINDING]
        self.violations = tuple(v for v in verdicts if v.action in _CUTTING)
        return next((verdict for verdict in verdicts if self._ends_for(verdict)), None)

    def _ends_for(self, verdict: Verdict) -> bool:
        """Whether the answer ends here: a call that breaks a rule must not be run."""
        return verdict.action is VerdictAction.EXHAUSTED and (
            verdict.source == Source.TOOL or self._rules.on_exhausted is OnExhausted.FAIL
        )
