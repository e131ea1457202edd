"""Every decision of an explored run, so that it can be repeated and made smaller.

Decisions are numbers, drawn from streams with names ("order", "fault", ...). A seed fills
the streams; a recorded schedule plays them again, and what it does not say is 0. Zero is
always the tamest option: no shuffle, no yield, no fault, no delay. So a schedule is made
smaller by putting zeros into it, and one stream does not shift another.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from random import Random  # noqa: TID251 - the one source of an explored run
from typing import TypeVar

import msgspec

T = TypeVar("T")

Schedule = dict[str, list[int]]
"""The decisions of a run, by stream."""


class Choices:
    """The decisions of one run; `taken` are those so far.

    `seed` is what fills the streams, or, with a `schedule`, only what names the run.
    """

    def __init__(self, seed: int, schedule: Mapping[str, Sequence[int]] | None = None) -> None:
        self.seed = seed
        self.taken: Schedule = {}
        self._schedule = schedule
        self._dice: dict[str, Random] = {}

    def pick(self, stream: str, options: int) -> int:
        """A number from 0 to `options - 1`; 0 is the tamest."""
        taken = self.taken.setdefault(stream, [])
        if self._schedule is None:
            dice = self._dice.get(stream)
            if dice is None:
                dice = self._dice[stream] = Random(f"{self.seed}:{stream}")
            number = int(dice.random() * options)
        else:
            given = self._schedule.get(stream, ())
            number = given[len(taken)] % options if len(taken) < len(given) else 0
        taken.append(number)
        return number

    def once_in(self, stream: str, times: int) -> bool:
        """Whether something rare happens now: once in `times`."""
        return self.pick(stream, times) == times - 1

    def one_of(self, stream: str, options: Sequence[T]) -> T:
        """One of `options`; the first is the tamest."""
        return options[self.pick(stream, len(options))]

    def seconds(self, stream: str, most_s: float, steps: int = 40) -> float:
        """A duration from 0 to `most_s`, a multiple of `most_s / steps`.

        The grid is coarse on purpose: durations that meet are where races are.
        """
        return self.pick(stream, steps + 1) * most_s / steps


def dump(schedule: Schedule) -> str:
    """A schedule as a word for a command line."""
    trimmed = {stream: _without_zeros(numbers) for stream, numbers in schedule.items()}
    body = msgspec.json.encode({name: numbers for name, numbers in trimmed.items() if numbers})
    return base64.urlsafe_b64encode(zlib.compress(body, 9)).decode()


def load(word: str) -> Schedule:
    """The schedule of `dump`."""
    body = zlib.decompress(base64.urlsafe_b64decode(word))
    return msgspec.json.decode(body, type=Schedule)


def _without_zeros(numbers: Sequence[int]) -> list[int]:
    end = len(numbers)
    while end and not numbers[end - 1]:
        end -= 1
    return list(numbers[:end])
