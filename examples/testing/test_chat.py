"""The chat is held to its promise: first by example, then in every order of things.

pytest examples/testing
"""

import pytest
import trio
from chat import Chat
from trio.testing import MockClock

from midstream import Rule, ScopeToken, Source
from midstream.testing import Race, answer, host_runtime, visible_text
from midstream.testing.pytest_plugin import OpenWorld

NO_FOO = Rule(
    name="no-foo", conditions=("foo",), scope=(ScopeToken(Source.TEXT),), body="Do not say foo."
)


async def test_the_chat_asks_on_until_the_answer_is_whole(
    midstream_world: OpenWorld, autojump_clock: MockClock
) -> None:
    async with midstream_world(answer("once upon..."), answer("a time")) as world:
        chat = Chat(host_runtime(world))
        await chat.ask("tell me a story")
        assert chat.screen == ["once upon...", "a time"]


async def test_what_a_rule_cuts_does_not_stay_on_the_screen(
    midstream_world: OpenWorld, autojump_clock: MockClock
) -> None:
    scripts = [answer("this is foo, and more"), answer("this is bar")]
    async with midstream_world(*scripts, rules=[NO_FOO]) as world:
        chat = Chat(host_runtime(world))
        await chat.ask("what is this?")
        assert chat.screen == ["this is bar"]


@pytest.mark.races(seeds=150)
async def test_after_a_stop_nothing_is_asked_and_nothing_stays_that_was_taken_back(
    race: Race,
) -> None:
    """The stop comes at any moment: in a stream, at a cut, in the window of the retry, in the
    pause before the chat asks on, behind the end."""
    texts = ("a long foo story...", "a long story...", "and its end")
    scripts = [race.script(answer(text)) for text in texts]
    async with race.world(*scripts, rules=[NO_FOO]) as world:
        chat = Chat(host_runtime(world))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chat.ask, "tell me a story")
            await trio.sleep(0.001 + race.seconds(1.0))  # the question was asked by then
            await chat.stop()
            asked = len(world.provider.requests)
            await trio.sleep(5)
            assert len(world.provider.requests) == asked, "the chat asked on after the stop"
        assert chat.screen == [visible_text(session.events) for session in world.sessions]


@pytest.mark.races(seeds=60, crashing=("rule_matcher", "stream_monitor"))
async def test_a_crash_below_never_shows_what_no_rule_has_seen(race: Race) -> None:
    scripts = [answer("well, foo"), *[answer("fine")] * 8]
    async with race.world(*scripts, rules=[NO_FOO]) as world:
        chat = Chat(host_runtime(world))
        race.always(lambda: never_on_screen("foo", chat))
        await chat.ask("hello")


def never_on_screen(text: str, chat: Chat) -> None:
    assert not any(text in line for line in chat.screen), chat.screen
