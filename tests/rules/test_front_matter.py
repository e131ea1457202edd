"""A rule file splits into front matter and body however it was saved (spec/ttsr.md 1.1)."""

import hypothesis
import pytest
from hypothesis import strategies as st

from midstream.rules.front_matter import Document, Undecodable, decode, read_document
from midstream.rules.problem import Severity


def values(document: Document) -> dict[str, object]:
    return {key: entry.value for key, entry in document.fields.items()}


def front(yaml_text: str) -> Document:
    return read_document(f"---\n{yaml_text}\n---\nBody.")


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_any_line_ending_gives_the_same_document(ending: str):
    document = read_document(ending.join(["---", "condition: foo", "---", "", "One.", "Two."]))

    assert values(document) == {"condition": "foo"}
    assert document.body == "One.\nTwo."


@pytest.mark.parametrize(
    "data",
    [
        "---\na: é\n---\nb".encode(),
        b"\xef\xbb\xbf" + "---\na: é\n---\nb".encode(),
        "\ufeff---\na: é\n---\nb".encode("utf-16-le"),
        "\ufeff---\na: é\n---\nb".encode("utf-16-be"),
    ],
    ids=["utf-8", "utf-8 with a mark", "utf-16 little", "utf-16 big"],
)
def test_a_file_with_a_byte_order_mark_reads_like_one_without(data: bytes):
    assert values(read_document(decode(data))) == {"a": "é"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"---\na: \xff\n---\nb", "not valid UTF-8 at byte 7"),
        (b"\xff\xfe-", "not valid UTF-16"),
    ],
)
def test_bytes_that_are_no_text_say_where(data: bytes, reason: str):
    with pytest.raises(Undecodable, match=reason):
        decode(data)


@pytest.mark.parametrize(
    "text",
    [
        "\n\n---\na: 1\n---\nbody",
        "--- \na: 1\n---  \nbody",
        "---\na: 1\n----\nbody",
        "<!-- licence -->\n---\na: 1\n---\nbody",
        "<!-- two\nlines -->\n\n---\n<!-- more -->\na: 1\n---\nbody\n",
        "---\na: 1 # a comment\n---\nbody",
    ],
)
def test_odd_fences_and_leading_comments_do_not_hide_the_front_matter(text: str):
    document = read_document(text)

    assert values(document) == {"a": 1}
    assert document.body == "body"


def test_without_a_closing_fence_all_is_body_and_a_warning_says_so():
    document = read_document("---\ncondition: foo\n\nBody.", "r.md")

    assert document.fields == {}
    assert document.body == "---\ncondition: foo\n\nBody."
    assert [str(problem) for problem in document.problems] == [
        "r.md:1: warning: the front matter is not closed, so all of it was read as the body; "
        "add a line `---` after the last key"
    ]


def test_a_horizontal_rule_is_no_unclosed_front_matter():
    assert read_document("---\n\nText.").problems == ()


def test_comments_never_reach_the_body():
    assert read_document("a <!-- x\ny --> b <!-- --> c").body == "a  b  c"


def test_a_comment_that_is_never_closed_stays():
    assert read_document("a <!-- b").body == "a <!-- b"


def test_a_comment_that_took_a_part_of_a_value_is_reported_with_its_line():
    document = read_document("<!--\n-->---\na: 1\ncondition: x<!--y-->\n---\nbody", "r.md")

    assert values(document)["condition"] == "x"
    assert [(problem.line, problem.severity) for problem in document.problems] == [
        (4, Severity.WARNING)
    ]


def test_lines_are_those_of_the_file_though_comments_were_removed():
    document = read_document("<!-- a\nb\nc -->\n---\nx: 1\n<!--\n-->\ny:\n  - p\n  - q\n---\nbody")

    assert document.fields["x"].line == 5
    assert document.fields["y"].line == 8
    assert document.fields["y"].item_lines == (9, 10)


def test_kebab_case_keys_are_camel_case_and_snake_case_stays():
    document = front("interrupt-mode: never\nalways-apply: true\nttsr_trigger: x\nast-condition: y")

    assert list(values(document)) == [
        "interruptMode",
        "alwaysApply",
        "ttsr_trigger",
        "astCondition",
    ]


def test_two_spellings_of_one_key_are_reported():
    document = front("interrupt-mode: never\ninterruptMode: always")

    assert values(document) == {"interruptMode": "always"}
    assert "same key" in document.problems[0].what


@pytest.mark.parametrize("yaml_text", ["- a\n- b", "just words", "42", "", "null", "~"])
def test_yaml_that_is_no_mapping_is_no_metadata(yaml_text: str):
    document = front(yaml_text)

    assert document.fields == {}
    assert document.body == "Body."


def test_tabs_count_as_two_spaces():
    assert values(front("condition:\n\t- a\n\t- b")) == {"condition": ["a", "b"]}


@pytest.mark.parametrize(
    ("yaml_text", "expected"),
    [
        (
            "a: yes\nb: on\nc: 2024-01-31\nd: 1:30\ne: 010",
            ["yes", "on", "2024-01-31", "1:30", "010"],
        ),
        ("a: true\nb: False\nc: ~\nd: 7\ne: 1.5", [True, False, None, 7, 1.5]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(yaml_text: str, expected: list[object]):
    assert list(values(front(yaml_text)).values()) == expected


def test_a_plain_value_with_a_colon_is_text():
    document = front("description: Note: do this # why\ncondition:\n  - a")

    assert values(document) == {"description": "Note: do this", "condition": ["a"]}
    assert [(problem.line, problem.severity) for problem in document.problems] == [
        (2, Severity.NOTE)
    ]


def test_an_unquoted_glob_does_not_cost_the_other_keys():
    document = front("description: x\nglobs: **/*.ts\nalwaysApply: true\ncondition: [a, b]")

    assert values(document) == {
        "description": "x",
        "globs": "**/*.ts",
        "alwaysApply": True,
        "condition": ["a", "b"],
    }
    assert [(problem.line, problem.severity) for problem in document.problems] == [
        (3, Severity.WARNING)
    ]


def test_lists_and_mappings_survive_the_reading_key_by_key():
    document = front(
        "globs:\n  - **/*.ts\n  - 'src/**'\nexamples:\n  match:\n  - x\nagents: !reviewer\n"
        "condition: |\n  foo\n  bar"
    )

    assert values(document) == {
        "globs": ["**/*.ts", "src/**"],
        "examples": {"match": ["x"]},
        "agents": "!reviewer",
        "condition": "foo\nbar",
    }
    assert document.fields["globs"].item_lines == (3, 4)


def test_b11_quoted_words_with_a_comma_between_them_are_kept_as_written():
    assert values(front('scope: "text","thinking"')) == {"scope": '"text","thinking"'}


def test_a_line_that_cannot_be_read_is_named():
    document = read_document("---\nglobs: **\n} what\nnested:\n   x: [\n---\nb", "r.md")

    assert "r.md:3: warning: this line could not be read; write `key: value`" in [
        str(problem) for problem in document.problems
    ]
    assert document.fields["globs"].value == "**"


@pytest.mark.parametrize(
    "yaml_text",
    [
        "[" * 50_000,
        "k: " + "{" * 50_000,
        "n: " + "9" * 9000,
        "a: &a [*a]",
        "k: !!python/object:os.x y",
    ],
)
def test_hostile_yaml_is_read_as_text_or_not_at_all(yaml_text: str):
    assert front(yaml_text).body == "Body."


def test_aliases_that_multiply_stay_small():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]

    assert len(front("\n".join(lines)).fields) == 12


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(st.text(alphabet="-\n\r ab:#'\"[]{}<!>*&|\t", max_size=60))
def test_no_text_makes_it_raise(text: str):
    document = read_document("---\n" + text + "\n---\nb")

    assert document.body == document.body.strip()
    for problem in document.problems:
        assert 0 <= problem.line <= text.count("\n") + text.count("\r") + 4


@pytest.mark.parametrize("before", ["# Title\n", "Some words.\n\n", "<!-- a\nb -->\n# T\n"])
def test_front_matter_that_does_not_come_first_is_reported_with_its_line(before: str):
    document = read_document(f"{before}---\ndescription: x\ncondition: foo\n---\nBody.\n", "r.md")
    [problem] = document.problems
    assert (problem.line, problem.severity) == (before.count("\n") + 1, Severity.WARNING)
    assert "not the beginning of the file" in problem.what
    assert not document.fields


@pytest.mark.parametrize(
    "text", ["Intro\n\n---\nTip: be nice.\n\n---\nMore.\n", "# T\n---\ncondition: never closed\n"]
)
def test_a_rule_between_paragraphs_is_no_front_matter(text: str):
    assert read_document(text).problems == ()
