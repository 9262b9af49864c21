"""The end of a queue whose messages are kept or dead-lettered: when it comes, and who sees the target."""

from __future__ import annotations

from contextlib import suppress

import pytest

from rqttl import QueueNotFound
from tests.contract.clocked import Clocked, ms
from tests.contract.looks import one
from tests.contract.test_lifetimes import LIFE, USES, is_there


@pytest.mark.spec("WA-19", "W10")
def test_with_keep_a_queue_that_holds_messages_is_in_use(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep")
    queue.enqueue(b"x")
    clocked.advance(LIFE)
    assert queue.stats().ready == 1

    delivery = queue.receive()
    assert delivery is not None
    delivery.ack()
    pass_time(clocked, 2 * LIFE - 1)
    assert is_there(clocked)
    pass_time(clocked, 1)
    assert not is_there(clocked)


def pass_time(clocked: Clocked, time: int) -> None:
    """Let time pass as it does beside a reaper, which sweeps the queue when it is due."""
    until = clocked.now + time
    while clocked.now < until:
        due = None
        with suppress(QueueNotFound):
            due = clocked.queue("q").sweep()[-1].due
        clocked.advance(max(1, min(due or until, until) - clocked.now))
    with suppress(QueueNotFound):
        clocked.queue("q").sweep()


@pytest.mark.parametrize("late", [1, LIFE // 2, LIFE])
def test_with_keep_a_queue_lives_for_one_to_two_lifetimes_after_its_last_message(clocked: Clocked, late: int) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep", lease=ms(5 * LIFE))
    queue.enqueue(b"x")
    pass_time(clocked, LIFE)
    delivery = one(queue)
    pass_time(clocked, 2 * LIFE - late)

    delivery.ack()

    pass_time(clocked, LIFE - 1)
    assert is_there(clocked)
    pass_time(clocked, LIFE + 1)
    assert not is_there(clocked)


@pytest.mark.spec("A-073")
def test_with_keep_a_message_that_expires_between_two_ends_counts_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep")
    clocked.advance(LIFE // 2)
    queue.enqueue(b"x", ttl=ms(LIFE // 2 - 1))
    pass_time(clocked, LIFE // 2 - 1)
    assert queue.stats(sweep=False).ready == 0

    pass_time(clocked, LIFE)

    assert is_there(clocked)
    pass_time(clocked, LIFE)
    assert not is_there(clocked)


def test_with_keep_a_queue_that_never_held_a_message_ends_after_one_lifetime(clocked: Clocked) -> None:
    clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep")
    clocked.advance(LIFE - 1)
    assert is_there(clocked)

    clocked.advance(1)

    assert not is_there(clocked)


def test_with_keep_the_first_call_after_that_may_be_any(clocked: Clocked) -> None:
    for use, *_ in USES.values():
        queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep")
        queue.enqueue(b"x")
        clocked.advance(5 * LIFE)
        use(clocked, queue)
        assert is_there(clocked)
        queue.delete()


def test_a_listing_ends_no_queue_and_has_the_target_as_soon_as_a_call_made_it(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="dead-letter", dead_letter="d")
    queue.enqueue(b"x")
    clocked.advance(LIFE)
    assert clocked.queues() == []

    with pytest.raises(QueueNotFound):
        queue.stats()

    assert clocked.queues() == ["d"]


def test_statistics_of_many_queues_keep_and_end_queues_as_those_of_one_do(clocked: Clocked) -> None:
    clocked.declare_queue("kept", expires=ms(LIFE), on_expire="keep").enqueue(b"x")
    clocked.declare_queue("ended", expires=ms(LIFE), on_expire="dead-letter", dead_letter="d").enqueue(b"y")
    clocked.advance(LIFE)

    stats = clocked.stats()

    assert {name: one.ready for name, one in stats.items()} == {"kept": 1}
    assert (clocked.queues(), clocked.queue("d").stats().ready) == (["d", "kept"], 1)
