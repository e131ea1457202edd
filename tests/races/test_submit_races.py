"""A prompt that the host's hooks look at, against a stop and the next prompt (spec/file_ref.md 7).

A prompt that was refused, or stopped before it was accepted, leaves nothing: no record, no
request, nothing in the conversation. What was added to one is in no other (B2, B7).
"""

from contextlib import suppress

import pytest
import trio
from scenes import CLEAN, frugal, soon, stop_sometime

from midstream.actors.prompt_hooks import DEADLINE_S
from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.submission import (
    HookAction,
    HookCancel,
    HookContinue,
    InterceptorAction,
    SubmitCancel,
    SubmitContinue,
    SubmitContinueWith,
    SubmittedPrompt,
)
from midstream.stores.conversations import ConversationBusy
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race
from midstream.testing.world import ObservedSession

ADDED = "added for "


class Host:
    """Its hook and its interceptor, which take their time and may object, raise or hang."""

    def __init__(self, race: Race) -> None:
        self.refused: set[str] = set()
        """Sessions whose prompt one of them did not let through."""
        self.added: set[str] = set()
        self._race = race

    async def _look(self, session_id: str) -> bool:
        """Whether it objects."""
        race = self._race
        await trio.sleep(race.seconds(race.one_of((0.0, 0.05, 0.3))))
        match race.pick(8):
            case 5:
                self.refused.add(session_id)
                return True
            case 6:
                self.refused.add(session_id)
                raise RuntimeError("injected: the hook has a bug")
            case 7:
                self.refused.add(session_id)
                await trio.sleep(2 * DEADLINE_S)
            case _:
                pass
        return False

    async def hook(self, prompt: SubmittedPrompt) -> HookAction:
        objects = await self._look(prompt.session_id)
        return HookCancel("not this one") if objects else HookContinue()

    async def interceptor(self, prompt: SubmittedPrompt) -> InterceptorAction:
        if await self._look(prompt.session_id):
            return SubmitCancel("nor this one")
        if self._race.pick(2):
            return SubmitContinue()
        self.added.add(prompt.session_id)
        return SubmitContinueWith((UserItem(ADDED + prompt.session_id),))


def additions(request: ModelRequest) -> set[str]:
    """The sessions whose prompts something was added to that stands in this request."""
    said = (item.text for item in request.items if isinstance(item, UserItem))
    return {text.removeprefix(ADDED) for text in said if text.startswith(ADDED)}


def check_prompt(race: Race, host: Host, session: ObservedSession) -> None:
    """What was refused is nowhere; what was added is with its own prompt."""
    name, ended = session.handle.session_id, session.handle.ended
    if name in host.refused and (session.requests or name in race.records):
        raise InvariantBroken(4, f"{name} was refused: {ended}, {race.records.get(name)}")
    for request in session.requests:
        added = additions(request)
        if not added <= race.records.keys():
            raise InvariantBroken(10, f"{name} asks with {added}, of which some are on no record")
        if (name in added) != (name in host.added):
            raise InvariantBroken(10, f"{name} asks with {added}")


@pytest.mark.races(seeds=500, crashing=("session", "file_ref_resolver"), store=True)
async def test_prompts_that_hooks_look_at_against_stop_and_the_next_prompt(race: Race) -> None:
    host = Host(race)
    config = frugal(race)
    async with race.world(
        *[CLEAN] * 6, config=config, hooks=[host.hook], interceptors=[host.interceptor]
    ) as world:
        for _ in range(3):
            with suppress(ConversationBusy):
                world.animate("hello", conversation_id="con-1")
            session = world.sessions[-1]
            if race.pick(2):
                await stop_sometime(race, session, 0.4)
            await trio.sleep(soon(race, 0.4))
            if race.pick(2):
                await session.result()
    for session in world.sessions:
        check_prompt(race, host, session)
