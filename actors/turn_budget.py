"""What a turn has started by itself, held against the budget of its prompt.

Owned by `Turn`. One budget covers retries, follow-ups and recoveries (architecture.md
invariant 7); what it ends is reported as `capped`, with the reason that is given here.
"""

import msgspec

from midstream.actors.turn_settings import PromptBudget
from midstream.messages.usage import Usage


class Spending(msgspec.Struct):
    """`began_at` is the time of the prompt, in seconds; tools have run for `tools_ran_s`,
    and for `held_s` nothing could be asked because everybody was paused."""

    budget: PromptBudget
    began_at: float
    restarts: int = 0
    tool_rounds: int = 0
    tools_ran_s: float = 0.0
    held_s: float = 0.0
    held_since: float | None = None

    def hold(self, now: float) -> None:
        """An attempt is held back from now on; perhaps it was before."""
        self.held_since = now if self.held_since is None else self.held_since

    def release(self, now: float) -> None:
        """Nothing is held back any more; perhaps nothing was."""
        if self.held_since is not None:
            self.held_s += now - self.held_since
            self.held_since = None

    def spent(self, now: float, attempts: int, usage: Usage | None) -> str | None:
        """Why nothing more may be started for this prompt, or None if there is room."""
        budget = self.budget
        if self.restarts >= budget.max_restarts:
            return f"{attempts} attempts were made for this prompt"
        if now - self.began_at - self.tools_ran_s - self.held_s >= budget.max_s:
            return f"this prompt has taken {budget.max_s:g} seconds"
        output_tokens = (usage or Usage()).output_tokens or 0
        if budget.max_output_tokens is not None and output_tokens >= budget.max_output_tokens:
            return f"{output_tokens} output tokens were spent on this prompt"
        return None

    def spent_on_tools(self) -> str | None:
        """Why no more calls are run for this prompt, or None if there is room."""
        limit = self.budget.max_tool_rounds
        return f"{limit} rounds of tool calls were run" if self.tool_rounds >= limit else None
