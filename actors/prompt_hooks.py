"""The host's hooks and interceptors: whom a prompt is shown before it is accepted.

Asked by `Submit`, one after the other: hooks first, then interceptors, each in the order in
which they were registered, until one does not simply continue (spec/file_ref.md 7). Each
has a deadline. What one raises, and an answer that it may not give, ends that prompt with a
clear error, and nothing else.
"""

from collections.abc import Awaitable, Callable, Sequence

import trio

from midstream.messages.errors import MidstreamError
from midstream.messages.submission import (
    Accepted,
    HookAction,
    HookCancel,
    HookContinue,
    InterceptorAction,
    Rejected,
    SubmitCancel,
    SubmitContinue,
    SubmitContinueWith,
    SubmittedPrompt,
    settle_submission,
)

DEADLINE_S = 30.0

Hook = Callable[[SubmittedPrompt], Awaitable[HookAction]]
"""Looks at a prompt, and may cancel it."""

Interceptor = Callable[[SubmittedPrompt], Awaitable[InterceptorAction]]
"""Looks at a prompt, and may cancel it or add to it."""


class HookFailed(MidstreamError):
    """A hook or an interceptor raised, hung, or answered what it may not."""


class PromptHooks:
    """See the module. `deadline_s` is for each of them."""

    def __init__(
        self,
        hooks: Sequence[Hook] = (),
        interceptors: Sequence[Interceptor] = (),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._hooks = tuple(hooks)
        self._interceptors = tuple(interceptors)
        self._deadline_s = deadline_s

    async def ask(self, prompt: SubmittedPrompt) -> Accepted | Rejected:
        """What they make of a prompt. Raises `HookFailed`."""
        actions: list[HookAction | InterceptorAction] = []
        for hook in self._hooks:
            action = await self._answer_of(hook, "hook", prompt)
            if not isinstance(action, HookContinue | HookCancel):
                raise _wrong_answer("hook", hook, action)
            actions.append(action)
            if not isinstance(action, HookContinue):
                return settle_submission(prompt.items, actions)
        for interceptor in self._interceptors:
            action = await self._answer_of(interceptor, "interceptor", prompt)
            if not isinstance(action, SubmitContinue | SubmitCancel | SubmitContinueWith):
                raise _wrong_answer("interceptor", interceptor, action)
            actions.append(action)
            if not isinstance(action, SubmitContinue):
                break
        return settle_submission(prompt.items, actions)

    async def _answer_of(
        self, asked: Hook | Interceptor, kind: str, prompt: SubmittedPrompt
    ) -> object:
        try:
            with trio.move_on_after(self._deadline_s):
                return await asked(prompt)
        except Exception as error:
            problem = f"raised {type(error).__name__}: {error}"
            raise HookFailed(f"{kind} {_name_of(asked)} {problem}") from error
        problem = f"has not answered for {self._deadline_s:g} seconds"
        raise HookFailed(f"{kind} {_name_of(asked)} {problem}")


def _wrong_answer(kind: str, asked: Hook | Interceptor, answer: object) -> HookFailed:
    allowed = "HookContinue or HookCancel"
    if kind == "interceptor":
        allowed = "SubmitContinue, SubmitCancel or SubmitContinueWith"
    return HookFailed(
        f"{kind} {_name_of(asked)} answered {type(answer).__name__}; it may answer {allowed}"
    )


def _name_of(asked: Hook | Interceptor) -> str:
    return getattr(asked, "__qualname__", type(asked).__qualname__)
