"""Policies: they act on queues and their messages at once, leave no trace when they go, and fail no declaration."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from rqttl import Broker, Message, Policy, PolicyNotFound, QueueFull, QueueMismatch, QueueOptions
from rqttl.flows import queues, steps
from rqttl.flows.steps import Step, drive
from rqttl.protocol.commands import Command
from rqttl.store.driver import RedisDriver, driver_of
from rqttl.types import PolicyResult
from tests.contract.clocked import Clocked
from tests.drivers import before_step, redis_of
from tests.half_done import store_policy
from tests.lua.states import everything

META = "rqttl:{orders}:meta"
#: Fields of a record that change with each change of its options.
MOVING = {b"version", b"policies", b"due_at"}


def record(client: redis.Redis) -> dict[bytes, bytes]:
    fields: Any = client.hgetall(META)
    return {name: value for name, value in fields.items() if name not in MOVING}


@pytest.mark.spec("POL-11", "A-083", "W5", "QTL-14")
def test_a_shorter_retention_ends_messages_that_wait(clocked: Clocked) -> None:
    queue = clocked.declare_queue("orders", dead_letter_expired="dead")
    for _ in range(10):
        queue.enqueue(b"x")
        clocked.advance("1m")

    result = clocked.set_policy("short", "orders", {"message_ttl": "5m"})

    assert (result.expired, result.trimmed, result.unfinished) == (6, 0, ())
    assert result.changed == {"orders": {"message_ttl": (None, 300_000)}}
    assert queue.stats(sweep=False).ready == 4
    assert clocked.queue("dead").stats().ready == 6
    assert clocked.preview_policy(Policy.read("short", "orders", {"message_ttl": "5m"})).changed == {}


def test_messages_that_are_overdue_are_no_effect_of_a_policy(clocked: Clocked) -> None:
    queue = clocked.declare_queue("orders")
    queue.enqueue(b"overdue", ttl="1s")
    queue.enqueue(b"fresh")
    clocked.advance(1000)

    result = clocked.set_policy("p", "orders", {"message_ttl": "1h"})

    assert (result.expired, result.trimmed) == (0, 0)
    assert queue.stats().deaths["expired"] == 1


@pytest.mark.spec("POL-11", "LEN-25")
def test_a_lower_limit_trims_messages_that_wait(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue_many([b"%d" % i for i in range(10)])
    policy = Policy.read("small", "#", {"max_length": 4})

    preview = broker.preview_policy(policy)
    assert queue.stats().ready == 10
    result = broker.set_policy("small", "#", {"max_length": 4})

    assert preview == result
    assert (result.expired, result.trimmed) == (0, 6)
    assert [view.body for view in queue.peek()] == [b"6", b"7", b"8", b"9"]


def test_another_overflow_trims_a_queue_that_is_over_its_limit(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue_many([b"x"] * 10)
    broker.set_policy("refuse", "#", {"overflow": "reject-publish"}, operator=True)
    kept = broker.set_policy("small", "#", {"max_length": 4})
    [refuse] = broker.policies(operator=True)

    preview = broker.preview_policy(refuse, delete=True)
    result = broker.delete_policy("refuse", operator=True)

    assert (kept.trimmed, preview.trimmed, result.trimmed, queue.stats(sweep=False).ready) == (0, 6, 6, 4)


@pytest.mark.spec("W21", "POL-15")
def test_a_raised_limit_lets_publishers_in_again(broker: Broker) -> None:
    queue = broker.declare_queue("orders", overflow="reject-publish")
    broker.set_policy("limit", "orders", {"max_length": 2})
    queue.enqueue_many([b"x"] * 2)
    with pytest.raises(QueueFull):
        queue.enqueue(b"x")

    broker.set_policy("limit", "orders", {"max_length": 3})
    queue.enqueue(b"x")
    with pytest.raises(QueueFull):
        queue.enqueue(b"x")

    broker.delete_policy("limit")
    queue.enqueue(b"x")
    assert queue.stats().ready == 4


@pytest.mark.spec("POL-15", "W21")
@pytest.mark.parametrize("operator", [False, True])
def test_a_deleted_policy_leaves_no_trace(broker: Broker, client: redis.Redis, operator: bool) -> None:
    broker.declare_queue("orders", max_length=50)
    before = record(client)
    definition = {
        **dict.fromkeys(("message_ttl", "default_ttl", "min_ttl", "max_ttl", "redelivery_delay"), "5m"),
        **dict.fromkeys(("max_length", "max_length_bytes", "max_deliveries"), 5),
        "never_expire": True,
        "overflow": "reject-publish-dlx",
    }

    broker.set_policy("p", "orders", definition, operator=operator)
    with_policy = record(client)
    broker.delete_policy("p", operator=operator)
    assert record(client) == before
    broker.set_policy("p", "orders", definition, operator=operator)

    assert record(client) == with_policy != before


@pytest.mark.spec("POL-16")
def test_a_change_of_a_policy_reaches_leased_messages(broker: Broker) -> None:
    queue = broker.declare_queue("orders", dead_letter_delivery_limit="dead")
    queue.enqueue(b"x")
    first = queue.receive_many(1)

    broker.set_policy("once", "orders", {"max_deliveries": 1})
    queue.nack_many(first)

    assert broker.queue("dead").stats().ready == 1


def test_a_policy_that_is_set_again_changes_nothing(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    broker.set_policy("p", "orders", {"max_length": 5})
    before = everything(client)

    assert broker.set_policy("p", "orders", {"max_length": 5}).changed == {}
    assert everything(client) == before


@pytest.mark.parametrize("operator", [False, True])
def test_a_policy_that_does_not_exist_cannot_be_deleted(broker: Broker, client: redis.Redis, operator: bool) -> None:
    broker.set_policy("q", "#", {"max_length": 5})
    before = everything(client)

    with pytest.raises(PolicyNotFound, match="policy 'p' does not exist"):
        broker.delete_policy("p", operator=operator)

    assert everything(client) == before


@pytest.mark.spec("POL-18")
def test_policies_of_a_namespace_act_there_only(broker: Broker, client: redis.Redis) -> None:
    other = Broker(client, "other")
    queue = other.declare_queue("orders")

    broker.set_policy("p", "#", {"max_length": 5})

    assert other.policies() == []
    assert queue.options()["max_length"] is None


@pytest.mark.spec("POL-01")
def test_policies_are_listed_as_they_were_set(broker: Broker) -> None:
    broker.set_policy("b", "#", {"message-ttl": "5m", "max_length": None}, priority=-3)
    broker.set_policy("a", "orders", {"lease": "1m"}, syntax="regex")
    broker.set_policy("a", "#", {"max_length": 9}, operator=True)

    assert [(one.name, one.operator) for one in broker.policies()] == [("a", False), ("b", False)]
    assert broker.policies(operator=True) == [Policy.read("a", "#", {"max_length": 9}, operator=True)]
    assert broker.policies()[1] == Policy.read("b", "#", {"message_ttl": "5m", "max_length": "none"}, priority=-3)


def test_reconcile_finishes_the_change_of_a_client_that_died(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue_many([b"x"] * 5)
    store_policy(broker, Policy.read("p", "orders", {"max_length": 2}))

    result = broker.reconcile()

    assert result.changed == {"orders": {"max_length": (None, 2)}}
    assert result.trimmed == 3
    assert broker.reconcile() == PolicyResult({})


CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"message_ttl": "5m"}, {"message_ttl": "1m"}, {}, {"message_ttl": 60_000}),
    ({"message_ttl": "1m"}, {"message_ttl": "5m"}, {}, {"message_ttl": 60_000}),
    ({"expires": "10m"}, {"expires": "1m"}, {}, {"expires": 60_000}),
    ({"max_length": 9}, {"max_length": 8}, {"max_length": 7}, {"max_length": 7}),
    ({"max_length": 1}, {"max_length": 2}, {}, {"max_length": 1}),
    ({"lease": "1m"}, {"lease": "2m"}, {}, {"lease": 60_000}),
    ({"overflow": "reject-publish"}, {"overflow": "reject-publish-dlx"}, {}, {"overflow": "reject-publish"}),
    ({"overflow": "reject-publish"}, {}, {"overflow": "reject-publish-dlx"}, {"overflow": "reject-publish-dlx"}),
    ({"dead_letter": "own"}, {"dead_letter": "theirs"}, {}, {"dead_letter": "own"}),
    ({}, {"dead_letter": "theirs"}, {"dead_letter": "last"}, {"dead_letter": "last"}),
]


@pytest.mark.spec("POL-14", "OPP-03", "OPP-05", "OPP-08", "QTL-14", "TTL-32", "LEN-28", "DLX-28", "W26")
@pytest.mark.parametrize("declared, policy, operator, expected", CASES)
def test_declared_options_and_policies_merge_and_the_declared_ones_outlive_them(
    broker: Broker, declared: dict[str, Any], policy: dict[str, Any], operator: dict[str, Any], expected: dict[str, Any]
) -> None:
    queue = broker.declare_queue("orders", **declared)
    if policy:
        broker.set_policy("p", "#", policy)
    if operator:
        broker.set_policy("o", "#", operator, operator=True)

    assert {name: queue.options()[name] for name in expected} == expected
    assert queue.options(declared=True).as_arguments() == declared
    explanation = queue.explain()
    assert {name: explanation[name].value for name in expected} == expected
    assert explanation.outdated == {}
    if policy:
        broker.delete_policy("p")
    if operator:
        broker.delete_policy("o", operator=True)
    assert queue.options().as_arguments() == declared


POLICY = {"max_length": 5, "message_ttl": "5m", "overflow": "reject-publish", "dead_letter": "dead"}


@pytest.mark.spec("POL-17", "DEC-01")
@pytest.mark.parametrize("first", ["declaration", "policy"])
def test_a_policy_makes_no_declaration_fail(broker: Broker, first: str) -> None:
    if first == "declaration":
        broker.declare_queue("orders", max_length=10)
    broker.set_policy("p", "#", POLICY)
    if first == "policy":
        broker.declare_queue("orders", max_length=10)

    for client in (broker, broker):
        assert client.declare_queue("orders", max_length=10).declared == "existing"
    with pytest.raises(QueueMismatch, match="max_length: requested 5, declared 10"):
        broker.declare_queue("orders", max_length=5)  # what is in force
    broker.delete_policy("p")
    assert broker.declare_queue("orders", max_length=10).options().as_arguments() == {"max_length": 10}


def test_a_declaration_applies_policies_that_a_dead_client_left(broker: Broker) -> None:
    broker.declare_queue("orders")
    store_policy(broker, Policy.read("p", "#", {"max_length": 5}))

    queue = broker.declare_queue("orders")

    assert queue.options()["max_length"] == 5


@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_the_lifetime_that_a_policy_gives_starts_with_the_policy(clocked: Clocked, option: str) -> None:
    clocked.declare_queue("orders")
    clocked.advance("1h")

    clocked.set_policy("p", "orders", {option: "10m"})

    clocked.advance("599s")
    assert clocked.queues() == ["orders"]
    clocked.advance("2s")
    assert clocked.queues() == []


def test_a_change_of_other_options_is_no_use_of_a_queue(clocked: Clocked) -> None:
    clocked.declare_queue("orders", expires="10m")
    clocked.advance("9m")

    clocked.set_policy("p", "orders", {"max_length": 10})
    clocked.reconcile()

    clocked.advance("61s")
    assert clocked.queues() == []


@pytest.mark.parametrize("known", ["a missing queue", "an existing queue"])
def test_a_declaration_with_an_old_set_of_policies_ends_with_the_new_one(broker: Broker, known: str) -> None:
    broker.set_policy("p", "#", {"max_length": 5})
    if known == "an existing queue":
        broker.declare_queue("orders")
    driver, changes = driver_of(broker), [7]

    def perform(step: Step) -> object:
        if isinstance(step, Command) and step.script.name == "declare" and changes:
            broker.set_policy("p", "#", {"max_length": changes.pop()})  # after the flow has read the set
        return driver.step(step)

    drive(queues.declare(driver.keyspace, QueueOptions.read("orders", {})), perform)

    assert changes == []
    assert broker.queue("orders").options()["max_length"] == 7
    assert broker.reconcile().changed == {}


@pytest.fixture
def expiring(clocked: Clocked) -> Clocked:
    """One policy gives each queue an expiry queue, another configures those."""
    clocked.set_policy("expiry", "#", {"dead-letter-expired": "EXP.{queue}"})
    clocked.set_policy("retired", "EXP.#", {"auto-delete-on-idle": "10m", "message-ttl": "1h", "lease": "2m"})
    return clocked


@pytest.mark.spec("POL-12", "A-083", "A-045", "A-053", "C-20")
def test_a_queue_that_a_dead_letter_creates_has_its_options_at_once(expiring: Clocked) -> None:
    queue = expiring.declare_queue("orders")
    assert expiring.queues() == ["orders"]

    queue.enqueue(b"x", ttl=0)

    assert expiring.queues() == ["EXP.orders", "orders"]
    born = expiring.queue("EXP.orders")
    assert born.options().as_arguments() == {"auto_delete_on_idle": "10m", "message_ttl": "1h", "lease": "2m"}
    assert born.options(declared=True).as_arguments() == {}
    assert expiring.reconcile().changed == {}


@pytest.mark.spec("A-052", "C-21")
@pytest.mark.parametrize("lifetime", ["expires", "auto_delete_on_idle"])
def test_an_expiry_queue_is_born_drained_retired_and_born_again(clocked: Clocked, lifetime: str) -> None:
    clocked.set_policy("expiry", "#", {"dead-letter-expired": "EXP.{queue}"})
    retired = {lifetime: "10m", "message_ttl": "1h", "lease": "2m"}
    clocked.set_policy("retired", "EXP.#", retired)
    queue = clocked.declare_queue("orders")

    for _ in range(2):
        queue.enqueue(b"x", ttl=0)
        born = clocked.queue("EXP.orders")
        assert born.options().as_arguments() == retired
        assert clocked.reconcile().changed == {}
        [letter] = born.receive_many(1)
        letter.ack()
        clocked.advance("9m")
        assert clocked.queues() == ["EXP.orders", "orders"]
        clocked.advance("61s")
        assert clocked.queues() == ["orders"]

    queue.enqueue(b"x", ttl=0)
    clocked.advance("9m")
    assert clocked.queue("EXP.orders").stats(sweep=False).ready == 1


@pytest.mark.spec("A-050", "C-20")
def test_each_queue_has_its_own_letters_in_its_expiry_queue(expiring: Clocked) -> None:
    names = [f"orders.{region}" for region in ("at", "be", "ch", "de", "ee")]
    for name in names:
        queue = expiring.declare_queue(name)
        queue.enqueue_many([Message(b"%s %d" % (name.encode(), i), ttl="1s") for i in range(5)])
    expiring.advance("1s")
    for name in names:
        expiring.queue(name).sweep()

    for name in names:
        letters = expiring.queue(f"EXP.{name}").peek()
        assert [letter.body for letter in letters] == [b"%s %d" % (name.encode(), i) for i in range(5)]
        assert {letter.deaths[0].queue for letter in letters} == {name}
    assert len(expiring.queues()) == 10


@pytest.mark.spec("C-12", "A-029", "A-030")
def test_the_target_of_an_exact_name_beats_that_of_a_wildcard(broker: Broker) -> None:
    broker.set_policy("all", "#", {"dead-letter-expired": "EXP.all"})
    broker.set_policy("words", "orders.*", {"dead-letter-expired": "EXP.words"})
    broker.set_policy("one", "orders.eu", {"dead-letter-expired": "EXP.one"})

    for name, target in (("orders.eu", "EXP.one"), ("orders.us", "EXP.words"), ("mails", "EXP.all")):
        broker.declare_queue(name).enqueue(b"x", ttl=0)
        assert [letter.deaths[0].queue for letter in broker.queue(target).peek()] == [name]


@pytest.mark.spec("A-049")
def test_an_expiry_queue_gets_no_expiry_queue_of_its_own(expiring: Clocked) -> None:
    expiring.declare_queue("orders").enqueue(b"x", ttl=0)
    born = expiring.queue("EXP.orders")

    born.enqueue(b"y", ttl=0)

    assert (born.stats().ready, born.stats().dropped["expired"]) == (1, 1)

    assert not [name for name in expiring.queues() if name.startswith("EXP.EXP")]
    explained = born.explain()["dead_letter_expired"]
    assert explained.value is None
    assert "EXP.{queue}" in explained.note


@pytest.fixture
def other(broker: Broker) -> Broker:
    """A broker with caches of its own, on the same server."""
    return Broker(redis_of(broker))


@contextmanager
def within_a_read(driver: RedisDriver, action: Callable[[], object]) -> Iterator[None]:
    """Do something once, between the commands of one round trip. Redis may serve other clients there."""
    step, actions = driver.step, [action]

    def carry_out(one: steps.Step) -> object:
        if not isinstance(one, steps.Read) or not one.then or not actions:
            return step(one)
        replies = step(steps.Read(one.calls))
        actions.pop()()
        return [*replies, *step(steps.Read(one.then))]

    driver.step = carry_out  # type: ignore[method-assign, assignment]
    yield
    driver.step = step  # type: ignore[method-assign]


def test_a_slow_client_puts_no_older_policies_in_force_again(broker: Broker, other: Broker) -> None:
    broker.set_policy("p", "orders", {"max_length": 5})
    queue = broker.declare_queue("orders")
    broker.reconcile()  # the broker remembers these policies

    with within_a_read(driver_of(broker), lambda: other.set_policy("p", "orders", {"max_length": 7})):
        broker.reconcile()

    assert queue.options()["max_length"] == 7
    assert broker.reconcile().changed == {}


def test_a_queue_that_returns_to_the_registry_gets_the_policies_that_missed_it(broker: Broker, other: Broker) -> None:
    """One client deletes a queue and removes its name late, when another client has already created it again."""
    driver = driver_of(broker)
    queue = broker.declare_queue("orders")

    def create_again() -> None:
        other.declare_queue("orders")
        exists = steps.Write([("EXISTS", driver.keyspace.key("orders", "meta"))])
        before_step(driver, exists, lambda: other.set_policy("p", "#", {"max_length": 7}))

    before_step(driver, steps.Write([("SREM", driver.keyspace.registry, "orders")]), create_again)
    queue.delete()

    assert other.queues() == ["orders"]
    assert other.queue("orders").options()["max_length"] == 7
    assert other.reconcile().changed == {}


def test_a_declaration_that_lists_an_existing_queue_gives_it_the_policies_that_missed_it(
    broker: Broker, other: Broker, client: redis.Redis
) -> None:
    driver = driver_of(broker)
    broker.declare_queue("orders")
    client.srem("rqttl:queues{rqttl}", "orders")

    before_step(driver, steps.Register("orders"), lambda: other.set_policy("p", "#", {"max_length": 7}))
    broker.declare_queue("orders")

    assert other.queue("orders").options()["max_length"] == 7
    assert other.reconcile().changed == {}


def test_an_adoption_puts_no_older_policies_in_force_for_a_moment(broker: Broker, other: Broker) -> None:
    broker.set_policy("p", "dead", {"max_length": 1})
    broker.declare_queue("orders", dead_letter="dead").enqueue(b"x", ttl=0)
    broker.reconcile()  # the broker remembers these policies

    def lift_limit() -> None:
        other.delete_policy("p")
        other.queue("dead").enqueue_many([b"x"] * 5)

    before_step(driver_of(broker), Command, lift_limit)
    queue = broker.declare_queue("dead", lease="1m")

    assert (queue.declared, queue.stats().ready) == ("adopted", 6)
    assert queue.options().as_arguments() == {"lease": "1m"}
    assert other.reconcile().changed == {}


@pytest.mark.parametrize("change", ["policy", "update"])
def test_a_dead_letter_queue_that_nobody_entered_is_listed_before_its_name_is_forgotten(
    broker: Broker, client: redis.Redis, change: str
) -> None:
    """The client that created it died, and no reaper has looked since."""
    broker.set_policy("all", "dead", {"max_length": 7})
    queue = broker.declare_queue("orders", dead_letter="dead" if change == "update" else None)
    if change == "policy":
        broker.set_policy("p", "orders", {"dead_letter": "dead"})
    before_step(driver_of(broker), steps.HandleNotes([b"created", b"dead"]), lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        queue.enqueue(b"x", ttl=0)
    assert broker.queues() == ["orders"]

    if change == "policy":
        broker.delete_policy("p")
    else:
        queue.update(dead_letter=None)

    assert broker.queues() == ["dead", "orders"]
    assert broker.queue("dead").options()["max_length"] == 7


def test_policies_that_redis_lost_are_not_taken_for_those_of_the_next_change(
    broker: Broker, other: Broker, client: redis.Redis
) -> None:
    """FLUSHALL, or a failover to a replica that lags behind: one client knows policies that nobody has stored."""
    broker.set_policy("p", "orders", {"max_length": 1})
    broker.declare_queue("orders")
    client.flushall()
    other.set_policy("p", "orders", {"max_length": 9})

    queue = broker.declare_queue("orders")

    assert queue.options()["max_length"] == 9
    assert other.reconcile().changed == {}
