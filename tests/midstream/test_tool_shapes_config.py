"""Hosts describe the arguments of their own tools in `[[rules.tools]]` (spec/ttsr.md 0.4)."""

import pytest
from trio.testing import MockClock

from midstream.config_file import parse_config
from midstream.messages.errors import ConfigError
from midstream.messages.events import RuleTriggered
from midstream.providers.scripted import Call, answer
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.testing.world import open_world

RULE = Rule(
    name="no-foo", conditions=("foo",), scope=(ScopeToken(Source.TOOL, "store"),), body="No foo."
)
TOML = """
[rules]
discover = false

[[rules.tools]]
names = ["store"]
introduced = ["document.body"]
paths = ["document.name"]
"""
SAFE = Call("store", '{"note": "foo", "document": {"name": "a.md", "body": "fine"}}')
BROKEN = Call("store", '{"note": "", "document": {"name": "a.md", "body": "foo"}}')


@pytest.mark.parametrize(("call", "matches"), [(SAFE, 0), (BROKEN, 1)])
async def test_only_what_the_shape_calls_introduced_is_watched(
    call: Call, matches: int, autojump_clock: MockClock
) -> None:
    config = parse_config(TOML, "midstream.toml")
    async with open_world(answer(call), answer("ok"), rules=[RULE], config=config) as world:
        session = world.animate("hello")
        await session.result()
        found = [e.event for e in session.events if isinstance(e.event, RuleTriggered)]
        assert len(found) == matches
        assert [trigger.verdict.path for trigger in found] == ["a.md"] * matches


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("format = 'xml'", "rules.tools[0].format"),
        ("introduce = ['x']", "rules.tools[0].introduce"),
        ("names = []", "rules.tools[0]"),
    ],
)
def test_a_mistake_in_a_shape_names_its_key(line: str, key: str) -> None:
    first = "" if line.startswith("names") else "names = ['store']\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(f"[[rules.tools]]\n{first}{line}\n", "midstream.toml")
    assert caught.value.key == key
