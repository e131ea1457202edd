"""What is remembered of a reminder: which rule, when, and where in the conversation.

A record is written in one transaction with its reminder and lives exactly as long as the
reminder stays in the context (architecture.md invariant 5, spec/ttsr.md 0.6): whatever takes
the reminder away, a compaction or an undo, re-arms the rule. Records keep the turn at
which they were made, so that a gap of turns survives a restart. RuleMatcher asks
`last_turns`; the conversation façade of the stores keeps the rest true.
"""

from collections.abc import Iterable, Sequence

import msgspec

from midstream.messages.conversation import AnyItem, ReminderItem
from midstream.messages.record import Shape


class InjectionRecord(Shape, frozen=True, kw_only=True):
    """One rule that was injected. `turn` and `attempt` are those that were cut for it, or
    that it rode along with; `position` is its reminder's in the conversation, from 0."""

    conversation_id: str
    session_id: str
    rule: str
    turn: int
    attempt: int
    position: int
    recorded_at: str

    @property
    def id(self) -> str:
        """Its key in the book of injections."""
        return f"{self.conversation_id}/{self.position}/{self.rule}"


def last_turns(records: Iterable[InjectionRecord]) -> dict[str, int]:
    """For each rule on record, the turn of its newest injection.

    A rule with `once` may be injected when it is not in here; one with a gap of g turns
    when it is not, or when the present turn is at least g turns later.
    """
    turns = dict[str, int]()
    for record in records:
        turns[record.rule] = max(record.turn, turns.get(record.rule, record.turn))
    return turns


def in_context(
    records: Iterable[InjectionRecord], items: Sequence[AnyItem], start: int
) -> tuple[InjectionRecord, ...]:
    """The records whose reminder is among `items`, of which the first has position `start`."""
    return tuple(record for record in records if _reminder_of(record, items, start) is not None)


def moved(
    records: Iterable[InjectionRecord],
    old: Sequence[AnyItem],
    old_start: int,
    new: Sequence[AnyItem],
    new_start: int,
) -> tuple[InjectionRecord, ...]:
    """The records after the context `old` was replaced by `new`, at their new positions.

    A record stays when the very reminder it belongs to is in `new`. Equal reminders are
    told apart by what the two contexts have in common: an undo leaves the beginning of
    the old one, so its items keep their order; a compaction leaves the end, so the newest
    of the rest stay.
    """
    homes = _homes(old, new)
    kept: list[InjectionRecord] = []
    for record in records:
        home = homes.get(record.position - old_start)
        if home is not None and _reminder_of(record, old, old_start) is not None:
            kept.append(msgspec.structs.replace(record, position=home + new_start))
    return tuple(kept)


def _homes(old: Sequence[AnyItem], new: Sequence[AnyItem]) -> dict[int, int]:
    """For the index of each reminder of `old` that is in `new`, its index there."""
    homes = dict[int, int]()
    shared = 0
    while shared < min(len(old), len(new)) and old[shared] == new[shared]:
        homes[shared] = shared
        shared += 1
    free: dict[ReminderItem, list[int]] = {}
    for index in range(shared, len(new)):
        item = new[index]
        if isinstance(item, ReminderItem):
            free.setdefault(item, []).append(index)
    for index in range(len(old) - 1, shared - 1, -1):
        item = old[index]
        if isinstance(item, ReminderItem) and free.get(item):
            homes[index] = free[item].pop()
    return homes


def _reminder_of(
    record: InjectionRecord, items: Sequence[AnyItem], start: int
) -> ReminderItem | None:
    index = record.position - start
    item = items[index] if 0 <= index < len(items) else None
    return item if isinstance(item, ReminderItem) and record.rule in item.rules else None
