"""Checks of queues, on faults made by hand: records, keys, the registry, and the policies in force."""

import re
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from rqttl import Broker, Message, Policy, QueueNotFound, Receipt
from rqttl.doctor import examine, queues
from rqttl.flows.steps import Register, Sleep
from rqttl.protocol.keys import PARTS
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked
from tests.doctor.looking import of, only, server, wrong
from tests.drivers import before_step, enter_reaper, redis_of
from tests.half_done import on_the_way, store_policy
from tests.lua.states import everything

SHORT = Policy.read("short", "orders", {"max_length": 5, "message_ttl": "5m"})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "PAUSE", 0)


def test_many_sound_queues_are_one_line(broker: Broker) -> None:
    for name in ("orders", "{billing}.orders", "a:b/c", "x"):
        broker.declare_queue(name).enqueue(b"x")
    broker.queue("x").receive()
    Broker(redis_of(broker), "other").declare_queue("foreign")
    for key in ("rqttlx:{orders}:log", "rqttl:{or ders}:log"):
        redis_of(broker).set(key, "not ours")

    assert of(examine(broker), "queues") == [("ok", "4 sound queues, 4 messages, 3 ready (3 B)")]
    assert of(examine(broker, ["x"]), "queues") == [("ok", "1 sound queue, 1 message, 0 ready (0 B)")]
    assert wrong(broker) == []


def test_looking_changes_nothing(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x", ttl=0)
    store_policy(broker, SHORT)
    client.sadd("rqttl:queues{rqttl}", "ghost")
    before = everything(client)

    assert len(wrong(broker)) == 2
    assert everything(client) == before


def forget(client: redis.Redis) -> None:
    client.delete("rqttl:{orders}:meta")


FAULTS: dict[str, tuple[Callable[[redis.Redis], Any], str, str, str]] = {
    "no record": (
        forget,
        "problem",
        "its record is missing, and these keys are left: log",
        "`rqttl queue declare orders`",
    ),
    "a record without a version": (
        lambda c: c.hdel("rqttl:{orders}:meta", "version"),
        "problem",
        "its record is missing, and these keys are left: meta, log",
        "`rqttl queue declare orders`",
    ),
    "not listed": (
        lambda c: c.srem("rqttl:queues{rqttl}", "orders"),
        "problem",
        "not in the registry: no reaper sweeps it, nothing lists it",
        "SADD rqttl:queues{rqttl} orders",
    ),
    "only listed": (
        lambda c: c.delete(*c.keys("rqttl:{orders}*")),
        "warning",
        "in the registry, but the queue does not exist",
        "a reaper removes it",
    ),
    "a record without a field": (
        lambda c: c.hdel("rqttl:{orders}:meta", "overflow", "lease_grants"),
        "problem",
        "its record lacks overflow, lease_grants: calls fail, or do the wrong thing",
        "restore a backup",
    ),
    **{
        f"options {text!r}": (
            lambda c, text=text: c.hset("rqttl:{orders}:meta", "options", text),  # type: ignore[misc]  # bound here
            "problem",
            "its options cannot be read: every call fails",
            "HSET rqttl:{orders}:meta options {}",
        )
        for text in ("", "[]", "{", '{"max_length": "many"}', '{"dead_letter": "orders"}')
    },
    **{
        f"{part} of another type": (
            lambda c, part=part: c.set(f"rqttl:{{orders}}:{part}", "x"),  # type: ignore[misc]  # bound here
            "problem",
            f"rqttl:{{orders}}:{part} is a string, not a {PARTS[part].type}: calls that need it fail",
            f"look at it, then DEL rqttl:{{orders}}:{part}",
        )
        for part in PARTS
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_with_its_remedy(broker: Broker, client: redis.Redis, fault: str) -> None:
    make, level, text, advice = FAULTS[fault]
    broker.declare_queue("orders").enqueue(b"x")
    broker.declare_queue("sound").enqueue(b"x")
    make(client)

    assert wrong(broker) == wrong(broker, "orders") == [("orders", level, text)]
    assert advice in next(one.advice for one in examine(broker) if one.queue == "orders")
    assert of(examine(broker), "queues") == [("ok", "1 sound queue, 1 message, 1 ready (1 B)")]
    assert wrong(broker, "sound") == []


def test_options_of_a_later_release_are_named(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    client.hset("rqttl:{orders}:meta", "options", '{"odd":1}')

    level, result, advice = only(examine(broker), "policies")
    assert (level, "odd: no such queue option" in result, "newer rqttl" in advice) == ("problem", True, True)


def test_the_trace_of_a_deleted_queue_is_no_finding(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    broker.queue("orders").delete()
    client.rpush("rqttl:{orders}:wakeup", "")

    assert wrong(broker) == []
    broker.declare_queue("other")
    with pytest.raises(QueueNotFound, match="'orders'"):
        list(examine(broker, ["other", "orders"]))


def test_the_unfinished_work_of_a_client_is_no_finding(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    client.srem("rqttl:queues{rqttl}", "orders")  # a dead letter made it, and its client enters it next
    client.sadd("rqttl:queues{rqttl}", "new")  # its client makes it next

    def finish() -> None:
        driver_of(broker).step(Register("orders"))
        broker.declare_queue("new")

    before_step(driver_of(broker), Sleep, finish)

    assert wrong(broker) == []


def test_many_queues_are_looked_at_in_pages(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "PAGE", 7)
    for i in range(50):
        broker.declare_queue(f"q{i}")
    client.srem("rqttl:queues{rqttl}", "q7")
    client.delete("rqttl:{q9}:meta")

    assert [(queue, level) for queue, level, _ in wrong(broker)] == [("q7", "problem"), ("q9", "warning")]
    assert of(examine(broker), "queues") == [("ok", "48 sound queues, 0 messages, 0 ready (0 B)")]


def test_a_user_without_the_right_to_list_keys_is_told_so(
    broker: Broker, restricted: Callable[..., redis.Redis]
) -> None:
    broker.declare_queue("orders")
    half = Broker(restricted("-scan"))

    assert [level for level, _ in of(examine(half), "queues")] == ["warning", "ok"]
    assert [level for level, _ in of(examine(half, ["orders"]), "queues")] == ["ok"]


def test_a_registry_of_another_type_is_named_with_the_way_out(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    client.delete("rqttl:queues{rqttl}")
    client.set("rqttl:queues{rqttl}", "not a set")

    assert [(queue, level) for queue, level, _ in wrong(broker)] == [(None, "problem"), ("orders", "problem")]
    finding = next(one for one in examine(broker) if one.check == "registry")
    assert "DEL rqttl:queues{rqttl}" in finding.advice


def make_late(broker: Broker, client: redis.Redis, ms: int) -> None:
    """The message in `orders` has been over for so long."""
    late = int(broker.server_time().timestamp() * 1000) - ms
    sequence = broker.queue("orders").peek()[0].sequence
    client.zadd("rqttl:{orders}:expiry", {sequence: late})
    client.hset("rqttl:{orders}:meta", "due_at", late)


@pytest.mark.parametrize("due", [0, -100, -60_000])
def test_a_due_time_that_nothing_is_behind_is_not_overdue(broker: Broker, client: redis.Redis, due: int) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x")
    queue.ack_many(queue.receive_many(1))
    client.hset("rqttl:{orders}:meta", "due_at", due and int(broker.server_time().timestamp() * 1000) + due)

    assert server(broker, "reaper") == ("ok", "no reaper runs; nothing is overdue", "")


def test_overdue_work_says_that_no_reaper_runs(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("later").enqueue(b"x", ttl="1h")
    broker.declare_queue("orders").enqueue(b"x", ttl="1h")
    assert server(broker, "reaper") == ("ok", "no reaper runs; nothing is overdue", "")

    make_late(broker, client, queues.OVERDUE + 3_000)

    level, found, advice = server(broker, "reaper")
    assert (level, found.partition(" by up to ")[0]) == ("warning", "no reaper runs; overdue")
    assert found.endswith("s: orders")
    assert "`rqttl reaper`" in advice


@pytest.mark.parametrize("seconds, is_told", [(10, False), (90, True)])
def test_arrivals_that_nobody_swept_are_overdue_and_those_held_back_for_a_minute_a_finding(
    clocked: Clocked, seconds: int, is_told: bool
) -> None:
    queue = clocked.declare_queue("orders", max_length=1, overflow="reject-publish")
    queue.enqueue_many([b"x", Message(b"late", delay="1s")])
    clocked.advance((1 + seconds) * 1000)
    level, overdue, _ = server(clocked, "reaper")
    assert (level, overdue.partition(" by up to ")[0], overdue[-6:]) == ("warning", "no reaper runs; overdue", "orders")
    queue.sweep()

    found = [(name, level, text.partition(", the first")[0]) for name, level, text in wrong(clocked)]

    assert found == [("orders", "warning", "full: it holds scheduled messages back")] * is_told
    assert server(clocked, "reaper") == ("ok", "no reaper runs; nothing is overdue", "")
    assert queue.stats(sweep=False).overdue == timedelta(0)


@pytest.mark.parametrize("part", ["scheduled", "upcoming"])
def test_halves_of_scheduled_messages_are_a_problem(broker: Broker, client: redis.Redis, part: str) -> None:
    queue = broker.declare_queue("orders")
    receipts = queue.enqueue_many([Message(b"x", delay="1h"), Message(b"y", delay="2h")])
    assert wrong(broker) == []
    client.delete(f"rqttl:{{orders}}:{part}")
    numbers = "2 due times, 0 contents" if part == "upcoming" else "0 due times, 2 contents"

    assert wrong(broker) == [("orders", "problem", f"scheduled messages are in halves: {numbers}")]
    if part == "scheduled":  # the way out that the advice names
        assert [queue.cancel(receipt.id) for receipt in receipts if isinstance(receipt, Receipt)] == [1, 1]
        assert wrong(broker) == []


def test_reapers_are_counted(broker: Broker, client: redis.Redis, restricted: Callable[..., redis.Redis]) -> None:
    broker.declare_queue("orders").enqueue(b"x", ttl="1h")
    enter_reaper(broker)

    assert server(broker, "reaper")[1] == "1 reaper runs; nothing is overdue"
    make_late(broker, client, 60_000)
    level, found, advice = server(broker, "reaper")
    assert (level, found.split(";")[0]) == ("warning", "1 reaper runs")
    assert "its log" in advice
    found = server(Broker(restricted("-hgetall")), "reaper")[1]
    assert found.startswith("it cannot be seen whether a reaper runs; ")


def test_policies_are_counted(broker: Broker) -> None:
    broker.declare_queue("orders")
    assert of(examine(broker), "policies") == []

    broker.set_policy("short", "#", {"max_length": 5})
    broker.set_policy("cap", "#", {"max_length": 4}, operator=True)

    assert wrong(broker) == []
    assert of(examine(broker), "policies") == [("ok", "2 stored, 1 queue up to date")]


def test_a_queue_that_holds_its_messages_back_for_long_is_a_warning(clocked: Clocked) -> None:
    for name, options in {"frozen": {"paused": True}, "slow": {"rate": "1/1h"}, "idle": {"rate": "1/1h"}}.items():
        clocked.declare_queue(name, **options).enqueue_many([b"1", b"2"])  # type: ignore[arg-type]  # as named
    clocked.advance("59m")
    clocked.queue("slow").receive_many(2)
    assert wrong(clocked) == []

    clocked.advance("1381m")
    clocked.queue("slow").receive_many(2)

    assert wrong(clocked) == [
        ("frozen", "warning", "paused, and its oldest message waits for 1d"),
        ("slow", "warning", "its rate is below its arrivals: its oldest message waits for 1d"),
    ]


def test_a_queue_with_the_options_of_older_policies_is_a_problem(broker: Broker) -> None:
    broker.declare_queue("orders")
    broker.declare_queue("other")
    store_policy(broker, SHORT)

    text = (
        "its options in force do not follow its declared options and policies: message_ttl is not set in force, "
        "should be 5m; max_length is not set in force, should be 5"
    )
    assert wrong(broker) == [("orders", "problem", text)]
    assert wrong(broker, "other") == []
    Broker(redis_of(broker)).reconcile()
    assert wrong(broker) == []


def test_a_change_that_ends_meanwhile_is_no_finding(broker: Broker) -> None:
    broker.declare_queue("orders")
    store_policy(broker, SHORT)
    other = Broker(redis_of(broker))
    before_step(driver_of(broker), Sleep, other.reconcile)

    assert wrong(broker) == []


@pytest.mark.parametrize("value", ["{", '{"pattern": "#"}', ""])
def test_a_policy_that_cannot_be_read_is_a_problem(broker: Broker, client: redis.Redis, value: str) -> None:
    broker.declare_queue("orders")
    broker.set_policy("sound", "orders", {"max_deliveries": 3})
    client.hset("rqttl:policies{rqttl}", "policy short", value)

    level, result, advice = only(examine(broker), "policies")
    assert (level, "policy short" in result, "HGETALL rqttl:policies{rqttl}" in advice) == ("problem", True, True)
    client.delete("rqttl:policies{rqttl}")
    client.set("rqttl:policies{rqttl}", "of another type")
    level, result, _ = server(broker, "policies")
    assert (level, "rqttl:policies{rqttl}" in result) == ("problem", True)


@pytest.mark.parametrize("deleted", [False, True])
def test_letters_that_wait_for_a_queue_in_another_slot_are_told_by_pair(
    broker: Broker, client: redis.Redis, deleted: bool
) -> None:
    with on_the_way(client, 2) as far:
        if deleted:
            far.queue("orders").delete()
    client.set("rqttl:{orders}:sender>other", "1 x")
    assert wrong(broker) == []

    now = int(broker.server_time().timestamp() * 1000)
    client.delete("rqttl:{orders}:outbox>dead")
    client.xadd("rqttl:{orders}:outbox>dead", {"header": "body"}, id=f"{now - 60_500}-0")
    client.hset("rqttl:{orders}:outgoing", "redrive>other", f"1200 1 x {now}-0 {now - 46_500} 8000")
    client.xadd("rqttl:{orders}:redrive>other", {"header": "body"}, id=f"{now - 9_999_999}-0")

    found = [(name, level, re.sub(r" \ds$", "", text)) for name, level, text in wrong(broker)]
    assert found == [
        ("orders", "warning", "2 dead letters on the way to dead, the oldest for 1m"),
        ("orders", "warning", "1,200 dead letters on the way to other, the oldest for 1m"),
    ]


@pytest.mark.parametrize("depths, found", [((9_000, 999), []), ((7_000, 3_000), []), ((9_000, 1_000), ["A has 9"])])
def test_a_node_that_has_most_of_the_messages_is_named(depths: tuple[int, int], found: list[str]) -> None:
    looks: Any = {name: SimpleNamespace(depth=depth) for name, depth in zip("ab", depths, strict=True)}
    findings = queues.check_spread(queues.Queues(looks=looks), {"a": "A", "b": "B"})

    assert [one.result[:7] for one in findings] == found
