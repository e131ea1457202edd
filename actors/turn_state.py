"""What a turn knows, as plain data. One `Turn` owns it.

Only the modules of the turn (`turn*.py`) change it, each the part that its own docstring
names, and only while `Turn` handles a message.
"""

import msgspec

from midstream.actors.turn_budget import Spending
from midstream.actors.turn_continuation import Continuing
from midstream.actors.turn_phases import Phase, Submitting
from midstream.actors.turn_settings import TurnSettings
from midstream.messages.accumulate import Accumulator, PartialTranscript
from midstream.messages.conversation import AnyItem
from midstream.messages.settle import Ending, Outcome, settle
from midstream.messages.stream import StopReason
from midstream.messages.usage import Usage
from midstream.messages.verdict import Verdict


class Attempt(msgspec.Struct):
    """What the newest attempt owns; it ends with it on every exit (spec/ttsr.md 0.8).

    Attempts are numbered from 1; before the first there is number 0, which heard nothing.
    """

    number: int
    heard: Accumulator
    deferred: list[Verdict] = msgspec.field(default_factory=list[Verdict])
    """Their reminder comes behind the whole answer."""
    folded: list[Verdict] = msgspec.field(default_factory=list[Verdict])
    """Their reminder comes with the result of the call that they are about."""
    is_void: bool = False
    """It was retracted: whatever happens, nothing of it stays (architecture.md invariant 2)."""
    refused: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """The calls that must not be run, by id, with the rules that they break."""


class TurnState(msgspec.Struct, kw_only=True):
    """Where a turn stands (`phase`) and all that it remembers. Times as in `Turn`."""

    settings: TurnSettings
    context: tuple[AnyItem, ...]
    recorded: dict[str, int]
    """The rules whose reminder is in the context, with the message it came after."""
    ordinal: int
    """How many messages the model has written in the conversation, this one included."""
    began_at: float
    began_ms: int
    now: float
    spending: Spending
    continuing: Continuing
    attempt: Attempt
    phase: Phase = msgspec.field(default_factory=Submitting)
    is_restarting: bool = False
    """Somebody has crashed with whom the reader of streams is restarted, and it has not stopped
    yet: whatever it reads until then is lost."""
    step: int = 0
    """Number of the newest write of this session."""
    usage: Usage | None = None
    output: str = ""
    """The last words of the last good reply, and why it stopped there."""
    stop_reason: StopReason | None = None
    provider_session_id: str | None = None
    exhausted: str | None = None
    """The rule that was broken more often than it is retried, and why it counts as spent."""

    @property
    def now_ms(self) -> int:
        return self.began_ms + round((self.now - self.began_at) * 1000)

    def spent(self) -> str | None:
        """Why midstream may start nothing more for this prompt, or None if it may."""
        return self.spending.spent(self.now, self.attempt.number, self.usage)

    def draw_on_budget(self) -> str | None:
        """Take one start from the budget; or say why there is none left for this prompt."""
        if (spent := self.spent()) is None:
            self.spending.restarts += 1
        return spent

    def count(self, partial: PartialTranscript) -> None:
        """Add up what an attempt has used that is over. Once for each attempt."""
        self.usage = partial.usage if self.usage is None else self.usage.plus(partial.usage)
        self.provider_session_id = partial.session_id or self.provider_session_id

    def settled(self, partial: PartialTranscript, ending: Ending) -> tuple[AnyItem, ...]:
        """What of an attempt may stand in the conversation."""
        return settle(partial, Outcome(ending), self.settings.format)

    def broken_off(self, partial: PartialTranscript, ending: Ending) -> tuple[AnyItem, ...]:
        """What stays of an attempt that has no end, and what the session has said by it; a
        follow-up takes no good reply away."""
        if self.attempt.is_void:
            return ()
        if partial.text.strip() and self.continuing.follow_up is None:
            self.output = partial.last_words
        return self.settled(partial, ending)
