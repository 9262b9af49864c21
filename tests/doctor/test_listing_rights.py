"""Users who may not list all keys: the advice of the doctor names the right that is missing."""

from __future__ import annotations

import pytest
import redis

from rqttl import Broker
from rqttl.doctor import examine
from rqttl.protocol.keys import PARTS, WAKEUP
from tests.doctor.looking import only
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    "rules, right",
    [
        (["~*", "-pttl"], "+pttl"),
        (["~rqttl:queues", "~rqttl:policies", *(f"~rqttl:*:{part}" for part in PARTS if part != WAKEUP)], "~rqttl:*"),
    ],
    ids=["pttl", "its key"],
)
def test_a_user_who_may_not_read_wake_up_lists_is_told_the_right_that_is_missing(
    broker: Broker, client: redis.Redis, redis_url: str, rules: list[str], right: str
) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    client.delete("rqttl:{orders}:meta")
    client.rpush("rqttl:{orders}:wakeup", "")
    client.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "allchannels", "+@all", *rules)
    with Broker(redis.Redis.from_url(redis_url, username="half", socket_timeout=PATIENCE)) as half:
        level, _, advice = only(examine(half), "keys")

    assert (level, right in advice.split()) == ("warning", True)
    client.execute_command("ACL", "DELUSER", "half")
