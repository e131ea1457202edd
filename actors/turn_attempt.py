"""How a turn starts an attempt: one stream, asked for with all that is on record."""

from midstream.actors.turn_effects import Effect, LimitTo, Publish, Start
from midstream.actors.turn_phases import Streaming
from midstream.actors.turn_state import Attempt, TurnState
from midstream.messages.accumulate import Accumulator
from midstream.messages.events import AttemptStarted


def start_attempt(turn: TurnState) -> list[Effect]:
    """Ask for the next stream. From here on nothing that an earlier attempt says counts:
    messages carry the number of their attempt (architecture.md invariant 2)."""
    number = turn.attempt.number + 1
    turn.spending.release(turn.now)
    turn.attempt = Attempt(number, Accumulator(turn.settings.format))
    turn.ordinal += 1
    turn.continuing = turn.continuing.asked()
    turn.phase = Streaming(number)
    request = turn.settings.request(turn.context, is_chained=turn.continuing.is_chained)
    is_follow_up = turn.continuing.follow_up is not None
    effects: list[Effect] = [
        Publish((AttemptStarted(number),)),
        Start(number, turn.ordinal, dict(turn.recorded), request, is_follow_up),
    ]
    limit_s = turn.settings.continuation.follow_up_deadline_s
    if is_follow_up and limit_s is not None:
        effects.append(LimitTo(number, limit_s))
    return effects
