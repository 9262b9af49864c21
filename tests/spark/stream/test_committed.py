"""`afterCommit=purge`: what a committed batch has read leaves the queue, and nothing else. Without Spark."""

import logging

import pytest
import redis

from rqttl import Broker, Queue
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import rules
from spark_connectors.errors import NoPermission
from spark_connectors.options.options import Options
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.planner import StreamPlanner
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import Follow, again, letters, planners, rows


@pytest.fixture
def follow(redis_url: str) -> Follow:
    plain = planners(redis_url)
    return lambda **options: plain(afterCommit="purge", **options)


def places(queue: Queue) -> list[str]:
    return [message.sequence for message in queue.peek(10_000)]


def test_a_batch_stays_until_spark_hands_in_its_end_as_committed_also_after_a_restart(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    queue = broker.declare_queue("a")
    sequences = letters(queue, 600)
    start = follow(queues="a").initial()
    first = follow(queues="a").latest(again(start), BatchLimit(400))
    assert places(queue) == sequences
    assert rows(client, follow(queues="a"), again(start), again(first)) == {"a": 400}

    second = follow(queues="a").latest(again(first), BatchLimit(100))

    assert places(queue) == sequences[400:]
    # a strict query of another process sees no loss, and the batch can be repeated
    assert rows(client, follow(queues="a"), again(first), again(second)) == {"a": 100}
    last = follow(queues="a").latest(again(second), None)
    assert follow(queues="a").latest(again(last), None).positions == last.positions
    assert places(queue) == []
    assert queue.stats().purged == 600


def test_messages_before_the_start_of_the_query_were_never_read_and_stay(
    server: Server, broker: Broker, follow: Follow
) -> None:
    queue = broker.declare_queue("a")
    unread = letters(queue, 5)
    start = follow(queues="a", startingOffsets="latest").initial()
    letters(queue, 5)
    # the option may also come later
    end = planners(server.url)(queues="a").latest(again(start), None)
    letters(queue, 3)
    second = follow(queues="a").latest(again(end), None)
    assert places(queue)[:5] == unread
    assert len(places(queue)) == 8

    follow(queues="a").latest(again(second), None)

    assert places(queue) == unread


def test_a_message_that_a_consumer_holds_or_that_is_delayed_stays_until_it_is_ready_again(
    clocked: Clocked, follow: Follow
) -> None:
    queue = clocked.declare_queue("a")
    sequences = letters(queue, 4)
    query = follow(queues="a")
    end = query.latest(query.initial(), None)
    held, delayed = queue.receive_many(2, lease="1h")
    delayed.nack("5s")

    assert query.latest(end, None) is end
    assert places(queue) == sequences[:2]
    held.nack()
    query.latest(end, None)
    assert places(queue) == sequences[1:2]
    clocked.advance(5_000)
    queue.sweep()
    query.latest(end, None)
    assert places(queue) == []


def test_a_queue_that_was_made_again_or_is_not_selected_is_left_alone(broker: Broker, follow: Follow) -> None:
    for name in ("a", "b"):
        letters(broker.declare_queue(name), 4)
    end = again(follow(queues="a,b").latest(follow(queues="a,b").initial(), None))
    broker.queue("a").delete()
    letters(broker.declare_queue("a"), 2)

    follow(queues="a").latest(end, None)

    assert (len(places(broker.queue("a"))), len(places(broker.queue("b")))) == (2, 4)


def test_many_queues_are_emptied(broker: Broker, follow: Follow) -> None:
    names = [f"q.{i}" for i in range(230)]
    for name in names:
        broker.declare_queue(name).enqueue(b"x")
    broker.queue("q.7").enqueue_many([b"x"] * 5_000)
    end = follow(queuePattern="q.#").latest(follow(queuePattern="q.#").initial(), None)

    follow(queuePattern="q.#").latest(again(end), None)

    assert sum(stats.ready for stats in broker.stats(names).values()) == 0


def test_a_user_who_reads_with_spark_and_consumes_may_purge(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 4)
    client.execute_command("ACL", "SETUSER", "both", "on", ">pw", *rules(["spark", "consumer"], Keyspace())[0])
    query = follow(queues="a", username="both", password="pw")

    query.latest(again(query.latest(query.initial(), None)), None)

    client.acl_deluser("both")
    assert places(queue) == []


READ = "+@connection +hmget +hlen +hscan +smembers +xlen +xrange +xrevrange"


@pytest.mark.parametrize(
    "more, missing",
    [
        ("", r"multi\. It needs the rights of a program"),
        ("+multi +exec", "evalsha"),
        ("+@all -@dangerous -xdel", "xdel"),
    ],
)
def test_a_user_without_the_right_to_write_is_told_before_anything_begins(
    client: redis.Redis, server: Server, broker: Broker, more: str, missing: str
) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 4)
    client.execute_command("ACL", "SETUSER", "half", "on", ">pw", "~rqttl:*", "&*", *READ.split(), *more.split())
    try:
        options = {"url": server.url, "username": "half", "password": "pw", "queues": "a", "afterCommit": "purge"}
        with pytest.raises(
            NoPermission, match=rf"afterCommit: purge removes messages, .*'half' may not run .*{missing}"
        ):
            StreamPlanner(Options.parse("stream", options)).initial()
        kept = StreamPlanner(Options.parse("stream", {**options, "afterCommit": "keep"}))
        assert kept.latest(kept.initial(), None).positions["a"].received == 4
    finally:
        client.execute_command("ACL", "DELUSER", "half")


def test_the_removal_is_no_loss_for_another_query_that_has_not_read_yet(
    broker: Broker, server: Server, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    letters(broker.declare_queue("a"), 4)
    other = planners(server.url)
    start = other(queues="a").initial()
    end = follow(queues="a").latest(follow(queues="a").initial(), None)
    follow(queues="a").latest(again(end), None)

    other(queues="a").latest(again(start), None)

    assert caplog.records == []
