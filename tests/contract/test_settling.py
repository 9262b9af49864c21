"""Settling: once, by the holder of the lease, one or many at a time."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl import AlreadySettled, Broker, InvalidDuration, InvalidInput, LeaseLost
from tests.contract.clocked import Clocked, at
from tests.contract.looks import bodies, dead, one, taken

SETTLES = ["ack", "nack", "reject"]


@pytest.mark.spec("S-051")
@pytest.mark.parametrize("first", SETTLES)
@pytest.mark.parametrize("second", [*SETTLES, "renew"])
def test_a_delivery_is_settled_once(clocked: Clocked, first: str, second: str) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    delivery = one(queue)
    getattr(delivery, first)()
    before = queue.stats()

    with pytest.raises(AlreadySettled) as caught:
        getattr(delivery, second)()

    assert (caught.value.code, caught.value.id, caught.value.how) == ("already_settled", delivery.id, first)
    assert queue.stats() == before


@pytest.mark.spec("S-050", "S-049")
@pytest.mark.parametrize("settle", [*SETTLES, "renew"])
def test_settling_after_the_lease_has_ended_is_refused_and_changes_nothing(clocked: Clocked, settle: str) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    delivery = one(queue)
    clocked.advance(100)

    with pytest.raises(LeaseLost) as caught:
        getattr(delivery, settle)()

    assert (caught.value.code, caught.value.queue, caught.value.ids) == ("lease_lost", "q", (delivery.id,))
    assert one(queue).delivery_count == 2
    assert dead(queue) == {}


def test_a_lost_delivery_stays_lost(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    delivery = one(queue)
    clocked.advance(100)

    for _ in range(2):
        with pytest.raises(LeaseLost):
            delivery.ack()


def test_the_token_of_an_old_lease_does_not_open_a_new_one(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    stale = one(queue)
    clocked.advance(100)
    fresh = one(queue)

    with pytest.raises(LeaseLost):
        stale.ack()

    fresh.ack()
    assert queue.stats().acked == 1


@pytest.mark.spec("S-049")
def test_renewing_counts_from_now_as_often_as_one_likes(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    delivery = one(queue)

    for _ in range(20):
        clocked.advance(99)
        delivery.renew()
        assert queue.receive() is None
    assert delivery.leased_until == at(20 * 99 + 100)
    delivery.renew("1h")
    assert delivery.leased_until == at(20 * 99 + 3_600_000)
    assert queue.peek()[0].until == delivery.leased_until

    delivery.ack()
    assert bodies(queue) == []


def test_a_renewal_may_shorten_a_lease(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue(b"x")
    delivery = one(queue)

    delivery.renew("10ms")
    clocked.advance(10)

    assert one(queue).delivery_count == 2


@pytest.mark.spec("DLX-02", "S-053")
def test_rejecting_one_of_several_takes_only_that_one(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"1", b"2", b"3"])
    first, second, third = queue.receive_many(3)

    third.reject()
    assert bodies(clocked.queue("d")) == [b"3"]
    second.reject()
    first.reject()

    assert bodies(clocked.queue("d")) == [b"3", b"2", b"1"]


@pytest.mark.spec("DLX-03", "DLX-07")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_many_are_rejected_in_the_order_in_which_they_are_given(clocked: Clocked, order: tuple[int, ...]) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"0", b"1", b"2"])
    deliveries = queue.receive_many(3)

    queue.reject_many([deliveries[i] for i in order])

    assert bodies(clocked.queue("d")) == [b"%d" % i for i in order]


@pytest.mark.spec("DLX-06", "DLX-11")
def test_a_hundred_rejected_one_by_one_keep_their_order(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"%d" % i for i in range(100)])

    for delivery in queue.receive_many(100):
        delivery.reject()

    assert bodies(clocked.queue("d")) == [b"%d" % i for i in range(100)]


@pytest.mark.spec("DLX-04")
def test_giving_back_dead_letters_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"1", b"2", b"3"])

    queue.nack_many(queue.receive_many(3))
    one(queue).nack()

    assert (bodies(queue), dead(queue), clocked.queues()) == ([b"1", b"2", b"3"], {}, ["q"])


@pytest.mark.spec("DLX-08")
def test_given_back_and_then_rejected_is_one_death(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x")
    one(queue).nack()

    one(queue).reject()

    assert (dead(queue), bodies(clocked.queue("d"))) == ({"rejected": 1}, [b"x"])


@pytest.mark.parametrize("settle", ["ack_many", "nack_many", "reject_many", "renew_many"])
def test_a_batch_settles_all_that_hold_and_names_the_others(clocked: Clocked, settle: str) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"%d" % i for i in range(600)])
    lost, held = queue.receive_many(300, lease="100ms"), queue.receive_many(300, lease="1h")
    mixed = [one for pair in zip(lost, held, strict=True) for one in pair]
    clocked.advance(100)

    with pytest.raises(LeaseLost) as caught:
        getattr(queue, settle)(mixed)

    assert caught.value.ids == tuple(delivery.id for delivery in lost)
    assert {delivery.settled for delivery in lost} == {"lease lost"}
    assert {delivery.settled for delivery in held} == {None if settle == "renew_many" else settle.removesuffix("_many")}
    assert queue.stats().leased == (300 if settle == "renew_many" else 0)


def test_settling_nothing_is_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")

    for settle in (queue.ack_many, queue.nack_many, queue.reject_many, queue.renew_many):
        settle([])


def test_of_two_deliveries_of_one_message_in_a_batch_only_the_newer_counts(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue(b"x")
    old = one(queue)
    clocked.advance(1_000)
    new = one(queue)

    with pytest.raises(LeaseLost) as caught:
        queue.ack_many([new, old])

    assert caught.value.ids == (old.id,)
    assert (new.settled, old.settled) == ("ack", "lease lost")
    assert queue.stats().acked == 1


def test_a_batch_with_a_wrong_delivery_settles_none(clocked: Clocked) -> None:
    queue, other = clocked.declare_queue("q"), clocked.declare_queue("other")
    queue.enqueue_many([b"1", b"2"])
    other.enqueue(b"x")
    first, second = queue.receive_many(2)
    done = one(other)

    with pytest.raises(InvalidInput, match="other"):
        queue.ack_many([first, done])
    with pytest.raises(InvalidInput, match="twice"):
        queue.ack_many([first, first])
    second.ack()
    with pytest.raises(AlreadySettled):
        queue.ack_many([first, second])

    assert queue.stats().leased == 1
    first.ack()


@pytest.mark.parametrize(
    "settle, wrong, error",
    [
        ("nack", -1, InvalidDuration),
        ("nack", "soon", InvalidDuration),
        ("renew", 0, InvalidDuration),
        ("reject", "x" * 4_097, InvalidInput),
        ("reject", 5, InvalidInput),
    ],
)
def test_a_wrong_argument_leaves_the_delivery_unsettled(
    clocked: Clocked, settle: str, wrong: Any, error: type[Exception]
) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    delivery = one(queue)

    with pytest.raises(error):
        getattr(delivery, settle)(wrong)

    delivery.ack()


def test_leaving_the_context_acks(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    with one(queue) as delivery:
        assert delivery.body == b"x"

    assert (delivery.settled, queue.stats().acked) == ("ack", 1)


def test_an_exception_in_the_context_gives_back_and_goes_on(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    with pytest.raises(RuntimeError, match="handler"), one(queue):
        raise RuntimeError("handler")

    assert one(queue).delivery_count == 2


def test_a_delivery_that_was_settled_inside_the_context_stays_settled(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x")

    with one(queue) as delivery:
        delivery.reject("broken")

    assert bodies(clocked.queue("d")) == [b"x"]


def test_a_handlers_own_exception_is_not_hidden_by_a_lost_lease(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")

    def handle() -> None:
        with one(queue):
            clocked.advance(100)
            raise RuntimeError("handler")

    with pytest.raises(RuntimeError, match="handler"):
        handle()


def test_an_ack_at_the_end_of_the_context_tells_of_a_lost_lease(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")

    with pytest.raises(LeaseLost), one(queue):
        clocked.advance(100)


@pytest.mark.spec("S-060")
def test_settling_works_on_a_new_connection(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    delivery = one(queue)

    client.connection_pool.disconnect()

    delivery.ack()
    assert bodies(queue) == []


@pytest.mark.spec("S-061", "S-045")
def test_changing_options_takes_no_lease_away(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue_many([b"1", b"2"])
    first, second = queue.receive_many(2)

    queue.update(lease="5ms", max_deliveries=1, max_length=0, message_ttl="1ms")
    clocked.advance(60_000)

    assert queue.stats().leased == 2
    first.ack()
    second.ack()


@pytest.mark.spec("S-055")
def test_a_delivery_can_be_settled_after_its_consumer_has_left(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"1", b"2"])
    with queue.consume(wait=0) as deliveries:
        first = next(deliveries)

    first.ack()

    with pytest.raises(AlreadySettled):
        first.ack()
    assert queue.stats().acked == 1
    assert taken(queue) == [b"2"]
