"""The bundled rules: each says what to do instead, and its examples hold."""

import msgspec
import pytest
import regex

from midstream.rules.buckets import can_watch
from midstream.rules.condition import compile_condition
from midstream.rules.discovery import builtin_rules
from midstream.rules.example_check import TrialSettings, check_examples
from midstream.rules.globs import candidate_paths, compile_glob
from midstream.rules.lint import lint
from midstream.rules.rule import Action, Example, InterruptMode, Rule, Source
from midstream.rules.tool_names import same_tool

BUILTIN = builtin_rules()
EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.name}-{number}")
    for rule in BUILTIN.rules
    for number, example in enumerate(rule.examples)
]


TOKENS = [
    # Put together here, because scanners for leaked secrets read files, not programs.
    prefix + "0" * length
    for prefix, length in [
        ("github_pat_", 40),
        ("sk-", 32),
        ("sk-proj-", 32),
        ("xox" + "b-12345678-", 16),
        ("AI" + "za", 35),
        ("sk_" + "live_", 20),
    ]
]


def is_in_scope(rule: Rule, tool: str | None, path: str | None) -> bool:
    paths = candidate_paths(path, "/repo") if path else ()
    if rule.globs and not any(compile_glob(glob).matches(paths) for glob in rule.globs):
        return False
    for token in rule.scope:
        if tool is None and token.source is Source.TEXT:
            return True
        if tool is None or token.source is not Source.TOOL:
            continue
        if token.tool is not None and not same_tool(token.tool, tool):
            continue
        if token.glob is None or compile_glob(token.glob).matches(paths):
            return True
    return False


def by_name(name: str) -> Rule:
    return next(rule for rule in BUILTIN.rules if rule.name == name)


def test_they_load_without_a_word():
    assert [str(problem) for problem in BUILTIN.problems] == []
    assert BUILTIN.shadowed == ()
    assert len(BUILTIN.rules) >= 20


@pytest.mark.parametrize("rule", BUILTIN.rules, ids=lambda rule: rule.name)
def test_each_reminds_and_never_interrupts(rule: Rule):
    assert can_watch(rule)
    assert rule.interrupt_mode is InterruptMode.NEVER
    assert rule.action is Action.REMIND
    assert rule.description
    assert rule.origin == "builtin"
    assert rule.path == f"builtin:{rule.name}.md"


@pytest.mark.parametrize("rule", BUILTIN.rules, ids=lambda rule: rule.name)
def test_each_has_examples_both_ways(rule: Rule):
    assert sum(example.matches for example in rule.examples) >= 1
    assert sum(not example.matches for example in rule.examples) >= 2


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_an_example_is_in_scope_and_matches_as_it_says(rule: Rule, example: Example):
    assert is_in_scope(rule, example.tool, example.path)
    found = [pattern for pattern in rule.conditions if regex.search(pattern, example.text)]
    assert bool(found) is example.matches


@pytest.mark.parametrize("rule", BUILTIN.rules, ids=lambda rule: rule.name)
def test_its_examples_hold_in_a_stream_however_it_is_cut(rule: Rule):
    results = check_examples(rule, TrialSettings(cuts=2))

    assert [result.failure for result in results if result.failure] == []


def test_the_linter_has_nothing_to_say_of_them():
    # It leaves bundled rules out, as they are not the user's to mend.
    rules = [msgspec.structs.replace(rule, origin="midstream") for rule in BUILTIN.rules]

    assert [str(problem) for problem in lint(rules)] == []


@pytest.mark.parametrize("rule", BUILTIN.rules, ids=lambda rule: rule.name)
def test_no_condition_is_idle(rule: Rule):
    texts = [example.text for example in rule.examples if example.matches]
    texts += TOKENS if rule.name == "secret-token" else []
    for condition in rule.conditions:
        assert any(regex.search(condition, text) for text in texts), condition


@pytest.mark.parametrize("rule", BUILTIN.rules, ids=lambda rule: rule.name)
def test_the_body_is_short_and_does_not_begin_with_a_prohibition(rule: Rule):
    first_word = rule.body.split()[0].lower()

    assert first_word not in {"do", "don't", "never", "avoid", "stop"}
    assert len(rule.body) <= 1024


@pytest.mark.parametrize(
    ("name", "tool", "path", "expected"),
    [
        ("py-broad-except", "MultiEdit", "/repo/src/app.py", True),
        ("py-broad-except", "str_replace_based_edit_tool", "app.py", True),
        ("py-broad-except", "apply_patch", "src/app.py", True),
        ("py-broad-except", "edit", "app.ts", False),
        ("py-broad-except", "Bash", None, False),
        ("py-sleep-in-test", "write", "tests/test_app.py", True),
        ("py-sleep-in-test", "write", "app.py", False),
        ("ts-only-test", "edit", "src/a.spec.tsx", True),
        ("go-default-http-client", "edit", "client_test.go", False),
        ("rs-unwrap-io", "edit", "crates/a/tests/it.rs", False),
        ("rs-unwrap-io", "edit", "crates/a/src/lib.rs", True),
        ("danger-rm-broad", "exec_command", None, True),
        ("danger-rm-broad", "_bash", None, True),
        ("danger-sql", "mcp__postgres__query", None, True),
        ("claim-tests-pass", None, None, True),
        ("claim-tests-pass", "edit", "a.md", False),
        ("secret-token", "write", "a.md", True),
    ],
)
def test_they_reach_the_tools_of_every_host(
    name: str, tool: str | None, path: str | None, expected: bool
):
    assert is_in_scope(by_name(name), tool, path) is expected


def test_the_set_covers_what_it_is_for():
    prefixes = {rule.name.split("-")[0] for rule in BUILTIN.rules}

    assert {"py", "ts", "go", "rs", "sh", "danger", "secret", "claim", "prose"} <= prefixes


@pytest.mark.parametrize("rule", BUILTIN.rules, ids=lambda rule: rule.name)
def test_each_condition_is_decided_in_time_proportional_to_the_text(rule: Rule):
    for condition in rule.conditions:
        assert compile_condition(condition, rule.dialect).exact, condition


@pytest.mark.parametrize(
    "text",
    [
        "a" * 4_000,
        "/*/*" * 1_000,
        "rm -rf " * 500,
        "git push " * 400,
        '"' * 4_000,
        "the the the the " * 200,
        "password = '" + "a1" * 2_000,
        "://a:" * 800,
        " " * 4_000,
    ],
    ids=lambda text: text[:12],
)
def test_no_condition_runs_away_where_it_is_searched_for(text: str):
    for rule in BUILTIN.rules:
        for condition in rule.conditions:
            regex.search(condition, text, timeout=2)
