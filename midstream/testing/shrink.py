"""Make a failing schedule small: fewer faults, fewer switches, the same failure.

A schedule is numbers in streams, and 0 is the tamest everywhere (`choices.py`). So what can
be 0 becomes 0: whole streams first, then ever smaller pieces of them, then single numbers
become smaller. Each attempt is a run, so the number of attempts is bounded.
"""

from collections.abc import Callable, Iterator

from midstream.testing.choices import Schedule

MOST_RUNS = 400


def shrink(
    schedule: Schedule, fails: Callable[[Schedule], bool], most_runs: int = MOST_RUNS
) -> Schedule:
    """The smallest schedule found for which `fails` still holds; `schedule` does itself."""
    best = {stream: list(numbers) for stream, numbers in schedule.items()}
    runs = 0
    progress = True
    while progress and runs < most_runs:
        progress = False
        for candidate in _simpler(best):
            if runs >= most_runs:
                break
            runs += 1
            if fails(candidate):
                best, progress = candidate, True
                break
    return best


def size(schedule: Schedule) -> int:
    """How many decisions are not the tamest."""
    return sum(1 for numbers in schedule.values() for number in numbers if number)


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules with less in them, the boldest first."""
    streams = sorted(schedule, key=lambda stream: -len(schedule[stream]))
    for stream in streams:
        if any(schedule[stream]):
            yield {**schedule, stream: []}
    pieces = 2
    while pieces <= max((len(numbers) for numbers in schedule.values()), default=0) * 2:
        for stream in streams:
            yield from _with_a_piece_of_zeros(schedule, stream, pieces)
        pieces *= 2
    for stream in streams:
        numbers = schedule[stream]
        for place, number in enumerate(numbers):
            if number > 1:
                yield {**schedule, stream: [*numbers[:place], number // 2, *numbers[place + 1 :]]}


def _with_a_piece_of_zeros(schedule: Schedule, stream: str, pieces: int) -> Iterator[Schedule]:
    numbers = schedule[stream]
    length = -(-len(numbers) // pieces)
    if not numbers or (length == 1 and pieces > 2 * len(numbers)):
        return
    for start in range(0, len(numbers), length):
        piece = numbers[start : start + length]
        if any(piece):
            zeros = [0] * len(piece)
            yield {**schedule, stream: [*numbers[:start], *zeros, *numbers[start + length :]]}
