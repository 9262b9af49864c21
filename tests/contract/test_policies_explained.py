"""What users are told of policies: where each option comes from, warnings, refusals, missing rights, and damage."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from rqttl import Broker, DataDamaged, Policy, QueueNotFound
from rqttl.options import OPTIONS
from rqttl.reaper import Reaper
from tests.contract.clocked import Clocked
from tests.half_done import store_policy
from tests.lua.states import everything


@pytest.mark.spec("C-48", "W17")
def test_each_option_has_its_source_and_the_values_that_lost(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("orders", max_length=50, lease="1m")
    broker.set_policy("low", "#", {"max_length": 100, "message_ttl": "1h", "lease": "2m"}, priority=-1)
    broker.set_policy("high", "orders", {"message_ttl": "10m"})
    broker.set_policy("cap", "#", {"max_length": 20}, operator=True)
    before = everything(client)

    explanation = queue.explain()

    assert everything(client) == before
    assert list(explanation) == list(OPTIONS)
    assert {name: one.source for name, one in explanation.items() if one.source != "default"} == {
        "max_length": "operator policy cap",
        "message_ttl": "policy high",
        "lease": "declared",
    }
    lost = {name: [(other.value, other.source) for other in one.lost] for name, one in explanation.items() if one.lost}
    assert lost["message_ttl"] == [(3_600_000, "policy low")]
    assert set(lost["max_length"]) == {(50, "declared"), (100, "policy low")}
    assert [policy.name for policy in explanation.policies] == ["high", "low"]
    assert {name: one.value for name, one in explanation.items()} == dict(queue.options())


@pytest.mark.spec("C-48")
def test_a_name_is_explained_without_a_queue(broker: Broker, client: redis.Redis) -> None:
    broker.set_policy("p", "orders.#", {"max_length": 5})
    before = everything(client)

    explanation = broker.explain("orders.new")

    assert (explanation["max_length"].value, explanation["max_length"].source) == (5, "policy p")
    assert (explanation.exists, everything(client)) == (False, before)
    with pytest.raises(QueueNotFound):
        broker.queue("orders.new").explain()


def test_options_that_are_not_in_force_yet_are_named(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    store_policy(broker, Policy.read("p", "orders", {"max_length": 5}))

    assert queue.explain().outdated == {"max_length": None}
    broker.reconcile()
    assert queue.explain().outdated == {}


TTLS: list[tuple[dict[str, Any], str | int | None]] = [
    ({}, None),
    ({}, "5s"),
    ({"message_ttl": "1m"}, None),
    ({"message_ttl": "1m"}, "5s"),
    ({"message_ttl": "1m"}, "5m"),
    ({"default_ttl": "2m"}, None),
    ({"default_ttl": "2m"}, "5m"),
    ({"min_ttl": "1m"}, "5s"),
    ({"max_ttl": "1m"}, "5m"),
    ({"max_ttl": "1m"}, None),
    ({"never_expire": True}, "5s"),
    ({"never_expire": True, "message_ttl": "1m"}, "5s"),
    ({"min_ttl": "10s", "max_ttl": "1m", "message_ttl": "30s"}, "5m"),
    ({"min_ttl": "1m"}, None),
    ({}, 0),
]


@pytest.mark.spec("C-48")
@pytest.mark.parametrize("options, ttl", TTLS)
def test_the_explained_deadline_is_the_deadline_of_the_message(
    clocked: Clocked, options: dict[str, Any], ttl: Any
) -> None:
    if options:
        clocked.set_policy("p", "orders", options)
    queue = clocked.declare_queue("orders")

    explained = queue.explain(ttl).message.ttl
    queue.enqueue(b"x", ttl=ttl)

    views = queue.peek()
    if explained == 0:
        assert views == []
    else:
        [view] = views
        expected = None if explained is None else view.enqueued_at + timedelta(milliseconds=explained)
        assert view.expires_at == expected


DEATHLY: list[dict[str, Any]] = [
    {"message_ttl": "1h"},
    {"expires": "1h"},
    {"auto_delete_on_idle": "1h"},
    {"max_length": 5},
]


def warnings(broker: Broker, pattern: str, operator: bool = False, **definition: Any) -> list[str]:
    return broker.check_policy(Policy.read("p", pattern, definition, operator=operator))


@pytest.mark.parametrize("definition", DEATHLY, ids=lambda definition: next(iter(definition)))
@pytest.mark.parametrize("operator", [False, True], ids=["policy", "operator policy"])
def test_a_policy_that_lets_dead_letters_disappear_warns(
    broker: Broker, definition: dict[str, Any], operator: bool
) -> None:
    broker.declare_queue("orders", dead_letter="{queue}/dead").enqueue(b"x", ttl=0)
    broker.declare_queue("mails")
    kind = "operator policy" if operator else "policy"

    assert warnings(broker, "#", operator, **definition) == [
        f"{kind} p: {next(iter(definition))} lets dead letters in orders/dead disappear"
    ]
    assert warnings(broker, "mails", operator, **definition) == []


@pytest.mark.parametrize(
    "definition",
    [
        {"message_ttl": "1h", "dead_letter": "older"},
        {"expires": "1h", "on_expire": "keep"},
        {"auto_delete_on_idle": "1h", "on_expire": "dead-letter"},
        {"max_length": 5, "overflow": "reject-publish"},
    ],
)
def test_a_policy_under_which_letters_stay_or_move_on_does_not_warn(broker: Broker, definition: dict[str, Any]) -> None:
    broker.declare_queue("orders", dead_letter="dead").enqueue(b"x", ttl=0)

    assert warnings(broker, "dead", **definition) == []


def test_a_policy_that_matches_its_own_target_warns_and_that_queue_gets_none(broker: Broker) -> None:
    broker.declare_queue("orders")
    broker.declare_queue("dead")

    [warning] = warnings(broker, "#", dead_letter="dead")
    broker.set_policy("p", "#", {"dead_letter": "dead"})

    assert warning == "policy p also matches its dead-letter queue dead; it sets no dead_letter there"
    assert broker.queue("orders").options()["dead_letter"] == "dead"
    assert broker.queue("dead").explain()["dead_letter"].value is None


def test_a_policy_that_no_queue_matches_warns(broker: Broker) -> None:
    broker.declare_queue("orders")

    assert warnings(broker, "order", lease="1m") == ["policy p: no queue matches 'order'"]
    assert warnings(broker, "orders", lease="1m") == []


@pytest.mark.spec("W18", "POL-08")
def test_two_policies_that_differ_in_their_names_only_warn_and_the_first_name_decides(broker: Broker) -> None:
    broker.declare_queue("orders")
    broker.set_policy("a", "orders", {"lease": "5m", "max_length": 3})

    [warning] = warnings(broker, "orders", lease="1m", max_deliveries=2)
    broker.set_policy("p", "orders", {"lease": "1m"})

    assert warning == "policy p: a has the same pattern and priority and gives lease, too; a comes first by its name"
    assert broker.queue("orders").options()["lease"] == 300_000
    assert warnings(broker, "orders", max_deliveries=2) == []
    assert warnings(broker, "orders", operator=True, lease="1m") == []


@pytest.mark.spec("W19")
def test_a_pattern_without_wildcards_matches_one_queue_and_a_preview_names_all(broker: Broker) -> None:
    for name in ("orders", "orders2", "my.orders", "ordersXeu", "orders.eu"):
        broker.declare_queue(name)

    def matched(pattern: str, **arguments: Any) -> list[str]:
        return sorted(broker.preview_policy(Policy.read("p", pattern, {"lease": "1m"}, **arguments)).changed)

    assert matched("orders") == ["orders"]
    assert matched("orders.eu") == ["orders.eu"]
    assert matched("orders.eu", syntax="regex") == ["orders.eu", "ordersXeu"]
    assert matched("orders", syntax="regex") == broker.queues()


#: The commands of a user who may only read.
READS = ["+@connection", "+time", "+smembers", "+sscan", "+sismember", "+hget", "+hgetall", "+hmget"]


@pytest.fixture
def may_set_policies(client: redis.Redis) -> list[str]:
    """The rules of a user who writes the policies and no queue."""
    reading = "~rqttl:queues{rqttl}" if client.info("server")["redis_version"].startswith("6.") else "%R~rqttl:*"
    return ["~rqttl:policies{rqttl}", reading, *READS, "+evalsha", "+script|load", "+hset", "+hdel"]


@pytest.mark.spec("POL-19")
def test_policies_of_a_user_who_may_change_no_queue_are_put_in_force_by_a_reaper(
    broker: Broker, user: Callable[..., Broker], may_set_policies: list[str]
) -> None:
    broker.declare_queue("orders").enqueue_many([b"x"] * 3)
    broker.declare_queue("mails")
    operator = user(*may_set_policies)

    result = operator.set_policy("p", "orders", {"max_length": 2})

    assert (result.changed, result.denied) == ({}, ("orders",))
    assert broker.queue("orders").options()["max_length"] is None
    with pytest.raises(redis.exceptions.NoPermissionError):
        operator.declare_queue("mails", lease="1m")
    Reaper(broker).run_once()
    assert broker.queue("orders").options()["max_length"] == 2
    assert broker.queue("orders").stats(sweep=False).ready == 2
    assert operator.set_policy("p", "nothing", {"max_length": 2}, operator=True).denied == ()
    assert operator.delete_policy("p").denied == ("orders",)


@pytest.mark.spec("OPP-10", "POL-19")
@pytest.mark.parametrize("operator", [False, True])
def test_a_user_without_the_right_to_write_policies_changes_none(
    broker: Broker, client: redis.Redis, user: Callable[..., Broker], operator: bool
) -> None:
    broker.declare_queue("orders")
    broker.set_policy("p", "#", {"lease": "1m"}, operator=operator)
    before = everything(client)
    worker = user("~rqttl:{*", "~rqttl:queues{rqttl}", "&*", "+@all", "-@dangerous")

    with pytest.raises(redis.exceptions.NoPermissionError):
        worker.set_policy("p", "#", {"lease": "2m"}, operator=operator)
    with pytest.raises(redis.exceptions.NoPermissionError):
        worker.delete_policy("p", operator=operator)

    assert everything(client) == before


@pytest.mark.spec("POL-19")
def test_a_user_who_may_only_read_lists_and_explains_policies(broker: Broker, user: Callable[..., Broker]) -> None:
    broker.declare_queue("orders")
    broker.set_policy("p", "#", {"lease": "1m"})
    reader = user("~rqttl:*", *READS)

    assert [policy.name for policy in reader.policies()] == ["p"]
    assert reader.queue("orders").explain()["lease"].source == "policy p"
    assert reader.check_policy(reader.policies()[0]) == []
    with pytest.raises(redis.exceptions.NoPermissionError):
        reader.set_policy("q", "#", {"lease": "2m"})


KEY = "rqttl:policies{rqttl}"


#: A policy of a newer rqttl: it has an option that this one does not know.
NEWER = Policy.read("p", "#", {"max_length": 7}).as_json().replace("max_length", "warp_factor")


@pytest.mark.parametrize(
    "field, text", [("policy x", "{"), ("policy x", NEWER), ("operator x", "{"), ("stranger", "{"), ("version", "many")]
)
def test_a_policy_that_cannot_be_read_is_named_by_what_needs_policies_and_by_nothing_else(
    broker: Broker, client: redis.Redis, field: str, text: str
) -> None:
    queue = broker.declare_queue("orders", dead_letter="new")
    broker.set_policy("sound", "#", {"max_deliveries": 3})
    client.hset(KEY, mapping={"version": 50, field: text})
    other = Broker(client)

    for call in (
        lambda: other.declare_queue("mails"),
        other.policies,
        other.reconcile,
        lambda: other.set_policy("short", "#", {"max_length": 3}),
        lambda: other.preview_policy(Policy.read("short", "#", {"message_ttl": "5m"})),
    ):
        with pytest.raises(DataDamaged, match=repr(field)):
            call()

    assert queue.enqueue(b"x").id
    other.queue("orders").receive_many(1)[0].reject()  # makes the target, which waits for its policies
    Reaper(other).run_once()
    assert (queue.options()["max_deliveries"], other.queues()) == (3, ["new", "orders"])
    client.hdel(KEY, field) if field != "version" else client.hset(KEY, "version", 60)
    assert list(Broker(client).reconcile().changed) == ["new"]


def test_policies_of_another_type_are_named(broker: Broker, client: redis.Redis) -> None:
    client.set(KEY, "ours")

    for call in (lambda: broker.declare_queue("orders"), broker.policies):
        with pytest.raises(DataDamaged, match=f"the key {KEY} has another type"):
            call()
