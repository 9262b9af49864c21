"""A queue that takes the name of a deleted one: no delivery of the old queue fits a message of the new one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rqttl import Delivery, LeaseLost, Queue
from tests.contract.clocked import Clocked

SETTLES: dict[str, Callable[[Delivery], None]] = {
    "ack": Delivery.ack,
    "nack": Delivery.nack,
    "reject": Delivery.reject,
    "renew": Delivery.renew,
}


def leased(queue: Queue) -> Delivery:
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("settle", SETTLES)
@pytest.mark.parametrize("back", [0, 60_000])
def test_a_lease_of_a_deleted_queue_does_not_fit_its_successor(clocked: Clocked, settle: str, back: int) -> None:
    """All of it happens within one millisecond, or the clock of Redis has stepped back."""
    old = leased(clocked.declare_queue("q"))
    clocked.queue("q").delete()
    clocked.advance(-back)
    new = leased(clocked.declare_queue("q"))

    with pytest.raises(LeaseLost):
        SETTLES[settle](old)

    new.ack()


@pytest.mark.parametrize("settle", SETTLES)
def test_nor_does_it_fit_a_successor_that_a_dead_letter_made(clocked: Clocked, settle: str) -> None:
    source = clocked.declare_queue("q", dead_letter="dead")
    for _ in range(2):
        leased(source).reject()
    (old, _) = clocked.queue("dead").receive_many(2)
    clocked.queue("dead").delete()
    for _ in range(2):
        leased(source).reject()
    (new, _) = clocked.queue("dead").receive_many(2)

    with pytest.raises(LeaseLost):
        SETTLES[settle](old)

    new.ack()


@pytest.mark.usefixtures("at_rest")
def test_acks_that_a_consumer_sends_with_a_fetch_do_not_fit_either(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue(b"old")
    with queue.consume(wait=0) as deliveries:
        next(deliveries).ack()
        queue.delete()
        new = leased(clocked.declare_queue("q"))

    assert deliveries.lost_count == 1
    new.ack()


def test_of_three_queues_in_one_millisecond_each_comes_behind_the_one_before(clocked: Clocked) -> None:
    held = []
    for _ in range(3):
        held.append(leased(clocked.declare_queue("q")))
        clocked.queue("q").delete()
    clocked.declare_queue("q")

    assert held[0].sequence < held[1].sequence < held[2].sequence < leased(clocked.queue("q")).sequence
