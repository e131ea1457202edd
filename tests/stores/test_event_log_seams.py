"""Where somebody can be told to forget: no event that he may have got reaches over a seam."""

from random import Random

import pytest

from midstream.messages.event_log import block_behind, block_of, events_of, joined, may_be_joined
from midstream.messages.events import AnyEvent, AttemptStarted, SessionEvent, Text, Thinking
from midstream.stores.event_log import LogReader, append_operations, seam_before
from midstream.stores.memory import MemoryStore


def said_at_random(random: Random) -> list[SessionEvent]:
    def one(number: int) -> AnyEvent:
        attempt = 1 if random.random() < 0.9 else 2
        text = Text(attempt, f"<{number}>")
        return random.choice([text, text, text, Thinking(attempt, "hm"), AttemptStarted(attempt)])

    count = random.randint(1, 200)
    return [SessionEvent("ses", number, one(number)) for number in range(1, count + 1)]


def cut_at_random(
    events: list[SessionEvent], random: Random, longest: int
) -> list[list[SessionEvent]]:
    pieces: list[list[SessionEvent]] = []
    while events:
        size = random.randint(1, longest)
        pieces.append(events[:size])
        events = events[size:]
    return pieces


async def log_of(events: list[SessionEvent], random: Random) -> MemoryStore:
    """A store with the log of a session, in blocks of any size."""
    store = MemoryStore()
    for length, piece in enumerate(cut_at_random(events, random, 3)):
        _, append = append_operations("ses", block_of(piece), length)
        await store.commit([append])
    return store


def text_of(events: list[SessionEvent]) -> list[AnyEvent]:
    return [event.event for event in joined(events)]


@pytest.mark.parametrize("seed", range(100))
async def test_who_forgets_what_is_behind_a_seam_and_reads_on_has_what_is_on_record(
    seed: int,
) -> None:
    random = Random(seed)
    said = said_at_random(random)
    kept = said[: random.randint(0, len(said))]
    seen = [event for piece in cut_at_random(said, random, 40) for event in joined(piece)]
    store = await log_of(kept, random)
    seam = await seam_before(store, "ses", len(kept))
    left = [event for event in seen if event.sequence <= seam]
    assert (left[-1].sequence if left else 0) == seam, "an event reaches over it"
    reader, behind = LogReader(store, "ses"), list[SessionEvent]()
    while blocks := await reader.read(seam):
        rests = [block_behind(block, seam) for block in blocks]
        behind += [event for rest in rests if rest for event in events_of("ses", rest)]
    assert text_of(left + behind) == text_of(kept)
    # And it is the last one: what was said before it, and behind it, is one text.
    for number in range(seam + 1, len(kept)):
        assert may_be_joined(kept[number - 1].event, kept[number].event)
