"""Messages whose time is over: never delivered, gone from anywhere, soon and in deadline order."""

from __future__ import annotations

import pytest

from rqttl import Message
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import bodies, dead, dropped, one, ready, take, taken


@pytest.mark.spec("TTL-11", "TTL-12", "TTL-16", "A-001", "S-011")
def test_a_message_is_delivered_up_to_its_deadline_and_not_at_it(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"in time", ttl="100ms"), Message(b"too late", ttl="100ms")])

    clocked.advance(99)
    assert one(queue).body == b"in time"
    clocked.advance(1)
    assert queue.receive() is None

    assert dead(queue) == {"expired": 1}


@pytest.mark.spec("TTL-12")
def test_a_sweep_takes_nothing_before_its_time(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="100ms")
    queue.enqueue(b"x")
    clocked.advance(99)

    assert [swept.expired for swept in queue.sweep()] == [0]
    clocked.advance(1)
    assert [swept.expired for swept in queue.sweep()] == [1]


@pytest.mark.spec("TTL-15", "S-011")
def test_a_receive_skips_the_expired_and_keeps_the_order_of_the_rest(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="200ms")
    for time in (0, 150, 250):
        clocked.go_to(time)
        queue.enqueue(b"at %d" % time)

    assert taken(queue) == [b"at 150", b"at 250"]


@pytest.mark.spec("S-011", "A-003", "A-057")
def test_expired_messages_are_never_delivered_however_many_there_are(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"short", ttl="10ms")] * 1_500 + [b"long"])
    clocked.advance(10)

    assert one(queue).body == b"long"

    assert clocked.queue("d").stats().ready == 1_500


@pytest.mark.spec("TTL-23", "TTL-24", "A-069")
def test_a_short_life_behind_a_long_one_leaves_from_the_middle(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"long", ttl="500ms"), Message(b"short", ttl="100ms"), b"for ever"])
    clocked.advance(100)

    stats = queue.stats()

    assert (stats.ready, stats.ready_bytes) == (2, 12)
    assert ready(queue) == [b"long", b"for ever"]
    assert bodies(clocked.queue("d")) == [b"short"]


@pytest.mark.spec("TTL-25", "S-013", "A-067")
def test_every_message_leaves_at_its_own_deadline_without_any_consumer(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="2s", dead_letter="d")
    for time in (0, 300, 700):
        clocked.go_to(time)
        queue.enqueue(b"at %d" % time)
    for delivery in queue.receive_many(2):
        delivery.nack()

    for time in (2_000, 2_300, 2_700):
        clocked.go_to(time)
        queue.sweep()

    letters = take(clocked.queue("d"))
    assert [letter.body for letter in letters] == [b"at 0", b"at 300", b"at 700"]
    assert [letter.deaths[0].last_at for letter in letters] == [at(2_000), at(2_300), at(2_700)]


@pytest.mark.spec("TTL-26")
def test_a_sweep_says_when_the_next_message_is_due(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"later", ttl="500ms")
    assert queue.sweep()[-1].due == START + 500

    queue.enqueue(b"sooner", ttl="100ms")
    assert queue.sweep()[-1].due == START + 100

    clocked.advance(100)
    assert queue.sweep()[-1].due == START + 500
    clocked.advance(400)
    assert queue.sweep()[-1].due is None


@pytest.mark.spec("A-026", "DLX-11")
def test_messages_that_expire_together_die_by_deadline_then_by_arrival(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="50ms", dead_letter="d")
    queue.enqueue_many([b"3", Message(b"2", ttl="20ms"), b"4", Message(b"1", ttl="10ms"), Message(b"5", ttl="60ms")])
    clocked.advance(100)

    queue.sweep()

    assert bodies(clocked.queue("d")) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.spec("TTL-17")
def test_a_message_given_back_keeps_its_deadline(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="400ms")
    queue.enqueue(b"1")
    clocked.go_to(200)
    queue.enqueue_many([b"2", b"3"])
    for delivery in queue.receive_many(2):
        delivery.nack()

    clocked.go_to(500)

    assert taken(queue) == [b"2", b"3"]


@pytest.mark.spec("TTL-18", "S-014", "S-015", "A-064")
@pytest.mark.parametrize("settle", ["ack", "reject", "renew"])
def test_a_leased_message_does_not_expire_and_settling_it_wins(clocked: Clocked, settle: str) -> None:
    queue = clocked.declare_queue("q", message_ttl="100ms", lease="1m")
    queue.enqueue(b"x", ttl="50ms")
    delivery = one(queue)
    clocked.advance(1_000)
    queue.sweep()

    assert (queue.stats().leased, dead(queue)) == (1, {})
    getattr(delivery, settle)()

    assert dead(queue) == ({"rejected": 1} if settle == "reject" else {})
    assert queue.stats().leased == (1 if settle == "renew" else 0)


@pytest.mark.spec("S-017")
def test_the_holder_can_see_that_its_message_is_past_its_deadline(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1m")
    queue.enqueue(b"x", ttl="50ms")
    delivery = one(queue)
    clocked.advance(60)

    assert delivery.expires_at == at(50)
    assert queue.peek()[0].expires_at == at(50)
    delivery.ack()


@pytest.mark.spec("TTL-18", "S-016", "A-065")
def test_a_message_given_back_after_its_deadline_is_not_delivered_again(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x", ttl="100ms")
    delivery = one(queue)
    clocked.advance(100)

    delivery.nack()

    assert queue.receive() is None
    assert [death.reason for death in one(clocked.queue("d")).deaths] == ["expired"]


@pytest.mark.spec("TTL-18", "S-016")
def test_a_message_whose_lease_ends_after_its_deadline_is_not_delivered_again(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="200ms")
    queue.enqueue(b"x", ttl="100ms")
    one(queue)

    clocked.advance(199)
    assert queue.stats().leased == 1
    clocked.advance(1)

    assert queue.receive() is None
    assert (dead(queue), dropped(queue)) == ({"expired": 1}, {"expired": 1})


@pytest.mark.spec("S-018")
def test_a_message_out_of_deliveries_and_out_of_time_dies_of_its_deliveries(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_deliveries=1)
    queue.enqueue(b"x", ttl="100ms")
    delivery = one(queue)
    clocked.advance(100)

    delivery.nack()

    assert dead(queue) == {"delivery_limit": 1}


@pytest.mark.spec("TTL-38", "A-068")
def test_a_delayed_message_expires_at_its_deadline_not_at_the_end_of_the_delay(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", ttl="100ms")
    one(queue).nack("1h")
    clocked.advance(99)
    assert queue.stats().delayed == 1

    clocked.advance(1)

    assert queue.stats().delayed == 0
    assert dead(queue) == {"expired": 1}


@pytest.mark.spec("TTL-38")
def test_a_delayed_message_is_delivered_after_the_delay_if_its_deadline_is_later(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", ttl="100ms")
    one(queue).nack("50ms")
    clocked.advance(50)

    delivery = one(queue)

    assert (delivery.delivery_count, delivery.expires_at) == (2, at(100))


@pytest.mark.spec("TTL-29", "TTL-30", "TTL-33", "S-009")
def test_a_shorter_retention_acts_at_once_on_what_is_there(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"old"] * 600)
    clocked.advance(100)
    queue.enqueue(b"young")

    queue.update(message_ttl="100ms")

    assert (queue.stats().ready, clocked.queue("d").stats().ready) == (1, 600)
    assert ready(queue) == [b"young"]
    assert queue.enqueue(b"new").expires_at == at(200)


@pytest.mark.spec("TTL-31", "S-009")
def test_a_longer_or_no_retention_acts_at_once_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="100ms")
    queue.enqueue_many([b"kept", Message(b"own", ttl="60ms")])
    assert [message.expires_at for message in queue.peek()] == [at(100), at(60)]

    queue.update(message_ttl=None)
    assert [message.expires_at for message in queue.peek()] == [None, at(60)]
    clocked.advance(100)

    assert taken(queue) == [b"kept"]


@pytest.mark.spec("TTL-13")
def test_a_message_in_two_queues_lives_and_dies_in_each_on_its_own(clocked: Clocked) -> None:
    first, second = clocked.declare_queue("first", message_ttl="100ms"), clocked.declare_queue("second")
    for queue in (first, second):
        queue.enqueue(b"x", id="same")

    clocked.advance(100)

    assert (bodies(first), bodies(second)) == ([], [b"x"])


@pytest.mark.spec("S-012", "A-072")
def test_counts_and_peeks_leave_out_what_has_expired(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"x", ttl="100ms")] * 2_000)
    clocked.advance(100)

    assert queue.peek() == []
    assert (queue.stats().ready, queue.stats().ready_bytes, queue.stats().oldest_ready_age) == (0, 0, None)


@pytest.mark.spec("LEN-12")
def test_expired_messages_take_no_room(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=2, overflow="reject-publish")
    queue.enqueue_many([Message(b"x", ttl="100ms")] * 2)
    clocked.advance(100)

    queue.enqueue_many([b"1", b"2"])

    assert (ready(queue), queue.stats().refused) == ([b"1", b"2"], 0)


def test_the_clock_stepping_back_neither_loses_nor_reorders(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="1s")
    queue.enqueue(b"1")
    clocked.advance(-500)
    queue.enqueue(b"2")

    assert taken(queue) == [b"1", b"2"]
