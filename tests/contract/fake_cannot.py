"""The contract tests that cannot pass on the fake broker of `rqttl.testing`, and why.

All others pass there too: `make test-fake`. What is listed is run as well and has to fail there, each of its cases, so
a test that passes one day leaves the list. Only tests that would wait are left out.
"""

from __future__ import annotations

URL = "makes clients of its own from the URL of a server; the fake is in this process and has no address"
INFO = "counts the calls that Redis has carried out, with INFO; the fake knows nothing about itself"
RIGHTS = "makes a user with few rights; the fake lets everybody do everything"

#: Tests of the pool of a sync client.
OF_POOLS = (
    "test_connections.py::test_a_pool_of_one_connection_is_enough",
    "test_connections.py::test_a_client_that_decodes_is_refused",
    "test_connections.py::test_a_wait_without_a_free_connection_in_a_small_pool_ends_with_the_limit_of_the_pool",
    "test_connections.py::test_in_a_pool_that_blocks_a_wait_takes_the_place_that_becomes_free",
    "test_connections.py::test_a_command_that_gets_no_connection_tells_the_limit",
)
#: Tests of users with few rights.
OF_RIGHTS = (
    "test_roster.py::test_a_consumer_without_the_right_works_and_says_so_once",
    "test_looking.py::test_a_missing_right_is_no_damage",
    "test_policies_explained.py::test_policies_of_a_user_who_may_change_no_queue_are_put_in_force_by_a_reaper",
    "test_policies_explained.py::test_a_user_without_the_right_to_write_policies_changes_none",
    "test_policies_explained.py::test_a_user_who_may_only_read_lists_and_explains_policies",
)

#: "file::test" -> why
FAKE_CANNOT: dict[str, str] = {
    **dict.fromkeys(OF_POOLS, URL),
    **dict.fromkeys(OF_RIGHTS, RIGHTS),
    "test_connections.py::test_a_wait_may_be_longer_than_the_time_out_of_the_client": URL,
    "test_connections.py::test_a_command_waits_for_a_connection_that_another_thread_has": URL,
    "test_events.py::test_a_call_is_one_script": INFO,
    "test_events.py::test_settling_is_one_script": INFO,
    "test_events.py::test_policies_add_no_round_trip": INFO,
    "test_waking.py::test_waiting_costs_two_calls_and_waking_one_more": INFO,
}
#: The same, of tests that would wait for ever, or leave a thread that waits to the tests after them.
FAKE_WAITS: dict[str, str] = {
    "test_connections.py::test_closing_ends_a_reaper_that_sleeps": "a reaper runs on a server only",
    "test_events.py::test_a_wait_is_told_with_what_ended_it": "in the thread of the test the fake waits without BLPOP",
    "test_waking.py::test_a_sweep_that_brings_a_message_back_wakes": "sweeps until real time has ended a lease; on the "
    "fake time stands still",
}
