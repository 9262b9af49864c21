"""A cluster and a service of Sentinel: rows are letters, none of them twice, also while nodes die and slots move."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rqttl
from rqttl import Broker
from rqttl.flows.steps import run
from rqttl.protocol import commands
from rqttl.protocol.keys import LOG, Keyspace
from rqttl.store.driver import driver_of
from spark_connectors import register
from spark_connectors.errors import InvalidOption, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.read import scan
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.stream.offsets import Offset
from spark_connectors.write import plan
from tests.cluster.conftest import broker as broker  # noqa: PLC0414  # a fixture
from tests.cluster.conftest import cluster as cluster  # noqa: PLC0414  # a fixture
from tests.cluster.conftest import nodes as nodes  # noqa: PLC0414  # a fixture
from tests.cluster_servers import ClusterServers
from tests.ports import free_port
from tests.sentinel.conftest import service as service  # noqa: PLC0414  # a fixture
from tests.sentinel.conftest import shared_service as shared_service  # noqa: PLC0414  # a fixture
from tests.servers import SentinelSet, Server
from tests.spark.following import again, held, stream_reader
from tests.spark.letters import bury
from tests.spark.reading import copied, loader, numbers
from tests.spark.streaming import Stream
from tests.spark.writing import LETTERS, Job, batch, counts
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Queues of all three nodes.
SOURCES = [f"q{n}" for n in range(12)]
QUEUED = "queue string, message_id string, body binary"
key_of = partial(Keyspace().key, part=LOG)


def bury_everywhere(broker: Broker, each: int, first: int = 0) -> list[str]:
    """Bury so many letters in the dead-letter queue of each source. Returns the ids of all, sorted."""
    for n, source in enumerate(SOURCES):
        bury(broker, each, into=f"{source}/dead", source=source, first=first + n * each)
    return numbers(each * len(SOURCES), first)


def test_a_task_reads_one_node_and_all_tasks_read_each_letter_once(cluster: ClusterServers, broker: Broker) -> None:
    letters = bury_everywhere(broker, 300)
    load = partial(loader(cluster.url()), queuePattern="#/dead", fetchEntries=100)

    for job, least, most in ((load(), 3, 3), (load(numPartitions=9), 5, 9), (load(numPartitions=2), 2, 2)):
        assert job.ids() == letters
        assert least <= len(job.ranges) <= most
        owners = [{cluster.owner(key_of(part.queue)).path for part in task} for task in job.ranges]
        assert most == 2 or {len(owner) for owner in owners} == {1}
    counted = Counter(row["queue"] for row in load(("queue",)).rows())
    assert counted == {f"{source}/dead": 300 for source in SOURCES}


def test_each_stage_of_the_move_of_a_slot_reads_all_letters(cluster: ClusterServers, broker: Broker) -> None:
    letters, key = bury_everywhere(broker, 20), key_of("q0/dead")
    target, load = cluster.elsewhere(key), partial(loader(cluster.url()), queuePattern="#/dead", numPartitions=1)
    planned, counting = load(), load(("queue",))

    def check() -> None:
        assert [planned.ids(), load().ids(), len(counting.rows())] == [letters, letters, len(letters)]

    cluster.begin_move(key, target)
    check()
    while cluster.move_keys(key, target, 1):
        check()
    cluster.end_move(key, target)
    check()


@pytest.mark.parametrize("ends", [True, False])
def test_a_slot_may_move_in_the_middle_of_a_read(cluster: ClusterServers, broker: Broker, ends: bool) -> None:
    bury(broker, 2_000, into="q0/dead", source="q0")
    key = key_of("q0/dead")
    client = cluster.client()
    client.hset("rqttl:{q0}:many", mapping={f"{n:0100}": n for n in range(3_000)})
    options = Options.parse("batch", {"url": cluster.url(), "queues": "q0/dead", "fetchEntries": "100"})
    job = loader(cluster.url())(queues="q0/dead", fetchEntries=100)
    batches = job.batches(0, 100)
    rows = next(batches).to_pylist()

    with BulkReader(options) as reader:
        pages = reader.hash_pages("rqttl:{q0}:many")
        fields = dict(next(pages))
        target = cluster.elsewhere(key)
        cluster.begin_move(key, target)
        while cluster.move_keys(key, target):
            pass
        if ends:
            cluster.end_move(key, target)
        rows += [row for batch in batches for row in batch.to_pylist()]
        fields |= {name: value for page in pages for name, value in page}
    if not ends:
        cluster.end_move(key, target)

    assert sorted(row["message_id"] for row in rows) == numbers(2_000)
    assert len(fields) == 3_000  # the cursor of one server is none of another


class Query:
    """A stream with a checkpoint: each batch is planned, read and committed, as by Spark."""

    def __init__(self, url: str, **options: object) -> None:
        self._make = partial(stream_reader, url, **options)
        self._reader = self._make()
        self.close = self._reader.stop
        self.offset: dict[str, Any] = self._reader.initialOffset()
        self.rows: list[tuple[str, str]] = []

    def trigger(self, in_between: Callable[[], object] = lambda: None) -> None:
        end = self._reader.latestOffset(self.offset, self._reader.getDefaultReadLimit())
        if end != self.offset:
            planner = self._make()
            tasks = copied(list(planner.partitions(self.offset, end)))
            planner.stop()
            in_between()
            for task in tasks:
                found = [
                    (row["queue"], row["sequence"]) for page in self._make().read(task) for row in page.to_pylist()
                ]
                self.rows += found
        self.offset = again(Offset.parse(end)).dump()


class Rig:
    """Servers with a primary for each queue that dies the first time, and freezes the second time."""

    def __init__(self, servers: ClusterServers | SentinelSet) -> None:
        self.servers, self.url = servers, servers.url()
        self.hows = iter([signal.SIGKILL, signal.SIGSTOP])
        self.down: list[Server] = []

    def fail(self, queue: str) -> None:
        """End the primary of a queue when a replica has all that it has. On a cluster another slot moves before."""
        if isinstance(self.servers, ClusterServers):
            other = key_of(next(source for source in SOURCES if source != queue))
            self.servers.move(other, self.servers.elsewhere(other))
        primary = self.servers.owner(key_of(queue))
        with primary.client() as client:

            def is_replicated() -> bool:
                told = client.info("replication")
                return bool(told["slave0"]["offset"] == told["master_repl_offset"])

            until(is_replicated)
        primary.process.send_signal(next(self.hows))
        self.down.append(primary)
        until(lambda: self.servers.is_replaced(primary))

    def recover(self) -> None:
        for server in self.down:
            server.process.send_signal(signal.SIGCONT)
            if server.process.poll() is not None:
                server.start()
        self.down = []
        self.servers.settle()


@pytest.fixture(params=["cluster", "sentinel"])
def rig(request: pytest.FixtureRequest, launch: Callable[..., Server]) -> Iterator[Rig]:
    if request.param == "cluster":
        servers = ClusterServers(launch, replicas=1, node_timeout=500)
        yield Rig(servers)
        servers.remove()
    else:
        rig = Rig(request.getfixturevalue("service"))
        yield rig
        rig.recover()


def test_reads_streams_and_writes_go_on_when_a_primary_dies(rig: Rig) -> None:
    patient = {"socketTimeout": "1s", "connectRetries": "9"}
    with rqttl.connect(rig.url) as broker:
        letters = bury_everywhere(broker, 30)
        planned = loader(rig.url)(queuePattern="#/dead", numPartitions=4, **patient)
        query = Query(rig.url, queuePattern="#/dead", afterCommit="purge", maxEntriesPerTrigger=100, **patient)

        query.trigger(lambda: rig.fail(SOURCES[2]))
        assert planned.ids() == letters
        rig.recover()
        query.trigger()
        assert counts(Job(rig.url, QUEUED, patient).run(two_batches(lambda: rig.fail(SOURCES[5]))))["stored"] <= 600
        for _ in range(5):
            query.trigger()
        assert loader(rig.url)(queues=",".join(SOURCES), **patient).ids() == numbers(600)
        rig.recover()

        assert (len(query.rows), len(set(query.rows))) == (len(letters), len(letters))
        assert {stats.ready for name, stats in broker.stats().items() if name.endswith("/dead")} == {0}
        query.close()


def two_batches(between: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """Rows for all queues."""
    rows = [(SOURCES[n % len(SOURCES)], f"m-{n}", b"x") for n in range(600)]
    yield batch(QUEUED, rows[:300])
    between()
    yield batch(QUEUED, rows[300:])


def test_a_dead_node_fails_a_read_and_a_write_that_need_it(
    launch: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.connections.FRESH", -1)  # a call to a dead node is known as not sent
    servers = ClusterServers(launch)
    try:
        with rqttl.connect(servers.url()) as broker:
            bury_everywhere(broker, 5)
            once = {"connectRetries": "1"}
            job = loader(servers.url())(queuePattern="#/dead", numPartitions=1, **once)
            write = Job(servers.url(), QUEUED, {**once, "idempotency": "off"})
            dead = servers.owner(key_of("q0"))
            with pytest.raises(Unreachable):
                write.run(two_batches(dead.kill))
            for fails in (job.ids, lambda: loader(servers.url())(queues="q0/dead", **once).ids()):
                with pytest.raises(Unreachable):
                    fails()
            names = [source for source in SOURCES if servers.owner(key_of(source)) is not dead]
            # an attempt that stored a part is not made again
            assert {stats.ready for stats in broker.stats(names).values()} <= {25, 50}
    finally:
        servers.remove()


def test_letters_go_back_within_their_slot_and_to_another_one(cluster: ClusterServers, broker: Broker) -> None:
    bury(broker, 4, into="q0/dead", source="q0")
    broker.declare_queue("q1")
    first, second, third, fourth = (found.sequence for found in broker.queue("q0/dead").peek(10))
    redrive = Job(cluster.url(), LETTERS, {"operation": "redrive"})

    rows = [("q0/dead", first, "q0"), ("q0/dead", second, "q1"), ("q0/dead", third, "q0"), ("q0/dead", fourth, "q1")]
    assert counts(redrive.task(rows)) == {"moved": 4}
    assert [broker.queue(name).stats().ready for name in ("q0/dead", "q0", "q1")] == [0, 2, 2]


@pytest.mark.parametrize("moments", ["03", "01", "13", "11", "23", "012", "0123"])
def test_a_stream_misses_no_letter_that_comes_back_from_a_full_queue_in_another_slot(
    cluster: ClusterServers, broker: Broker, moments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters leave and come back: 0 before the plan, 1 before the read, 2 in the middle of it, 3 after it."""
    bury(broker, 9, into="q0/dead", source="q0")
    letters, driver, tokens, left = held(broker, "q0/dead"), driver_of(broker), ["-"], Counter(moments)
    out = partial(commands.redrive_out, driver.keyspace, "q0/dead", "q1", [seq for _, seq in letters[2:4]])

    def at(moment: str) -> bool:
        for _ in range(left.pop(moment, 0)):
            verdict = "" if len(tokens) % 2 else "accepted"
            tokens.append(driver.perform(run(out(token=tokens[-1], verdict=verdict, fresh=moment))).token)
        return True

    detached = scan._detached_pages
    monkeypatch.setattr(scan, "_detached_pages", lambda *args: at("2") and detached(*args))
    query = Query(cluster.url(), queues="q0/dead")
    at("0")
    query.trigger(partial(at, "1"))
    at("3")
    query.trigger()

    assert (sorted(query.rows), len(tokens)) == (letters, len(moments) + 1)
    query.close()


def test_a_url_with_the_wrong_scheme_names_the_right_one(
    cluster: ClusterServers, service: SentinelSet, broker: Broker
) -> None:
    bury_everywhere(broker, 1)
    with service.primary().client() as client:
        port = client.config_get("port")["port"]
    away = next(source for source in SOURCES if cluster.owner(key_of(source)) is not cluster.servers[0])
    sentinels = service.url().removeprefix("redis+sentinel://").partition("/")[0]

    for url, told in (
        (f"redis://127.0.0.1:{cluster.ports[0]}", r"a node of a Redis Cluster.*use redis\+cluster://"),
        (f"redis+cluster://127.0.0.1:{port}", "not a node of a Redis Cluster: use redis://"),
        (f"redis+sentinel://127.0.0.1:{port}/main", "no Sentinel: use redis://"),
        (f"redis+sentinel://{sentinels}/other", "does not know it"),
    ):
        for options in ({"queuePattern": "#/dead"}, {"queues": "q0/dead,q1/dead,q2/dead"}):
            with pytest.raises(InvalidOption, match=told):
                loader(url)(**options)
        if "sentinel" not in url:
            with pytest.raises(InvalidOption, match=told):
                plan.check_target(Options.parse("write", {"url": url}), away)
    plan.check_target(Options.parse("write", {"url": cluster.url()}), SOURCES[0])
    with pytest.raises(Unreachable):
        loader(f"redis+cluster://127.0.0.1:{free_port()}")(queues="a", connectRetries=0)


def test_a_session_reads_follows_and_writes_a_cluster(
    spark: "SparkSession", cluster: ClusterServers, broker: Broker, tmp_path: Path
) -> None:
    register(spark)
    letters = bury_everywhere(broker, 20)
    read = spark.read.format("rqttl").option("url", cluster.url()).load(",".join(f"{name}/dead" for name in SOURCES))
    assert sorted(row.message_id for row in read.select("message_id").collect()) == letters

    back = read.select("queue", "sequence", "source").write.format("rqttl").option("url", cluster.url())
    back.mode("append").option("operation", "redrive").save()
    query = Stream(spark, tmp_path / "checkpoint", cluster.url(), queuePattern="*", maxEntriesPerTrigger=100)
    query.run()
    assert Counter(query.rows) == Counter(held(broker, *SOURCES))
    assert len(query.rows) == len(letters)
