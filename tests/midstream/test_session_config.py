"""The configuration of the back-off and of roles: what is wrong refuses the start."""

from pathlib import Path
from typing import Any

import pytest

from midstream.config import RoleConfig
from midstream.config_file import config_from, parse_config
from midstream.messages.backoff import BackoffSettings
from midstream.messages.errors import ConfigError
from midstream.providers.scripted import ScriptedProvider
from midstream.runtime import open_runtime
from midstream.stores.memory import MemoryStore


def backoff(**block: object) -> dict[str, Any]:
    return {"rateLimit": {"backoff": block}}


@pytest.mark.parametrize("data", [{}, {"rateLimit": {}}, backoff()])
def test_without_the_block_there_are_the_defaults_of_the_reference(data: dict[str, Any]) -> None:
    settings = config_from(data).rate_limit.backoff
    assert settings == BackoffSettings(initial_ms=900_000, max_ms=3_600_000, factor=2.0)


def test_a_part_of_the_block_is_filled_with_defaults() -> None:
    text = "[rateLimit.backoff]\ninitialMs = 1000\nprobeLimit = 1\n"
    settings = parse_config(text, "midstream.toml").rate_limit.backoff
    assert settings == BackoffSettings(initial_ms=1000, probe_limit=1)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"rateLimit": 42}, "rateLimit"),
        ({"rateLimit": None}, "rateLimit"),
        ({"rateLimit": {"backoff": None}}, "rateLimit.backoff"),
        ({"rateLimit": {"backoff": [1]}}, "rateLimit.backoff"),
        ({"rateLimit": {"pause": {}}}, "rateLimit.pause"),
        (backoff(initialMs=-1), "rateLimit.backoff.initialMs"),
        (backoff(initialMs=1.5), "rateLimit.backoff.initialMs"),
        (backoff(initialMs=True), "rateLimit.backoff.initialMs"),
        (backoff(factor=1), "rateLimit.backoff.factor"),
        (backoff(factor=float("inf")), "rateLimit.backoff.factor"),
        (backoff(initialMs=4_000_000), "rateLimit.backoff.maxMs"),
        (backoff(initialMs=10, maxMs=5), "rateLimit.backoff.maxMs"),
        (backoff(initial_ms=10), "rateLimit.backoff.initial_ms"),
    ],
)
def test_a_malformed_block_is_refused_with_its_key(data: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from(data, "midstream.toml")
    assert refused.value.key == key
    assert str(refused.value).startswith(f"midstream.toml: {key}: ")


async def test_a_malformed_file_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "midstream.toml").write_text("[rateLimit.backoff]\nfactor = 0.5\n")
    with pytest.raises(ConfigError, match=r"rateLimit\.backoff\.factor"):
        async with open_runtime(
            cwd=tmp_path, provider=ScriptedProvider(), store=MemoryStore(), rules=()
        ):
            pass


def test_roles_are_tables_with_a_prompt_or_the_file_of_one() -> None:
    config = parse_config(
        '[roles.reviewer]\nsystem = "You review."\nmodel = "big"\n'
        'environment = {GIT_AUTHOR_NAME = "Reviewer"}\n',
        "midstream.toml",
    )
    assert config.roles["reviewer"] == RoleConfig(
        system="You review.", model="big", environment={"GIT_AUTHOR_NAME": "Reviewer"}
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[roles.a]\nsystm = "x"\n', "did you mean system?"),
        ('[roles.a]\nsystem = "x"\nsystem_file = "y"\n', "one system prompt"),
        ("[roles]\na = 3\n", "object"),
        ("[roles.a]\nenvironment = {A = 1}\n", "str"),
    ],
)
def test_a_malformed_role_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(text, "midstream.toml")
