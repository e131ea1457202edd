"""A session's events as they are kept: blocks of numbered events, in which deltas are joined.

A model's answer is hundreds of deltas of a few characters. Kept one by one they would cost
more than the text itself, so adjacent ones are one run, which remembers where its pieces
ended: from any number on, a log gives exactly what was said behind it, never a character
twice. The Announcer makes blocks, the Ledger keeps them, `Replay` reads them. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from midstream.messages.events import AnyEvent, SessionEvent, Text, Thinking


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in the events of a session: behind the event with this number.

    `epoch` is the number of the owner's acquisition of the session (`Fence.token`). Numbers
    go on from one epoch to the next, but what an owner had said and could not keep before it
    was lost is said no more; its numbers are then used again, in the next epoch
    (spec/lessons.md C).
    """

    epoch: int
    sequence: int


BEGINNING = Position(1, 0)


class Run(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One event; or several deltas as one, whose pieces end at `cuts` (characters)."""

    event: AnyEvent
    cuts: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many numbers it takes."""
        return len(self.cuts) + 1


class Block(msgspec.Struct, frozen=True):
    """Events of one epoch that were kept together, numbered from `first` on."""

    epoch: int
    first: int
    runs: tuple[Run, ...]

    @property
    def last(self) -> int:
        """The number of its last event."""
        return self.first - 1 + sum(run.count for run in self.runs)


def block_of(events: Sequence[SessionEvent]) -> Block:
    """The block of these events: at least one, of one epoch, numbered without a gap."""
    first = events[0]
    return Block(first.epoch, first.sequence, tuple(_run(group) for group in _groups(events)))


def block_behind(block: Block, after: int) -> Block | None:
    """What a block holds behind number `after`; None if that is nothing."""
    number = block.first - 1
    for index, run in enumerate(block.runs):
        last = number + run.count
        if last > after:
            seen = max(0, after - number)
            runs = (_run_behind(run, seen), *block.runs[index + 1 :])
            return Block(block.epoch, number + seen + 1, runs)
        number = last
    return None


def runs_up_to(block: Block, number: int) -> list[tuple[int, AnyEvent]]:
    """The runs that begin at `number` or before, the last first, each behind the number that
    comes before it."""
    before = block.first - 1
    runs: list[tuple[int, AnyEvent]] = []
    for run in block.runs:
        if before >= number:
            break
        runs.append((before, run.event))
        before += run.count
    return runs[::-1]


def may_be_joined(before: AnyEvent, after: AnyEvent) -> bool:
    """Whether somebody may get these two, one after the other, as one event."""
    match before, after:
        case (Text(a), Text(b)) | (Thinking(a), Thinking(b)):
            return a == b
        case _:
            return False


def events_of(session_id: str, block: Block) -> Iterator[SessionEvent]:
    """The events of a block; joined deltas have the number of the last."""
    number = block.first - 1
    for run in block.runs:
        number += run.count
        yield SessionEvent(session_id, number, run.event, block.epoch)


def joined(events: Iterable[SessionEvent]) -> list[SessionEvent]:
    """The events with adjacent deltas as one, under the number of the last."""
    return [
        group[-1]
        if len(group) == 1
        else msgspec.structs.replace(group[-1], event=_joined_event(group))
        for group in _groups(events)
    ]


def _groups(events: Iterable[SessionEvent]) -> Iterator[list[SessionEvent]]:
    """Adjacent deltas of one attempt and kind together, everything else by itself."""
    group: list[SessionEvent] = []
    for event in events:
        if group and not may_be_joined(group[-1].event, event.event):
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def _texts(group: Sequence[SessionEvent]) -> list[str]:
    return [event.event.text for event in group if isinstance(event.event, Text | Thinking)]


def _joined_event(group: Sequence[SessionEvent]) -> AnyEvent:
    return msgspec.structs.replace(group[-1].event, text="".join(_texts(group)))


def _run(group: Sequence[SessionEvent]) -> Run:
    if len(group) == 1:
        return Run(group[0].event)
    cuts = accumulate(len(text) for text in _texts(group[:-1]))
    return Run(_joined_event(group), tuple(cuts))


def _run_behind(run: Run, seen: int) -> Run:
    """The run without its first `seen` pieces."""
    event = run.event
    if not seen or not isinstance(event, Text | Thinking):
        return run
    start = run.cuts[seen - 1]
    rest = msgspec.structs.replace(event, text=event.text[start:])
    return Run(rest, tuple(cut - start for cut in run.cuts[seen:]))
