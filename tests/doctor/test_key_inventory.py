"""All keys of a namespace: those of queues, what is left over, and the registry."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker, QueueNotFound, flows
from rqttl.doctor import examine, examine_queues, key_inventory, repair, runtime
from rqttl.doctor.findings import Repair
from rqttl.protocol.keys import PARTS, Keyspace
from rqttl.store.driver import driver_of
from tests.doctor.looking import of, only, repaired, server, wrong
from tests.drivers import before_step
from tests.lua.states import everything
from tests.waiting import PATIENCE


def test_all_is_well_with_queues_of_all_kinds(broker: Broker) -> None:
    for name in ("orders", "{billing}.orders", "a:b/c", "x"):
        broker.declare_queue(name).enqueue(b"x")
    Broker(driver_of(broker).store.client, "other").declare_queue("foreign")
    driver_of(broker).store.client.set("rqttlx:{orders}:log", "not ours")

    assert wrong(broker) == []
    assert only(examine_queues(broker, ["x"]), "keys")[1] == "1 queue, all in the registry, no other keys"
    assert of(examine_queues(broker), "keys") == [("ok", "4 queues, all in the registry, no other keys")]


@pytest.mark.parametrize("name", ["orders", "{billing}.orders", "a:b", "a:b:c"])
def test_a_key_says_to_which_queue_it_belongs(name: str) -> None:
    space = Keyspace()

    assert [space.split(space.key(name, part).encode()) for part in ("log", "odd")] == [(name, "log"), (name, "odd")]


@pytest.mark.parametrize(
    "key",
    [
        b"rqttl:queues",
        b"rqttl:orders:log",
        b"rqttl:{or ders}:log",
        b"rqttl:{}:log",
        b"other:{orders}:log",
        b"rqttl:{orders}",
        b"rqttl:\xff:log",
        b"rqttl:{a}b}:log",
    ],
)
def test_other_keys_belong_to_no_queue(key: bytes) -> None:
    assert Keyspace().split(key) is None


def test_keys_without_a_queue_are_found_and_deleted(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue_many([b"x" * 1_000] * 3)
    broker.queue("orders").receive()
    broker.declare_queue("sound").enqueue(b"x")
    client.delete("rqttl:{orders}:meta")
    client.srem("rqttl:queues", "orders")

    [(queue, level, found)] = wrong(broker)
    assert (queue, level) == ("orders", "problem")
    assert re.fullmatch(r"2 keys without a queue: log, leases; 3 messages, [\d.]+ kB", found)

    before = {key: value for key, value in everything(client).items() if b"orders" not in key}
    assert repaired(broker) == {("orders", "clear"): "its keys are deleted"}
    assert everything(client) == before


def test_the_trace_of_a_deleted_queue_is_no_finding_and_survives_a_repair(broker: Broker, client: redis.Redis) -> None:
    for name in ("orders", "torn"):
        broker.declare_queue(name).enqueue(b"x")
        broker.queue(name).delete()
    client.rpush("rqttl:{torn}:wakeup", "")

    [(queue, _, found)] = wrong(broker)
    assert (queue, found[:36]) == ("torn", "1 key without a queue: wakeup; 0 mes")
    assert repaired(broker) == {("torn", "clear"): "its keys are deleted"}
    assert wrong(broker) == []
    assert sorted(client.keys()) == [b"rqttl:birth", b"rqttl:{orders}:tombstone", b"rqttl:{torn}:tombstone"]
    with pytest.raises(QueueNotFound):
        list(examine_queues(broker, ["orders"]))


def test_hints_of_a_deletion_are_no_finding(broker: Broker, client: redis.Redis) -> None:
    client.rpush("rqttl:{orders}:wakeup", "")
    client.expire("rqttl:{orders}:wakeup", 600)

    assert wrong(broker) == []


def test_a_record_that_names_no_version_is_left_over_too(broker: Broker, client: redis.Redis) -> None:
    client.hset("rqttl:{orders}:meta", "acked", 1)

    [(queue, level, found)] = wrong(broker)

    assert (queue, level) == ("orders", "problem")
    assert found.startswith("1 key without a queue: meta; 0 messages, ")
    assert repaired(broker) == {("orders", "clear"): "its keys are deleted"}


def test_declared_again_a_queue_has_the_messages_that_were_left(broker: Broker, client: redis.Redis) -> None:
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"one", b"two", b"three"])
    orders.receive()
    client.delete("rqttl:{orders}:meta")

    Broker(client).declare_queue("orders")
    repaired(broker, "orders")

    again = Broker(client).queue("orders")
    assert [one.body for one in again.receive_many(10)] == [b"one", b"two", b"three"]
    assert again.stats().leased == 3
    assert wrong(broker) == []


def test_a_queue_that_is_declared_meanwhile_is_not_cleared(broker: Broker, client: redis.Redis) -> None:
    client.rpush("rqttl:{orders}:wakeup", "")
    [found] = [one for one in examine_queues(broker) if one.repair]
    broker.declare_queue("orders").enqueue(b"x")

    assert found.repair is not None
    assert repair(broker, found.repair) == "left alone: the queue exists now"
    assert broker.queue("orders").stats().ready == 1


def test_a_queue_that_is_not_in_the_registry_is_entered(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    client.srem("rqttl:queues", "orders")

    assert [(queue, level) for queue, level, _ in wrong(broker)] == [("orders", "problem")]
    assert repaired(broker) == {("orders", "register"): "added to the registry"}
    assert broker.queues() == ["orders"]
    assert repair(broker, Repair("register", "orders", "")) == "is in the registry already"


def test_a_name_without_a_queue_is_taken_out(broker: Broker, client: redis.Redis) -> None:
    client.sadd("rqttl:queues", "ghost")

    assert [(queue, level) for queue, level, _ in wrong(broker)] == [("ghost", "warning")]
    assert repaired(broker) == {("ghost", "unregister"): "removed from the registry"}
    assert client.exists("rqttl:queues") == 0


def test_a_name_that_gets_its_queue_meanwhile_stays(broker: Broker, client: redis.Redis) -> None:
    client.sadd("rqttl:queues", "ghost")
    [found] = [one for one in examine_queues(broker) if one.repair]
    broker.declare_queue("ghost")

    assert found.repair is not None
    assert repair(broker, found.repair) == "left in the registry: the queue exists now"
    assert broker.queues() == ["ghost"]


@pytest.mark.parametrize("made", [True, False])
def test_the_unfinished_work_of_a_client_is_no_finding(broker: Broker, client: redis.Redis, made: bool) -> None:
    broker.declare_queue("orders")
    if made:
        client.srem("rqttl:queues", "orders")  # a dead letter made it, and its client enters it next
    else:
        client.sadd("rqttl:queues", "new")  # its client makes it next
    finish: Callable[[], Any] = (
        (lambda: driver_of(broker).step(flows.Register("orders"))) if made else (lambda: broker.declare_queue("new"))
    )
    before_step(driver_of(broker), flows.Sleep, finish)

    assert wrong(broker) == []


def test_a_queue_that_is_deleted_meanwhile_is_no_finding(broker: Broker) -> None:
    orders, deleted = broker.declare_queue("orders"), list[int]()
    orders.enqueue(b"x")
    look = ("HMGET", driver_of(broker).keyspace.key("orders", "meta"), "version", "due_at")
    before_step(driver_of(broker), flows.Read([look], keep_errors=True), lambda: deleted.append(orders.delete()))

    assert wrong(broker) == []
    assert deleted == [1]


@pytest.mark.parametrize("part", PARTS)
def test_a_key_of_the_wrong_type_is_a_problem_and_nothing_else_is_said_of_its_queue(
    broker: Broker, client: redis.Redis, part: str
) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    broker.declare_queue("sound")
    client.set(f"rqttl:{{orders}}:{part}", "x")

    [(queue, level, found)] = wrong(broker)

    assert (queue, level) == ("orders", "problem")
    assert found.startswith(f"rqttl:{{orders}}:{part} is a string, not a {PARTS[part].type}: ")
    assert wrong(broker, "orders") == [(queue, level, found)]
    assert [one.queue for one in examine_queues(broker) if one.check == "queue"] == ["sound"]


def test_keys_that_nobody_knows_are_told_and_left_alone(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    for key in ("rqttl:{orders}:odd", "rqttl:odd", b"rqttl:\x1b[2J\xff", "rqttl:{or ders}:log"):
        client.set(key, "x")

    [(queue, level, found)] = wrong(broker)

    assert (queue, level) == (None, "warning")
    assert found.startswith("4 keys that rqttl does not know: ")
    assert repaired(broker) == {}


def test_many_keys_are_looked_at_in_pages(broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_inventory, "PAGE", 7)
    for i in range(50):
        broker.declare_queue(f"q{i}")
    client.srem("rqttl:queues", "q7")
    client.delete("rqttl:{q9}:meta")
    client.rpush("rqttl:{q8}:wakeup", "")

    assert [(queue, level) for queue, level, _ in wrong(broker)] == [("q7", "problem"), ("q9", "warning")]
    assert len(driver_of(broker).perform(key_inventory.take(driver_of(broker).keyspace)).dues) == 49


def test_only_the_queues_named_are_looked_at(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    broker.declare_queue("torn")
    client.delete("rqttl:{torn}:meta")
    client.rpush("rqttl:{torn}:wakeup", "")

    assert wrong(broker, "orders") == []
    assert {queue for queue, _, _ in wrong(broker, "torn")} == {"torn"}


def test_a_queue_of_which_there_is_no_trace_is_not_found(broker: Broker) -> None:
    broker.declare_queue("orders")

    with pytest.raises(QueueNotFound, match="'ghost'"):
        list(examine(broker, ["orders", "ghost"]))


def test_a_user_without_the_right_to_list_keys_is_told_so(broker: Broker, client: redis.Redis, redis_url: str) -> None:
    broker.declare_queue("orders")
    client.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "~*", "+@all", "-scan")
    with Broker(redis.Redis.from_url(redis_url, username="half", socket_timeout=PATIENCE)) as half:
        assert only(examine(half), "keys")[0] == "warning"
        assert of(examine(half, ["orders"]), "queue") == [("ok", "empty")]
    client.execute_command("ACL", "DELUSER", "half")


# What is due


def make_late(broker: Broker, client: redis.Redis, ms: int) -> None:
    """The message in `orders` has been over for so long."""
    late = int(broker.server_time().timestamp() * 1000) - ms
    sequence = broker.queue("orders").peek()[0].sequence
    client.zadd("rqttl:{orders}:expiry", {sequence: late})
    client.hset("rqttl:{orders}:meta", "due_at", late)


def test_a_due_time_that_nothing_is_behind_is_not_overdue(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x")
    queue.ack_many(queue.receive_many(1))
    client.hset("rqttl:{orders}:meta", "due_at", int(broker.server_time().timestamp() * 1000) - 60_000)

    assert server(broker, "reaper") == ("ok", "no reaper listens; nothing is overdue", "")


def test_overdue_work_says_that_no_reaper_runs(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("later").enqueue(b"x", ttl="1h")
    broker.declare_queue("orders").enqueue(b"x", ttl="1h")
    assert server(broker, "reaper") == ("ok", "no reaper listens; nothing is overdue", "")

    make_late(broker, client, runtime.OVERDUE + 3_000)

    level, found, advice = server(broker, "reaper")
    assert level == "warning"
    assert re.fullmatch(r"no reaper listens; overdue by up to \d+s: orders", found)
    assert "`rqttl reaper`" in advice


def test_work_that_was_due_a_moment_ago_or_at_an_unknown_time_is_not_overdue(
    broker: Broker, client: redis.Redis
) -> None:
    broker.declare_queue("orders").update(max_length=5)
    broker.declare_queue("new")
    client.hset("rqttl:{new}:meta", "due_at", 0)
    client.hset("rqttl:{orders}:meta", "due_at", int(broker.server_time().timestamp() * 1000) - 100)

    assert server(broker, "reaper")[0] == "ok"


def test_reapers_that_listen_are_counted(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x", ttl="1h")
    heard = client.pubsub()
    heard.subscribe("rqttl:due")
    heard.get_message(timeout=5)

    assert server(broker, "reaper")[1] == "1 reaper listens; nothing is overdue"
    make_late(broker, client, 60_000)
    level, found, advice = server(broker, "reaper")
    assert (level, found.split(";")[0]) == ("warning", "1 reaper listens")
    assert "its log" in advice
    heard.close()


def test_a_user_who_may_not_count_listeners_still_sees_overdue_work(
    broker: Broker, client: redis.Redis, redis_url: str
) -> None:
    client.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "~*", "+@all", "-pubsub")
    with Broker(redis.Redis.from_url(redis_url, username="half", socket_timeout=PATIENCE)) as half:
        assert only(examine(half), "reaper")[1].startswith("it cannot be seen whether a reaper listens; ")
    client.execute_command("ACL", "DELUSER", "half")


def test_members_of_the_registry_that_no_queue_can_be_called_are_struck_out(
    broker: Broker, client: redis.Redis
) -> None:
    broker.declare_queue("orders")
    client.sadd("rqttl:queues", b"\xff\xfe", b"two words")

    assert wrong(broker) == [
        (None, "warning", "b'two words' is in the registry, but is no valid name of a queue"),
        (None, "warning", r"b'\xff\xfe' is in the registry, but is no valid name of a queue"),
    ]
    wishes = [one.repair for one in examine(broker) if one.repair is not None]
    assert [repair(broker, wish) for wish in wishes] == ["removed from the registry"] * 2
    assert [repair(broker, wish) for wish in wishes] == ["left alone: it is not in the registry any more"] * 2
    assert wrong(broker) == []
    assert broker.queues() == ["orders"]


def test_a_registry_of_another_type_is_named_with_the_way_out(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    client.delete("rqttl:queues")
    client.set("rqttl:queues", "not a set")

    (finding,) = [one for one in examine(broker) if one.check == "registry"]
    assert (finding.level, finding.queue) == ("problem", None)
    assert "the key rqttl:queues is no set of queue names" in finding.result
    assert "DEL rqttl:queues" in finding.advice

    client.delete("rqttl:queues")
    for one in [one.repair for one in examine(broker) if one.repair is not None]:
        repair(broker, one)
    assert broker.queues() == ["orders"]
