"""A wrong key in `midstream.toml` is one error that names the key and the one that was meant."""

import pytest

from midstream.config_file import parse_config
from midstream.messages.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sytem = 'x'\n", r"sytem: unknown key; did you mean system\?"),
        ("[rules]\npath = []\n", r"rules\.path: unknown key; did you mean paths\?"),
        ("[gateway]\nprt = 1\n", r"gateway\.prt: unknown key; did you mean port\?"),
        (
            "[gateway.upstreams.mine]\nbase_ur = 'x'\n",
            r"gateway\.upstreams\.mine\.base_ur: unknown key; did you mean base_url\?",
        ),
        (
            "[[rules.tools]]\nnames = ['a']\npths = []\n",
            r"rules\.tools\[0\]\.pths: unknown key; did you mean paths\?",
        ),
        ("[roles.a]\nmodl = 'x'\n", r"roles\.a\.modl: unknown key; did you mean model\?"),
        ("[store]\nquorum = 3\n", r"store\.quorum: unknown key; known here: dead_letters, path"),
    ],
)
def test_an_unknown_key_is_named_with_what_its_own_table_knows(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(text, "midstream.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[roles.a]\nmodel = 'm'\n[roles.b]\nsystem = 4\n", r"roles\.b\.system: Expected `str"),
        ("[roles]\na = {}\nb = 3\n", r"roles\.b: Expected `object`, got `int`"),
        ("[roles]\n'a.b' = 3\n", r"roles\.a\.b: Expected `object`"),
        ("roles = 3\n", r"roles: Expected `object`"),
    ],
)
def test_a_wrong_type_is_named_with_the_entry_that_has_it(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(text, "midstream.toml")
