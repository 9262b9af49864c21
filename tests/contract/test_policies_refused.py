"""Bad policies are refused whole: the error names the policy, the option and the rule, and Redis keeps every byte."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl import Broker, InvalidInput, InvalidPolicy
from tests.lua.states import everything

GOOD = {"name": "p", "pattern": "orders.#", "definition": {"max_length": 5}}
#: What is different from `GOOD`, and a part of the error.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": "a b"}, "name"),
    ({"name": "a" * 300}, "name"),
    ({"name": 5}, "name"),
    ({"name": None}, "name"),
    ({"name": b"p"}, "name"),
    ({"pattern": ""}, "pattern"),
    ({"pattern": None}, "pattern"),
    ({"pattern": 5}, "pattern"),
    ({"pattern": "a" * 1025}, "pattern"),
    ({"pattern": "a*"}, "a\\*"),
    ({"pattern": "#.a"}, "#"),
    ({"pattern": "a.#.b"}, "#"),
    ({"pattern": "a.b#"}, "b#"),
    ({"pattern": "(", "syntax": "regex"}, "regular expression"),
    ({"pattern": "(?=a)", "syntax": "regex"}, "regular expression"),
    ({"pattern": r"(a)\1", "syntax": "regex"}, "regular expression"),
    ({"pattern": "a{5000}", "syntax": "regex"}, "regular expression"),
    ({"pattern": "", "syntax": "regex"}, "pattern"),
    ({"syntax": "glob"}, "syntax"),
    ({"syntax": None}, "syntax"),
    ({"priority": 1.5}, "priority"),
    ({"priority": "1"}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": None}, "priority"),
    ({"priority": 1_000_001}, "priority"),
    ({"priority": -1_000_001}, "priority"),
    ({"apply_to": "all"}, "apply_to"),
    ({"apply_to": "topics"}, "apply_to"),
    ({"apply_to": None}, "apply_to"),
    ({"definition": {}}, "definition"),
    ({"definition": None}, "definition"),
    ({"definition": []}, "definition"),
    ({"definition": "max_length"}, "definition"),
    ({"definition": [("max_length", 5)]}, "definition"),
    ({"definition": {"max_lenght": 5}}, "max_length"),
    ({"definition": {"max_length": 5, "odd": 1}}, "odd"),
    ({"definition": {5: 5}}, "5"),
    ({"definition": {"max_length": 5, "max-length": 5}}, "max.length"),
    ({"definition": {"max_length": -1}}, "max_length"),
    ({"definition": {"max_length": "5"}}, "max_length"),
    ({"definition": {"max_length": 5.5}}, "max_length"),
    ({"definition": {"max_length": True}}, "max_length"),
    ({"definition": {"message_ttl": 60}}, "message_ttl"),
    ({"definition": {"message_ttl": "60"}}, "message_ttl"),
    ({"definition": {"message_ttl": "-5s"}}, "message_ttl"),
    ({"definition": {"message_ttl": "5 parsecs"}}, "message_ttl"),
    ({"definition": {"message_ttl": "20y"}}, "message_ttl"),
    ({"definition": {"expires": 0}}, "expires"),
    ({"definition": {"lease": 0}}, "lease"),
    ({"definition": {"overflow": "drop"}}, "overflow"),
    ({"definition": {"on_expire": "never"}}, "on_expire"),
    ({"definition": {"max_deliveries": 0}}, "max_deliveries"),
    ({"definition": {"redelivery_jitter": 2}}, "redelivery_jitter"),
    ({"definition": {"redelivery_multiplier": 0.5}}, "redelivery_multiplier"),
    ({"definition": {"never_expire": "yes"}}, "never_expire"),
    ({"definition": {"dead_letter": "a b"}}, "dead_letter"),
    ({"definition": {"dead_letter": 5}}, "dead_letter"),
    ({"definition": {"dead_letter": "{queue"}}, "dead_letter"),
    ({"definition": {"min_ttl": "5m", "max_ttl": "1m"}}, "min_ttl"),
    ({"definition": {"redelivery_delay": "5m", "redelivery_max_delay": "1m"}}, "redelivery"),
]


@pytest.mark.spec("POL-04", "POL-05")
@pytest.mark.parametrize("set_policy", ["set_policy", "set_operator_policy"])
@pytest.mark.parametrize("changes, named", BAD)
def test_a_bad_policy_changes_nothing(
    broker: Broker, client: redis.Redis, changes: dict[str, Any], named: str, set_policy: str
) -> None:
    broker.declare_queue("orders.eu").enqueue(b"x")
    broker.set_policy("p", "other", {"max_length": 7})
    before = everything(client)
    arguments = {**GOOD, **changes}

    with pytest.raises(InvalidPolicy, match=f"(?i){named}"):
        getattr(broker, set_policy)(
            arguments.pop("name"), arguments.pop("pattern"), arguments.pop("definition"), **arguments
        )

    assert everything(client) == before


@pytest.mark.parametrize("name", ["", "a b", 5, None])
@pytest.mark.parametrize("method", ["explain"])
def test_a_bad_name_is_refused(broker: Broker, name: Any, method: str) -> None:
    with pytest.raises(InvalidInput):
        getattr(broker, method)(name)


@pytest.mark.parametrize("ttl", [5, "5", "-1s", "soon", True])
def test_a_bad_ttl_is_no_question(broker: Broker, ttl: Any) -> None:
    queue = broker.declare_queue("orders")

    for explain in (queue.explain, lambda ttl: broker.explain("orders", ttl)):
        with pytest.raises(InvalidInput, match="ttl"):
            explain(ttl)
