"""The way back to whoever asked: what a message carries when it wants an answer.

A message that wants an answer has a field of type `Reply[...]`; `Address.ask` fills it.
It is a protocol so that messages know nothing of tasks and deadlines, and so that a pure
decision may be tested with any object that has these two methods.
"""

from typing import Protocol, TypeVar

R_contra = TypeVar("R_contra", contravariant=True)


class Reply(Protocol[R_contra]):
    """Takes one answer, in the thread of the runtime.

    Both methods return whether the asker will get it: False when it no longer waits (its
    deadline has passed, or it was cancelled), so that what was reserved for it can be
    released. A second answer raises `AlreadyAnswered`.
    """

    def send(self, value: R_contra) -> bool:
        """Answer; `ask` returns `value`."""
        ...

    def fail(self, error: Exception) -> bool:
        """Answer that it cannot be done; `ask` raises `error`. The actor lives on."""
        ...


class ToNobody:
    """A `Reply` of a message whose sender does not wait for the answer."""

    def send(self, value: object) -> bool:
        return False

    def fail(self, error: Exception) -> bool:
        return False
