"""What a session hears when its prompt has been made ready, or was refused.

Between handing in a prompt and accepting it files are read, directives taken out and hooks
asked (`actors/submit.py`). Nothing of a prompt is on record before `PromptReady` came.
"""

from collections.abc import Mapping

import msgspec

from midstream.messages.alert import Alert
from midstream.messages.conversation import AnyItem
from midstream.messages.record import SessionStatus
from midstream.messages.stop_message import Stage, StopMessageState
from midstream.messages.work import Work


class PromptReady(Work, frozen=True, kw_only=True):
    """The prompt may be accepted as `items`.

    `state` is the stopMessage state that holds from now on, None for a conversation that
    never had one; `is_new` says that directives of this prompt made it, `is_kept` that it
    already stands so in the conversation's book. With a `local_answer` there is nothing to
    ask a model, and no items. `templates` are the texts of the stages, if they are used.
    """

    items: tuple[AnyItem, ...]
    alerts: tuple[Alert, ...] = ()
    state: StopMessageState | None = None
    is_new: bool = False
    is_kept: bool = True
    local_answer: str | None = None
    templates: Mapping[Stage, str] = msgspec.field(default_factory=dict[Stage, str])
    is_compaction: bool = False
    version: int | None = None
    """Of the conversation that it was made ready for."""


class PromptRefused(Work, frozen=True):
    """Nothing of the prompt is to be kept; the session ends like this."""

    status: SessionStatus
    reason: str
    alerts: tuple[Alert, ...] = ()
