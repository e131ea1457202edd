"""What a person sees of a session in a terminal."""

from io import StringIO

from rich.console import Console
from trio.testing import MockClock

from midstream.cli.display import TerminalDisplay
from midstream.messages.conversation import ToolSpec
from midstream.messages.event_log import Position
from midstream.messages.events import SessionEvent, Text, ToolWanted
from midstream.providers.scripted import Call, answer
from midstream.testing.world import open_world


async def test_a_call_that_waits_for_its_host_is_shown_until_it_is_answered(
    autojump_clock: MockClock,
) -> None:
    """Whoever watches a session that stands still sees what it waits for."""
    shown = StringIO()
    display = TerminalDisplay(Console(file=shown, width=200))
    tool = ToolSpec(name="weather", description="Tell the weather.", schema={"type": "object"})
    async with open_world(answer(Call("weather", '{"city": "Kyiv"}')), answer("rain")) as world:
        session = world.animate("hello", tools=[tool])
        async for event in session.handle.events():
            display.show(event)
            if isinstance(wanted := event.event, ToolWanted):
                last = shown.getvalue().splitlines()[-1]
                assert last == f"… weather waits for the host to answer call {wanted.call_id}"
                await session.handle.answer(wanted.call_id, "12 degrees")
    lines = shown.getvalue().splitlines()
    waits = next(number for number, line in enumerate(lines) if line.startswith("…"))
    assert lines[waits - 1] == '→ weather {"city": "Kyiv"}'
    assert lines[waits + 1] == "← weather: 12 degrees"


async def test_what_is_told_again_because_a_host_was_lost_is_no_part_of_a_sentence() -> None:
    shown = StringIO()
    display = TerminalDisplay(Console(file=shown, width=200))
    display.show(SessionEvent("ses", 1, Text(1, "It is in pla")))
    display.begin_again(Position(1, 0))
    display.show(SessionEvent("ses", 1, Text(1, "It is")))
    first, told, again = shown.getvalue().splitlines()
    assert (first, again) == ("It is in pla", "It is")
    assert "was lost" in told
