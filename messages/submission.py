"""What a submitted input becomes once the host's hooks have spoken (spec/file_ref.md 7).

The session calls `settle_submission` once, before anything is pushed or stored. What was
attached is an argument and is kept nowhere, so that files of a cancelled submit cannot
turn up in the next one (B2); a cancelled submit leaves nothing to store (B7). Pure.
"""

from collections.abc import Sequence

import msgspec

from midstream.messages.conversation import AnyItem, SystemItem, UserItem
from midstream.messages.segments import AnySegment


class HookContinue(msgspec.Struct, frozen=True, tag="continue"):
    """The hook has no objection. Hooks only look: they add nothing to the conversation."""


class HookCancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The hook cancels the submit; `reason` is told to whoever submitted."""

    reason: str


HookAction = HookContinue | HookCancel


class Accepted(msgspec.Struct, frozen=True):
    """Push `items`, in order, and store `segments` with them."""

    items: tuple[AnyItem, ...]
    segments: tuple[AnySegment, ...]


class Rejected(msgspec.Struct, frozen=True):
    """Push nothing, store nothing, and end the run as aborted."""

    reason: str


def settle_submission(
    actions: Sequence[HookAction],
    segments: tuple[AnySegment, ...],
    user_text: str,
    attachments: Sequence[SystemItem],
) -> Accepted | Rejected:
    """The user's message and right behind it what was attached, or the first objection."""
    for action in actions:
        if isinstance(action, HookCancel):
            return Rejected(action.reason)
    return Accepted((UserItem(user_text), *attachments), segments)
