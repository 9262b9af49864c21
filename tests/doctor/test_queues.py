"""Checks of a queue's contents, on damage done by hand; and what a repair makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker, Message, Queue
from rqttl.doctor import audit, examine_queues
from rqttl.protocol.commands import Command
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import RedisDriver, driver_of
from tests.doctor.looking import of, repaired, wrong
from tests.lua.states import everything

MENDED = ("orders", "repair")
FAR = 4_000_000_000_000
NOBODY = "1700000000000-100000"

Damage = Callable[[redis.Redis, list[str]], Any]


@pytest.fixture
def orders(broker: Broker) -> Queue:
    """Six messages: leased, given back, delayed, ready, ready with a deadline, ready with a deadline."""
    queue = broker.declare_queue("orders")
    queue.enqueue_many([*[b"x" * 10] * 4, *[Message(b"y" * 100, ttl="1h")] * 2])
    _, back, later = queue.receive_many(3, lease="1h")
    queue.nack_many([back], description="ValueError: no such item")
    queue.nack_many([later], delay="1h")
    return queue


@pytest.fixture
def ids(orders: Queue) -> list[str]:
    return [one.sequence for one in orders.peek(limit=10)]


def part(name: str) -> str:
    return Keyspace().key("orders", name)


def test_a_sound_queue_is_described(broker: Broker, orders: Queue) -> None:
    assert wrong(broker) == []
    assert of(examine_queues(broker), "queue") == [("ok", "6 messages, 4 ready (220 B)")]

    orders.purge()
    orders.nack_many(orders.receive_many(10))
    assert of(examine_queues(broker), "queue") == [("ok", "2 messages, 0 ready (0 B)")]


def test_looking_changes_nothing(broker: Broker, client: redis.Redis, orders: Queue) -> None:
    client.zadd(part("leases"), {NOBODY: FAR * 1000})
    before = everything(client)

    assert list(examine_queues(broker))
    assert everything(client) == before


DAMAGES: list[tuple[str, Damage, str, str]] = [
    (
        "leases",
        lambda c, ids: c.zadd(part("leases"), {NOBODY: FAR * 1000}),
        "1 id in leases without a message",
        "1 sequence without a message removed",
    ),
    (
        "delayed",
        lambda c, ids: c.zadd(part("delayed"), {NOBODY: FAR}),
        "1 id in delayed without a message",
        "1 sequence without a message removed",
    ),
    (
        "returned",
        lambda c, ids: c.zadd(part("requeued"), {NOBODY: 1}),
        "1 id in requeued without a message",
        "1 sequence without a message removed",
    ),
    (
        "expiry",
        lambda c, ids: c.zadd(part("expiry"), {NOBODY: FAR}),
        "1 id in expiry without a message",
        "1 sequence without a message removed",
    ),
    (
        "described",
        lambda c, ids: c.hset(part("failures"), NOBODY, "2 why"),
        "1 id in failures without a message",
        "1 sequence without a message removed",
    ),
    (
        "redelivered",
        lambda c, ids: c.hset(part("failures"), NOBODY, 1),
        "1 id in failures without a message",
        "1 sequence without a message removed",
    ),
    (
        "lost",
        lambda c, ids: c.zrem(part("leases"), ids[0]),
        "1 message in the log, but nowhere else",
        "1 message made ready again",
    ),
    (
        "doubled",
        lambda c, ids: c.zadd(part("requeued"), {ids[0]: int(ids[0][:13])}),
        "1 message in two places",
        "1 message left in one place",
    ),
    (
        "deadline missing",
        lambda c, ids: c.delete(part("expiry")),
        "2 messages whose deadline differs from expiry",
        "2 deadlines corrected",
    ),
    (
        "deadline of none",
        lambda c, ids: c.zadd(part("expiry"), {ids[3]: FAR}),
        "1 message whose deadline",
        "1 deadline corrected",
    ),
    (
        "bytes",
        lambda c, ids: c.hset(part("meta"), "ready_bytes", 5),
        "ready_bytes is 5, but ready bodies have 220",
        "bytes counted again",
    ),
    (
        "no bytes",
        lambda c, ids: c.hdel(part("meta"), "ready_bytes"),
        "ready_bytes is missing, but ready bodies have 220",
        "bytes counted again",
    ),
    (
        "last",
        lambda c, ids: c.hset(part("meta"), "last_id", ids[0]),
        "last_id is {0}, below the highest id {5}",
        "last sequence corrected",
    ),
    (
        "cursor",
        lambda c, ids: c.hset(part("meta"), "cursor", "9700000000000-100000"),
        "cursor is 9700000000000-100000, should be {5}",
        "cursor corrected",
    ),
]


@pytest.mark.parametrize("damage, told, done", [one[1:] for one in DAMAGES], ids=[one[0] for one in DAMAGES])
def test_damage_is_found_and_mended(
    broker: Broker, client: redis.Redis, ids: list[str], damage: Damage, told: str, done: str
) -> None:
    damage(client, ids)

    found = [text for queue, _, text in wrong(broker) if queue == "orders"]
    assert [text for text in found if text.startswith(told.format(*ids))]

    assert done in repaired(broker)[MENDED].split("; ")
    assert wrong(broker) == []
    assert len(broker.queue("orders").peek(limit=10)) == 6


def test_after_any_repair_every_message_can_be_had_once(broker: Broker, client: redis.Redis, ids: list[str]) -> None:
    for _, damage, _, _ in DAMAGES:
        damage(client, ids)

    repaired(broker)

    orders = broker.queue("orders")
    assert wrong(broker) == []
    got = [one.id for one in orders.receive_many(10)]
    delayed = [one.sequence for one in orders.peek(limit=10) if one.state == "delayed"]
    assert sorted([*got, *delayed]) == ids
    assert client.hget(part("meta"), "ready_bytes") == b"0"


@pytest.mark.parametrize("due", ["", FAR])
def test_a_due_time_that_is_too_late_is_found_and_put_right(
    broker: Broker, client: redis.Redis, orders: Queue, due: object
) -> None:
    client.hset(part("meta"), "due_at", due)  # type: ignore[arg-type]  # numbers too

    [(_, level, found)] = wrong(broker)
    assert level == "problem"
    assert found.startswith(f"due is {'2096-10-02 07:06:40Z' if due else 'empty'}, but something is due 20")

    assert repaired(broker) == {MENDED: "left alone: nothing is wrong any more"}
    orders.sweep()
    known = client.hget(part("meta"), "due_at")
    assert known is not None
    assert wrong(broker) == []
    assert 0 < int(known) < FAR


def test_retention_counts_for_the_due_time(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders", message_ttl="1h").enqueue(b"x")
    client.hset(part("meta"), "due_at", "")

    assert [found.split(",")[0] for _, _, found in wrong(broker)] == ["due is empty"]


@pytest.mark.parametrize(
    "field", ["options", "overflow", "option_set", "holds_dead_letters", "has_waiters", "lease_grants"]
)
def test_a_record_without_a_field_is_a_problem_that_no_repair_hides(
    broker: Broker, client: redis.Redis, orders: Queue, field: str
) -> None:
    client.hdel(part("meta"), field)

    assert ("orders", "problem", f"its record lacks {field}: calls fail, or do the wrong thing") in wrong(broker)
    assert not [one for one in examine_queues(broker) if one.repair and one.repair.kind != "repair"]


def test_options_that_scripts_do_not_know_are_a_problem(broker: Broker, client: redis.Redis, orders: Queue) -> None:
    orders.update(max_length=10)
    client.hset(part("meta"), "max_length", 5)

    [(_, level, found)] = wrong(broker)
    assert (level, found) == ("problem", "scripts act on other options than declared: max_length")

    orders.update(max_length=11)
    assert wrong(broker) == []


@pytest.mark.parametrize("given", ["", "[]", "{", '{"max_length": "many"}', '{"dead_letter": "orders"}'])
def test_options_that_cannot_be_read_are_a_problem(
    broker: Broker, client: redis.Redis, orders: Queue, given: str
) -> None:
    client.hset(part("meta"), "options", given)

    assert [level for _, level, _ in wrong(broker)] == ["problem"]


def test_entries_of_others_are_a_problem_that_a_person_solves(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    client.xadd(part("log"), {"a": "b"}, id="9000000000000-1")

    findings = [one for one in examine_queues(broker) if one.level != "ok"]
    assert findings[0].result.startswith("1 entries that rqttl did not write")
    assert "XDEL them: 9000000000000-1" in findings[0].advice
    assert findings[0].repair is None


def test_detached_messages_are_counted_too(broker: Broker, client: redis.Redis, ids: list[str]) -> None:
    for one in ids[3:]:
        entry: Any = client.xrange(part("log"), one, one)
        header, body = next(iter(entry[0][1].items()))
        client.xdel(part("log"), one)
        client.hset(part("detached"), one, b"%d:%b%b" % (len(header), header, body))
    assert [text.split(":")[0] for _, _, text in wrong(broker)] == ["3 messages in the log, but nowhere else"]

    assert repaired(broker) == {MENDED: "3 messages made ready again"}
    assert of(examine_queues(broker), "queue") == [("ok", "6 messages, 4 ready (220 B)")]
    assert len(broker.queue("orders").receive_many(10)) == 4


def test_large_queues_are_looked_at_in_pages(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE", 50)
    broker.declare_queue("orders").enqueue_many([Message(b"x", ttl="1h")] * 1_000)
    client.zremrangebyrank(part("expiry"), 0, 599)
    client.zadd(part("leases"), {f"{1_600_000_000_000 + i}-100000": FAR * 1000 for i in range(700)})

    assert sorted(text.split(" in ")[0].split(" whose ")[0] for _, _, text in wrong(broker)) == [
        "600 messages",
        "700 ids",
    ]
    assert repaired(broker) == {MENDED: "600 deadlines corrected; 700 sequences without a message removed"}


def test_pages_of_large_bodies_are_short(broker: Broker) -> None:
    broker.declare_queue("orders").enqueue_many([b"x" * 1_000_000] * 30)
    counts: list[int] = []

    class Counting(RedisDriver):
        def step(self, one: Any) -> Any:
            reply = super().step(one)
            if isinstance(one, Command) and one.script.name == "audit" and "log" in one.words:
                counts.append(reply[7])
            return reply

    counting = Counting(driver_of(broker).store.client, "rqttl")
    found = counting.perform(audit.audit(counting.keyspace, "orders"))

    assert found.size == 30_000_000
    assert counts == [*[5] * 6, 0]  # the last page shows that there is no more


# Where dead letters go


def test_a_target_that_is_not_there_yet_is_mentioned(broker: Broker) -> None:
    broker.declare_queue("orders", dead_letter="orders/dead")

    assert of(examine_queues(broker), "queue") == [("ok", "empty; dead letters will make orders/dead")]

    broker.declare_queue("orders/dead")
    assert of(examine_queues(broker), "queue") == [("ok", "empty"), ("ok", "empty")]


def test_letters_that_go_round_by_themselves_are_told_once(broker: Broker) -> None:
    broker.declare_queue("a", dead_letter="b")
    broker.declare_queue("b", dead_letter_expired="c")
    broker.declare_queue("c", dead_letter_maxlen="a")

    assert of(examine_queues(broker), "dead letters") == [
        ("warning", "go round: a > b > c > a; at the second time they are dropped")
    ]
    assert of(examine_queues(broker, ["c"]), "dead letters")[0][1].startswith("go round: c > a > b > c")


def test_a_rejection_ends_a_circle(broker: Broker) -> None:
    broker.declare_queue("orders", dead_letter_rejected="retry")
    broker.declare_queue("retry", dead_letter_expired="orders", message_ttl="1m")

    assert of(examine_queues(broker), "dead letters") == []


def test_a_way_into_a_circle_is_no_circle(broker: Broker) -> None:
    broker.declare_queue("z", dead_letter="a")
    broker.declare_queue("a", dead_letter="b")
    broker.declare_queue("b", dead_letter="a")

    assert len(of(examine_queues(broker), "dead letters")) == 1


def test_a_damaged_header_is_told_and_hides_no_message(client: redis.Redis, broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue(b"good")
    key = driver_of(broker).keyspace.key("orders", "log")
    client.execute_command("XADD", key, "9000000000000-100000", b";9;;short", b"bad")

    told = [one for one in examine_queues(broker) if "header" in one.result]

    assert [(one.level, one.queue) for one in told] == [("warning", "orders")]
    assert "1 message with a damaged header" in told[0].result
    assert [one.body for one in queue.peek()] == [b"good", b"bad"]
