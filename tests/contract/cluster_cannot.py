"""The contract tests that cannot pass on a Redis Cluster, and why; and those whose queues must lie in one slot.

All others pass there as they are, with queues on three nodes: `make test-cluster`. See `fake_cannot.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.keys import Keyspace

POOL = "makes a pool of one server; on a cluster each node has its own"

#: "file::test" or "file::test[case]" -> why
CLUSTER_CANNOT: dict[str, str] = {
    "test_connections.py::test_a_wait_may_be_longer_than_the_time_out_of_the_client": POOL,
    "test_connections.py::test_a_command_waits_for_a_connection_that_another_thread_has": POOL,
    "test_connections.py::test_a_pool_of_one_connection_is_enough": POOL,
    "test_connections.py::test_a_wait_without_a_free_connection_in_a_small_pool_ends_with_the_limit_of_the_pool": POOL,
    "test_connections.py::test_in_a_pool_that_blocks_a_wait_takes_the_place_that_becomes_free": POOL,
    "test_connections.py::test_a_command_that_gets_no_connection_tells_the_limit": POOL,
    "test_events.py::test_a_failure_is_told_by_the_class_of_its_exception": "a call to all nodes takes another road",
}
#: The same, of tests that would wait for ever, or that pass on some runs only.
CLUSTER_WAITS: dict[str, str] = {}

#: "file" or "file::test" -> the queue in whose slot all queues of the test lie. They have dead letters for each other.
ONE_SLOT: dict[str, str] = {
    **dict.fromkeys(
        (
            "test_dead_letters.py",
            "test_events.py",
            "test_limits.py",
            "test_redriving.py",
            "test_settling.py",
            "test_single.py",
            "test_ttl.py",
            "test_connections.py::test_every_method_of_its_queues_raises",
            "test_consuming.py::test_a_message_that_was_handed_to_a_stopped_wait_dies_of_its_ttl_only",
            "test_declaring.py::test_a_preview_changes_nothing_but_what_is_due",
            "test_declaring.py::test_an_option_that_one_declaration_lacks_is_a_difference",
            "test_declaring.py::test_declaring_with_other_options_names_each_option_and_both_values",
            "test_declaring.py::test_delayed_messages_that_a_policy_ends_are_counted_too",
            "test_declaring.py::test_delayed_messages_that_a_shorter_retention_ends_are_counted_too",
            "test_declaring.py::test_deleting_and_purging_dead_letter_nothing",
            "test_declaring.py::test_every_operation_on_a_missing_queue_says_so_with_the_namespace",
            "test_declaring.py::test_expired_messages_do_not_count_when_a_queue_is_emptied_or_deleted",
            "test_declaring.py::test_update_tells_what_a_preview_has_counted",
            "test_enqueueing.py::test_a_dead_letter_is_never_a_duplicate",
            "test_enqueueing.py::test_a_duplicate_finds_no_full_queue_and_pushes_nobody_out",
            "test_lifetimes.py::test_messages_of_an_expired_queue_are_dropped_by_default",
            "test_lifetimes.py::test_statistics_of_many_queues_keep_and_end_queues_as_those_of_one_do",
            "test_lifetimes.py::test_with_dead_letter_its_messages_of_all_states_go_first",
            "test_looking.py::test_a_look_at_queues_where_nothing_is_due_says_what_a_swept_one_says",
            "test_looking.py::test_a_look_changes_nothing",
            "test_looking.py::test_many_are_chosen_in_any_order_and_the_others_keep_theirs",
            "test_looking.py::test_stats_of_many_queues_are_those_of_each",
            "test_looking.py::test_stats_say_what_there_is_and_what_has_happened",
            "test_running.py::test_a_handler_may_settle_itself",
            "test_running.py::test_a_handler_that_gave_back_or_rejected_before_it_failed_has_decided",
            "test_running.py::test_a_message_that_failed_too_often_says_its_last_error",
            "test_running.py::test_a_message_that_pauses_expires_at_its_deadline",
            "test_running.py::test_a_rejection_ends_with_the_block_and_is_a_death_whatever_its_words",
            "test_running.py::test_a_release_counts_as_no_failure",
            "test_running.py::test_a_run_honours_decisions_and_counts_only_retries_as_failed",
            "test_scheduled.py::test_a_cancelled_message_never_arrives",
            "test_scheduled.py::test_a_purge_takes_the_state_that_it_is_given",
            "test_scheduled.py::test_a_redrive_does_not_see_what_has_not_arrived",
            "test_scheduled.py::test_a_ttl_counts_from_the_due_time_and_an_instant_does_not",
            "test_scheduled.py::test_a_ttl_of_zero_is_for_a_consumer_that_waits_when_the_message_arrives",
            "test_scheduled.py::test_at_the_end_of_an_unused_queue_its_option_decides_about_scheduled_messages",
            "test_scheduled.py::test_scheduled_messages_need_no_room_until_they_arrive",
            "test_scheduled.py::test_the_options_of_the_due_time_act",
        ),
        "q",
    ),
    **dict.fromkeys(
        (
            "test_policies.py::test_a_change_of_a_policy_reaches_leased_messages",
            "test_policies.py::test_a_dead_letter_queue_that_nobody_entered_is_listed_before_its_name_is_forgotten",
            "test_policies.py::test_a_queue_that_a_dead_letter_creates_has_its_options_at_once",
            "test_policies.py::test_a_shorter_retention_ends_messages_that_wait",
            "test_policies.py::test_an_adoption_puts_no_older_policies_in_force_for_a_moment",
            "test_policies.py::test_an_expiry_queue_gets_no_expiry_queue_of_its_own",
            "test_policies.py::test_an_expiry_queue_is_born_drained_retired_and_born_again",
            "test_policies.py::test_declared_options_and_policies_merge_and_the_declared_ones_outlive_them",
            "test_policies.py::test_each_queue_has_its_own_letters_in_its_expiry_queue",
            "test_policies.py::test_the_target_of_an_exact_name_beats_that_of_a_wildcard",
            "test_policies_explained.py::test_a_policy_that_cannot_be_read_is_named_by_what_needs_policies_and_by_nothing_else",
            "test_policies_explained.py::test_a_policy_that_matches_its_own_target_warns_and_that_queue_gets_none",
            "test_policies_explained.py::test_a_policy_under_which_letters_stay_or_move_on_does_not_warn",
        ),
        "orders",
    ),
}


def tag_of(item: pytest.Item) -> str | None:
    """The queue in whose slot the queues of a test lie."""
    file = item.path.name
    return ONE_SLOT.get(f"{file}::{getattr(item, 'originalname', item.name)}", ONE_SLOT.get(file))


@contextmanager
def one_slot(tag: str) -> Iterator[None]:
    """Give the keys of all queues one hash tag, in front of their own: `rqttl{q}:{orders}:meta`.

    Scripts find the name of a queue in such a key as in any other. The shared keys stay where they are.
    """
    key, split = Keyspace.key, Keyspace.split

    def tagged(self: Keyspace, queue: str, part: str) -> str:
        return key(self, queue, part).replace(":", f"{{{tag}}}:", 1)

    def untagged(self: Keyspace, found: bytes) -> tuple[str, str] | None:
        own: Any = SimpleNamespace(namespace=self.namespace, key=partial(key, self))
        return split(own, found.replace(b"{%s}" % tag.encode(), b"", 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keyspace, "key", tagged)
        patch.setattr(Keyspace, "split", untagged)
        patch.setattr(Keyspace, "everything", property(lambda self: f"{self.namespace}*"))
        patch.setattr(Keyspace, "due_channel", property(lambda self: f"{self.namespace}{{{tag}}}:due"))
        _forget_keys()
        yield
    _forget_keys()


def _forget_keys() -> None:
    commands.keys_of.cache_clear()
    commands.least_keys_of.cache_clear()
