"""Injection records: bound to their reminder, whatever becomes of the conversation."""

from midstream.messages.conversation import ReminderItem, UserItem
from midstream.messages.injection import InjectionRecord, in_context, last_turns, moved

HELLO = UserItem("hello")
SUMMARY = UserItem("what was said so far")
REMINDER = ReminderItem(text="do not", rules=("no-any", "no-todo"))


def injected(rule: str, position: int, turn: int = 1) -> InjectionRecord:
    return InjectionRecord(
        conversation_id="c-1",
        session_id="s-1",
        rule=rule,
        turn=turn,
        attempt=1,
        position=position,
        recorded_at="2026-03-01T12:00:00.000Z",
    )


def test_the_newest_turn_of_a_rule_counts() -> None:
    records = [injected("no-any", 1, turn=4), injected("no-any", 9, turn=2), injected("x", 3)]

    assert last_turns(records) == {"no-any": 4, "x": 1}


def test_a_record_without_its_reminder_is_not_in_the_context() -> None:
    items = (HELLO, REMINDER)

    kept = in_context(
        [
            injected("no-any", 1),
            injected("another-rule", 1),
            injected("no-any", 0),
            injected("no-any", 2),
            injected("no-any", -1),
        ],
        items,
        start=0,
    )

    assert kept == (injected("no-any", 1),)
    assert in_context([injected("no-any", 8)], items, start=7) == (injected("no-any", 8),)


def test_a_compaction_that_keeps_the_reminder_moves_its_records() -> None:
    records = (injected("no-any", 1), injected("no-todo", 1))

    kept = moved(records, (HELLO, REMINDER), 0, (SUMMARY, HELLO, REMINDER), 2)

    assert kept == (injected("no-any", 4), injected("no-todo", 4))


def test_a_compaction_that_drops_the_reminder_rearms_its_rules() -> None:
    assert moved((injected("no-any", 1),), (HELLO, REMINDER), 0, (SUMMARY,), 2) == ()


def test_of_equal_reminders_an_undo_keeps_the_first_and_a_compaction_the_last() -> None:
    old = (REMINDER, HELLO, REMINDER, HELLO)
    records = (injected("no-any", 0, turn=1), injected("no-any", 2, turn=5))

    undone = moved(records, old, 0, old[:2], 4)
    compacted = moved(records, old, 0, (SUMMARY, *old[2:]), 4)

    assert undone == (injected("no-any", 4, turn=1),)
    assert compacted == (injected("no-any", 5, turn=5),)
