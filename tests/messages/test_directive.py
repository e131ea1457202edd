"""What a directive says, which markers there are, and that none of them is left."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ReminderItem,
    SystemItem,
    TextPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.directive import (
    AnyDirective,
    ClearAll,
    ClearStopMessage,
    SetFile,
    SetMode,
    SetText,
    StageMode,
    effective,
    read_text,
)
from midstream.messages.directive_items import NO_TEXT, take_directives
from midstream.messages.directive_tail import AiMode

MARKER = re.compile(r"<\*\*.*?\*\*>", re.DOTALL)
"""What must never be left: `<**` and a later `**>`."""


def only(text: str) -> AnyDirective | None:
    directives = read_text(text).directives
    assert len(directives) < 2
    return directives[0] if directives else None


def stop_message(arguments: str) -> AnyDirective | None:
    return only(f"<**stopMessage:{arguments}**>")


def said(text: str) -> AssistantItem:
    return AssistantItem((TextPart(text),))


# spec/stop_message.md 2.2: the table, row by row


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('"继续"', SetText("继续", 10)),
        ('"继续",3', SetText("继续", 3)),
        (r'"a\"b",2', SetText('a"b', 2)),
        ('"x",12abc', SetText("x", 12)),
        ('"x",+3', SetText("x", 3)),
        ('"x",0', SetText("x", 10)),
        ('"x",-1', SetText("x", 10)),
        ('"x",foo', SetText("x", 10)),
        ('"x",2,foo,5,0', SetText("x", 5)),
        ('"unterminated', None),
        ('"",3', None),
        ('"  ",3', None),
        (",,,", None),
        ("clear", ClearStopMessage()),
        ("CLEAR", ClearStopMessage()),
        ("go on,4", SetText("go on", 4)),
        ("go on: step 2,4", SetText("go on: step 2", 4)),
        ("on", SetMode(StageMode.ON)),
        ("on,5", SetMode(StageMode.ON, 5)),
        ("OFF", SetMode(StageMode.OFF)),
        ("mode=auto,3", SetMode(StageMode.AUTO, 3)),
        ("file://stopMessage/m.md", SetFile("stopMessage/m.md", 10)),
        ("<file://stopMessage/m 1.md>,4", SetFile("stopMessage/m 1.md", 4)),
        ("file:///etc/passwd", None),
        ("file://../secret.md", None),
        ("file://a/../../secret.md", None),
        ("file://", None),
        ('"x",ai:on,10', SetText("x", 10, AiMode.ON)),
        ('"x",ai=off:7', SetText("x", 7, AiMode.OFF)),
    ],
)
def test_the_table_of_the_grammar(arguments: str, expected: AnyDirective | None):
    reading = read_text(f"<**stopMessage:{arguments}**>")
    assert reading.directives == (() if expected is None else (expected,))
    assert reading.text == ""


@pytest.mark.parametrize("marker", ["<****>", "<** **>", "<**gpt-5.fast**>", "<**stopMessage**>"])
def test_empty_and_unknown_markers_are_stripped_and_ignored(marker: str):
    reading = read_text(f"a {marker} b")
    assert (reading.text, reading.directives) == ("a b", ())
    assert reading.warnings


@pytest.mark.parametrize("name", ["stopMessage", "stopmessage", "STOPMESSAGE"])
@pytest.mark.parametrize("quoted", ["{}", '"{}"', "'{}'", "“{}”"])
@pytest.mark.parametrize("separator", [":", ",", "：", "，", " : "])
def test_the_name_is_read_in_any_case_quoted_or_not(name: str, quoted: str, separator: str):
    text = f'<** {quoted.format(name)}{separator}"go, on",3 **>'
    assert only(text) == SetText("go, on", 3)


def test_zero_width_characters_before_the_body_do_not_count():
    assert only('<**\u200b\ufeff stopMessage:"x",2\u2060**>') == SetText("x", 2)


def test_the_quoted_shorthand_sets_a_text():
    assert only('<**"text",ai:on,10**>') == SetText("text", 10, AiMode.ON)
    assert only("<**“继续”**>") == SetText("继续", 10)


def test_a_quoted_name_alone_is_not_the_shorthand():
    assert only('<**"stopMessage"**>') is None


def test_a_marker_may_span_lines():
    assert only('<**stopMessage:\n"first\nsecond",\n3\n**>') == SetText("first\nsecond", 3)


def test_only_the_marker_ends_the_shortest_match():
    reading = read_text("<**clear**> and <**stopMessage:go,2**> end")
    assert reading.directives == (ClearAll(), SetText("go", 2))
    assert reading.text == " and end"


def test_text_after_a_mode_marker_is_never_captured():
    reading = read_text("<**stopMessage:on,3**>\ndo this\nand that")
    assert reading.directives == (SetMode(StageMode.ON, 3),)
    assert reading.text == "\ndo this\nand that"


def test_an_invalid_or_huge_repeat_count_is_warned_about():
    assert read_text('<**stopMessage:"x",foo**>').warnings
    assert read_text('<**stopMessage:"x",101**>').warnings
    assert not read_text('<**stopMessage:"x",100**>').warnings
    assert only(f'<**stopMessage:"x",{"9" * 5000}**>') == SetText("x", 999_999_999)


def test_only_ascii_digits_count():
    assert stop_message('"x",٣') == SetText("x", 10)
    assert stop_message('"x",３') == SetText("x", 10)


def test_a_backslash_escapes_quotes_and_itself_and_nothing_else():
    assert stop_message(r'"a\\b\n",2') == SetText(r"a\b\n", 2)
    assert stop_message(r'"ends with \\",2') == SetText("ends with \\", 2)
    assert stop_message(r"'it\'s',2") == SetText("it's", 2)


def test_a_global_clear_wins_then_a_clear_then_the_last_text():
    texts = (SetText("a", 1), SetText("b", 2))
    assert effective((ClearStopMessage(), *texts, ClearAll())) == (ClearAll(),)
    assert effective((*texts, ClearStopMessage())) == (ClearStopMessage(),)
    assert effective((ClearStopMessage(), *texts)) == (ClearStopMessage(),)
    assert effective(texts) == (SetText("b", 2),)


def test_a_mode_after_the_last_text_counts_too():
    mode = SetMode(StageMode.ON, 5)
    assert effective((SetText("a"), SetMode(StageMode.OFF), mode)) == (SetText("a"), mode)
    assert effective((mode, SetText("a"))) == (SetText("a"),)


# The scanner


def test_g1_an_ending_within_a_quoted_text_does_not_end_the_marker():
    reading = read_text('a <**stopMessage:"write **> and go on",3**> b')
    assert reading.directives == (SetText("write **> and go on", 3),)
    assert reading.text == "a b"
    assert only("<**「a **> b」**>") == SetText("a **> b", 10)


def test_g1_an_unterminated_quote_is_stripped_to_the_nearest_ending():
    reading = read_text('<**stopMessage:"go on**> he said "yes", and <**clear**>left')
    assert reading.text == ' he said "yes", and left'
    assert reading.directives == (ClearAll(),)


def test_g2_the_lower_case_name_keeps_the_text_with_a_comma_and_n():
    assert only('<**stopmessage:"a, b",3**>') == SetText("a, b", 3)


def test_g3_every_kind_of_quote_and_full_width_separators_are_read():
    for text in ('"a，b"', "'a，b'", "“a，b”", "‘a，b’", "「a，b」"):
        assert only(f"<**stopMessage：{text}，3**>") == SetText("a，b", 3)


def test_g3_a_full_width_comma_separates_an_unquoted_text_only_from_items():
    assert stop_message("继续，3") == SetText("继续", 3)
    assert stop_message("继续，不要停,3") == SetText("继续，不要停", 3)
    assert stop_message("继续，ai:on，4") == SetText("继续", 4, AiMode.ON)
    assert stop_message("继续，3遍") == SetText("继续，3遍", 10)


def test_an_apostrophe_does_not_end_single_quotes():
    assert stop_message("'don't stop',2") == SetText("don't stop", 2)


@pytest.mark.parametrize(
    "text",
    [
        '```\n<**stopMessage:"x"**>\n```',
        '~~~~ sh\n<**stopMessage:"x"**>\n~~~\n<**clear**>',
        '> ```\n> <**stopMessage:"x"**>',
        'write `<**stopMessage:"x"**>` to me',
        'write ``a ` <**stopMessage:"x"**>`` to me',
    ],
)
def test_g4_markers_in_code_are_stripped_but_not_executed(text: str):
    reading = read_text(text)
    assert reading.directives == ()
    assert not MARKER.search(reading.text)
    kept = read_text(text, keep_in_code=True)
    assert (kept.text, kept.directives) == (text, ())


@pytest.mark.parametrize(
    "text",
    [
        '```\ncode\n```\n<**stopMessage:"x"**>',
        'a ` b\n\n<**stopMessage:"x"**> ` c',
        'a \\` b <**stopMessage:"x"**> ` c',
        'a `` b <**stopMessage:"x"**> ` c',
        '``` not a ` fence\n<**stopMessage:"x"**>',
    ],
)
def test_markers_outside_code_are_executed(text: str):
    for keep_in_code in (False, True):
        assert read_text(text, keep_in_code=keep_in_code).directives == (SetText("x"),)


def test_keep_in_code_strips_a_marker_that_only_begins_in_code():
    reading = read_text("`<**` opens and `**>` ends", keep_in_code=True)
    assert reading.text == "`` ends"
    assert reading.directives == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <**x**> b", "a b"),
        ("a<**x**> b", "a b"),
        ("a <**x**>b", "a b"),
        ("a<**x**>b", "ab"),
        ("a  <**x**>  b", "a   b"),
        ("a\n<**x**>\nb", "a\nb"),
        ("a\r\n<**x**>\r\nb", "a\r\nb"),
        ("a \n<**x**> b", "a \n b"),
        ("a\t<**x**>\tb", "a\t\tb"),
        ("  a\n\n<**x**>", "  a\n\n"),
        ("<**x**>\nb  ", "\nb  "),
        ("a <**x**> <**y**> b", "a b"),
        ("a <** b", "a <** b"),
        ("a **> b <** c", "a **> b <** c"),
        ("a <**> b", "a <**> b"),
    ],
)
def test_the_rest_stays_as_it_is_but_for_one_adjoining_space_or_newline(text: str, expected: str):
    assert read_text(text).text == expected


@pytest.mark.parametrize(
    "text",
    [
        '<<**a**>**stopMessage:"x"**>z',
        '<*<**a**>*stopMessage:"x"**>z',
        '<<<**a**>**b**>**stopMessage:"x"**>z',
        '<<**a**><**b**>**stopMessage:"x"**>z',
    ],
)
def test_a_marker_that_stripping_puts_together_is_stripped_and_not_executed(text: str):
    reading = read_text(text)
    assert (reading.text, reading.directives) == ("z", ())


WORDS = re.split(
    r"\s+",
    """<** **> < * > " ' “ ” ‘ ’ 「 」 \\ ` ``` ~~~ : , ： ， stopMessage clear on mode= ai:on
    file:// .. a 继续 3 -1 { }""",
)
FRAGMENTS = st.sampled_from([*WORDS, *"\n\r \u200b\ufeff\ud800\0"])
ADVERSARIAL = st.lists(FRAGMENTS, max_size=40).map("".join)


@settings(deadline=None, max_examples=400)
@given(ADVERSARIAL)
@example("<*<**\0**>*a**>")
def test_no_marker_is_left_whatever_the_text(text: str):
    reading = read_text(text)
    assert not MARKER.search(reading.text)
    assert (reading.markers > 0) == bool(MARKER.search(text))
    assert read_text(reading.text) == type(reading)(reading.text)
    if not reading.markers:
        assert reading.text is text


@settings(deadline=None, max_examples=200)
@given(ADVERSARIAL)
def test_what_remains_is_what_was_there(text: str):
    """Stripping takes characters away; it never adds, moves or changes one."""
    for keep_in_code in (False, True):
        rest = iter(text)
        assert all(
            character in rest for character in read_text(text, keep_in_code=keep_in_code).text
        )


SPEAKABLE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: not re.fullmatch(r"[\s\u200b-\u200d\u2060\ufeff]*", text)
)


@settings(deadline=None, max_examples=200)
@given(SPEAKABLE, st.integers(1, 99), st.sampled_from([('"', '"'), ("“", "”"), ("「", "」")]))
def test_any_text_can_be_said_in_quotes(text: str, max_repeats: int, quotes: tuple[str, str]):
    opener, closer = quotes
    escaped = text.replace("\\", "\\\\").replace(closer, "\\" + closer)
    directive = stop_message(f"{opener}{escaped}{closer},{max_repeats}")
    assert isinstance(directive, SetText)
    assert directive.max_repeats == max_repeats
    assert directive.text in text
    assert directive.text == directive.text.strip()


N = 60_000


@pytest.mark.parametrize(
    "text",
    [
        "<**" * N,
        "<****>" * N,
        "<" * N + "<**x**>" + "**x**>" * N,
        "<**“x**>" * N + "”" + " " * N + "z **>",
        '<**stopMessage:"x**>' * N,
        "<**stopMessage:'" + "'" * N + "**>",
        "<**stopMessage:a" + "，3" * N + "x**>",
        "<**stopMessage:x" + ",ai:" * N + "**>",
        "<**" + " " * N + "x**>" + " " * N,
        "<**" + "`" * N + "**>" + "` ``" * N,
        "```\n" * N + "<**x**>",
        '<**"' + "\\" * N + '"**>',
        "<**「x**><**“x**>" * N + "」" + " " * N + "”" + " " * N + "**",
    ],
    ids=range(13),
)
def test_the_work_grows_with_the_text_and_not_with_its_square(text: str):
    """With a quadratic step these inputs would take minutes to hours."""
    reading = read_text(text)
    assert not MARKER.search(reading.text[:2000])
    assert len(reading.text) <= len(text)


# In a conversation


def test_the_newest_user_message_arms_and_older_ones_are_only_cleaned():
    items = (UserItem("first <**clear**>"), said("ok"), UserItem("go <**stopMessage:on,2**>"))
    reading = take_directives(items)
    assert reading.items == (UserItem("first "), said("ok"), UserItem("go "))
    assert reading.markers == 2
    assert reading.found is not None
    assert reading.found.directives == (SetMode(StageMode.ON, 2),)
    assert reading.found.is_tail


def test_a_newer_plain_user_message_hides_an_older_directive():
    assert take_directives((UserItem("<**clear**>x"), said("a"), UserItem("b"))).found is None


def test_a_message_that_the_model_or_a_tool_answered_is_not_the_tail():
    question = UserItem("go <**stopMessage:go,2**>")
    call = AssistantItem((ToolCallPart("c1", "ls", "{}"),))
    for after in ((said("a"),), (call, ToolResultItem("c1", "ls", "out"))):
        found = take_directives((question, *after)).found
        assert found is not None
        assert not found.is_tail


def test_attachments_and_reminders_do_not_hide_the_tail():
    aside = (SystemItem("[File: a]\n", "file_attachment", "a"), ReminderItem("r", ("rule",)))
    found = take_directives((UserItem("go <**clear**>"), *aside)).found
    assert found is not None
    assert found.is_tail


def test_other_roles_are_left_untouched():
    items = (
        UserItem("x <**clear**>"),
        SystemItem("s <**clear**>"),
        ReminderItem("r <**clear**>", ("rule",)),
        said("a <**clear**>"),
        ToolResultItem("c", "cat", "t <**clear**>"),
    )
    assert take_directives(items).items[1:] == items[1:]


def test_an_internal_request_is_cleaned_but_executes_nothing():
    reading = take_directives((UserItem("x <**clear**>"),), internal=True)
    assert reading.found is None
    assert reading.items == (UserItem("x "),)


def test_malformed_directives_are_cleaned_even_when_nothing_was_valid():
    reading = take_directives((UserItem('do <**stopMessage:"",3**>it'),))
    assert reading.items == (UserItem("do it"),)
    assert reading.found is None
    assert reading.warnings


def test_the_fingerprint_tells_a_repeated_directive_from_a_replayed_one():
    marked = UserItem('<**stopMessage:"x"**> go')
    first = take_directives((marked,)).found
    replayed = take_directives((marked, said("a"))).found
    repeated = take_directives((marked, said("a"), marked)).found
    assert first is not None
    assert replayed is not None
    assert repeated is not None
    assert first.fingerprint == replayed.fingerprint != repeated.fingerprint


def test_g5_an_emptied_last_message_takes_the_text_that_was_set():
    reading = take_directives((UserItem("a"), said("b"), UserItem('<**stopMessage:"T"**>')))
    assert reading.emptied_turn == 2
    assert reading.with_turn_text("T") == (UserItem("a"), said("b"), UserItem("T"))


def test_g5_an_emptied_last_message_keeps_its_attachments_behind_it():
    attached = SystemItem("[File: a]\n", "file_attachment", "a")
    reading = take_directives((UserItem("<**clear**>\n"), attached))
    assert reading.with_turn_text("T") == (UserItem("T"), attached)


def test_g5_an_emptied_older_message_is_dropped():
    items = (UserItem("a"), said("b"), UserItem("<**clear**>"), said("c"), UserItem("d"))
    reading = take_directives(items)
    assert reading.items == (UserItem("a"), said("b"), said("c"), UserItem("d"))
    assert reading.emptied_turn is None


def test_g5_a_conversation_never_begins_with_the_model():
    tail = (said("b"), UserItem("c"))
    for marked, text in (('<**stopMessage:"T"**>', "T"), ("<**clear**>", NO_TEXT)):
        assert take_directives((UserItem(marked), *tail)).items == (UserItem(text), *tail)
    dropped = take_directives((UserItem("<**clear**>"), UserItem("a"), *tail))
    assert dropped.items == (UserItem("a"), *tail)


def test_g5_the_order_of_a_turn_stays_while_its_tools_run():
    call = AssistantItem((ToolCallPart("c1", "ls", "{}"),))
    result = ToolResultItem("c1", "ls", "out")
    before = (UserItem("a"), said("b"))
    reading = take_directives((*before, UserItem('<**stopMessage:"T"**>'), call, result))
    assert reading.items == (*before, UserItem("T"), call, result)
    from_file = (*before, UserItem("<**stopMessage:file://m.md**>"), call, result)
    assert take_directives(from_file, armed_text="F").items == (
        *before,
        UserItem("F"),
        call,
        result,
    )
    assert take_directives(from_file).items == (*before, call, result)


ITEMS: st.SearchStrategy[tuple[AnyItem, ...]] = st.lists(
    st.one_of(
        ADVERSARIAL.map(UserItem),
        st.just(said("a")),
        st.just(ToolResultItem("c", "n", "r <**clear**>")),
        st.just(SystemItem("s")),
    ),
    max_size=6,
).map(tuple)


@settings(deadline=None, max_examples=200)
@given(ITEMS)
def test_no_marker_is_left_in_any_user_message(items: tuple[AnyItem, ...]):
    reading = take_directives(items)
    for candidate in (reading.items, reading.with_turn_text("T")):
        for item in candidate:
            assert not (isinstance(item, UserItem) and MARKER.search(item.text))
    if not reading.markers:
        assert reading.items == items
    spoken = [item for item in reading.with_turn_text("T") if not isinstance(item, SystemItem)]
    original = [item for item in items if not isinstance(item, SystemItem)]
    if original and isinstance(original[0], UserItem):
        assert isinstance(spoken[0], UserItem)
