"""Files are watched as a write or an edit of them would be, and every place is found."""

from midstream.rules.file_scan import PLACES_LIMIT, FileFindings, concerns, scan_text
from midstream.rules.rule import Rule
from midstream.rules.rule_file import parse_rule
from midstream.rules.rule_set import RuleSet


def rules(*fronts: str) -> RuleSet:
    made: list[Rule] = []
    for number, front in enumerate(fronts):
        made_rule = parse_rule(f"r{number}", f"---\n{front}\n---\nSay so.\n").rule
        assert made_rule is not None
        made.append(made_rule)
    return RuleSet(made)


def places(found: FileFindings) -> list[tuple[str, int, int, str]]:
    return [
        (hit.rule.name, place.line, place.column, place.excerpt)
        for hit in found.hits
        for place in hit.places
    ]


def scan(rule_set: RuleSet, text: str, path: str = "src/a.py") -> FileFindings:
    return scan_text(rule_set, path, text, "/repo")


def test_every_line_with_a_match_is_found():
    found = scan(rules("condition: '\\bfoo\\b'"), "foo\nbar\n  x = foo; foo\nfood\n")

    assert places(found) == [("r0", 1, 1, "foo"), ("r0", 3, 7, "x = foo; foo")]


def test_columns_count_characters_above_the_basic_plane_as_one():
    found = scan(rules("condition: foo"), "😀😀\n😀é foo")

    assert places(found) == [("r0", 2, 4, "😀é foo")]


def test_lines_of_several_conditions_come_in_order_and_once():
    found = scan(rules("condition: [b, a]"), "a\nb a\nc\nb\n")

    assert [(line, column) for _, line, column, _ in places(found)] == [(1, 1), (2, 1), (4, 1)]


def test_a_match_that_spans_lines_is_placed_where_it_begins():
    found = scan(rules("condition: 'a\\nb'"), "x\n a\nb\n")

    assert places(found) == [("r0", 2, 2, "a")]


def test_scope_and_globs_are_honoured():
    rule_set = rules(
        "condition: foo\nscope: tool:write(*.ts)",
        "condition: foo\nscope: text",
        "condition: foo\nscope: tool:bash",
        "condition: foo\nglobs: ['src/**']",
        "condition: foo\nglobs: ['test/**']",
    )

    assert [hit.rule.name for hit in scan(rule_set, "foo").hits] == ["r3"]
    assert not concerns(rules("condition: foo\nscope: tool:edit(*.ts)"), "a.py", "/repo")
    assert concerns(rules("condition: foo\nscope: tool:edit(*.ts)"), "a.ts", "/repo")


def test_a_file_counts_as_a_write_and_as_an_edit_but_each_rule_once():
    rule_set = rules(
        "condition: foo\nscope: 'tool:edit(*.py), tool:write(*.py)'",
        "condition: foo\nscope: 'tool:edit(*.py)'",
        "condition: foo\nscope: 'tool:edit(*.py), tool:write(*.ts)'",
    )

    found = scan(rule_set, "foo")

    assert [(hit.rule.name, hit.tool) for hit in found.hits] == [
        ("r0", "write"),
        ("r1", "edit"),
        ("r2", "edit"),
    ]


def test_a_rule_that_is_only_a_path_points_at_the_beginning():
    assert places(scan(rules("condition: '*.lock'"), "\nx", "a.lock")) == [("r0", 1, 1, "")]


def test_a_rule_on_the_json_text_has_no_place_in_the_file():
    found = scan(rules("condition: '\"content\":'\nmatch: json\nscope: tool"), "a")

    assert [(hit.rule.name, hit.places) for hit in found.hits] == [("r0", ())]


def test_all_conditions_have_to_match_somewhere_in_the_file():
    rule_set = rules("all: [foo, bar]")

    assert scan(rule_set, "foo\n").hits == ()
    assert [line for _, line, *_ in places(scan(rule_set, "foo\n\nbar"))] == [1, 3]


def test_places_are_bounded_and_say_so():
    (hit,) = scan(rules("condition: foo"), "foo\n" * (PLACES_LIMIT + 1)).hits

    assert len(hit.places) == PLACES_LIMIT
    assert hit.is_cut


def test_a_long_line_is_shown_around_the_match():
    (place,) = scan(rules("condition: needle"), "x" * 5_000 + "needle" + "y" * 5_000).hits[0].places

    assert (place.line, place.column) == (1, 5_001)
    assert "needle" in place.excerpt
    assert len(place.excerpt) <= 160


def test_a_long_file_on_one_line_is_watched_to_its_end():
    text = "x " * 700_000 + "(a)a needle"

    found = scan(
        rules("condition: '(.)needle'", "condition: '(\\(a\\))\\1? needle|(a) needle'"), text
    )

    assert {hit.rule.name for hit in found.hits} >= {"r0"}


def test_a_condition_that_takes_too_long_is_reported():
    found = scan(rules("condition: '^(a|aa)+\\1c$'"), "a" * 60 + "bc")

    assert found.hits == ()
    assert [suspended.rules for suspended in found.suspended] == [("r0",)]
