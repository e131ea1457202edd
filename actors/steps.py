"""What one step of a session means: for the conversation, for the quota, for who listens.

Pure functions of an envelope; `StepWriter` carries them out.
"""

import math
from collections.abc import Callable

from midstream.actors.funnel import Hint, rate_limit_tag
from midstream.messages.enrolment import ending, opening
from midstream.messages.envelope import StepEnvelope
from midstream.messages.events import SessionEnded
from midstream.messages.notices import Phase
from midstream.messages.record import Crossing, SessionRecord, SessionStatus
from midstream.messages.stop_message_codec import STATE_NAME, stored_state
from midstream.messages.work import AcceptPrompt, AppendItems, FinishSession
from midstream.stores.conversation_draft import Claim, ConversationWrite
from midstream.stores.conversation_load import Conversation
from midstream.stores.conversations import accept_prompt, also_keep, append_items, finish


def decide_step(envelope: StepEnvelope) -> Callable[[Conversation], ConversationWrite]:
    """What the step means for the conversation, as it will be read."""
    decide, state = _decide_items(envelope), envelope.recording.stop_message
    if state is None:
        return decide
    kept = stored_state(state)
    return lambda conversation: also_keep(decide(conversation), STATE_NAME, kept)


def _decide_items(envelope: StepEnvelope) -> Callable[[Conversation], ConversationWrite]:
    enrolment, at = envelope.enrolment, envelope.at
    claim = Claim(enrolment.session_id, enrolment.fence)
    match envelope.recording:
        case AcceptPrompt(items, _, version):
            return lambda conversation: accept_prompt(
                conversation, opening(enrolment), items, version=version
            )
        case AppendItems(items, turn, attempt):
            return lambda conversation: append_items(
                conversation, claim, items, turn=turn, attempt=attempt, at=at
            )
        case FinishSession(items, turn, ended):
            last = ending(enrolment, ended, at)
            return lambda conversation: finish(
                conversation, claim, last, items, turn=turn, attempt=ended.attempts
            )


def phase_of(envelope: StepEnvelope) -> Phase:
    """What is missing while the step is not written."""
    match envelope.recording:
        case AcceptPrompt():
            return Phase.INSERT
        case AppendItems():
            return Phase.WRITE_RECORD
        case FinishSession():
            return Phase.UPDATE_ROW


def hint_of(ended: SessionEnded) -> Hint:
    """What the end of a session of this process says about the quota."""
    asked_s = ended.failure.retry_after_s if ended.failure is not None else None
    retry_after_ms = None if asked_s is None else math.ceil(asked_s * 1000)
    tag = None
    if ended.status is SessionStatus.RATE_LIMITED:
        tag = rate_limit_tag("stream", ended.reason)
    return Hint(tag, retry_after_ms, asked=ended.attempts > 0)


def crossing_of(envelope: StepEnvelope, after: SessionRecord) -> Crossing | None:
    """What a step has crossed that was written without anybody hearing that it was."""
    match envelope.recording:
        case AcceptPrompt():
            return Crossing.STARTED if after.status is SessionStatus.RUNNING else None
        case AppendItems():
            return None
        case FinishSession(ended=ended):
            return Crossing.ENDED if after.status is ended.status else None
