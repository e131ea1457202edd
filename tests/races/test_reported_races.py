"""Races of abort, retry and resume that users of other systems have met, and what holds them off here.

Each row says what went wrong elsewhere; its tests are those that fail if it went wrong here. A row
whose order of things matters has a scenario that is explored (`test_*_races.py`).
"""

# ruff: noqa: E501 - a row is a line

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

ABORT = "races/test_abort_races.py"
CHAIN = "races/test_chain_races.py"
HOSTS = "races/test_host_races.py"
TOOLS = "races/test_tool_races.py"
REPLAY = "races/test_replay_races.py"
SETTLE = "messages/test_settle.py"
LOOP = "midstream/test_tool_loop.py"
STOPS = "midstream/test_races.py"
GUARDS = "races/test_guards.py"
LIFE = "midstream/test_signs_of_life.py"

CALLS = f"{TOOLS}::test_calls_against_abort_and_stop"
CRASHES = f"{TOOLS}::test_calls_while_everything_goes_wrong"
STOP = f"{ABORT}::test_a_stop_against_abort_and_retry"
NEXT = f"{ABORT}::test_the_next_prompt_of_a_conversation_that_was_stopped"
SETTLED = f"{ABORT}::test_the_retry_waits_for_a_late_settle_and_for_the_delay"
SECOND = f"{ABORT}::test_a_second_verdict_before_the_first_abort_has_landed"
LEAVES = f"{CHAIN}::test_a_chain_against_disconnect_stop_and_quota"
PAUSE = f"{HOSTS}::test_the_pause_against_dispatches_stragglers_and_restarts"
TAKEOVER = f"{HOSTS}::test_two_hosts_against_cancel_stall_and_recovery"
READERS = f"{REPLAY}::test_readers_who_come_and_go_against_the_ring_and_the_log"

RACES = {
    # an abort leaves a broken transcript
    "a call that was interrupted has no result": (
        CALLS,
        f"{SETTLE}::test_every_call_of_a_cut_answer_gets_its_result",
    ),
    "a retry goes on in the message that holds a call": (
        f"{SETTLE}::test_calls_end_the_message_and_a_thought_behind_one_takes_all_thoughts_with_it",
        CALLS,
    ),
    "interrupting a tool makes the session invalid": (
        CALLS,
        f"{LOOP}::test_no_order_of_results_stops_and_crashes_leaves_an_invalid_conversation",
    ),
    "the model resumes the task that was cancelled": (
        f"{LOOP}::test_what_returned_before_the_interrupt_keeps_its_result",
        NEXT,
    ),
    "the model does not see the abort and does it again": (
        f"{SETTLE}::test_who_cut_the_answer_is_told_unless_a_reminder_follows",
    ),
    "a tool that was killed is told as never run": (
        f"{LOOP}::test_user_interrupt_tells_calls_that_finished_from_those_that_did_not",
    ),
    "a tool that had finished is told as skipped": (
        f"{LOOP}::test_a_tool_that_finishes_while_it_is_being_stopped_has_returned",
        CALLS,
    ),
    "cut arguments are kept and refused ever after": (
        f"{SETTLE}::test_calls_with_broken_arguments_go_with_their_results",
        CRASHES,
    ),
    "a dead socket is taken for the end of the turn": (
        f"{LOOP}::test_a_stream_that_breaks_off_behind_a_call_never_runs_it",
        CRASHES,
    ),
    "the tail of large arguments is lost": (
        "providers/test_openai_responses_stream.py::test_the_finished_arguments_count_where_the_pieces_differ",
    ),
    "a failed stream leaves a blank message": (f"{SETTLE}::test_nothing_said_is_no_message", STOP),
    "an interrupt between calls leaves some without result": (
        f"{SETTLE}::test_every_call_of_a_cut_answer_gets_its_result",
        CALLS,
    ),
    # thinking and its signatures
    "all signatures of an aborted turn are stripped": (
        f"{SETTLE}::test_thinking_that_is_complete_stays_as_it_is_when_later_text_is_cut",
    ),
    "a silent drop is stored as a natural stop": (
        f"{SETTLE}::test_a_stream_without_its_terminal_event_is_not_taken_for_finished",
        STOP,
    ),
    "a thought of the latest message is rewritten": (
        f"{SETTLE}::test_calls_end_the_message_and_a_thought_behind_one_takes_all_thoughts_with_it",
    ),
    "an empty unsigned thought is kept": (
        f"{SETTLE}::test_one_unsigned_thought_takes_all_of_its_message_with_it",
    ),
    "a broken history wedges the session for good": (
        f"{SETTLE}::test_any_conversation_is_healed_once_and_for_all",
    ),
    "one thought of a message is dropped and the others kept": (
        f"{SETTLE}::test_one_unsigned_thought_takes_all_of_its_message_with_it",
    ),
    "a conversion loses what only the provider understands": (
        "providers/test_requests.py::test_blocks_of_anthropics_own_come_back_byte_for_byte",
    ),
    # abort, retry and the user
    "a stop does not reach what is already scheduled": (STOP, LEAVES),
    "one stop switches automation off for ever": (
        NEXT,
        "midstream/test_continuation.py::test_an_interrupt_ends_the_chain_and_the_next_prompt_has_what_is_left",
    ),
    "a continuation fires right behind the stop": (
        LEAVES,
        f"{CHAIN}::test_a_chain_while_everything_goes_wrong",
    ),
    "an abort that settles late swallows the next prompt": (NEXT,),
    "a stop kills the turn behind the one it was for": (
        NEXT,
        f"{GUARDS}::test_an_abort_of_an_older_attempt_leaves_the_live_one_alone",
    ),
    "an answer of the old turn is taken for the new one's": (
        STOP,
        f"{GUARDS}::test_a_batch_of_an_attempt_that_is_over_is_dropped",
    ),
    "an interrupt during a request never settles": (
        STOP,
        f"{STOPS}::test_a_stream_that_does_not_settle_fails_the_session",
    ),
    "the run ends before its retry has": (
        "midstream/test_reported_bugs.py::test_b16_the_result_waits_for_the_whole_recovery",
        SETTLED,
    ),
    "the next stream starts before the old one is closed": (
        SETTLED,
        f"{GUARDS}::test_an_attempt_that_was_lost_is_repeated_when_its_stream_is_closed",
    ),
    "two runners work on one session": (
        TAKEOVER,
        f"{GUARDS}::test_a_conversation_that_is_being_answered_takes_no_second_prompt",
    ),
    "an identity is used again while the old process lives": (
        TAKEOVER,
        "messages/test_record.py::test_an_owner_that_returns_under_its_old_name_needs_its_new_token",
    ),
    "one rule is injected several times": (
        SECOND,
        f"{LOOP}::test_b6_a_rule_that_matches_again_on_its_way_is_injected_once",
    ),
    "a consumer waits for ever when something else fails": (
        "midstream/test_reported_bugs.py::test_b17_whoever_waits_for_the_result_never_waits_for_ever",
        f"{ABORT}::test_abort_and_retry_while_everything_goes_wrong",
    ),
    "a page that is closed ends the run, or a stop does not": (
        LEAVES,
        "midstream/test_client.py::test_a_session_that_was_left_can_be_followed_again",
    ),
    "an answer starts again on a screen that shows its half": (
        "midstream/test_reported_bugs.py::test_b10_what_was_shown_of_a_cut_attempt_is_retracted_once",
        STOP,
    ),
    "a retry has no boundary that the reader sees": (
        STOP,
        "doors/test_gateway_safety.py::test_the_client_reads_a_prefix_and_a_clean_continuation",
    ),
    # matching
    "a value that is split over deltas passes": (
        "rules/test_cut_independence.py::test_a_verdict_equals_one_search_over_the_finished_passage",
    ),
    "choices that come in turns are matched as one": (
        "providers/test_openai_chat_stream.py::test_only_choice_0_is_heard",
    ),
    "the guard changes the text": (
        "doors/test_gateway_safety.py::test_the_client_reads_a_prefix_and_a_clean_continuation",
    ),
    "one pattern freezes the process": (
        "rules/test_deadly_patterns.py::test_p7_what_takes_too_long_is_suspended_and_said_and_the_others_are_still_watched",
    ),
    "half a character breaks every later request": (
        f"{SETTLE}::test_half_characters_and_blank_texts_are_mended",
        STOP,
    ),
    "a rule that only watches delays the stream": (
        "doors/test_gateway.py::test_a_shadow_rule_holds_nothing_and_changes_nothing",
    ),
    # bounds of automation
    "a hook that blocks loops without escape": (
        "midstream/test_continuation.py::test_identical_replies_end_the_chain_as_capped",
        LEAVES,
    ),
    "the cap begins anew whenever a tool has run": (
        f"{STOPS}::test_a_prompt_has_one_budget_for_all_that_starts_by_itself",
        "midstream/test_continuation.py::test_a_tool_round_within_a_hop_is_no_hop",
    ),
    "one violation is told with each later delta": (
        "midstream/test_reported_bugs.py::test_b7_one_violation_gives_one_event",
        SECOND,
    ),
    # quota
    "a longer wait that comes later is ignored": (
        PAUSE,
        "midstream/test_backoff.py::test_an_open_window_only_grows",
    ),
    "others hear of the pause late": (
        "midstream/test_backoff.py::test_a_pause_holds_for_all_hosts_of_the_store",
        PAUSE,
    ),
    "calls of a turn share the counter of retries": (
        f"{STOPS}::test_a_rule_that_repeats_always_is_bounded_by_its_retry_budget",
    ),
    "an overload in the middle of a stream does not pause": (
        "midstream/test_backoff.py::test_the_same_error_inside_a_stream_that_began_well_pauses_too",
        PAUSE,
    ),
    "an outage is longer than all retries": (
        "midstream/test_backoff.py::test_probes_that_fail_double_the_window_up_to_the_longest",
        PAUSE,
    ),
    # crash, lease, process, replay
    "a session runs for ever behind a crash": (
        f"{LIFE}::test_a_session_whose_host_was_killed_is_found_after_ninety_seconds",
        TAKEOVER,
    ),
    "recovery is exhausted and says nothing": (
        f"{LIFE}::test_five_recoveries_without_output_end_in_a_dead_letter",
    ),
    "a poisoned session kills whoever takes it": (
        "messages/test_record.py::test_five_recoveries_without_output_end_in_the_dead_letters",
    ),
    "live work is declared dead": (
        f"{HOSTS}::test_a_host_that_beats_is_not_taken_for_dead_by_one_that_boots",
        f"{LIFE}::test_a_mark_of_death_is_taken_back_by_a_session_that_lives",
    ),
    "a stalled owner overwrites its successor": (
        TAKEOVER,
        f"{LIFE}::test_a_stalled_owner_writes_nothing_over_its_successor_and_stops_paying",
    ),
    "a cancel leaves the child running": (
        "providers/test_child_process.py::test_a_grandchild_ends_also_if_it_left_the_group_and_the_session",
    ),
    "a reader who reconnects loses events or gets them twice": (
        READERS,
        f"{REPLAY}::test_listeners_while_the_announcer_crashes",
    ),
    "dead letters that are sent again arrive twice": (
        "midstream/test_outages.py::test_what_was_written_but_not_acknowledged_arrives_once",
        CRASHES,
    ),
}


def test_every_report_is_here() -> None:
    assert len(RACES) == 57


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = (node.name for node in tree.body if isinstance(node, functions))
    return frozenset(name for name in names if name.startswith("test_"))


@pytest.mark.parametrize("report", RACES)
def test_what_holds_a_report_off_is_there(report: str) -> None:
    for test in RACES[report]:
        file, name = test.split("::")
        assert name in names_in(file), f"{test} is gone, and held off: {report}"
