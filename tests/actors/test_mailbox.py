"""The order of a mailbox, against a model: a plain list."""

from typing import Literal

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.actors.mailbox import Mailbox

Step = tuple[Literal["put", "signal", "take"], int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "signal", "take"]), st.integers(0, 2)), max_size=60
)


@given(capacity=st.integers(1, 4), steps=STEPS)
@settings(deadline=None, max_examples=150)
def test_items_and_signals_come_out_in_the_order_in_which_they_went_in(
    capacity: int, steps: list[Step]
) -> None:
    async def play() -> None:
        mailbox: Mailbox[tuple[str, int]] = Mailbox(capacity)
        model: list[tuple[str, int]] = []
        late: set[int] = set()  # senders of signals that found no room
        for number, (what, sender) in enumerate(steps):
            plain = sum(not (kind == "signal" and n in late) for kind, n in model)
            match what:
                case "put":
                    try:
                        mailbox.put_nowait(("put", number))
                    except trio.WouldBlock:
                        assert plain == capacity
                        continue
                    assert plain < capacity
                    model.append(("put", number))
                case "signal":
                    replaced = [n for n in late if steps[n][1] == sender]
                    late.difference_update(replaced)
                    model = [each for each in model if each[1] not in replaced]
                    mailbox.put_signal(str(sender), ("signal", number))
                    model.append(("signal", number))
                    if plain == capacity:
                        late.add(number)
                case "take":
                    expected = model.pop(0) if model else None
                    assert mailbox.take_nowait() == expected
                    if expected:
                        late.discard(expected[1])
            assert mailbox.depth == len(model)

    trio.run(play)


async def test_a_woken_reader_gets_nothing_and_a_wake_leaves_no_trace() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    got: list[int | None] = []

    async def read() -> None:
        got.append(await mailbox.take())

    async with trio.open_nursery() as nursery:
        mailbox.wake()
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        mailbox.wake()
        mailbox.wake()
    assert got == [None]
    mailbox.put_nowait(1)
    assert mailbox.take_nowait() == 1
