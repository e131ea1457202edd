"""Rule files that are edited while a runtime watches by them."""

from pathlib import Path

import pytest

from midstream.config import Config, RulesConfig, StoreConfig
from midstream.messages.errors import RuleError
from midstream.runtime import open_runtime

GOOD = b"---\ncondition: foo\n---\nNo foo.\n"
OTHER = b"---\ncondition: bar\n---\nNo bar.\n"


def config(*, discover: bool = False) -> Config:
    rules = RulesConfig(
        discover=discover, builtin_rules=False, paths=() if discover else ("rules",)
    )
    return Config(store=StoreConfig(path=":memory:"), rules=rules)


@pytest.mark.parametrize(
    ("edited", "why"),
    [
        (b"---\ncondition: '('\n---\nNo foo.\n", "a group is not closed"),
        (b"---\ncondition: foo\nNo foo.\n", "not closed"),
        (b"", "no body"),
        (b"\xff\xfe\x00", "UTF-16"),
    ],
)
async def test_a_file_that_cannot_be_read_any_more_leaves_all_rules_as_they_are(
    tmp_path: Path, edited: bytes, why: str
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "foo.md").write_bytes(GOOD)
    async with open_runtime(config(), cwd=tmp_path) as runtime:
        before = runtime.rules
        (rules / "foo.md").write_bytes(edited)
        (rules / "bar.md").write_bytes(OTHER)
        with pytest.raises(RuleError, match=why) as error:
            await runtime.reload_rules()
        assert error.value.path == str(rules / "foo.md")
        assert runtime.rules is before
        (rules / "foo.md").write_bytes(GOOD)
        assert len((await runtime.reload_rules()).rule_set.rules) == 2


@pytest.mark.parametrize(
    "edited",
    [
        None,
        b"---\ncondition: foo\nenabled: false\n---\nNo foo.\n",
        b"---\ndescription: About foo.\n---\nNo foo.\n",
        b"---\nenabled: false\nfoo\n---\nNo foo.\n",
    ],
    ids=["removed", "turned off", "no condition any more", "turned off, with a slip"],
)
async def test_a_rule_that_is_taken_away_is_gone(tmp_path: Path, edited: bytes | None) -> None:
    place = tmp_path / ".midstream" / "rules"
    place.mkdir(parents=True)
    (place / "foo.md").write_bytes(GOOD)
    async with open_runtime(config(discover=True), cwd=tmp_path) as runtime:
        watched = {each.rule.path for each in runtime.rules.rule_set.rules}
        assert str(place / "foo.md") in watched
        (place / "foo.md").unlink()
        if edited is not None:
            (place / "foo.md").write_bytes(edited)
        now = {each.rule.path for each in (await runtime.reload_rules()).rule_set.rules}
        assert now == watched - {str(place / "foo.md")}


async def test_a_file_that_never_gave_a_rule_hinders_none(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "empty.md").write_bytes(b"")
    async with open_runtime(config(), cwd=tmp_path) as runtime:
        (rules / "foo.md").write_bytes(GOOD)
        rulebook = await runtime.reload_rules()
    assert len(rulebook.rule_set.rules) == 1
    assert "no body" in rulebook.problems[0].what
