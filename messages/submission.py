"""What a submitted prompt becomes once the host's hooks and interceptors have spoken.

Two kinds of them, and two types, so that one cannot pass for the other: a *hook* looks and
may object, an *interceptor* may also add to the prompt. The session asks all of them in
order, before anything is pushed or stored, and `settle_submission` draws the conclusion:
the first that does not simply continue decides (spec/file_ref.md 7). What was attached is
an argument and is kept nowhere, so that files of a cancelled submit cannot turn up in the
next one (B2); a cancelled submit leaves nothing to store (B7). Pure.
"""

from collections.abc import Sequence

import msgspec

from midstream.messages.conversation import AnyItem, UserItem
from midstream.messages.segments import AnySegment


class SubmittedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What hooks and interceptors are shown: what is about to be put into a conversation.

    `items` are the user's message, and behind it what was attached. Directives are out of
    it already. `segments` is what was typed; empty for a prompt that came as items.
    """

    session_id: str
    conversation_id: str
    items: tuple[AnyItem, ...]
    segments: tuple[AnySegment, ...] = ()

    @property
    def text(self) -> str:
        """What the user says, newest message; empty where there is none."""
        texts = [item.text for item in self.items if isinstance(item, UserItem)]
        return texts[-1] if texts else ""


class HookContinue(msgspec.Struct, frozen=True, tag="continue"):
    """The hook has no objection. Hooks only look: they add nothing to the conversation."""


class HookCancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The hook cancels the submit; `reason` is told to whoever submitted."""

    reason: str


HookAction = HookContinue | HookCancel


class SubmitContinue(msgspec.Struct, frozen=True, tag="continue"):
    """The interceptor has nothing to add and no objection."""


class SubmitCancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The interceptor cancels the submit; `reason` is told to whoever submitted."""

    reason: str


class SubmitContinueWith(msgspec.Struct, frozen=True, tag="continue_with"):
    """Put `items` behind the prompt and its attachments, in this order."""

    items: tuple[AnyItem, ...]


InterceptorAction = SubmitContinue | SubmitCancel | SubmitContinueWith


class Accepted(msgspec.Struct, frozen=True):
    """Push `items`, in order."""

    items: tuple[AnyItem, ...]


class Rejected(msgspec.Struct, frozen=True):
    """Push nothing, store nothing, and end the run as aborted."""

    reason: str


def settle_submission(
    items: tuple[AnyItem, ...], actions: Sequence[HookAction | InterceptorAction]
) -> Accepted | Rejected:
    """The prompt with what was attached, or the first objection.

    `actions` are those of the hooks, then those of the interceptors, as far as they were
    asked; nobody needs to be asked after the first that does not continue.
    """
    for action in actions:
        match action:
            case HookCancel(reason) | SubmitCancel(reason):
                return Rejected(reason)
            case SubmitContinueWith(added):
                return Accepted((*items, *added))
            case _:
                pass
    return Accepted(items)
