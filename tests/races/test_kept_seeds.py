"""Schedules that have found something, each a seed of a scenario, beyond those of every run.

What each of them found has a test of its kind elsewhere, since a seed means something else once
the testing kit draws otherwise.
"""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import test_abort_races
import test_chain_races
import test_gateway_races
import test_host_races
import test_outside_races
import test_replay_races
import test_tool_races
import test_wire_races

from midstream.testing.explore import explore
from midstream.testing.race import Race
from midstream.testing.races_plugin import faults_of

Scenario = Callable[[Race], Awaitable[None]]

A_RESTART_HEARD_OF_LATE = (
    (test_abort_races.test_a_second_verdict_before_the_first_abort_has_landed, 11864),
    (test_abort_races.test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt, 3677),
    (test_tool_races.test_calls_that_the_host_answers_against_stop_and_deadline, 3870),
)
A_SESSION_THAT_GOES_AND_LEAVES_SOMETHING = (
    (test_abort_races.test_abort_and_retry_while_everything_goes_wrong, 2309),
    (test_abort_races.test_abort_and_retry_while_everything_goes_wrong, 3472),
    (test_abort_races.test_abort_and_retry_while_everything_goes_wrong, 4003),
    (test_tool_races.test_calls_that_the_host_answers_against_stop_and_deadline, 2336),
    (test_abort_races.test_abort_and_retry_while_everything_goes_wrong, 9353),
)
A_FRAGMENT_OF_A_CALL_THAT_NEVER_BEGAN = (
    (test_chain_races.test_two_conversations_of_one_runtime_do_not_share_a_chain, 4147),
)
AN_EMPTY_STREAM_TAKEN_FOR_A_REFUSAL = (
    (test_chain_races.test_a_chain_while_everything_goes_wrong, 5532),
)
A_FOLLOW_UP_ON_ITS_WAY_WHEN_THE_CLIENT_GOES = (
    (test_chain_races.test_a_chain_against_disconnect_stop_and_quota, 5838),
)
AN_UPSTREAM_THAT_BREAKS_OFF_BEHIND_THE_NAME_OF_A_FIELD = (
    (test_gateway_races.test_a_client_that_may_vanish_before_an_upstream_that_does_anything, 6535),
)
WHAT_WAITS_WHEN_THE_BOOKS_ARE_CLOSED = (
    (test_replay_races.test_followers_of_a_session_whose_hosts_die, 80),
    (test_replay_races.test_followers_of_a_session_whose_hosts_die, 960),
)
A_PLACE_THAT_ONLY_A_LOST_HOST_KNEW = (
    (test_replay_races.test_followers_of_a_session_whose_hosts_die, 3987),
    (test_replay_races.test_followers_of_a_session_whose_hosts_die, 11982),
)
AN_END_THAT_IS_TOLD_TWICE = (
    (test_chain_races.test_a_chain_while_everything_goes_wrong, 7836),
    (test_chain_races.test_a_chain_while_everything_goes_wrong, 697),
)
A_READER_WHO_DOES_NOT_WAIT_FOR_THE_LOG = (
    (test_replay_races.test_readers_who_come_and_go_against_the_ring_and_the_log, 5071),
)
A_WINDOW_THAT_IS_SHORTER_THAN_ITS_PROBE_WAS_TOLD = (
    (test_host_races.test_the_pause_against_dispatches_stragglers_and_restarts, 12993),
)
AN_END_THAT_WAS_WRITTEN_AND_NOT_ANSWERED = (
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 23),
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 37),
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 55),
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 4564),
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 5669),
)
A_PAUSE_THAT_IS_NOT_KEPT_YET = (
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 12),
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 163),
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 5000),
)
A_SEND_THAT_IS_COUNTED_AND_NOT_MADE = (
    (test_gateway_races.test_requests_of_one_session_at_two_gateways_share_its_sends, 60),
)
A_CHECK_THAT_ASKED_TOO_MUCH = (
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 1363),
    (test_outside_races.test_sessions_outside_while_everything_goes_wrong, 5636),
    (test_host_races.test_sessions_whose_store_has_bugs, 2284),
    (test_host_races.test_sessions_whose_store_has_bugs, 10246),
    (test_host_races.test_sessions_whose_store_has_bugs, 14983),
    (test_host_races.test_sessions_whose_books_crash, 3228),
    (test_chain_races.test_two_conversations_of_one_runtime_do_not_share_a_chain, 6180),
    (test_host_races.test_two_hosts_against_cancel_stall_and_recovery, 5095),
    (test_host_races.test_two_hosts_against_cancel_stall_and_recovery, 10156),
    (test_tool_races.test_calls_and_a_chain_within_all_limits, 8577),
    (test_tool_races.test_calls_and_a_chain_within_all_limits, 12394),
    (test_gateway_races.test_clients_of_one_gateway_whose_keys_run_out_of_quota, 10002),
    (test_wire_races.test_a_client_whose_connection_breaks_again_and_again, 2434),
    (test_wire_races.test_a_client_whose_connection_breaks_while_events_are_lost, 3356),
)
KEPT = (
    *A_RESTART_HEARD_OF_LATE,
    *A_SESSION_THAT_GOES_AND_LEAVES_SOMETHING,
    *A_FRAGMENT_OF_A_CALL_THAT_NEVER_BEGAN,
    *AN_EMPTY_STREAM_TAKEN_FOR_A_REFUSAL,
    *A_FOLLOW_UP_ON_ITS_WAY_WHEN_THE_CLIENT_GOES,
    *AN_UPSTREAM_THAT_BREAKS_OFF_BEHIND_THE_NAME_OF_A_FIELD,
    *WHAT_WAITS_WHEN_THE_BOOKS_ARE_CLOSED,
    *A_PLACE_THAT_ONLY_A_LOST_HOST_KNEW,
    *AN_END_THAT_IS_TOLD_TWICE,
    *A_READER_WHO_DOES_NOT_WAIT_FOR_THE_LOG,
    *A_WINDOW_THAT_IS_SHORTER_THAN_ITS_PROBE_WAS_TOLD,
    *AN_END_THAT_WAS_WRITTEN_AND_NOT_ANSWERED,
    *A_PAUSE_THAT_IS_NOT_KEPT_YET,
    *A_SEND_THAT_IS_COUNTED_AND_NOT_MADE,
    *A_CHECK_THAT_ASKED_TOO_MUCH,
)


@pytest.mark.parametrize(
    ("scenario", "seed"), KEPT, ids=[f"{each.__name__}-{seed}" for each, seed in KEPT]
)
def test_what_a_seed_has_found_is_mended(scenario: Scenario, seed: int) -> None:
    marks: list[pytest.Mark] = cast(Any, scenario).pytestmark
    [marker] = [mark for mark in marks if mark.name == "races"]
    assert explore(scenario, seeds=1, first_seed=seed, faults=faults_of(marker)) == 1
