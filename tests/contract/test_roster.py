"""Who is there: `consumers()`, what consumers write about themselves, and whose a leased message is."""

import json
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from rqttl import Broker, Queue
from rqttl.consuming.heartbeat import Heartbeat, program
from rqttl.flows import roster
from rqttl.inspector.message_view import holder
from rqttl.store.driver import driver_of
from tests.contract.clocked import START, Clocked, at

WORKERS = "rqttl:workers{rqttl}"


def test_a_consumer_is_listed_with_its_numbers_until_it_leaves(clocked: Clocked, queue: Queue, at_rest: None) -> None:
    queue.enqueue_many([b"x"] * 3)

    with queue.consume(3, lease="1h") as deliveries:
        next(deliveries).ack()
        second = next(deliveries)
        clocked.clock.advance("4s")
        [info] = queue.consumers()
        [among_workers] = clocked.workers(consumers=True)
        assert (clocked.workers(), clocked.declare_queue("other").consumers()) == ([], [])
        second.ack()
        third = next(deliveries)
        clocked.clock.advance("4s")
        [later] = queue.consumers()
        third.ack()

    assert (info.role, info.host, info.pid, info.program) == ("consumer", socket.gethostname(), os.getpid(), program())
    assert (info.prefetch, info.in_flight, info.oldest, info.beat) == (3, 2, second.id, info.oldest_since)
    assert (among_workers.name, among_workers.role, among_workers.program) == (info.name, info.role, info.program)
    assert (among_workers.queues, among_workers.slots) == (("q",), 3)
    assert among_workers.running == (("q", second.id, info.oldest_since),)
    assert info.leases == dict.fromkeys((second.sequence, third.sequence), at(3_604_000))
    assert (later.in_flight, later.oldest, later.oldest_since) == (1, third.id, info.oldest_since)
    assert (queue.consumers(), clocked.workers()) == ([], [])


def test_a_leased_message_has_its_holder_by_the_lease_of_now_else_by_the_last_word(
    clocked: Clocked, queue: Queue, client: redis.Redis, at_rest: None
) -> None:
    queue.enqueue_many([b"held", b"free"])
    with queue.consume(1, lease="1h") as deliveries:
        delivery = next(deliveries)
        assert queue.consumers() == []  # it has not told yet
        clocked.clock.advance("40s")
        held, free = queue.peek()
        listed = queue.consumers()

        older = replace(listed[0], leases={held.sequence: at(1)}, beat=at(90_000))
        assert json.loads(client.hvals(WORKERS)[0])["lives"] == 30_000
        assert holder(held, [older, *listed]) == listed[0]
        assert listed[0].holds(held)
        assert holder(free, listed) is None

        deliveries.release(delivery)
        assert holder(queue.peek()[0], listed) is None
        assert queue.receive(lease="5s") is not None
        again = queue.peek()[0]
        assert (holder(again, [older, *listed]), older.holds(again)) == (older, False)


@pytest.mark.parametrize("number, every", [(0, 30), (1, 10)])
def test_an_idle_consumer_writes_twice_a_minute_and_one_with_messages_every_10_s(
    clocked: Clocked, queue: Queue, client: redis.Redis, number: int, every: int
) -> None:
    held = [number]
    heartbeat = Heartbeat(driver_of(clocked).keyspace, "consumer", lambda _: {}, lambda: not held[0])

    def turn(second: int) -> bool:
        clocked.go_to(second * 1000)
        driver_of(clocked).perform(heartbeat.beat())
        [text] = client.hvals(WORKERS)
        beat: int = json.loads(text)["beat"]
        return beat == START + second * 1000

    assert [second for second in range(100) if turn(second)] == list(range(0, 100, every))
    held[0] = 1 - number  # what changes is told after 10 s, and new leases after 5 s
    assert [second for second in range(100, 131) if turn(second)] == ([100, 110, 120, 130] if held[0] else [100, 130])
    heartbeat.renewed()
    assert [second for second in range(131, 150) if turn(second)] == ([135, 145] if held[0] else [135])


@pytest.mark.parametrize("is_idle, lives", [(False, 30_000), (True, 35_000)])
def test_one_that_was_killed_is_listed_no_more_after_30_s_and_an_idle_one_after_35_s(
    clocked: Clocked, queue: Queue, client: redis.Redis, is_idle: bool, lives: int
) -> None:
    details = {"queues": ["q"], "prefetch": 1, "held": {}}
    driver = driver_of(clocked)
    driver.perform(Heartbeat(driver.keyspace, "consumer", lambda _: details, lambda: is_idle).beat())

    clocked.advance(lives)
    assert len(queue.consumers()) == 1
    clocked.advance(1)
    assert queue.consumers() == []
    for late, left in ((0, 1), (1, 0)):  # the next one that leaves removes what is an hour old
        clocked.go_to(3_600_000 + late)
        driver.perform(roster.leave(driver.keyspace, "me"))
        assert client.hlen(WORKERS) == left


def test_one_of_many_that_end_looks_through_the_others_only_now_and_then(
    clocked: Clocked, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.hset(WORKERS, mapping={str(number): "unreadable" for number in range(200)})
    driver = driver_of(clocked)

    for chance, left in ((0.6, 200), (0.4, 0)):
        monkeypatch.setattr("random.random", lambda chance=chance: chance)
        driver.perform(roster.leave(driver.keyspace, "me"))
        assert client.hlen(WORKERS) == left


def test_nothing_is_written_for_a_message(clocked: Clocked, queue: Queue, client: redis.Redis, at_rest: None) -> None:
    queue.enqueue_many([b"x"] * 200)
    with queue.consume(10, lease="1h") as deliveries:
        next(deliveries).ack()
        assert not client.exists(WORKERS)  # nor for a consumer that ends within a turn
        clocked.clock.advance("1s")
        before = client.hgetall(WORKERS)
        for _ in range(199):
            next(deliveries).ack()
        assert client.hgetall(WORKERS) == before
    assert not client.exists(WORKERS)


@pytest.mark.parametrize("names, found", [(["a", "q=3"], True), (["[p-r]"], True), (["x*", "qq"], False), ([], False)])
def test_a_worker_is_listed_at_the_queues_that_it_names_or_matches(
    clocked: Clocked, queue: Queue, client: redis.Redis, names: list[str], found: bool
) -> None:
    facts: dict[str, Any] = {"role": "worker", "host": "h", "pid": 1, "program": "p", "version": "1", "beat": START}
    facts |= {"started": START, "queues": names, "prefetch": 2, "held": {"q": [1, "m", START, {str(START): ["s"]}]}}
    client.hset(WORKERS, "w", json.dumps(facts))
    strange: dict[str, bytes | str] = {"odd": json.dumps({**facts, "held": 7}), "none": b"\xff", "other": "{}"}
    for name, text in strange.items():
        client.hset(WORKERS, name, text)

    assert [(one.in_flight, one.oldest, one.leases) for one in queue.consumers()] == [(1, "m", {"s": at(0)})] * found


def test_a_consumer_without_the_right_works_and_says_so_once(
    queue: Queue, user: Callable[..., Broker], caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(b"x")
    limited = user("+@all", "~rqttl:{*", "~rqttl:queues{rqttl}", "~rqttl:policies{rqttl}", "&*")
    with caplog.at_level(logging.WARNING), limited.queue("q").consume() as deliveries:
        next(deliveries).ack()
        for _ in range(2):
            deliveries._session.heartbeat.hurry()  # type: ignore[union-attr]
            deliveries._take_turn()
    assert [record.name for record in caplog.records] == ["rqttl.heartbeat"]
    assert queue.stats().acked == 1
