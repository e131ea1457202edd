"""What the documentation shows is true: its rules load and hold, its programs compile."""

import re
from pathlib import Path

import pytest

from midstream.config_file import parse_config
from midstream.rules.example_check import TrialSettings, check_examples
from midstream.rules.rule_file import parse_rule

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(kind: str) -> list[tuple[str, str]]:
    """The code blocks of this kind, each with the name of its page."""
    pattern = re.compile(rf"^```{kind}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(page.name, text) for page in PAGES for text in pattern.findall(page.read_text())]


@pytest.mark.parametrize(("page", "text"), blocks("markdown"))
def test_every_rule_that_is_shown_loads_and_keeps_its_examples(page: str, text: str) -> None:
    file = parse_rule("shown", text, path=page)
    assert file.rule is not None
    assert not file.problems
    results = check_examples(file.rule, TrialSettings(cuts=5, seed=1, cwd="/"))
    assert [result.failure for result in results if result.failure] == []


@pytest.mark.parametrize(("page", "text"), blocks("toml"))
def test_every_configuration_that_is_shown_is_valid(page: str, text: str) -> None:
    if "[model_providers" not in text:
        parse_config(text, page)


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_every_program_that_is_shown_compiles(page: str, text: str) -> None:
    compile(text, page, "exec")
