"""`explain`: every option in force with its source, the values that lost, and the deadline of a message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis

from rqttl import Broker, Policy, QueueNotFound
from rqttl.options import OPTIONS
from tests.contract.clocked import Clocked
from tests.half_done import store_policy
from tests.lua.states import everything


@pytest.mark.spec("C-48", "W17")
def test_each_option_has_its_source_and_the_values_that_lost(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("orders", max_length=50, lease="1m")
    broker.set_policy("low", "#", {"max_length": 100, "message_ttl": "1h", "lease": "2m"}, priority=-1)
    broker.set_policy("high", "orders", {"message_ttl": "10m"})
    broker.set_operator_policy("cap", "#", {"max_length": 20})
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


#: The patterns and the first one for each name, as in Artemis's rows.
VECTORS = [
    pytest.param(
        ["#", "a", "a.#", "a.*", "a.b", "a.b.#", "a.b.c", "a.*.c", "a.d.c", "a.b.c.#", "a.b.c.d", "a.*.*.d", "a.*.d.#"],
        {
            "a.x": "a.*",
            "a.b.x": "a.b.#",
            "a.x.c": "a.*.c",
            "a.x.c.d": "a.*.*.d",
            "a.b.x.d": "a.*.*.d",
            "a.d.x.d": "a.*.*.d",
            "a.d.d.g": "a.*.d.#",
            "zzz.z": "#",
        },
        id="A-077",
    ),
    pytest.param(
        ["a.b.c.d.e.f", "a.b.c.d.e.*", "a.*.*.*.*.*", "*.b.c.d.*.f", "*.b.*.d.*.f", "a.b.c.d.e.#"],
        {
            "a.b.c.d.e.x": "a.b.c.d.e.*",
            "a.b.x.d.x.f": "a.*.*.*.*.*",
            "x.b.c.d.e.f": "*.b.c.d.*.f",
            "a.b.c.d.e.f.g": "a.b.c.d.e.#",
        },
        id="A-078",
    ),
]


@pytest.mark.spec("A-077", "A-078", "C-19")
@pytest.mark.parametrize("patterns, first", VECTORS)
def test_the_most_specific_pattern_gives_the_option(broker: Broker, patterns: list[str], first: dict[str, str]) -> None:
    for number, pattern in enumerate(patterns):
        broker.set_policy(f"p{number}", pattern, {"max_length": number})

    for name, pattern in first.items():
        queue, number = broker.declare_queue(name), patterns.index(pattern)
        assert queue.options()["max_length"] == number
        assert queue.explain()["max_length"].source == f"policy p{number}"


@pytest.mark.spec("A-079", "A-080", "C-19")
def test_an_option_of_a_later_pattern_is_inherited(broker: Broker) -> None:
    broker.set_policy("vague", "foo.*", {"max_length": 10_000})
    broker.set_policy("exact", "foo.0.#", {"max_length": 20_000, "lease": "2m"})

    assert broker.declare_queue("foo.0").options().as_arguments() == {"max_length": 10_000, "lease": "2m"}


@pytest.mark.spec("A-081", "C-19")
@pytest.mark.parametrize(
    "parent, child", [({"dead_letter_expired": "EXP"}, {"dead_letter_expired": ""}), ({"default_ttl": "5m"}, None)]
)
def test_a_child_turns_an_option_of_its_parent_off(broker: Broker, parent: dict[str, Any], child: Any) -> None:
    broker.set_policy("parent", "#", parent)
    broker.set_policy("child", "orders.#", child or dict.fromkeys(parent, "none"))

    options = {name: broker.declare_queue(name).options() for name in ("orders.eu", "mails")}

    [option] = parent
    assert (options["orders.eu"][option] or None) is None
    assert options["mails"].as_arguments() == parent


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
