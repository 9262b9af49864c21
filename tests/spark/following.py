"""Following queues in tests: messages, offsets as a checkpoint gives them back, and what a batch holds."""

import json
from collections.abc import Callable

import redis

from rqttl import Broker, Message, Queue
from rqttl.protocol.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.stream.reader import RqttlStreamReader
from tests.contract.clocked import Clocked

Follow = Callable[..., StreamPlanner]


def planners(url: str) -> Follow:
    """Makes planners as a new process has them: `follow(queues="a,b", failOnDataLoss="false")`."""
    return lambda **options: StreamPlanner(Options.parse("stream", {"url": url, **options}))


def stream_reader(url: str, **options: object) -> RqttlStreamReader:
    """The reader of a stream as a new process has it: `stream_reader(url, queues="a", numPartitions=3)`."""
    texts = {name: str(value) for name, value in options.items()}
    return RqttlStreamReader(Options.parse("stream", {"url": url, **texts}), ("queue", "sequence"))


def letters(queue: Queue, count: int, body: bytes = b"x") -> list[str]:
    return [queue.enqueue(Message(body)).id for _ in range(count)]


def again(offset: Offset) -> Offset:
    """The offset as a checkpoint gives it back."""
    return Offset.parse(json.loads(offset.text))


def held(broker: Broker, *queues: str) -> list[tuple[str, str]]:
    """The messages of these queues, in the order of a batch."""
    return [(name, found.sequence) for name in sorted(queues) for found in broker.queue(name).peek(100_000)]


def read_all(follow: Follow, **options: str) -> Offset:
    """Return the position of a query that has read queue `a`, or these options, as the next process gets it."""
    options = options or {"queues": "a"}
    return again(follow(**options).latest(follow(**options).initial(), None))


def rows(client: redis.Redis, planner: StreamPlanner, start: Offset, end: Offset) -> dict[str, int]:
    """Return the number of entries in the ranges of a batch, by queue."""
    return {
        watched.range.queue: len(
            client.xrange(Keyspace().key(watched.range.queue, "log"), f"({watched.range.after}", watched.range.upto)
            or ()
        )
        for watched in planner.watched_ranges(start, end)
    }


def by_retention(broker: Clocked) -> None:
    """Trim the queue `a` by its age."""
    broker.advance(1_000)
    broker.queue("a").update(message_ttl="500ms")
    broker.queue("a").sweep()


def by_limit(broker: Clocked) -> None:
    """Trim it to three messages."""
    broker.queue("a").update(max_length=3)


def by_purge(broker: Clocked) -> None:
    """Purge it."""
    broker.queue("a").purge()


TRIMS = {"retention": by_retention, "limit": by_limit, "purge": by_purge}
