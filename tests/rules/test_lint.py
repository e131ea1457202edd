"""What the linter says about rules that load, and that it says nothing about good ones."""

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_patterns import random_condition, random_text

from midstream.rules.condition import compile_condition
from midstream.rules.condition_lint import Decided, when_decided
from midstream.rules.dialect_error import DialectError, UntranslatableError
from midstream.rules.discovery import Shadowed, builtin_rules
from midstream.rules.glob_overlap import are_disjoint
from midstream.rules.globs import candidate_paths, compile_glob
from midstream.rules.lint import lint, lint_rule
from midstream.rules.problem import Severity
from midstream.rules.rule import (
    Action,
    Dialect,
    InterruptMode,
    MatchOn,
    RepeatMode,
    Rule,
    ScopeToken,
    Source,
)
from midstream.rules.rule_file import parse_rule

TEXT = ScopeToken(Source.TEXT)


def rule(front: str, name: str = "r", body: str = "Say so.") -> Rule:
    file = parse_rule(name, f"---\n{front}\n---\n{body}\n", path=f"{name}.md")
    assert file.rule is not None
    return file.rule


def said(front: str) -> list[str]:
    return [str(problem) for problem in lint_rule(rule(front))]


def made(name: str = "r", /, **fields: Any) -> Rule:
    return Rule(name=name, body="b", **fields)


# --- conditions


@pytest.mark.parametrize("condition", [".*", "a|", "^", r"[\s\S]", "x*"])
def test_a_condition_that_matches_everything_is_named_with_its_line(condition: str):
    problems = lint_rule(rule(f"scope: text\ncondition:\n  - foo\n  - '{condition}'"))

    (problem,) = problems
    assert (problem.path, problem.line, problem.severity) == ("r.md", 5, Severity.WARNING)
    assert f"condition `{condition}` matches any text" in problem.what
    assert problem.mend


def test_a_rule_for_some_files_only_may_match_everything_in_them():
    (problem,) = lint_rule(rule("scope: tool:edit(*.lock)\ncondition: '[\\s\\S]'"))

    assert problem.severity is Severity.NOTE


@pytest.mark.parametrize("condition", ["^$", "^(?:yes)?$", r"^\s*$"])
def test_a_condition_that_matches_the_empty_text_is_named(condition: str):
    assert any("matches the empty text" in line for line in said(f"condition: '{condition}'"))


@pytest.mark.parametrize(
    "condition", ["a^b", "$a", "[]x", "(?=a)b", r"(?<!a)(?<=a)b", r"\bx\Bb\bc"]
)
def test_a_condition_that_cannot_match_is_named(condition: str):
    (line,) = said(f"condition: '{condition}'")

    assert line.startswith("r.md:2: warning: condition ")
    assert "cannot match any text" in line


def test_a_condition_that_is_switched_off_on_purpose_is_only_noted():
    for condition in ("(?!)", "[]"):
        (line,) = said(f"condition: '{condition}'")
        assert ": note: " in line


@pytest.mark.parametrize("condition", ["foo$", r"foo(?![\s\S]*bar)", r"^[\s\S]{3}$"])
def test_a_condition_that_waits_for_the_end_of_a_passage_is_noted(condition: str):
    (line,) = said(f"condition: '{condition}'")

    assert ": note: " in line
    assert "only when the whole passage is written" in line


@pytest.mark.parametrize(
    "condition", ["foo$|bar", "(?m)foo$", "foo(?!bar)", r"foo(?!.*bar)", r"\bfoo\b"]
)
def test_a_condition_that_can_be_decided_earlier_is_not_noted(condition: str):
    assert said(f"condition: '{condition}'") == []


def test_nested_unbounded_quantifiers_are_harmless_in_an_automaton_and_costly_outside_one():
    harmless = said("condition: '(a+)+b'")
    costly = said("condition: '((a+)+)b\\1'")

    assert any(": note: " in line and "inside another one" in line for line in harmless)
    assert any(": warning: " in line and "time budget" in line for line in costly)


def test_a_condition_that_needs_the_backtracking_engine_is_noted_with_its_reason():
    lines = said("condition: '(\"|`)x\\1'")

    (line,) = lines
    assert "needs the backtracking engine, since it has a back reference" in line


def test_python_syntax_without_an_automaton_is_noted():
    lines = said("dialect: python\ncondition: '(?>a+)b'")

    assert any("backtracking engine" in line for line in lines)


@pytest.mark.parametrize(
    "condition", [r'"op"\s*:\s*"run"', r'"op": "run"', r"a\\nb", r"say \\\"hi"]
)
def test_a_condition_written_against_json_text_gets_a_hint(condition: str):
    lines = said(f"scope: tool:mcp__git__run\ncondition: '{condition}'")

    assert any("match: json" in line and ": note: " in line for line in lines)
    assert said(f"scope: tool:mcp__git__run\nmatch: json\ncondition: '{condition}'") == []
    assert said(f"scope: tool:edit(*.json)\ncondition: '{condition}'") == []


def test_a_condition_that_does_not_compile_is_named_where_a_host_made_the_rule():
    (problem,) = lint_rule(made(conditions=("a(",)))

    assert "condition `a(` cannot be used" in problem.what
    assert problem.path == "r"


@given(st.integers(0, 1_000_000))
@settings(deadline=None, max_examples=150)
def test_what_is_said_to_be_decided_late_or_never_is_not_decided_earlier(seed: int):
    random = Random(seed)
    source = random_condition(random)
    try:
        condition = compile_condition(source, Dialect.ECMASCRIPT)
    except (DialectError, UntranslatableError):
        return
    decided = when_decided(condition)
    if condition.automaton is None or not condition.exact:
        return
    for _ in range(20):
        state = condition.automaton.initial
        for character in random_text(random):
            state = state[character]
            assert not (state.certain and decided in (Decided.AT_END, Decided.NEVER)), source
            assert not (state.at_end and decided is Decided.NEVER), source


# --- scope


def test_a_scope_and_globs_that_exclude_each_other_are_named():
    (line,) = said("scope: tool:edit(*.ts)\nglobs: ['*.py', 'src/**/*.rs']\ncondition: foo")

    assert line.startswith("r.md:3: warning: no path is both in scope `tool:edit(*.ts)`")
    assert "so the rule never fires" in line


PLACED = {
    "condition: foo\nscope: tool:edit(*.ts)\nglobs: ['*.py']": 4,
    "condition: foo\nscope: 'text, tool, tool:edit(*.ts)'": 3,
    "condition: foo\nscope:\n  - tool:wirte(*.ts)": 3,
    "condition: foo\nscope: text\ninterrupt-mode: tool-only": 4,
    "condition: foo\nalways-apply: true": 3,
    "interruptMode: never\ncondition: foo\nmaxRetries: 3": 4,
    "condition: foo\nrepeatMode: once\nrepeatGap: 3": 4,
    "condition: foo\nrepeat_policy: once\ngap_turns: 3": 4,
    "action: observe\nmaxRetries: 3\ncondition: foo": 3,
}


@pytest.mark.parametrize("front", PLACED)
def test_what_is_odd_about_a_rule_is_said_at_the_line_of_its_key(front: str):
    (problem,) = lint_rule(rule(front))

    assert (problem.path, problem.line) == ("r.md", PLACED[front])


def test_a_part_of_the_scope_that_globs_exclude_is_named_alone():
    (line,) = said('scope: "tool:edit(*.ts), tool:write(*.py)"\nglobs: ["*.py"]\ncondition: foo')

    assert "`tool:edit(*.ts)`" in line
    assert "never fires" not in line


@pytest.mark.parametrize(
    ("left", "right", "disjoint"),
    [
        ("*.ts", "*.py", True),
        ("*.{ts,tsx}", "src/**/*.py", True),
        ("*.ts", "!*.ts", True),
        ("Makefile", "*.mk", True),
        ("test_*", "conftest*", True),
        ("*.ts", "*.test.ts", False),
        ("src/**", "*.py", False),
        ("*.t[sx]", "*.tx", False),
        ("*.ts", "!*.d.ts", False),
        ("src/*.ts", "test/*.ts", False),
        ("a\\*.ts", "*.py", False),
    ],
)
def test_path_patterns_exclude_each_other_only_where_that_is_certain(
    left: str, right: str, disjoint: bool
):
    assert are_disjoint(left, right) is disjoint
    assert are_disjoint(right, left) is disjoint


GLOBS = st.text("ab.*?/{,}[]!", min_size=1, max_size=8)


@settings(deadline=None)
@given(GLOBS, GLOBS, st.text("ab./", min_size=1, max_size=6))
def test_disjoint_patterns_never_match_one_file(left: str, right: str, path: str):
    assume(path.rsplit("/", 1)[-1] not in ("", ".", ".."))
    paths = candidate_paths(path, "/a")
    both = compile_glob(left).matches(paths) and compile_glob(right).matches(paths)

    assert not (paths and both and are_disjoint(left, right))


def test_a_scope_that_adds_nothing_to_a_wider_one_is_noted():
    (line,) = said('scope: "text, tool, tool:edit(*.ts)"\ncondition: foo')

    assert "scope `tool:edit(*.ts)` adds nothing to `tool`" in line


def test_a_misspelt_kind_of_tool_is_noted():
    (line,) = said("scope: 'tool:wirte(*.ts)'\ncondition: foo")

    assert "for write, write `tool:write`" in line
    assert said("scope: 'tool:grep, tool:MultiEdit, tool:mcp__x__*'\ncondition: foo") == []


def test_an_empty_scope_is_named_where_a_host_made_the_rule():
    (problem,) = lint_rule(made(conditions=("a",), scope=()))

    assert "no output can reach the rule" in problem.what


def test_globs_without_any_tool_in_scope_never_fire():
    (problem,) = lint_rule(made(conditions=("a",), scope=(TEXT,), globs=("*.py",)))

    assert "never fires" in problem.what


# --- settings


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"interrupt_mode": InterruptMode.TOOL_ONLY}, "interrupts nothing"),
        ({"interrupt_mode": InterruptMode.NEVER, "max_retries": 2}, "`maxRetries` has no effect"),
        ({"action": Action.OBSERVE, "max_retries": 2}, "`maxRetries` has no effect"),
        ({"repeat_mode": RepeatMode.ONCE, "repeat_gap": 3}, "`repeatGap` has no effect"),
        ({"always_apply": True}, "`alwaysApply` has no effect"),
    ],
)
def test_a_setting_without_effect_is_named(fields: dict[str, Any], part: str):
    (problem,) = lint_rule(made(conditions=("a",), scope=(TEXT,), **fields))

    assert part in problem.what


@pytest.mark.parametrize(
    "fields",
    [
        {"interrupt_mode": InterruptMode.PROSE_ONLY},
        {"repeat_mode": RepeatMode.AFTER_GAP, "repeat_gap": 3},
        {"repeat_gap": 3},
        {"max_retries": 2},
    ],
)
def test_a_setting_that_has_an_effect_is_not_named(fields: dict[str, Any]):
    assert lint_rule(made(conditions=("a",), scope=(TEXT,), **fields)) == []


# --- rules beside each other


def test_a_duplicate_is_named_once_with_what_it_duplicates():
    rules = [
        made(name, path=f"{name}.md", conditions=("foo", "bar"), condition_lines=(3, 4))
        for name in ("a", "b", "c")
    ]

    problems = lint(rules)

    assert [(p.path, p.line) for p in problems] == [("b.md", 3), ("c.md", 3)]
    assert all("the same conditions and scope as `a` (a.md)" in p.what for p in problems)


def test_a_rule_within_another_one_is_named():
    wide = made("wide", path="wide.md", conditions=("foo", "bar"))
    narrow = made(
        "narrow",
        path="narrow.md",
        conditions=("foo",),
        scope=(ScopeToken(Source.TOOL, "edit", "*.ts"),),
    )

    for rules in ([wide, narrow], [narrow, wide]):
        (problem,) = lint(rules)
        assert problem.path == "narrow.md"
        assert "whatever matches this rule also matches `wide`" in problem.what


@pytest.mark.parametrize(
    "other",
    [
        {"scope": (ScopeToken(Source.THINKING),)},
        {"agents": ("reviewer",)},
        {"conditions": ("foo bar",)},
        {"scope": (ScopeToken(Source.TEXT), ScopeToken(Source.THINKING)), "agents": ("a",)},
        {"match_on": MatchOn.JSON},
        {"dialect": Dialect.PYTHON},
        {"question": "Is it so?"},
    ],
)
def test_rules_that_can_fire_apart_are_not_named(other: dict[str, Any]):
    first = made("a", conditions=("foo",), agents=("main",))
    second = made("b", **{"conditions": ("foo",), "agents": ("main",), **other})

    assert not any("both fire" in problem.what for problem in lint([first, second]))


def test_all_conditions_together_imply_each_of_them():
    both = made("both", conditions=("foo", "bar"), all_conditions=True)
    one = made("one", conditions=("foo",))

    (problem,) = lint([one, both])
    assert problem.path == "both"


def test_a_shadowed_rule_is_named_with_what_hides_it():
    used, hidden = made("a", path="/p/a.md"), made("a", path="/q/a.md", conditions=(".*",))

    problems = lint([used], [Shadowed(hidden, used)])

    assert any("not used, because `a` of /p/a.md comes first" in p.what for p in problems)
    assert any("matches any text" in p.what for p in problems)
    assert {p.path for p in problems} == {"/q/a.md"}


def test_the_bundled_rules_have_nothing_to_be_told():
    found = builtin_rules()

    assert [str(p) for each in found.rules for p in lint_rule(each)] == []
    assert lint(found.rules) == ()
