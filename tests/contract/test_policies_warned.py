"""Policies that are valid and probably a mistake: `check_policy` warns, and the effect is known before the change."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl import Broker, Policy
from tests.lua.states import everything

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


def test_warnings_and_previews_change_nothing(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders", dead_letter="dead").enqueue_many([b"x"] * 3)
    before = everything(client)

    policy = Policy.read("p", "#", {"max_length": 1, "dead_letter": "dead"})
    broker.check_policy(policy)
    broker.preview_policy(policy)

    assert everything(client) == before
