"""Looks without changes: `peek`, `stats` with and without a sweep, `options`; and purging what was seen."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis

from rqttl import Broker, CommandEvent, DataDamaged, InvalidInput, Message, Queue, QueueNotFound, QueueStats
from rqttl.flows.steps import Pipeline, Step
from rqttl.store.driver import driver_of
from rqttl.testing.fake import ClockedBroker
from tests.contract.clocked import START, Clocked, at, ms
from tests.contract.looks import bodies, dead, one
from tests.drivers import redis_of
from tests.lua.states import everything


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


def test_peek_goes_on_page_by_page(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([Message(b"%d" % i, ttl="10ms" if i % 3 == 0 else None) for i in range(700)])
    clocked.advance(10)

    pages, after = [], None
    while page := queue.peek(100, after=after):
        pages.append(len(page))
        after = page[-1].sequence
        assert [int(message.body) for message in page] == sorted(int(message.body) for message in page)

    assert (sum(pages), pages[0]) == (466, 100)
    assert len(queue.peek(1_000)) == 466


def test_stats_of_a_new_queue_are_all_zero(clocked: Clocked) -> None:
    none = {"expired": 0, "maxlen": 0, "rejected": 0, "delivery_limit": 0}

    found = clocked.declare_queue("q").stats()
    states = "ready ready_bytes leased delayed consumers enqueued delivered redelivered acked refused purged"
    zeros: dict[str, Any] = dict.fromkeys(states.split(), 0)
    assert found == QueueStats(**zeros, oldest_ready_age=None, deaths=none, dropped={**none, "cycle": 0})


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


def test_the_oldest_age_is_that_of_the_oldest_ready_message(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"old")
    clocked.advance(400)
    queue.enqueue(b"young")
    clocked.advance(100)

    assert queue.stats().oldest_ready_age == timedelta(milliseconds=500)
    delivery = one(queue)
    assert queue.stats().oldest_ready_age == timedelta(milliseconds=100)
    delivery.nack()
    assert queue.stats().oldest_ready_age == timedelta(milliseconds=500)


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


def test_stats_of_many_queues_know_that_one_was_deleted_or_changed_between_two_steps(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, meddled = Clocked(client), ClockedBroker(client, start=START)
    driver = driver_of(meddled)
    perform = driver.step

    def meddle(step: Step) -> Any:
        answer = perform(step)
        if isinstance(step, Pipeline) and "a" in other.queues():
            other.queue("a").delete()
            other.queue("b").update(max_length=1)
        return answer

    monkeypatch.setattr(driver, "step", meddle)
    for name in ("a", "b", "c"):
        other.declare_queue(name).enqueue_many([b"x", b"y"])

    found = meddled.stats()

    assert {name: stats.ready for name, stats in found.items()} == {"b": 1, "c": 2}


def test_stats_say_when_the_next_lease_and_the_next_delay_end(clocked: Clocked, queue: Queue) -> None:
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


def mixed(clocked: Clocked) -> Queue:
    """A queue with messages in every state, of which some are overdue."""
    queue = clocked.declare_queue("mixed", lease="1s", message_ttl="1h")
    queue.enqueue_many([b"lost", b"delayed", b"back", b"leased", Message(b"expired", ttl="2s"), b"ready"])
    _, delayed, back = queue.receive_many(3)
    delayed.nack("3s")
    back.nack()
    queue.receive_many(2, lease="1h")
    clocked.advance(5_000)
    return queue


def test_a_look_at_queues_where_nothing_is_due_says_what_a_swept_one_says(clocked: Clocked) -> None:
    queue = clocked.declare_queue("busy", lease="1m", max_length=9, overflow="reject-publish", dead_letter_rejected="d")
    queue.enqueue_many([b"1", b"22", b"333", b"4444", Message(b"5", ttl="1h"), b"6"])
    first, second, third, _ = queue.receive_many(4)
    first.ack()
    second.nack("1h")
    third.reject()
    clocked.declare_queue("back").enqueue_many([b"1", b"2"])
    clocked.advance(300)
    one(clocked.queue("back")).nack()
    clocked.declare_queue("ends", expires="1h")
    clocked.declare_queue("empty")
    clocked.advance(700)

    looks = clocked.stats(sweep=False)

    assert list(looks) == ["back", "busy", "d", "empty", "ends"]
    assert looks["back"].oldest_ready_age == ms(1_000)
    for name, swept in clocked.stats().items():
        assert looks[name] == replace(swept, next_lease_end=None, next_delay_end=None)
        assert clocked.queue(name).stats(sweep=False) == swept


def test_a_look_at_compacted_queues_counts_messages_that_were_moved(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([Message(b"x" * 200, ttl=None if i % 20 == 0 else "1s") for i in range(4_000)])
    clocked.advance(1_000)
    queue.sweep()
    assert redis_of(clocked).hlen("rqttl:{q}:detached") > 0

    assert queue.stats(sweep=False) == queue.stats()
    assert queue.stats().ready == 200


def test_a_look_counts_what_is_overdue_as_it_is_stored_and_says_for_how_long_it_waits(clocked: Clocked) -> None:
    queue = mixed(clocked)

    look = queue.stats(sweep=False)

    assert (look.ready, look.leased, look.delayed, look.overdue) == (2, 3, 1, ms(4_000))
    assert (look.next_lease_end, look.next_delay_end, look.deaths["expired"]) == (at(1_000), at(3_000), 0)
    assert queue.stats().overdue == ms(4_000)
    after = queue.stats(sweep=False)
    assert (after.ready, after.leased, after.delayed, after.overdue) == (3, 2, 0, ms(0))


@pytest.mark.parametrize(
    "declared,sent,waits",
    [({"message_ttl": "2s"}, b"x", 3_000), ({}, Message(b"x", ttl="1s"), 4_000), ({}, b"x", 0)],
    ids=["retention", "own TTL", "never"],
)
def test_overdue_is_counted_from_the_deadline(clocked: Clocked, declared: Any, sent: object, waits: int) -> None:
    queue = clocked.declare_queue("q", **declared)
    queue.enqueue(sent)
    clocked.advance(5_000)

    assert queue.stats(sweep=False).overdue == ms(waits)


def test_a_lease_that_was_settled_in_time_leaves_nothing_overdue(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue_many([b"acked", b"ready"])
    one(queue).ack()
    clocked.advance(9_000)

    assert queue.stats(sweep=False).overdue == clocked.stats(sweep=False)["q"].overdue == ms(0)


def test_a_look_after_the_lifetime_of_a_queue_finds_none_and_leaves_its_keys(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q", expires="10s")
    queue.enqueue(b"x")
    clocked.advance(10_000)
    before = everything(client)

    for look in (queue.options, lambda: queue.stats(sweep=False)):
        with pytest.raises(QueueNotFound):
            look()
    assert (clocked.queues(), clocked.options(["q"]), clocked.stats(["q"], sweep=False)) == ([], {}, {})
    assert everything(client) == before


def test_a_look_changes_nothing(clocked: Clocked, client: redis.Redis) -> None:
    mixed(clocked)
    clocked.declare_queue("idle", auto_delete_on_idle="10s").enqueue(b"x")
    clocked.declare_queue("over", expires="1s", dead_letter="d").enqueue(b"x")
    clocked.declare_queue("kept", expires="1s", on_expire="keep").enqueue(b"x")
    client.sadd("rqttl:queues{rqttl}", "missing")
    clocked.advance(5_000)
    before = everything(client)

    for name in ("mixed", "idle", "kept"):
        clocked.queue(name).stats(sweep=False)
        clocked.queue(name).options()
    assert clocked.queues() == ["idle", "kept", "mixed"]
    assert list(clocked.stats(sweep=False)) == ["idle", "kept", "mixed"]
    assert list(clocked.options()) == ["idle", "kept", "mixed"]
    assert everything(client) == before


@pytest.mark.parametrize("sweep", [True, False])
def test_a_queue_that_is_not_there_is_left_out_of_many(clocked: Clocked, sweep: bool) -> None:
    clocked.declare_queue("a")

    assert list(clocked.stats(["never", "a", "never"], sweep=sweep)) == ["a"]
    assert clocked.stats([], sweep=sweep) == {}


@pytest.mark.parametrize("part", ["meta", "log", "leases", "delayed", "requeued", "consumers"])
@pytest.mark.parametrize("sweep", [True, False])
def test_a_key_of_another_type_is_named_with_the_remedy_by_the_call_that_meets_it(
    clocked: Clocked, client: redis.Redis, part: str, sweep: bool
) -> None:
    queue = clocked.declare_queue("bad", max_length=1_000)
    queue.enqueue_many([b"x", b"y"])
    one(queue)
    client.delete(f"rqttl:{{bad}}:{part}")
    client.set(f"rqttl:{{bad}}:{part}", "not ours")

    remedy = rf"^queue 'bad' cannot be read: the key rqttl:{{bad}}:{part} has another type.*delete it$"
    calls: list[Callable[[], object]] = [lambda: clocked.stats(sweep=sweep), lambda: queue.stats(sweep=sweep)]
    calls += [queue.receive] * (part in ("meta", "log", "leases"))
    calls += [lambda: queue.enqueue(b"z")] * (part in ("meta", "log"))
    for call in calls:
        with pytest.raises(DataDamaged, match=remedy) as caught:
            call()
        assert caught.value.queue == "bad"


@pytest.mark.parametrize(
    "field, value, look, said",
    [
        ("cursor", None, lambda broker: broker.stats(sweep=False), "lacks the field cursor"),
        ("ready_bytes", "many", lambda broker: broker.stats(sweep=False), "of its record is not a number: 'many'"),
        ("ready_bytes", "many", lambda broker: broker.stats(), "'bad'"),
        ("ready_bytes", None, lambda broker: broker.stats(), "'bad'"),
        ("ready_bytes", None, lambda broker: broker.queue("bad").stats(), "'bad'"),
        ("options", "{", lambda broker: broker.options(), "holds no options"),
    ],
)
def test_a_record_that_is_none_is_damage_too(
    clocked: Clocked, client: redis.Redis, field: str, value: str | None, look: Callable[[Broker], Any], said: str
) -> None:
    clocked.declare_queue("bad")
    client.hset("rqttl:{bad}:meta", field, value) if value else client.hdel("rqttl:{bad}:meta", field)

    with pytest.raises(DataDamaged, match=said):
        look(clocked)


def test_a_missing_right_is_no_damage(client: redis.Redis, user: Callable[..., Broker]) -> None:
    Broker(client).declare_queue("q")

    with pytest.raises(redis.ResponseError, match=r"(?i)xlen"):
        user("~rqttl:*", "+@all", "-xlen").stats(sweep=False)


def test_a_look_at_many_queues_takes_at_most_seven_commands_each_in_three_round_trips(broker: Broker) -> None:
    for i in range(300):
        queue = broker.declare_queue(f"q{i:03}")
        queue.enqueue_many([b"x"] * 4)
        first, second, _ = queue.receive_many(3)
        first.nack("1h")
        second.nack()
    names = broker.queues()
    sent: list[CommandEvent] = []
    broker.events.subscribe(sent.append, CommandEvent)

    looks = broker.stats(names, sweep=False)

    assert {(one.ready, one.leased, one.delayed) for one in looks.values()} == {(2, 1, 1)}
    nodes = driver_of(broker).store.topology.nodes
    assert len(sent) <= 7 * 300 + len(nodes)  # the times
    assert len({event.seconds for event in sent}) == 3 * len(nodes)  # commands of one round trip share its time


def test_many_are_chosen_in_any_order_and_the_others_keep_theirs(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"%03d" % i for i in range(1_000)])
    chosen = [message.sequence for message in queue.peek(1_000)[::3]]

    assert queue.purge_many(iter([*reversed(chosen), *chosen])) == 334  # named twice, each counts once

    stats = queue.stats()
    assert (stats.purged, stats.ready, stats.ready_bytes, dead(queue)) == (334, 666, 3 * 666, {})
    assert bodies(queue) == [b"%03d" % i for i in range(1_000) if i % 3]
    assert clocked.queues() == ["q"]
