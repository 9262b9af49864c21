"""Refusals of a batch read: before any task starts, where the reason can be known by then."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from rqttl import Broker
from spark_connectors.errors import DataLoss, MalformedEntry, NoPermission, NoSuchQueue, SourceError, Unreachable
from spark_connectors.redis.connect import READ_COMMANDS
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reading import Load, loader, numbers


@pytest.fixture
def load(server: Server) -> Load:
    return loader(server.url)


def test_a_queue_that_does_not_exist_is_told_with_the_nearest_there_is(broker: Broker, load: Load) -> None:
    bury(broker, 1)

    with pytest.raises(NoSuchQueue) as caught:
        load(queues="orders/dead,orders.daed")

    told = "queues: there is no queue 'orders.daed' in namespace 'rqttl'; did you mean orders/dead?"
    assert str(caught.value) == f"[RQTTL_QUEUE_NOT_FOUND] {told}"


def test_a_queue_for_letters_that_has_none_yet_is_told_how_it_is_made(client: redis.Redis, load: Load) -> None:
    with pytest.raises(NoSuchQueue, match=r"'x/dead' .* \(nor 1 more of this option\); the first dead letter creates"):
        load(queues="x/dead,y/dead")


def test_an_unreachable_server_is_told_when_the_job_is_planned(tmp_path: Any) -> None:
    with pytest.raises(Unreachable, match=r"^\[RQTTL_UNREACHABLE\] url: "):
        loader(f"unix://{tmp_path}/s")(queues="a")


@pytest.fixture
def user(client: redis.Redis) -> Any:
    """Gives a user these rights; `load(**user("+xlen"))`."""

    def give(*rights: str, keys: str = "~rqttl:*") -> dict[str, str]:
        client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">c4n4ry", keys, *rights)
        return {"username": "reader", "password": "c4n4ry"}

    yield give
    client.acl_deluser("reader")


def test_rights_to_read_suffice(server: Server, broker: Broker, load: Load, user: Any) -> None:
    bury(broker, 3_000)
    keys = "%R~rqttl:*" if server.version >= (7,) else "~rqttl:*"
    rights = user(*(f"+{command}" for command in READ_COMMANDS), keys=keys)

    assert load(queues="orders/dead", numPartitions=2, **rights).ids() == numbers(3_000)
    assert load(queuePattern="#/dead", **rights).ids() == numbers(3_000)
    assert load(queues="orders", **rights).rows() == []


# without the right to read the index of arrivals a job reads more
@pytest.mark.parametrize("command", [command for command in READ_COMMANDS if command != "zrange"])
def test_a_right_that_is_missing_is_told_when_the_job_is_planned(
    broker: Broker, load: Load, user: Any, command: str
) -> None:
    bury(broker, 10)
    rights = user(*(f"+{other}" for other in READ_COMMANDS if other != command))

    with pytest.raises(NoPermission, match=rf"user 'reader' may not run {command.upper()} rqttl:\S+: ") as caught:
        load(queuePattern="#", **rights)

    assert "c4n4ry" not in str(caught.value)


def test_rights_on_other_keys_are_not_enough(broker: Broker, load: Load, user: Any) -> None:
    bury(broker, 1)

    with pytest.raises(NoPermission, match=r"Reading needs the keys rqttl:\* and the commands hmget"):
        load(queues="orders/dead", **user("+@all", keys="~other:*"))


def test_a_key_that_is_no_log_is_told(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 1)
    client.set("rqttl:{orders}/dead:log", "text")

    with pytest.raises(
        SourceError, match=r"^\[RQTTL_REDIS_ERROR\] url: .* refused XLEN rqttl:{orders}/dead:log: WRONGTYPE"
    ):
        load(queues="orders/dead")


def test_a_message_that_rqttl_did_not_store_is_named(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 3)
    client.xadd("rqttl:{orders}/dead:log", {"field": "value", "other": "value"}, id="1999999999999-100000")
    client.hset("rqttl:{orders}/dead:meta", "last_id", "1999999999999-100000")

    with pytest.raises(MalformedEntry, match=r"queue 'orders/dead', sequence 1999999999999-100000: .* one field"):
        load(queues="orders/dead").rows()


def test_a_message_with_a_damaged_header_is_read_without_it(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 3)
    client.xadd("rqttl:{orders}/dead:log", {"no header": "value"}, id="1999999999999-100000")
    client.hset("rqttl:{orders}/dead:meta", "last_id", "1999999999999-100000")

    rows = load(queues="orders/dead").rows()

    assert len(rows) == 4
    assert rows[-1]["message_id"] == rows[-1]["sequence"] == "1999999999999-100000"


def test_a_start_behind_which_messages_were_removed_fails_if_it_is_to(clocked: Clocked, load: Load) -> None:
    dead = bury(clocked, 10)
    sequences = [letter.sequence for letter in dead.peek(10)]
    dead.purge_many(sequences[:5], unread=True)
    start = json.dumps({"orders/dead": sequences[2]})

    with pytest.raises(
        DataLoss, match=f"queue 'orders/dead': messages after {sequences[2]}, the highest of them {sequences[4]}"
    ):
        load(queues="orders/dead", startingOffsets=start)
    assert load(queues="orders/dead", startingOffsets=start, failOnDataLoss="false").ids() == numbers(5, 5)
    assert load(queues="orders/dead", startingOffsets=json.dumps({"orders/dead": sequences[4]})).ids() == numbers(5, 5)
    assert load(queues="orders/dead").ids() == numbers(5, 5)
