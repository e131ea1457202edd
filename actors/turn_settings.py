"""What a turn has to know before it begins; none of it changes while it runs."""

from enum import Enum

import msgspec

from midstream.messages.bd_stage import BdMode
from midstream.messages.compaction import SENTINELS
from midstream.messages.conversation import AnyItem, ModelRequest, ToolSpec
from midstream.messages.follow_up import repeatable
from midstream.messages.loop_guard import FOLLOW_UP_TIMEOUT_S, GuardLimits


class ContextMode(Enum):
    """What a retry sees of the attempt that was cut (spec/ttsr.md 2)."""

    DISCARD = "discard"
    KEEP = "keep"


class OnExhausted(Enum):
    """What happens to a violation when the retry budget is spent (spec/ttsr.md 0.7).

    A call that the session would run is not run in either case; see `Turn`.
    """

    DELIVER = "deliver"
    FAIL = "fail"


class PromptBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What midstream may start by itself for one prompt (architecture.md invariant 7).

    `max_restarts` counts the attempts that midstream starts beyond the first: retries,
    follow-ups, recoveries. Output tokens are those of all attempts, seconds those since the
    prompt in which no tool ran and no pause held an attempt back. An attempt that brings the
    model the results of its calls is one that the model asked for, and counts against
    `max_tool_rounds` alone.
    """

    max_restarts: int = 16
    max_output_tokens: int | None = None
    max_s: float = 900.0
    max_tool_rounds: int = 200


class ContinuationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How replies are continued by themselves (spec/stop_message.md 14).

    Without `is_allowed` no reply is. `single_hop` continues each prompt once, as the
    reference does; else the hops chain until N or a guard. `follow_up_deadline_s` is for
    one attempt at a follow-up; None for none.
    """

    is_allowed: bool = True
    single_hop: bool = False
    limits: GuardLimits = GuardLimits()
    follow_up_deadline_s: float | None = FOLLOW_UP_TIMEOUT_S
    compaction_sentinels: tuple[str, ...] = SENTINELS
    bd_mode: BdMode = BdMode.AUTO


class TurnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn has to know; it does not change while the turn runs."""

    conversation_id: str
    provider: str
    format: str
    model: str
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    runs_tools: bool = False
    """Whether completed calls are run, or answered by the host, within this session."""
    host_tools: frozenset[str] = frozenset()
    """Names of the tools whose calls the host answers."""
    max_tokens: int | None = None
    options: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    cwd: str = ""
    home: str = ""
    """Paths in reminders are shown relative to these."""
    environment: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """For programs that are run for the session, such as a provider that is one."""
    context_mode: ContextMode = ContextMode.DISCARD
    on_exhausted: OnExhausted = OnExhausted.DELIVER
    retry_delay_s: float = 0.05
    """Seconds between an abort and the retry, at least (spec/ttsr.md 0.8)."""
    settle_deadline_s: float = 10.0
    """Seconds after which a stream that was told to close counts as lost."""
    budget: PromptBudget = PromptBudget()
    continuation: ContinuationSettings = ContinuationSettings()

    def request(self, items: tuple[AnyItem, ...], *, is_chained: bool) -> ModelRequest:
        """The request for one attempt; `is_chained` is for what midstream asks by itself,
        which forces no tool a second time (spec/stop_message.md 7)."""
        return ModelRequest(
            model=self.model,
            items=items,
            system=self.system,
            tools=self.tools,
            max_tokens=self.max_tokens,
            options=repeatable(self.options) if is_chained else self.options,
            cwd=self.cwd,
            environment=self.environment,
        )
