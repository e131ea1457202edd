"""Wall time and identifiers come from what was injected, and from nothing else."""

import random
import re

import pytest
import trio
from trio.testing import MockClock

from midstream.actors.clock import Ids, ManualClock, SystemClock, TrioClock


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)
    clock.advance(1.5)
    assert clock.now_ms() == 2_500
    clock.advance(-2)
    assert clock.now_ms() == 500


async def test_a_trio_clock_moves_with_virtual_time(autojump_clock: MockClock) -> None:
    await trio.sleep(7)
    clock = TrioClock(1_000)
    await trio.sleep(60)
    assert clock.now_ms() == 61_000


def test_the_system_clock_tells_milliseconds_since_1970() -> None:
    year_2020, year_2200 = 1_577_836_800_000, 7_258_118_400_000
    assert year_2020 < SystemClock().now_ms() < year_2200


def test_a_session_id_is_the_time_in_base_36_and_8_hex_digits() -> None:
    session_id = Ids(ManualClock(1_772_366_400_000), random.Random(1)).session_id()
    assert re.fullmatch(r"ses-[a-z0-9]+-[a-f0-9]{8}", session_id)
    assert int(session_id.split("-")[1], 36) == 1_772_366_400_000


def test_equal_seeds_give_equal_ids_and_one_source_never_repeats_itself() -> None:
    clock = ManualClock(0)
    one, other = Ids(clock, random.Random(7)), Ids(clock, random.Random(7))
    first = [one.session_id() for _ in range(100)]
    assert first == [other.session_id() for _ in range(100)]
    assert len(set(first)) == 100


def test_an_instant_before_1970_has_no_id() -> None:
    with pytest.raises(ValueError, match="before 1970"):
        Ids(ManualClock(-1), random.Random(1)).session_id()
