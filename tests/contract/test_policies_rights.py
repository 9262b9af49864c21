"""Rights: rules of Redis's ACL decide who may read, who may set policies, and who may change queues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from rqttl import Broker
from rqttl.reaper import Reaper
from tests.lua.states import everything

#: The commands of a user who may only read, as in deploy/README.md.
READS = ["+@connection", "+time", "+smembers", "+sscan", "+sismember", "+hget", "+hgetall", "+hmget"]


@pytest.fixture
def may_set_policies(client: redis.Redis) -> list[str]:
    """The rules in deploy/README.md: this user writes the policies and no queue."""
    reading = "~rqttl:queues" if client.info("server")["redis_version"].startswith("6.") else "%R~rqttl:*"
    return ["~rqttl:policies", reading, *READS, "+evalsha", "+script|load", "+hset", "+hdel"]


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
    assert operator.set_operator_policy("p", "nothing", {"max_length": 2}).denied == ()
    assert operator.delete_policy("p").denied == ("orders",)


@pytest.mark.spec("OPP-10", "POL-19")
@pytest.mark.parametrize("call", ["set_policy", "set_operator_policy", "delete_policy", "delete_operator_policy"])
def test_a_user_without_the_right_to_write_policies_changes_none(
    broker: Broker, client: redis.Redis, user: Callable[..., Broker], call: str
) -> None:
    broker.declare_queue("orders")
    for change in (broker.set_policy, broker.set_operator_policy):
        change("p", "#", {"lease": "1m"})
    before = everything(client)
    worker = user("~rqttl:{*", "~rqttl:queues", "&*", "+@all", "-@dangerous")
    arguments = ("p", "#", {"lease": "2m"}) if call.startswith("set") else ("p",)

    with pytest.raises(redis.exceptions.NoPermissionError):
        getattr(worker, call)(*arguments)

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


def test_a_worker_who_may_only_read_policies_declares_queues_under_them(
    broker: Broker, client: redis.Redis, user: Callable[..., Broker]
) -> None:
    broker.set_policy("p", "#", {"max_length": 1, "dead_letter": "{queue}/dead"})
    reading = "~rqttl:policies" if client.info("server")["redis_version"].startswith("6.") else "%R~rqttl:policies"
    worker = user("~rqttl:{*", "~rqttl:queues", "~rqttl:birth", reading, "&*", "+@all", "-@dangerous")

    queue = worker.declare_queue("orders", max_length=5)
    queue.enqueue_many([b"1", b"2"])

    assert queue.options()["max_length"] == 1
    assert [view.body for view in worker.queue("orders/dead").peek()] == [b"1"]
    assert worker.queue("orders/dead").options()["max_length"] == 1
