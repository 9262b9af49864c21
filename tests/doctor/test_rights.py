"""The doctor finds the rights of a user without using them."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker, DataDamaged, QueueNotFound
from rqttl.doctor import examine, rights
from rqttl.flows.steps import Step, Write
from rqttl.protocol import scripts
from rqttl.protocol.roles import inner
from rqttl.store.driver import RedisDriver, driver_of
from tests.contract.clocked import Clocked
from tests.doctor.looking import of, only
from tests.drivers import broker_on, redis_of
from tests.lua.states import everything

As = Callable[..., list[tuple[str, str, str]]]


@pytest.fixture
def as_user(client: redis.Redis, restricted: Callable[..., redis.Redis]) -> As:
    """`as_user("-zadd")`: what is said of the rights of a user who may do all but what these rules take away."""

    def ask(
        *rules: str, names: tuple[str, ...] = (), keys: str = "~*", channels: tuple[str, ...] = ("allchannels",)
    ) -> list[tuple[str, str, str]]:
        Broker(client).declare_queue("orders")
        half = Broker(restricted("resetkeys", keys, "resetchannels", *channels, *rules))
        before = everything(client)
        found = [one for one in examine(half, names) if one.check == "rights"]
        assert everything(client) == before
        return [(one.level, one.result, one.advice) for one in found]

    return ask


GENERATE = "`rqttl acl generate --role ROLE`"
#: What a user has instead of all rights: level, and words of the result and of the advice of each finding.
LACKS: list[tuple[dict[str, Any], list[tuple[str, str, str]]]] = [
    ({}, [("ok", "half has all rights that rqttl needs", "")]),
    ({"rules": ["-acl"]}, [("ok", "this user has all rights that rqttl needs", "")]),
    *(
        ({"rules": [f"-{name}"]}, [("problem", f"half may not run {name}: ", GENERATE)])
        for name in ("zadd", "xadd", "publish", "time", "xinfo", "unlink")
    ),
    ({"rules": ["-hset"]}, [("problem", "would stop in the middle", GENERATE)]),
    (
        {"keys": "~rqttl:{other}:*"},
        [("problem", "(not its keys)", GENERATE), ("warning", "half may not run blpop", GENERATE)],
    ),
    (
        {"keys": "~rqttl:{orders}:*", "names": ("orders",)},
        [
            ("warning", "half may not change_policies (not its keys)", GENERATE),
            (
                "warning",
                "half may not run hdel, hget, hgetall, hlen, hset, hsetnx, sadd, sismember and 7 more",
                GENERATE,
            ),
        ],
    ),
    ({"rules": ["-evalsha"]}, [("problem", "half may not accept, ack, cancel, change_policies, ", GENERATE)]),
    (
        {"rules": ["-evalsha", *(f"+evalsha|{scripts.load(name).sha}" for name in ("enqueue", "lookup"))]},
        [("warning", "(not the script)", GENERATE)],
    ),
    ({"channels": ()}, [("problem", "may not run publish", GENERATE)]),
    ({"rules": ["-subscribe"]}, [("ok", "half has the roles producer and consumer", "")]),
    ({"rules": ["-script"]}, [("warning", "half may not run script load", GENERATE)]),
    ({"rules": ["-multi"]}, [("warning", "half: cannot be checked: ", "+multi +exec")]),
]


@pytest.mark.parametrize("lacks, expected", LACKS)
def test_what_a_user_lacks_is_told_with_the_command_that_makes_a_whole_role(
    as_user: As, lacks: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    found = as_user(*lacks.get("rules", ()), **{name: value for name, value in lacks.items() if name != "rules"})

    assert len(found) == len(expected)
    for (level, text, advice), (expected_level, words, remedy) in zip(found, expected, strict=True):
        assert (level, words in text, remedy in advice) == (expected_level, True, True)


READER = ("+time", "+smembers", "+hmget", "+xlen", "+hlen", "+zcard", "+zcount", "+zrange", "+xrange")


@pytest.fixture
def reader(restricted: Callable[..., redis.Redis]) -> Broker:
    """A broker as a user who may look at queues and do nothing else."""
    return Broker(restricted("reset", "on", "nopass", "~rqttl:*", *READER))


@pytest.mark.parametrize("names", [(), ("orders",)])
def test_a_user_who_may_only_read_is_told_of_no_problem_without_one(
    client: redis.Redis, reader: Broker, names: tuple[str, ...]
) -> None:
    Broker(client).declare_queue("orders").enqueue(b"x")
    before = everything(client)

    found = list(examine(reader, names))

    assert [one for one in found if one.level == "problem"] == []
    assert of(found, "rights") == [("ok", "this user may look at queues and change nothing")]
    assert of(found, "scripts") == [("warning", "this user may only read, so scripts are not checked")]
    assert of(found, "queues")[-1] == ("ok", "1 sound queue, 1 message, 1 ready (1 B)")
    assert everything(client) == before


def test_a_user_who_may_only_read_sees_what_holds_the_messages_of_a_topic(client: redis.Redis, reader: Broker) -> None:
    topic = Clocked(client).declare_topic("news")
    topic.subscribe("eu", max_length=0, overflow="reject-publish")
    topic.pause()
    topic.enqueue(b"x")
    topic.resume()

    [held] = [one.result for one in examine(reader) if one.queue == "news"]
    assert (held.startswith("1 message waits"), held.endswith(": news/eu is full")) == (True, True)


def test_a_user_who_may_only_read_sees_damage_and_overdue_work(client: redis.Redis, reader: Broker) -> None:
    Clocked(client).declare_queue("late").enqueue(b"x", ttl="1s")
    Broker(client).declare_queue("bad")
    client.set("rqttl:{bad}:log", "not ours")

    found = list(examine(reader))

    assert [(one.queue, one.result) for one in found if one.level == "problem"] == [
        ("bad", str(DataDamaged.of_key("bad", "rqttl:{bad}:log")))
    ]
    [(level, said)] = of(found, "reaper")
    assert level == "warning"
    assert re.search("overdue by up to .*: late", said)


def test_a_user_who_may_only_read_sees_no_missing_queue(reader: Broker) -> None:
    with pytest.raises(QueueNotFound):
        list(examine(reader, ["never"]))


def test_keys_that_may_not_be_asked_for_their_type_are_not_called_wrong(
    broker: Broker, restricted: Callable[..., redis.Redis]
) -> None:
    broker.declare_queue("orders")

    found = list(examine(Broker(restricted("-type")), ["orders"]))

    assert [one.result for one in found if "cannot be read" in one.result] == []


def test_a_forbidden_command_is_a_problem_of_the_scripts_too(restricted: Callable[..., redis.Redis]) -> None:
    found = examine(Broker(restricted("-evalsha", "-script")))

    assert [level for level, _ in of(found, "scripts")] == ["warning", "problem"]


def test_something_that_changes_scripts_on_the_way_is_found(client: redis.Redis) -> None:
    class Changing(RedisDriver):
        def step(self, step: Step) -> Any:
            loads = isinstance(step, Write) and step.calls[0][:2] == ("SCRIPT", "LOAD")
            answer = super().step(step)
            return [b"0" * 40] if loads else answer

    assert only(examine(broker_on(Changing(client, "rqttl"))), "scripts")[0] == "problem"


@pytest.mark.parametrize("name", scripts.names())
def test_every_command_of_a_script_is_asked_for(name: str) -> None:
    script = scripts.load(name)
    called = set(re.findall(r"call\('([A-Z]+)'", script.text))

    assert called <= set(inner(script)) <= {*rights.ARGUMENTS, "PUBLISH", "TIME", "XINFO"}


def test_every_question_is_one_that_redis_takes(broker: Broker) -> None:
    questions = [rights.words(driver_of(broker).keyspace, "orders", command) for command in rights.ARGUMENTS]

    with redis_of(broker).pipeline(transaction=True) as pipeline:
        for words in questions:
            pipeline.execute_command(*words)
        answers = pipeline.execute(raise_on_error=False)

    wrong = [str(answer) for answer in answers if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer)]
    assert wrong == []
