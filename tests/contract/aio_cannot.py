"""The contract tests that cannot pass on the asyncio interface through its portal, and why.

All others pass there too: `make test-aio`. See `fake_cannot.py`.
"""

from __future__ import annotations

from tests.contract.fake_cannot import OF_POOLS, OF_RIGHTS

SYNC = "takes the place of a part of the sync interface"
THREAD = "looks at the thread in which something happens; the portal has one thread for all"
RUN = "names an argument of Queue.run that AsyncQueue.run does not have"
POOL = "is about the pool of a sync client"
SIGNAL = "breaks into a blocking call of the main thread; an event loop has none"
BASE = "a SystemExit ends the event loop in which it is raised, and the portal with it"
RIGHTS = "gives the broker a client of another user; the portal makes its own client"

THREADS = "test_running.py::test_wrong_arguments_are_refused_by_name"
INVALID = "<class 'rqttl.errors.InvalidInput'>"
RACES = "test_policies.py"

#: "file::test" or "file::test[case]" -> why
AIO_CANNOT: dict[str, str] = {
    "test_consuming.py::test_acks_go_with_the_next_fetch_in_one_call": THREAD,
    "test_consuming.py::test_a_fetch_waits_while_other_threads_make_room_up_to_a_fourth": SYNC,
    "test_events.py::test_a_failure_is_told_by_the_class_of_its_exception": SYNC,
    "test_declaring.py::test_a_plan_that_broke_off_is_finished_by_the_next": SYNC,
    "test_declaring.py::test_topics_of_a_plan_that_broke_off_at_any_step_are_finished_by_the_next": SYNC,
    **{
        f"test_events.py::test_a_lost_reply_and_other_options_after_it_make_no_success_a_failure[{how}]": SYNC
        for how in ("ack", "reject", "redrive")
    },
    f"{RACES}::test_a_dead_letter_queue_that_nobody_entered_is_listed_before_its_name_is_forgotten": SYNC,
    f"{RACES}::test_a_declaration_that_lists_an_existing_queue_gives_it_the_policies_that_missed_it": SYNC,
    f"{RACES}::test_a_queue_that_returns_to_the_registry_gets_the_policies_that_missed_it": SYNC,
    f"{RACES}::test_a_slow_client_puts_no_older_policies_in_force_again": SYNC,
    f"{RACES}::test_an_adoption_puts_no_older_policies_in_force_for_a_moment": SYNC,
    **dict.fromkeys(OF_RIGHTS, RIGHTS),
    "test_running.py::test_one_thread_is_the_one_that_calls_and_keeps_the_order": THREAD,
    "test_damage.py::test_a_hostile_value_is_taken_or_refused_by_name[run(handler)]": RUN,
    "test_damage.py::test_a_hostile_value_is_taken_or_refused_by_name[run(threads)]": RUN,
    f"{THREADS}[{{'threads': 0}}-{INVALID}]": RUN,
    f"{THREADS}[{{'threads': 251}}-{INVALID}]": RUN,
    f"{THREADS}[{{'threads': '2'}}-{INVALID}]": RUN,
    f"{THREADS}[{{'threads': True}}-{INVALID}]": RUN,
}
#: The same, of tests that would wait for ever, or that pass on some runs only.
AIO_WAITS: dict[str, str] = {
    "test_running.py::test_a_handler_whose_work_would_not_be_done_is_refused[object]": RUN,
    "test_running.py::test_a_handler_whose_work_would_not_be_done_is_refused[coroutine]": RUN,
    "test_running.py::test_a_handler_whose_work_would_not_be_done_is_refused[partial]": RUN,
    **dict.fromkeys(OF_POOLS, POOL),
    "test_running.py::test_a_base_exception_gives_the_message_back_and_ends_the_run": BASE,
    "test_running.py::test_a_message_whose_handler_ends_the_run_is_not_handled_by_it_once_more": BASE,
    "test_running.py::test_a_base_exception_of_a_handler_comes_before_an_error_of_the_run": BASE,
    "test_consuming.py::test_a_signal_handler_may_stop_the_consumer_that_it_breaks_into": SIGNAL,
}
