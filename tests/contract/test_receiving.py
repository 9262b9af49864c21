"""Taking messages out: order, leases, delivery counts, waiting, the mode without settling."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import AlreadySettled, Broker, InvalidDuration, InvalidInput, LeaseLost
from tests.contract.clocked import Clocked, at
from tests.contract.looks import one, ready, taken


def test_messages_come_in_the_order_in_which_they_were_stored(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    for start in range(0, 700, 100):
        queue.enqueue_many([b"%d" % i for i in range(start, start + 100)])
        clocked.advance(start % 3)

    received = [int(one.body) for count in (1, 99, 600) for one in queue.receive_many(count)]

    assert received == list(range(700))


def test_a_leased_message_is_delivered_to_no_other_consumer(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"1", b"2"])

    assert [one(queue).body, one(queue).body] == [b"1", b"2"]
    assert queue.receive() is None
    assert queue.stats().leased == 2


@pytest.mark.spec("S-048")
def test_the_lease_counts_from_the_hand_over_on_the_servers_clock(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="10s")
    queue.enqueue_many([b"default", b"own"])
    clocked.advance(500)

    assert one(queue).leased_until == at(10_500)
    delivery = queue.receive(lease="7d")
    assert delivery is not None
    assert delivery.leased_until == at(500 + 604_800_000)


@pytest.mark.spec("S-048")
def test_without_an_option_a_lease_is_thirty_seconds(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    assert one(queue).leased_until == at(30_000)


@pytest.mark.spec("S-050", "S-042")
def test_a_message_whose_lease_ended_comes_back_with_its_count_raised(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    first = one(queue)

    clocked.advance(99)
    assert queue.receive() is None
    clocked.advance(1)
    second = one(queue)

    assert (first.delivery_count, second.delivery_count) == (1, 2)
    for late in (first.ack, first.renew):
        with pytest.raises(LeaseLost):
            late()
    second.ack()


@pytest.mark.spec("S-044", "S-042")
def test_the_first_delivery_counts_one_and_each_failed_one_adds_one(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")

    counts = []
    for _ in range(3):
        delivery = one(queue)
        delivery.renew()
        counts.append(delivery.delivery_count)
        delivery.nack()

    assert counts == [1, 2, 3]
    stats = queue.stats()
    assert (stats.delivered, stats.redelivered) == (3, 2)


@pytest.mark.spec("S-042")
def test_messages_that_no_handler_saw_are_given_back_uncounted(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_deliveries=1)
    queue.enqueue(b"x")

    queue.nack_many([one(queue)], counted=False)

    assert one(queue).delivery_count == 1


@pytest.mark.spec("S-043", "S-041")
@pytest.mark.parametrize("fail", ["nack", "lease"])
def test_with_n_deliveries_allowed_a_message_is_handed_out_n_times(clocked: Clocked, fail: str) -> None:
    queue = clocked.declare_queue("q", max_deliveries=3, dead_letter="d", lease="100ms")
    queue.enqueue(b"x")

    for _ in range(3):
        delivery = one(queue)
        if fail == "nack":
            delivery.nack()
        else:
            clocked.advance(100)

    assert queue.receive() is None
    letter = one(clocked.queue("d"))
    assert (letter.deaths[0].reason, letter.deaths[0].delivery_count) == ("delivery_limit", 3)


@pytest.mark.spec("S-041")
def test_without_the_option_a_message_may_fail_for_ever(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    for count in range(1, 50):
        delivery = one(queue)
        assert delivery.delivery_count == count
        delivery.nack()


@pytest.mark.spec("S-057", "S-052", "S-047")
def test_messages_given_back_return_to_their_exact_places_at_once(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"%d" % i for i in range(8)])
    deliveries = queue.receive_many(6)

    for i in (4, 1, 3):
        deliveries[i].nack()

    assert ready(queue) == [b"1", b"3", b"4", b"6", b"7"]
    assert taken(queue) == [b"1", b"3", b"4", b"6", b"7"]


@pytest.mark.spec("S-054")
def test_a_delayed_message_lets_others_pass_and_then_takes_its_old_place(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"1", b"2", b"3"])
    one(queue).nack(delay="100ms")

    assert one(queue).body == b"2"
    clocked.advance(99)
    assert ready(queue) == [b"3"]
    clocked.advance(1)

    assert taken(queue) == [b"1", b"3"]


@pytest.mark.spec("S-056")
def test_auto_ack_removes_at_once_and_never_brings_back(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue_many([b"1", b"2"])

    deliveries = queue.receive_many(2, auto_ack=True)

    assert [delivery.body for delivery in deliveries] == [b"1", b"2"]
    assert [delivery.leased_until for delivery in deliveries] == [None, None]
    clocked.advance(1_000)
    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.acked, stats.delivered) == (0, 0, 2, 2)


@pytest.mark.spec("S-055")
@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "renew"])
def test_a_delivery_with_auto_ack_cannot_be_settled(clocked: Clocked, settle: str) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    delivery = queue.receive(auto_ack=True)
    assert delivery is not None

    with pytest.raises(AlreadySettled, match="auto_ack"):
        getattr(delivery, settle)()


@pytest.mark.spec("S-059")
def test_a_receive_that_finds_nothing_returns_nothing_after_its_wait(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")

    assert queue.receive() is None
    assert queue.receive(wait=0) is None
    assert queue.receive_many(5) == []
    assert clocked.now == at(0).timestamp() * 1000
    assert queue.receive(wait="17s") is None

    assert clocked.now == at(17_000).timestamp() * 1000


@pytest.mark.spec("S-059")
@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"wait": -1}, InvalidDuration),
        ({"wait": 1.5}, InvalidDuration),
        ({"lease": 0}, InvalidDuration),
        ({"lease": "soon"}, InvalidDuration),
        ({"count": 0}, InvalidInput),
        ({"count": True}, InvalidInput),
        ({"count": 1.0}, InvalidInput),
    ],
    ids=str,
)
def test_wrong_arguments_of_a_receive_are_refused(
    broker: Broker, wrong: dict[str, Any], error: type[Exception]
) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")

    with pytest.raises(error, match=next(iter(wrong))):
        queue.receive_many(**{"count": 1, **wrong})

    assert queue.stats().delivered == 0


def test_a_batch_is_as_many_as_there_are(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"x"] * 30)

    assert len(queue.receive_many(20)) == 20
    assert len(queue.receive_many(20)) == 10


def test_a_delivery_shows_where_the_message_comes_from(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", id="seven")
    clocked.advance(5)

    delivery = one(queue)

    assert (delivery.queue, delivery.id, delivery.enqueued_at, delivery.deaths) == ("q", "seven", at(0), ())
    assert "seven" in repr(delivery)


def test_a_wait_ends_when_a_lease_of_another_ends(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="700ms")
    queue.enqueue(b"x")
    one(queue)

    delivery = queue.receive(wait="1h")

    assert delivery is not None
    assert (delivery.delivery_count, clocked.now) == (2, at(700).timestamp() * 1000)


def test_a_wait_ends_when_a_delay_ends(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    one(queue).nack(delay="700ms")

    assert queue.receive(wait="1h") is not None
    assert clocked.now == at(700).timestamp() * 1000
