"""Streams whose selection of queues changes between two starts, and names that select no queue."""

from __future__ import annotations

import pytest
import redis

from rqttl import Broker
from spark_connectors.errors import NoSuchQueue
from tests.servers import Server
from tests.spark.following import Follow, again, letters, planners, rows


@pytest.fixture
def follow(server: Server) -> Follow:
    return planners(server.url)


@pytest.mark.parametrize(
    "wide, narrow",
    [
        ({"queues": "a.x,b"}, {"queues": "a.x"}),
        ({"queuePattern": "#"}, {"queuePattern": "a.#"}),
        ({"queuePattern": "#"}, {"queues": "a.x"}),
    ],
)
def test_a_stream_that_is_narrowed_and_widened_again_reads_nothing_twice(
    wide: dict[str, str], narrow: dict[str, str], client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    for name in ("a.x", "b"):
        letters(broker.declare_queue(name), 5)
    first = follow(**wide).latest(follow(**wide).initial(), None)
    letters(broker.queue("a.x"), 2)
    letters(broker.queue("b"), 3)

    second = follow(**narrow).latest(again(first), None)
    third = follow(**wide).latest(again(second), None)

    assert rows(client, follow(**narrow), first, second) == {"a.x": 2}
    assert rows(client, follow(**wide), second, third) == {"b": 3}


def test_a_queue_that_is_deleted_while_it_is_not_selected_is_noticed_when_it_is_selected_again(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    for name in "ab":
        letters(broker.declare_queue(name), 5)
    first = follow(queues="a,b").latest(follow(queues="a,b").initial(), None)
    broker.queue("b").delete()
    letters(broker.queue("a"), 1)
    second = follow(queues="a").latest(again(first), None)
    letters(broker.declare_queue("b"), 2)

    third = follow(queues="a,b").latest(again(second), None)

    assert set(second.positions) == {"a", "b"}
    assert rows(client, follow(queues="a,b"), second, third) == {"b": 2}


def test_a_name_that_is_neither_a_queue_nor_in_the_checkpoint_is_refused_at_a_restart(
    broker: Broker, follow: Follow
) -> None:
    letters(broker.declare_queue("a"), 5)
    start = follow(queues="a").latest(follow(queues="a").initial(), None)

    with pytest.raises(NoSuchQueue, match=r"^\[RQTTL_QUEUE_NOT_FOUND\] queues: there is no queue 'aa' .*checkpoint"):
        follow(queues="a,aa").latest(again(start), None)


def test_a_named_queue_that_was_deleted_behind_a_query_stops_no_restart_and_starts_anew(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    for name in "ab":
        letters(broker.declare_queue(name), 5)
    start = follow(queues="a,b").latest(follow(queues="a,b").initial(), None)
    broker.queue("b").delete()
    letters(broker.queue("a"), 1)

    without = follow(queues="a,b").latest(again(start), None)
    letters(broker.queue("a"), 1)
    narrowed = follow(queues="a").latest(again(without), None)
    letters(broker.declare_queue("b"), 3)
    back = follow(queues="a,b").latest(again(narrowed), None)

    assert set(without.positions) == {"a"}
    assert without.gone == narrowed.gone == {"b"}
    assert rows(client, follow(queues="a,b"), narrowed, back) == {"b": 3}
    assert back.gone == frozenset()


def test_a_named_queue_that_is_deleted_unread_while_a_query_runs_stops_it_not(broker: Broker, follow: Follow) -> None:
    letters(broker.declare_queue("a"), 5)
    start = follow(queues="a").latest(follow(queues="a").initial(), None)
    broker.declare_queue("b")
    planner = follow(queues="a,b")
    assert planner.latest(again(start), None) == start

    broker.queue("b").delete()

    assert [planner.latest(start, None) for _ in range(3)] == [start] * 3
