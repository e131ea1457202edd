"""A rule's examples, and any text, are tried on the engine itself, whole and cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.stream import TextDelta, ThinkingDelta, ToolArgumentsDelta, ToolCallFinished
from midstream.rules.discovery import builtin_rules
from midstream.rules.example_check import Trial, TrialSettings, check_examples, try_sample
from midstream.rules.example_place import place_example
from midstream.rules.rule import Example, Rule, Source
from midstream.rules.rule_file import parse_rule
from midstream.rules.rule_set import RuleSet
from midstream.rules.sample import Sample, stream, streamed_text

FEW_CUTS = TrialSettings(cuts=4)


def rule(front: str, name: str = "r") -> Rule:
    file = parse_rule(name, f"---\n{front}\n---\nSay so.\n", path="r.md")
    assert file.rule is not None
    return file.rule


def failures(front: str) -> list[str | None]:
    return [result.failure for result in check_examples(rule(front), FEW_CUTS)]


# --- examples


def test_examples_that_hold_have_no_failure():
    assert (
        failures("""condition: 'as any\\b'
examples:
  match: ["x as any;", "as any"]
  no_match: ["as anything", "has many"]""")
        == [None] * 4
    )


def test_an_example_that_should_match_and_does_not_says_so():
    assert failures("condition: foo\nexamples: {match: [bar]}") == [
        "expected a match: no condition matches"
    ]


def test_an_example_that_should_not_match_and_does_names_the_condition():
    assert failures("condition: [bar, foo]\nexamples: {no_match: [a foo]}") == [
        "expected no match, but `foo` matches"
    ]


def test_an_example_outside_the_scope_says_what_the_scope_is():
    (failure,) = failures("""condition: foo
scope: tool:edit(*.ts)
examples:
  match: [{text: foo, tool: edit, path: a.py}]""")

    assert failure == (
        "expected a match: its scope is `tool:edit(*.ts)`, which does not cover the path `a.py`"
    )


def test_examples_of_a_rule_that_is_not_watched_for_fail():
    (failure,) = failures("description: d\nexamples: {match: [foo]}")

    assert failure is not None
    assert "not watched for" in failure


def test_all_conditions_have_to_match():
    front = "all: [foo, bar]\nexamples:\n  match: [foo and bar, {text: foo}]"

    assert failures(front) == [None, "expected a match: not all of its conditions match"]


@pytest.mark.parametrize(
    ("scope", "tool", "path"),
    [
        ("tool:edit(src/**/*.{ts,tsx})", "edit", "src/file.ts"),
        ("tool:write([a-c]?.py)", "write", "aa.py"),
        ("tool:mcp__git__*", "mcp__git__any", None),
        ("tool(!*.md)", "edit", "file.txt"),
        ("bash", "bash", None),
    ],
)
def test_an_example_without_a_place_is_put_where_the_rule_listens(
    scope: str, tool: str, path: str | None
):
    one = rule(f"condition: foo\nscope: '{scope}'\nexamples: {{match: [foo]}}")

    (result,) = check_examples(one, FEW_CUTS)

    assert (result.trial.sample.tool, result.trial.sample.path) == (tool, path)
    assert result.failure is None


def test_an_example_of_a_rule_with_globs_gets_a_path_that_they_let_through():
    one = rule("condition: foo\nglobs: ['docs/**/*.md']\nexamples: {match: [foo]}")

    (result,) = check_examples(one, FEW_CUTS)

    assert result.trial.sample.path == "docs/file.md"
    assert result.failure is None


def test_a_path_alone_goes_to_the_part_of_the_scope_that_it_fits():
    one = rule("condition: foo\nscope: 'tool:edit(*.ts), tool:write(*.py)'")

    sample = place_example(one, Example("foo", True, path="a.py"))

    assert (sample.tool, sample.path) == ("write", "a.py")


def test_an_example_of_a_rule_on_thinking_is_thought():
    assert place_example(rule("condition: a\nscope: thinking"), Example("a", True)) == Sample(
        "a", Source.THINKING
    )


def test_an_example_of_a_json_rule_may_be_the_arguments_themselves():
    front = """condition: '"op"\\s*:\\s*"run"'
match: json
scope: tool
examples:
  match: ['{"op": "run"}']
  no_match: ['{"op": "stop"}', 'op: run']"""

    assert failures(front) == [None] * 3


def test_the_bundled_examples_hold_on_the_engine():
    for each in builtin_rules().rules:
        for result in check_examples(each, TrialSettings(cuts=1)):
            assert result.failure is None, (each.name, result.example.text, result.failure)


# --- how early, and whatever the cuts


def trial(front: str, text: str) -> Trial:
    return try_sample(RuleSet([rule(front)]), Sample(text), FEW_CUTS)


def test_a_trial_says_after_how_much_of_the_text_a_rule_was_certain():
    (hit,) = trial("condition: 'as any\\b'", "x as any; and more").hits

    assert (hit.certain_after_chars, hit.match.offset_chars) == (9, 2)


def test_a_trial_says_that_a_rule_was_certain_at_the_end_only():
    (hit,) = trial("condition: foo$", "a foo").hits

    assert hit.certain_after_chars is None


def test_a_condition_that_takes_too_long_is_reported_and_is_no_unsteady_verdict():
    found = trial("condition: '^(a|aa)+\\1c$'", "a" * 60 + "bc")

    assert [suspended.rules for suspended in found.suspended] == [("r",)]
    assert found.unsteady == ()


@given(st.text('ab \n"\\é😀', max_size=30), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_a_verdict_does_not_depend_on_the_cuts(text: str, seed: int):
    rules = RuleSet(
        [
            rule(f"condition: '{condition}'\nscope: [text, tool]", name=str(number))
            for number, condition in enumerate(("ab", "a$", r"\bb", "(a|b) +\\1", "a(?!b)"))
        ]
    )
    for place in (Sample(text), Sample(text, Source.TOOL, "write", "a.py")):
        assert try_sample(rules, place, TrialSettings(cuts=5, seed=seed)).unsteady == ()


# --- samples


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("edit", {"path": "a.py", "new_string": "x\ny"}),
        ("Write", {"path": "a.py", "content": "x\ny"}),
        ("bash", {"command": "x\ny"}),
        ("NotebookEdit", {"notebook_path": "a.py", "new_source": "x\ny"}),
        ("mcp__a__b", {"path": "a.py", "text": "x\ny"}),
    ],
)
def test_a_sample_is_written_into_the_arguments_that_the_tool_takes(
    tool: str, arguments: dict[str, str]
):
    sample = Sample("x\ny", Source.TOOL, tool, "a.py")

    assert json.loads(streamed_text(sample)) == arguments


@pytest.mark.parametrize("tool", ["apply_patch", "replace_in_file", "patch", "edit", "write"])
def test_what_a_tool_introduces_is_the_text_of_the_sample(tool: str):
    whole = RuleSet([rule("condition: '^foo\\nbar$'\nscope: tool")])

    found = try_sample(whole, Sample("foo\nbar", Source.TOOL, tool, "a.py"), FEW_CUTS)

    assert [hit.match.path for hit in found.hits] == ["a.py"]


def test_a_sample_is_cut_where_it_is_asked_to():
    assert [
        m.text for m in stream(Sample("abcdef"), [2, 5, 5, 0, 9]) if isinstance(m, TextDelta)
    ] == [
        "ab",
        "cde",
        "f",
    ]
    thought = stream(Sample("ab", Source.THINKING), [1])
    assert [m.text for m in thought if isinstance(m, ThinkingDelta)] == ["a", "b"]
    call = stream(Sample("{}", Source.TOOL, "x", is_arguments=True), [1])
    assert [m.fragment for m in call if isinstance(m, ToolArgumentsDelta)] == ["{", "}"]
    assert isinstance(call[-1], ToolCallFinished)
    assert call[-1].arguments == "{}"


def test_the_same_seed_gives_the_same_trial():
    rules = RuleSet(builtin_rules().rules[:3])
    sample = Sample("It should work now. git push --force origin main")

    assert try_sample(rules, sample, FEW_CUTS) == try_sample(rules, sample, FEW_CUTS)
