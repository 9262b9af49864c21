"""Looks without a sweep: they read, change nothing, need no right to write, and say how long due work waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis

from rqttl import Broker, CommandEvent, DataDamaged, Message, Queue, QueueNotFound
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, at
from tests.contract.looks import one
from tests.lua.states import everything

#: The commands of a look, and the ACL rules in deploy/README.md.
READS = ("+time", "+smembers", "+hmget", "+xlen", "+hlen", "+zcard", "+zcount", "+zrange", "+xrange")


def ms(n: int) -> timedelta:
    return timedelta(milliseconds=n)


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
    assert looks.damaged == {}
    assert looks["back"].oldest_ready_age == ms(1_000)
    for name, swept in clocked.stats().items():
        assert looks[name] == replace(swept, next_lease_end=None, next_delay_end=None)
        assert clocked.queue(name).stats(sweep=False) == swept


def test_a_look_at_compacted_queues_counts_messages_that_were_moved(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"x" * 200, ttl=None if i % 20 == 0 else "1s") for i in range(4_000)])
    clocked.advance(1_000)
    queue.sweep()
    assert driver_of(clocked).store.client.hlen("rqttl:{q}:detached") > 0

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


def test_a_retention_that_was_shortened_makes_messages_overdue_before_anybody_sweeps(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    clocked.advance(5_000)
    driver_of(clocked).store.client.hset("rqttl:{q}:meta", mapping={"message_ttl": 2_000, "due_at": 0, "option_set": 0})

    assert queue.stats(sweep=False).overdue == ms(3_000)


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
    clocked.declare_queue("damaged").enqueue(b"x")
    client.sadd("rqttl:queues", "missing")
    client.delete("rqttl:{damaged}:log")
    client.set("rqttl:{damaged}:log", "not a stream")
    clocked.advance(5_000)
    before = everything(client)

    for name in ("mixed", "idle", "kept"):
        clocked.queue(name).stats(sweep=False)
        clocked.queue(name).options()
    assert clocked.queues() == ["damaged", "idle", "kept", "mixed"]
    assert list(clocked.stats(sweep=False)) == ["idle", "kept", "mixed"]
    assert list(clocked.options()) == ["damaged", "idle", "kept", "mixed"]
    assert everything(client) == before


@pytest.mark.parametrize("sweep", [True, False])
def test_a_queue_that_is_not_there_is_left_out_of_many_and_refused_alone(clocked: Clocked, sweep: bool) -> None:
    clocked.declare_queue("a")

    assert list(clocked.stats(["never", "a", "never"], sweep=sweep)) == ["a"]
    assert clocked.stats([], sweep=sweep) == {}
    with pytest.raises(QueueNotFound):
        clocked.queue("never").stats(sweep=sweep)


@pytest.mark.parametrize("part", ["meta", "log", "leases", "delayed", "requeued", "consumers"])
@pytest.mark.parametrize("sweep", [True, False])
def test_a_damaged_queue_is_named_and_hides_no_other(
    clocked: Clocked, client: redis.Redis, part: str, sweep: bool
) -> None:
    for name in ("a", "bad", "c"):
        clocked.declare_queue(name).enqueue_many([b"x", b"y"])
        one(clocked.queue(name))
    client.delete(f"rqttl:{{bad}}:{part}")
    client.set(f"rqttl:{{bad}}:{part}", "not ours")

    found = clocked.stats(sweep=sweep)

    assert {name: stats.ready for name, stats in found.items()} == {"a": 1, "c": 1}
    assert [(name, error.queue, error.code) for name, error in found.damaged.items()] == [("bad", "bad", "damaged")]
    if not sweep:
        assert f"the key rqttl:{{bad}}:{part} has another type" in str(found.damaged["bad"])
        with pytest.raises(DataDamaged):
            clocked.queue("bad").stats(sweep=False)


@pytest.mark.parametrize(
    "field,value,said",
    [("cursor", None, "lacks the field cursor"), ("ready_bytes", "many", "bytes of its record is no number: 'many'")],
)
def test_a_record_that_is_none_is_damage_too(
    clocked: Clocked, client: redis.Redis, field: str, value: str | None, said: str
) -> None:
    clocked.declare_queue("a")
    clocked.declare_queue("bad")
    client.hset("rqttl:{bad}:meta", field, value) if value else client.hdel("rqttl:{bad}:meta", field)

    found = clocked.stats(sweep=False)

    assert (list(found), list(found.damaged)) == (["a"], ["bad"])
    assert said in str(found.damaged["bad"])


@pytest.mark.parametrize("bytes_of_it", [None, "many"])
def test_a_number_that_a_record_lacks_is_damage_after_a_sweep_too(
    clocked: Clocked, client: redis.Redis, bytes_of_it: str | None
) -> None:
    queue = clocked.declare_queue("orders")
    key = "rqttl:{orders}:meta"
    if bytes_of_it is None:
        client.hdel(key, "ready_bytes")
    else:
        client.hset(key, "ready_bytes", bytes_of_it)

    with pytest.raises(DataDamaged, match="orders"):
        queue.stats()
    assert list(clocked.stats().damaged) == ["orders"]


def test_options_that_cannot_be_read_are_damage(clocked: Clocked, client: redis.Redis) -> None:
    clocked.declare_queue("a", max_length=5)
    clocked.declare_queue("bad")
    client.hset("rqttl:{bad}:meta", "options", "{")

    found = clocked.options()

    assert ({name: one.max_length for name, one in found.items()}, list(found.damaged)) == ({"a": 5}, ["bad"])
    with pytest.raises(DataDamaged, match="holds no options"):
        clocked.queue("bad").options()


@pytest.fixture
def reader(user: Callable[..., Broker]) -> Callable[..., Broker]:
    """`reader(*rules)`: a broker as a user who may only do what these rules allow."""
    return partial(user, "~rqttl:*")


@pytest.mark.parametrize("rules", [READS, ("+@read", "+time")], ids=["named", "@read"])
def test_a_user_who_may_only_read_can_look(client: redis.Redis, reader: Callable[..., Broker], rules: Any) -> None:
    mixed(Clocked(client))  # its clock stands in the past, so for the server all of this is overdue
    broker = reader(*rules)

    looks = broker.stats(sweep=False)

    assert broker.queues() == list(looks) == list(broker.options()) == ["mixed"]
    assert (looks["mixed"].ready, looks["mixed"].leased, looks["mixed"].delayed) == (2, 3, 1)
    assert looks["mixed"].overdue > timedelta(days=1)
    assert broker.queue("mixed").stats(sweep=False).next_lease_end == at(1_000)
    with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
        broker.queue("mixed").stats()


def test_a_missing_right_is_no_damage(client: redis.Redis, reader: Callable[..., Broker]) -> None:
    Broker(client).declare_queue("q")

    with pytest.raises(redis.ResponseError, match=r"(?i)xlen"):
        reader(*READS, "-xlen").stats(sweep=False)


def test_a_look_asks_for_returned_messages_from_the_first_delivery_on(broker: Broker) -> None:
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue_many([b"x"] * 3)
    sent: list[CommandEvent] = []
    broker.events.subscribe(sent.append, CommandEvent)
    queue.stats(sweep=False)
    commands = [event.name for event in sent]
    assert "ZRANGE" not in commands

    assert queue.receive(auto_ack=True) is not None
    sent.clear()
    queue.stats(sweep=False)

    assert [event.name for event in sent] == [*commands[:-1], "ZRANGE", commands[-1]]


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
    assert len(sent) <= 7 * 300 + 1
    assert len({event.seconds for event in sent}) == 3  # commands of one round trip share its time
