"""What an address may answer with instead of a reply."""

from midstream.messages.errors import MidstreamError
from midstream.messages.lifecycle import AnyExit, Crashed


class MailboxFull(MidstreamError):
    """`tell_nowait` found no room. Nothing was sent."""

    def __init__(self, who: str, capacity: int) -> None:
        self.who = who
        self.capacity = capacity
        super().__init__(f"the mailbox of {who} is full ({capacity} messages)")


class AskFailed(MidstreamError):
    """An ask has no answer. Base of the ways in which that happens.

    `picked_up` says whether the actor had begun to handle the question. If it is False it
    never will, and asking again cannot do anything twice.
    """

    def __init__(self, who: str, problem: str, *, picked_up: bool) -> None:
        self.who = who
        self.picked_up = picked_up
        state = "had begun to handle it" if picked_up else "had not read it"
        super().__init__(f"{who} {problem}; it {state}")


class AskTimeout(AskFailed):
    """The deadline passed before the answer came."""


class ActorDied(AskFailed):
    """The actor crashed, was stopped or ended before it answered. It may be restarted."""

    def __init__(self, who: str, reason: AnyExit, *, picked_up: bool) -> None:
        self.reason = reason
        super().__init__(who, _describe(reason), picked_up=picked_up)


class QuestionFailed(AskFailed):
    """Handling the question came upon an error that the actor does not know, a bug most likely.
    It cost this question alone, and the actor goes on."""

    def __init__(self, who: str, error: Crashed) -> None:
        super().__init__(who, _describe(error), picked_up=True)


class ActorEnded(ActorDied):
    """The actor has ended for good; nothing sent to this address will be handled."""


class AlreadyAnswered(MidstreamError):
    """A second answer was given to one question."""


def _describe(reason: AnyExit) -> str:
    if isinstance(reason, Crashed):
        return f"crashed with {reason.error}"
    return "has ended or was stopped"
