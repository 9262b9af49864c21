"""Looks without changes: `peek` shows every message with its state, `stats` numbers and counters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqttl import Broker, InvalidInput, Message, QueueStats, flows
from rqttl.store.driver import driver_of
from rqttl.testing.clocked import ClockedBroker, ClockedDriver
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import one


def dump(broker: Broker) -> dict[bytes, bytes]:
    """All that Redis holds, byte for byte."""
    client: Any = driver_of(broker).store.client
    return {key: client.dump(key) for key in client.scan_iter()}


def test_peek_shows_each_message_in_order_with_its_state(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue_many([b"delayed", b"leased", b"returned", b"ready"])
    delayed, _, returned = queue.receive_many(3)
    delayed.nack("5s")
    returned.nack()

    peeked = queue.peek()

    assert [(message.body, message.state, message.until, message.delivery_count) for message in peeked] == [
        (b"delayed", "delayed", at(5_000), 1),
        (b"leased", "leased", at(1_000), 1),
        (b"returned", "ready", None, 1),
        (b"ready", "ready", None, 0),
    ]


def test_peek_shows_all_of_a_message(clocked: Clocked) -> None:
    clocked.declare_queue("d")
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue({"a": 1}, id="mine", headers={"h": 1}, ttl="50ms")
    one(queue).reject("why")
    clocked.advance(5)

    (message,) = clocked.queue("d").peek()

    assert (message.id, message.queue, message.headers, message.body) == ("mine", "d", {"h": 1}, b"\x81\xa1a\x01")
    assert (message.content_type, message.enqueued_at, message.expires_at) == ("application/msgpack", at(0), None)
    assert [(death.reason, death.description) for death in message.deaths] == [("rejected", "why")]


def test_peek_changes_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue_many([b"1", Message(b"2", ttl="50ms"), b"3"])
    one(queue)
    clocked.advance(60)
    before = dump(clocked)

    queue.peek()

    assert dump(clocked) == before


def test_peek_goes_on_page_by_page(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"%d" % i, ttl="10ms" if i % 3 == 0 else None) for i in range(700)])
    clocked.advance(10)

    pages, after = [], None
    while page := queue.peek(100, after=after):
        pages.append(len(page))
        after = page[-1].sequence
        assert [int(message.body) for message in page] == sorted(int(message.body) for message in page)

    assert (sum(pages), pages[0]) == (466, 100)
    assert len(queue.peek(1_000)) == 466


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": True}, {"limit": "5"}, {"after": "nonsense"}, {"after": 5}], ids=str
)
def test_a_wrong_argument_of_peek_is_refused(broker: Broker, wrong: dict[str, Any]) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        queue.peek(**wrong)


def test_peek_shows_a_lease_that_has_ended_as_it_is_stored(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    one(queue)
    clocked.advance(100)
    queue.sweep()

    (message,) = queue.peek()

    assert (message.state, message.delivery_count) == ("ready", 1)


def test_stats_of_a_new_queue_are_all_zero(clocked: Clocked) -> None:
    none = {"expired": 0, "maxlen": 0, "rejected": 0, "delivery_limit": 0}

    assert clocked.declare_queue("q").stats() == QueueStats(
        ready=0,
        ready_bytes=0,
        leased=0,
        delayed=0,
        oldest_ready_age=None,
        consumers=0,
        enqueued=0,
        delivered=0,
        redelivered=0,
        acked=0,
        refused=0,
        purged=0,
        deaths=none,
        dropped={**none, "cycle": 0},
    )


def test_stats_say_what_there_is_and_what_has_happened(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=6, overflow="reject-publish", dead_letter_rejected="d")
    queue.enqueue_many([b"1", b"22", b"333", b"4444", b"55555", Message(b"6", ttl="10ms"), b"refused"])
    first, second, third, fourth = queue.receive_many(4)
    first.ack()
    second.nack("1h")
    third.reject()
    fourth.nack()
    one(queue)
    clocked.advance(700)

    stats = queue.stats()

    assert (stats.ready, stats.ready_bytes, stats.leased, stats.delayed) == (1, 5, 1, 1)
    assert (stats.enqueued, stats.delivered, stats.redelivered, stats.acked, stats.refused) == (6, 5, 1, 1, 1)
    assert stats.deaths == {"expired": 1, "maxlen": 0, "rejected": 1, "delivery_limit": 0}
    assert stats.dropped == {"expired": 1, "maxlen": 0, "rejected": 0, "delivery_limit": 0, "cycle": 0}
    assert queue.purge() == 1
    assert queue.stats().purged == 1


def test_the_oldest_age_is_that_of_the_oldest_ready_message(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"old")
    clocked.advance(400)
    queue.enqueue(b"young")
    clocked.advance(100)

    assert queue.stats().oldest_ready_age == timedelta(milliseconds=500)
    delivery = one(queue)
    assert queue.stats().oldest_ready_age == timedelta(milliseconds=100)
    delivery.nack()
    assert queue.stats().oldest_ready_age == timedelta(milliseconds=500)


def test_everything_that_was_enqueued_is_accounted_for(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=50, message_ttl="100ms", max_deliveries=2)
    for i in range(20):
        clocked.advance(15)
        queue.enqueue_many([Message(b"x", ttl="20ms" if n % 4 == 0 else None) for n in range(10)])
        for n, delivery in enumerate(queue.receive_many(6)):
            (delivery.ack, delivery.nack, delivery.reject)[n % 3]()

        stats = queue.stats()
        gone = stats.acked + sum(stats.deaths.values()) + stats.purged
        assert stats.enqueued == (i + 1) * 10 == stats.ready + stats.leased + stats.delayed + gone


def test_overdue_says_for_how_long_nobody_swept(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h", message_ttl="1m")
    queue.enqueue_many([Message(b"x", ttl=f"{100 + i}ms") for i in range(700)])
    one(queue)
    lags = []
    for ms in (0, 99, 100, 60_000, 60_000):
        clocked.go_to(ms)
        lags.append(queue.stats().overdue)

    # the first message is leased; of the others the first is over after 101 ms
    assert lags == [timedelta(milliseconds=ms) for ms in (0, 0, 0, 59_899, 0)]
    assert queue.stats().deaths["expired"] == 699


def test_overdue_is_that_of_lost_leases_and_delays_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue_many([b"lost", b"delayed"])
    queue.receive_many(2)[1].nack("500ms")

    for ms, lag in ((700, 200), (1_500, 500), (9_000, 0)):
        clocked.go_to(ms)
        assert queue.stats().overdue == timedelta(milliseconds=lag)


def test_a_reaper_keeps_overdue_at_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="100ms")
    queue.enqueue(b"x")
    clocked.advance(5_000)
    queue.sweep()

    assert queue.stats().overdue == timedelta(0)


def test_a_lease_that_was_settled_in_time_leaves_no_lag_behind(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue(b"x")
    one(queue).ack()
    clocked.advance(5_000)

    assert queue.stats().overdue == timedelta(0)


def test_stats_of_many_queues_are_those_of_each(clocked: Clocked) -> None:
    clocked.declare_queue("dead")
    for i in range(230):
        queue = clocked.declare_queue(f"q{i:03}", message_ttl="100ms", dead_letter="dead")
        queue.enqueue_many([b"x"] * (i % 7))
        queue.enqueue(b"y", ttl=f"{50 + i % 50}ms")
    clocked.queue("q003").enqueue_many([b"z"] * 600)
    clocked.advance(75)

    found = clocked.stats()

    assert list(found) == clocked.queues()
    assert (found["q001"].deaths["expired"], found["q001"].overdue) == (1, timedelta(milliseconds=24))
    assert (found["q049"].ready, found["q049"].overdue) == (1, timedelta(0))
    clocked.advance(25)
    assert (clocked.stats(["q003"])["q003"].deaths["expired"], clocked.queue("q003").stats().ready) == (604, 0)
    assert clocked.queue("dead").stats().enqueued == clocked.stats(["dead"])["dead"].enqueued > 604


def test_stats_of_many_queues_leave_out_those_that_are_gone(clocked: Clocked) -> None:
    clocked.declare_queue("a")
    clocked.declare_queue("b").enqueue(b"x")

    assert list(clocked.stats(["b", "never", "a", "b"])) == ["b", "a"]
    assert clocked.stats(["never"]) == clocked.stats([]) == {}
    with pytest.raises(InvalidInput, match="name"):
        clocked.stats(["not a name"])


def test_stats_of_many_queues_know_that_one_was_deleted_or_changed_between_two_steps(client: Any) -> None:
    class Meddling(ClockedDriver):
        def step(self, step: flows.steps.Step) -> Any:
            answer = super().step(step)
            if isinstance(step, flows.steps.Pipeline) and "a" in other.queues():
                other.queue("a").delete()
                other.queue("b").update(max_length=1)
            return answer

    other, meddled = Clocked(client), ClockedBroker(client, start=START, driver=Meddling)
    for name in ("a", "b", "c"):
        other.declare_queue(name).enqueue_many([b"x", b"y"])

    found = meddled.stats()

    assert {name: stats.ready for name, stats in found.items()} == {"b": 1, "c": 2}


def test_stats_say_when_the_next_lease_and_the_next_delay_end(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"1", b"2", b"3", b"4"])
    assert (queue.stats().next_lease_end, queue.stats().next_delay_end) == (None, None)

    first, second = queue.receive_many(2, lease="900ms")
    queue.receive_many(2, lease="300ms")
    first.nack("700ms")
    second.nack("400ms")

    assert (queue.stats().next_lease_end, queue.stats().next_delay_end) == (at(300), at(400))
    assert clocked.stats()["q"] == queue.stats()
    clocked.advance(401)
    assert (queue.stats().next_lease_end, queue.stats().next_delay_end) == (None, at(700))


def test_stats_say_when_the_queue_ends_if_nobody_uses_it(clocked: Clocked) -> None:
    plain, unused = clocked.declare_queue("plain"), clocked.declare_queue("u", expires="900ms")
    idle = clocked.declare_queue("i", auto_delete_on_idle="500ms", expires="800ms")
    clocked.advance(100)
    idle.enqueue(b"x")

    assert [queue.stats().ends_at for queue in (plain, unused, idle)] == [None, at(900), at(600)]
    clocked.advance(300)
    idle.enqueue(b"x")
    assert idle.stats().ends_at == at(800)
    unused.touch()
    assert unused.stats().ends_at == clocked.stats()["u"].ends_at == at(1_300)


def test_options_of_many_queues_are_those_of_each(clocked: Clocked) -> None:
    for i in range(150):
        clocked.declare_queue(f"q{i:03}", max_length=i + 1)

    found = clocked.options()

    assert list(found) == clocked.queues()
    assert [options.max_length for options in found.values()] == list(range(1, 151))
    assert clocked.options(["q005", "never", "q003"]) == {name: found[name] for name in ("q005", "q003")}
    assert clocked.options([]) == {}
    with pytest.raises(InvalidInput, match="name"):
        clocked.options(["not a name"])


def test_options_of_many_queues_leave_out_one_whose_lifetime_is_over(clocked: Clocked) -> None:
    clocked.declare_queue("a", expires="100ms")
    clocked.declare_queue("b")
    clocked.advance(100)

    assert list(clocked.options(["a", "b"])) == ["b"]


def test_consumers_are_counted_while_they_are_there(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    with queue.consume(wait=0) as first, queue.consume(wait=0) as second:
        next(first)
        assert list(second) == []
        assert queue.stats().consumers == 2

    assert queue.stats().consumers == 0
