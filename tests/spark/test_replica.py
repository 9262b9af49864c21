"""`readFrom=replica:…`: tasks read a real replica if it has all of their messages, and else the primary. No Spark."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from rqttl import Broker, Delivery, Message
from spark_connectors.errors import DataLoss, InvalidOption, NotAuthenticated
from tests.ports import free_port
from tests.servers import Server
from tests.spark.fleets import Query
from tests.spark.letters import bury
from tests.spark.reading import Job, loader
from tests.waiting import until

COLUMNS = ("queue", "message_id", "sequence")


@dataclass
class Pair:
    """A primary and its replica."""

    primary: Server
    replica: Server
    client: redis.Redis
    copy: redis.Redis
    port: int
    broker: Broker

    def catch_up(self) -> None:
        """Wait until the replica has all writes so far."""
        until(lambda: self.client.wait(1, 100) == 1)

    def cut(self) -> None:
        """Cut the link: from here on the replica answers with an old state."""
        self.catch_up()
        self.copy.replicaof("127.0.0.1", 1)

    def load(self, **options: object) -> Job:
        return loader(self.primary.url)(COLUMNS, **{"readFrom": f"replica:{self.replica.url}", **options})

    def pages(self) -> tuple[int, int]:
        """The number of pages that primary and replica have sent since `reset`."""
        stats: list[dict[str, Any]] = [client.info("commandstats") for client in (self.client, self.copy)]
        return tuple(int(of.get("cmdstat_xrange", {"calls": 0})["calls"]) for of in stats)  # type: ignore[return-value]

    def reset(self) -> None:
        for client in (self.client, self.copy):
            client.config_resetstat()


@pytest.fixture
def pair(start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr("spark_connectors.options.options._REPLICA_TIMEOUT", 60_000)
    port = free_port()
    primary = start_server(port=port, bind="127.0.0.1", repl_diskless_sync_delay=0)
    replica = start_server()
    with primary.client() as client, replica.client() as copy, Broker(client) as broker:
        copy.replicaof("127.0.0.1", port)
        until(lambda: copy.info("replication")["master_link_status"] == "up")
        yield Pair(primary, replica, client, copy, port, broker)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["message_id"] for row in rows)


def numbers(first: int, last: int) -> list[str]:
    return sorted(f"m-{i}" for i in range(first, last))


def test_the_tasks_of_a_batch_read_the_replica_alone(pair: Pair) -> None:
    bury(pair.broker, 3_000)
    pair.catch_up()
    job = pair.load(queues="orders/dead", numPartitions=3)
    pair.reset()

    assert ids(job.rows()) == numbers(0, 3_000)
    primary, replica = pair.pages()
    assert primary == 0
    assert replica >= 3


def test_counts_come_from_the_primary(pair: Pair) -> None:
    bury(pair.broker, 10)
    pair.cut()
    bury(pair.broker, 5, first=10)

    job = loader(pair.primary.url)(("queue",), queues="orders/dead", readFrom=f"replica:{pair.replica.url}")

    assert len(job.rows()) == 15


@pytest.mark.parametrize("queues", [1, 30])
def test_a_task_whose_messages_the_replica_lacks_reads_the_primary(
    pair: Pair, queues: int, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(queues):
        bury(pair.broker, 40, into=f"{i}/dead", source=f"{i}")
    pair.cut()
    bury(pair.broker, 5, into="0/dead", source="0", first=40)

    job = pair.load(queuePattern="#/dead", numPartitions=1)
    pair.reset()

    assert len(job.rows()) == 40 * queues + 5
    assert pair.pages()[1] == 0
    assert "it has not reached the end" in caplog.text
    assert "in queue '0/dead'" in caplog.text
    assert "The primary is read" in caplog.text


@pytest.mark.parametrize("remove", ["ack", "purge_many", "redrive"])
def test_letters_that_left_before_the_plan_do_not_come_from_a_replica_that_lags(pair: Pair, remove: str) -> None:
    letters = bury(pair.broker, 100)
    pair.cut()
    if remove == "ack":
        letters.ack_many(letters.receive_many(30))
    elif remove == "purge_many":
        letters.purge_many([letter.sequence for letter in letters.peek(30)])
    else:
        letters.redrive(30)

    assert ids(pair.load(queues="orders/dead").rows()) == numbers(30, 100)


def test_the_number_of_messages_that_have_left_a_queue_never_falls(client: redis.Redis, broker: Broker) -> None:
    chance = random.Random(11)
    queue = broker.declare_queue("q", dead_letter="q/dead", max_deliveries=2, max_length=60, lease="1h")
    letters = broker.declare_queue("q/dead", lease="1h")
    held, removed = list[Delivery](), {"q": 0, "q/dead": 0}

    def taken(count: int) -> list[Delivery]:
        return [held.pop() for _ in range(min(count, len(held)))]

    actions: dict[str, Callable[[], object]] = {
        "enqueue": lambda: queue.enqueue_many([Message(b"x", id=None)] * chance.randint(1, 8)),
        "expire": lambda: queue.enqueue(Message(b"x", ttl="1ms")),
        "receive": lambda: held.extend(queue.receive_many(chance.randint(1, 6))),
        "ack": lambda: queue.ack_many(taken(2)),
        "nack": lambda: queue.nack_many(taken(3)),
        "delay": lambda: queue.nack_many(taken(1), delay="1h"),
        "reject": lambda: queue.reject_many(taken(1)),
        "sweep": queue.sweep,
        "purge": lambda: chance.random() < 0.1 and queue.purge(),
        "redrive": lambda: letters.redrive(2),
        "ack letters": lambda: letters.ack_many(letters.receive_many(2)),
    }
    for _ in range(600):
        actions[chance.choice(list(actions))]()
        for name, before in removed.items():
            [enqueued] = client.hmget(f"rqttl:{{q}}{name[1:]}:meta", "enqueued")
            present = client.xlen(f"rqttl:{{q}}{name[1:]}:log") + client.hlen(f"rqttl:{{q}}{name[1:]}:detached")
            removed[name] = int(enqueued or 0) - present
            assert removed[name] >= before
    assert min(removed.values()) > 20


def test_a_replica_with_other_data_is_refused_and_one_that_is_away_is_not_needed(
    pair: Pair, start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    bury(pair.broker, 10)
    other = start_server()
    with other.client() as client, Broker(client) as broker:
        bury(broker, 10)

    with pytest.raises(InvalidOption, match=r"readFrom: unix://.* is no replica of unix://.*: it has the data"):
        pair.load(queues="orders/dead", readFrom=f"replica:{other.url}")
    pair.catch_up()
    pair.replica.kill()
    job = pair.load(queues="orders/dead")
    assert ids(job.rows()) == numbers(0, 10)
    assert "cannot be reached" in caplog.text


def test_a_replica_has_the_user_of_its_server_and_is_told_apart_in_errors(pair: Pair) -> None:
    bury(pair.broker, 10)
    for client in (pair.client, pair.copy):
        client.execute_command("ACL", "SETUSER", "reader", "on", ">right", "~*", "&*", "+@all")
    pair.catch_up()
    job = pair.load(queues="orders/dead", username="reader", password="right")
    pair.reset()
    assert len(job.rows()) == 10
    assert pair.pages() == (0, 1)

    pair.copy.execute_command("ACL", "SETUSER", "reader", "resetpass", ">other")
    with pytest.raises(NotAuthenticated, match=r"^\[RQTTL_AUTHENTICATION\] readFrom: "):
        pair.load(queues="orders/dead", username="reader", password="right")


def lose_connection(pair: Pair) -> None:
    pair.replica.kill()


def forget(pair: Pair) -> None:
    pair.copy.replicaof("NO", "ONE")
    pair.copy.flushall()


def go_back(pair: Pair) -> None:
    """Have the replica go back to an older state, as after a restart from an old file."""
    pair.copy.replicaof("NO", "ONE")
    pair.copy.hset("rqttl:{orders}/dead:meta", "enqueued", 7)
    pair.copy.xtrim("rqttl:{orders}/dead:log", maxlen=7)


@pytest.mark.parametrize("spoil", [lose_connection, forget, go_back])
def test_a_replica_that_fails_between_two_pages_leaves_the_rest_to_the_primary(
    pair: Pair, spoil: Callable[[Pair], None], caplog: pytest.LogCaptureFixture
) -> None:
    bury(pair.broker, 6_000)
    pair.catch_up()
    job = pair.load(queues="orders/dead", fetchEntries=100, numPartitions=1)

    batches = job.batches(0, rows=500)
    rows = next(batches).to_pylist()
    spoil(pair)
    pair.reset() if spoil is not lose_connection else None
    rows += [row for batch in batches for row in batch.to_pylist()]

    assert len(rows) == 6_000
    assert ids(rows) == numbers(0, 6_000)
    assert "The rest of the task comes from the primary" in caplog.text
    assert int(pair.client.info("commandstats")["cmdstat_xrange"]["calls"]) > 10


@pytest.mark.parametrize("spoil", [lose_connection, forget])
def test_a_replica_that_fails_between_small_queues_leaves_the_rest_to_the_primary(
    pair: Pair, spoil: Callable[[Pair], None]
) -> None:
    for i in range(200):
        bury(pair.broker, 20, into=f"{i}/dead", source=f"{i}", first=20 * i)
    pair.catch_up()
    job = pair.load(queuePattern="#/dead", fetchEntries=50, numPartitions=1)

    batches = job.batches(0, rows=100)
    rows = next(batches).to_pylist()
    spoil(pair)
    rows += [row for batch in batches for row in batch.to_pylist()]

    assert len(rows) == 4_000
    assert ids(rows) == numbers(0, 4_000)


def test_messages_outside_the_log_come_from_the_replica_too(pair: Pair) -> None:
    queue = pair.broker.declare_queue("plain")
    queue.enqueue_many([Message(b"x", id=f"m-{i}") for i in range(60)])
    for delivery in queue.receive_many(20):
        delivery.nack(delay="1h")
    queue.receive_many(10)
    pair.catch_up()
    job = pair.load(queues="plain")
    pair.reset()

    assert ids(job.rows()) == numbers(0, 60)
    assert pair.pages() == (0, 1)
    assert "cmdstat_hscan" not in pair.client.info("commandstats")


def test_a_replica_that_fails_before_the_detached_messages_leaves_them_to_the_primary(pair: Pair) -> None:
    queue = pair.broker.declare_queue("plain")
    queue.enqueue_many([Message(b"x", id=f"m-{i}") for i in range(900)])
    for delivery in queue.receive_many(100):
        delivery.nack(delay="1h")
    pair.catch_up()
    job = pair.load(queues="plain", fetchEntries=100)
    batches = job.batches(0, rows=800)
    rows = next(batches).to_pylist()
    # a message that leaves the log on the primary now has come from the log of the replica
    for delivery in queue.receive_many(30):
        delivery.nack(delay="1h")
    pair.replica.kill()
    rows += [row for batch in batches for row in batch.to_pylist()]

    assert len(rows) == 900
    assert ids(rows) == numbers(0, 900)


def test_a_loss_that_the_replica_has_applied_is_a_loss_and_one_that_it_has_not_is_none(pair: Pair) -> None:
    letters = bury(pair.broker, 40)
    pair.catch_up()
    applied, not_applied = pair.load(queues="orders/dead"), pair.load(queues="orders/dead")
    pair.cut()
    letters.purge()
    assert ids(not_applied.rows()) == numbers(0, 40)

    pair.copy.replicaof("127.0.0.1", pair.port)
    until(lambda: pair.copy.xlen("rqttl:{orders}/dead:log") == 0)
    with pytest.raises(DataLoss, match="queue 'orders/dead': messages after"):
        applied.rows()


def test_a_replica_that_does_not_answer_is_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_connectors.options.options._REPLICA_TIMEOUT", 50)
    bury(pair.broker, 40)
    pair.catch_up()
    job = pair.load(queues="orders/dead")
    pair.replica.process.send_signal(signal.SIGSTOP)
    try:
        assert ids(job.rows()) == numbers(0, 40)
    finally:
        pair.replica.process.send_signal(signal.SIGCONT)


def test_the_tasks_of_a_stream_read_the_replica_if_it_has_reached_their_end(pair: Pair) -> None:
    bury(pair.broker, 50)
    stream = Query(pair.primary.url, queues="orders/dead", readFrom=f"replica:{pair.replica.url}")
    pair.catch_up()
    end = stream.plan()
    assert end is not None
    partitions = stream.reader.partitions(stream.checkpoint or {}, end)
    pair.reset()
    assert sum(batch.num_rows for part in partitions for batch in stream.reader.read(part)) == 50
    assert pair.pages() == (0, 1)
    stream.checkpoint = end

    pair.cut()
    bury(pair.broker, 7, first=50)
    rows = stream.drain()
    assert len(rows) == 7
    assert rows == sorted(rows)
    pair.copy.replicaof("127.0.0.1", pair.port)
    until(lambda: pair.copy.xlen("rqttl:{orders}/dead:log") == 57)
    bury(pair.broker, 3, first=57)
    assert len(stream.drain()) == 3


def test_replicas_of_several_servers_are_those_of_their_names(pair: Pair, start_server: Callable[..., Server]) -> None:
    alone = start_server()
    with alone.client() as client, Broker(client) as broker:
        bury(broker, 4)
    bury(pair.broker, 6)
    pair.catch_up()
    urls = f"eu={pair.primary.url},us={alone.url}"

    job = loader(urls)(COLUMNS, queues="orders/dead", readFrom=f"replica:eu={pair.replica.url}")
    pair.reset()

    assert len(job.rows()) == 10
    assert pair.pages() == (0, 1)
