"""The pace of a stream: pauses of an idle query, and micro-batches that wait for messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from rqttl import Broker
from spark_connectors.stream.pace import BatchDelay, Pauses
from spark_connectors.stream.reader import RqttlStreamReader
from spark_connectors.versions import ReadAllAvailable
from tests.servers import Server
from tests.spark.following import letters, stream_reader

Readers = Callable[..., RqttlStreamReader]


class Time:
    """A clock that only moves while somebody waits."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def reader(server: Server, time: Time, monkeypatch: pytest.MonkeyPatch) -> Readers:
    """Makes the reader of a query in the time of this test."""
    monkeypatch.setattr("spark_connectors.stream.reader.Pauses", lambda: Pauses(time, time.sleep))
    monkeypatch.setattr("spark_connectors.stream.planner.BatchDelay", partial(BatchDelay, clock=time))
    return partial(stream_reader, server.url)


def ask(reader: RqttlStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_the_first_new_message_ends_the_pauses(reader: Readers, broker: Broker, time: Time) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 1)
    made = reader(queues="a")
    start = ask(made, made.initialOffset())
    for _ in range(5):
        assert ask(made, start) is start
    assert len(time.waits) == 4
    letters(queue, 1)

    end = ask(made, start)
    waited = len(time.waits)
    letters(queue, 1)

    assert end != start
    assert ask(made, end) != end
    assert len(time.waits) == waited


def test_a_batch_waits_no_longer_than_the_delay_since_the_last_one(reader: Readers, broker: Broker, time: Time) -> None:
    queue = broker.declare_queue("a")
    made = reader(queues="a", minEntriesPerTrigger=10, maxTriggerDelay="5m")
    start = made.initialOffset()
    letters(queue, 1)
    assert ask(made, start) is start
    time.now += 299
    assert ask(made, start) is start
    time.now += 2

    end = ask(made, start)

    assert end != start
    letters(queue, 1)
    assert ask(made, end) is end
    time.now += 301
    last = ask(made, end)
    assert last != end
    time.now += 301
    assert ask(made, last) is last


def test_a_limit_holds_for_the_batch_that_has_waited(reader: Readers, broker: Broker, client: redis.Redis) -> None:
    letters(broker.declare_queue("a"), 30)
    made = reader(queues="a", minEntriesPerTrigger=10, maxEntriesPerTrigger=12)
    offset, batches = made.initialOffset(), []

    for _ in range(4):
        end = ask(made, offset)
        batches += [part.ranges[0].range.rows for part in made.partitions(offset, end)]  # type: ignore[attr-defined]
        offset = end

    # six messages are left
    assert batches == [12, 12]


@pytest.mark.parametrize("once", [True, False])
def test_a_query_that_ends_by_itself_does_not_wait(reader: Readers, broker: Broker, once: bool) -> None:
    letters(broker.declare_queue("a"), 3)
    made = reader(queues="a", minEntriesPerTrigger=10)
    start = made.initialOffset()
    if not once:
        made.prepareForTriggerAvailableNow()

    end = made.latestOffset(start, ReadAllAvailable() if once else made.getDefaultReadLimit())

    assert end != start
