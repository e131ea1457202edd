"""What the documentation shows is true: its rules load and hold, its programs compile."""

import re
import tomllib
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_program_that_is_named_is_there(page: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_*]+\.py)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_map_of_the_abort_path_names_functions_that_are_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\| \d \| `([a-z_/]+\.py)`, ([^|]+)\|", page, re.MULTILINE)
    assert len(steps) == 8
    for file, functions in steps:
        text = (ROOT / file).read_text(encoding="utf-8")
        missing = [n for n in re.findall(r"`(\w+)`", functions) if f"def {n}(" not in text]
        assert missing == [], file


def test_the_map_has_every_room_and_every_actor_of_a_session() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = (ROOT / "supervisors/session_tree.py").read_text(encoding="utf-8")
    actors = re.findall(r'ActorSpec\(\s*"(\w+)"', tree)
    assert actors
    assert [name for name in actors if f"─ {name} " not in page] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["setuptools"]["package-dir"].values()
    rooms = {path.split("/")[0] for path in packages}
    assert [room for room in rooms if f"| `{room}/` |" not in page] == []
