"""`rqttl acl generate`: what it prints, and that Redis takes it."""

import json

import pytest
import redis

from rqttl import Broker
from rqttl.protocol.roles import ROLES
from tests.cli.conftest import Run, check_golden

pytestmark = pytest.mark.once


def test_the_rules_of_a_producer_are_one_command_with_a_place_for_the_password(run: Run) -> None:
    result = run("acl", "generate", "--role", "producer")

    check_golden("acl-producer.txt", result.stdout)
    assert (
        result.stderr
        == "rqttl: put a password in the place of `password`, and run ACL SAVE if the server has an ACL file\n"
    )


@pytest.mark.parametrize("name", ROLES)
def test_redis_takes_the_command_as_it_is_printed(run: Run, client: redis.Redis, name: str) -> None:
    before = client.acl_users()
    for version in ("6.2",) if client.info("server")["redis_version"].startswith("6.") else ("6.2", "7.0"):
        command = run("acl", "generate", "--role", name, "--redis", version).stdout.split()

        assert client.execute_command(*command) in (b"OK", True, "OK")
        assert client.acl_deluser(name) == 1
    assert client.acl_users() == before


def test_a_user_with_two_roles_in_another_namespace_may_do_both(run: Run, client: redis.Redis, redis_url: str) -> None:
    roles = ("--role", "producer", "--role", "consumer", "--namespace", "shop", "--redis", "6.2")
    answer = json.loads(run("acl", "generate", *roles, "--user", "guest", "--json").stdout)

    client.execute_command(*answer["command"].split())
    try:
        with Broker(redis.Redis.from_url(redis_url.replace("://", "://guest:password@")), namespace="shop") as broker:
            queue = broker.declare_queue("orders")
            queue.enqueue(b"x")
            queue.receive_many(1)[0].ack()
    finally:
        client.acl_deluser("guest")
    assert (answer["user"], answer["roles"], answer["wider"]) == (
        "guest",
        ["producer", "consumer"],
        ["shop:policies{shop}"],
    )
    assert json.loads(run("acl", "generate", *roles, "--json").stdout)["user"] == "producer-consumer"


def test_rules_for_redis_6_2_say_what_they_open_wider(run: Run) -> None:
    wider = "rqttl: Redis 6.2 cannot grant keys for reading alone: this user may also write rqttl:policies{rqttl}\n"

    assert run("acl", "generate", "--role", "producer", "--redis", "6.2").stderr.endswith(wider)
    assert wider not in run("acl", "generate", "--role", "producer").stderr
    assert wider not in run("acl", "generate", "--role", "reader", "--redis", "6.2").stderr
