"""`durability`: a call returns when a replica, or the disk, has its messages; else it says what it has stored."""

import asyncio
import signal
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import pytest
import redis

import rqttl
from rqttl import Message, NotReplicated, QueueFull, Receipt
from rqttl.doctor import examine
from rqttl.protocol import commands
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from rqttl.testing import fake_broker
from spark_connectors.write.sender import Stored
from tests.aio.conftest import Run, looped
from tests.aio.conftest import run as run  # noqa: PLC0414  # a fixture
from tests.cli.processes import output
from tests.doctor.looking import of
from tests.ports import free_port
from tests.process.proxy import Proxy
from tests.servers import Server, find_binary, server_binary
from tests.waiting import until

pytestmark = pytest.mark.once

WINDOW = "1h"
MANY = [b"%d" % i for i in range(600)]
SCHEDULED = Message(b"later", delay="1h")
RUNS = [b"1", b"2", SCHEDULED, b"3"]
FULL: dict[str, Any] = {"max_length": 2, "overflow": "reject-publish"}


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not confirmed is known at once."""
    for name, (*words, _) in list(commands.CONFIRMING.items()):
        monkeypatch.setitem(commands.CONFIRMING, name, (*words, "20"))


@pytest.fixture
def _never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait until a replica confirms them, however long it takes."""
    monkeypatch.setitem(commands.CONFIRMING, "replica", ("WAIT", "1", "0"))


class Pair(NamedTuple):
    """A server and its replica."""

    primary: Server
    replica: Server

    def stop(self) -> None:
        """Let the replica confirm nothing more."""
        self.replica.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.replica.process.send_signal(signal.SIGCONT)

    def copied(self, queue: str) -> int:
        """The messages of a queue that the replica has."""
        with self.replica.client() as client:
            return int(client.xlen(f"rqttl:{{{queue}}}:log")) + int(client.zcard(f"rqttl:{{{queue}}}:scheduled"))


@pytest.fixture
def pair(start_server: Callable[..., Server]) -> Iterator[Pair]:
    port = free_port()
    primary = start_server(port=port, bind="127.0.0.1", repl_diskless_sync_delay=0)
    replica = start_server(replicaof=f"127.0.0.1 {port}")
    with primary.client() as client:
        until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
    pair = Pair(primary, replica)
    yield pair
    pair.go_on()


#: Calls, the kinds of their receipts, how many of them are confirmed, and what the queue has then.
CALLS: dict[str, tuple[dict[str, Any], Callable[[rqttl.Queue], object], list[type], int]] = {
    "one": ({}, lambda queue: queue.enqueue(b"x"), [Receipt], 1),
    "one with an id": ({"duplicate_window": WINDOW}, lambda queue: queue.enqueue(b"x", id="1"), [Receipt], 1),
    "one later": ({}, lambda queue: queue.enqueue(SCHEDULED), [Receipt], 1),
    "a full queue": (FULL, lambda queue: queue.enqueue_many([b"1", b"2", b"3"]), [Receipt, Receipt, QueueFull], 2),
    "batches in one round trip": ({}, lambda queue: queue.enqueue_many(MANY), [Receipt] * 600, 600),
    "the first of several batches": (
        {"max_length": 1000},
        lambda queue: queue.enqueue_many(MANY),
        [Receipt] * 250,
        250,
    ),
    "the first of several runs": ({}, lambda queue: queue.enqueue_many(RUNS), [Receipt] * 2, 2),
}


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("how", CALLS)
def test_what_no_replica_has_is_told_with_its_receipts(broker: rqttl.Broker, client: redis.Redis, how: str) -> None:
    options, call, receipts, stored = CALLS[how]
    queue = broker.declare_queue("q", durability="replica", **options)
    client.script_flush()

    with pytest.raises(NotReplicated, match=r"queue 'q': durability=replica is not confirmed \(no replica") as told:
        call(queue)

    assert [type(one) for one in told.value.receipts] == receipts
    assert (told.value.confirmed, told.value.action) == (0, "enqueue")
    assert isinstance(told.value, rqttl.OutcomeUnknown)
    assert {one.id for one in queue.peek(1000)} | {one.id for one in queue.scheduled()} == {
        one.id for one in told.value.receipts if isinstance(one, Receipt)
    }
    stats = queue.stats()
    assert stats.ready + stats.scheduled == stored


@pytest.mark.usefixtures("_soon")
def test_who_sends_again_with_an_id_has_one_message_and_refusals_need_no_replica(broker: rqttl.Broker) -> None:
    queue = broker.declare_queue("q", durability="replica", duplicate_window=WINDOW)
    for is_duplicate in (False, True):
        with pytest.raises(NotReplicated) as told:
            queue.enqueue(b"x", id="1")
        assert [one.duplicate for one in told.value.receipts] == [is_duplicate]
    assert queue.stats().ready == 1

    full = broker.declare_queue("full", durability="replica", max_length=0, overflow="reject-publish")
    with pytest.raises(QueueFull):
        full.enqueue(b"x")
    assert [type(one) for one in full.enqueue_many([b"1", b"2"])] == [QueueFull, QueueFull]


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("durable", ["news/eu", "news"])
def test_the_strongest_durability_of_a_topic_and_its_queues_acts_on_the_whole_call(
    broker: rqttl.Broker, durable: str
) -> None:
    topic = broker.declare_topic("news")
    queues = [topic.subscribe("eu"), topic.subscribe("us")]
    broker.queue(durable).update(durability="replica")

    with pytest.raises(NotReplicated, match=f"queue '{durable}': durability=replica is not confirmed") as told:
        topic.enqueue_many([b"1", b"2"])

    assert (told.value.confirmed, [type(one) for one in told.value.receipts]) == (0, [Receipt] * 2)
    assert [[one.body for one in queue.peek()] for queue in queues] == [[b"1", b"2"]] * 2
    topic.unbind("news/eu")
    if durable == "news/eu":
        assert topic.enqueue(b"3").id == queues[1].peek()[2].id


@pytest.mark.usefixtures("_never")
@pytest.mark.parametrize("how", CALLS)
def test_a_call_returns_when_the_replica_has_its_messages(pair: Pair, pool: ThreadPoolExecutor, how: str) -> None:
    options, call, _, _ = CALLS[how]
    with rqttl.connect(pair.primary.url) as broker:
        queue = broker.declare_queue("q", durability="replica", **options)
        with pair.primary.client() as client:
            client.script_flush()
            pair.stop()
            sent = pool.submit(call, queue)
            until(lambda: client.info("clients")["blocked_clients"] == 1)
            assert not sent.done()
            pair.go_on()
            sent.result()
        assert pair.copied("q") == queue.stats().ready + queue.stats().scheduled


@pytest.mark.parametrize("queues", [100, 2], ids=["at once", "in steps"])
@pytest.mark.spec("TR-12")
def test_a_replica_that_takes_over_has_each_message_in_all_queues_or_at_the_topic(
    pair: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    """A failover loses writes: of one message none, or all."""
    monkeypatch.setattr("rqttl.flows.topics.QUEUES", queues)
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", ())
    names = [f"news/{name}" for name in "abcde"]

    def send(topic: rqttl.Topic) -> None:
        with suppress(redis.ConnectionError, rqttl.OutcomeUnknown):
            for number in count():
                topic.enqueue(b"%d" % number)

    with rqttl.connect(pair.primary.url) as broker:
        topic = broker.declare_topic("news")
        for name in "abcde":
            topic.subscribe(name)
        sent = pool.submit(send, topic)
        with pair.replica.client() as client:
            until(lambda: client.xlen("rqttl:{news}/e:log") > 50, 60)
        pair.primary.kill()
        sent.result()

    with pair.replica.client() as client, rqttl.Broker(client) as broker:
        client.replicaof("NO", "ONE")
        until(lambda: not Reaper(broker).run_once().failed and broker.queue("news").stats().ready == 0)
        stored = [[view.body for view in broker.queue(name).peek(10_000)] for name in names]
        assert stored == [[b"%d" % n for n in range(len(stored[0]))]] * 5
        stats = broker.queue("news").stats()
        assert (stats.enqueued, stats.copies) == (len(stored[0]), 5 * len(stored[0]))


def test_a_replica_that_stops_confirms_what_it_has(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(commands.CONFIRMING, "replica", ("WAIT", "1", "3000"))
    with rqttl.connect(pair.primary.url) as broker:
        queue = broker.declare_queue("q", durability="replica", max_length=1000, duplicate_window=WINDOW)
        broker.events.subscribe(lambda event: pair.stop() if getattr(event, "name", "") == "enqueue" else None)
        sent = [Message(body, id=body.decode()) for body in MANY]
        with pytest.raises(NotReplicated) as told:
            queue.enqueue_many(sent)
        assert (len(told.value.receipts), told.value.confirmed, queue.stats().ready) == (500, 250, 500)
        pair.go_on()

    with rqttl.connect(pair.primary.url) as broker:
        until(lambda: pair.copied("q") == 500)
        results = broker.queue("q").enqueue_many(sent)
        assert [one.duplicate for one in results if isinstance(one, Receipt)] == [True] * 500 + [False] * 100
        assert pair.copied("q") == 600


def test_an_outbox_keeps_letters_until_a_replica_of_a_durable_target_has_them(pair: Pair) -> None:
    with rqttl.connect(pair.primary.url, slotted=True) as broker:
        driver_of(broker).store.exchanges.is_service = True
        targets = [broker.declare_queue(name, durability=name) for name in ("replica", "primary")]
        queue = broker.declare_queue("q", dead_letter="replica", dead_letter_expired="primary")
        pair.stop()
        queue.enqueue_many([b"x", Message(b"x", ttl=0)])
        queue.receive_many(1)[0].reject()
        assert ([target.stats().ready for target in targets], queue.stats().outgoing) == ([1, 1], {"replica": 1})
        pair.go_on()
        until(lambda: queue.sweep() and not queue.stats().outgoing)
        assert targets[0].stats().ready == 1


@pytest.mark.usefixtures("_soon")
def test_a_call_that_is_repeated_after_a_lost_reply_is_confirmed_as_well(proxy: Proxy) -> None:
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        queue = broker.declare_queue("q", durability="replica", duplicate_window=WINDOW)
        proxy.spoil("cut", script="enqueue")
        with pytest.raises(NotReplicated) as told:
            queue.enqueue(b"x", id="1")
        assert (told.value.receipts[0].duplicate, queue.stats().ready) == (True, 1)


@pytest.mark.usefixtures("_never")
def test_other_calls_of_asyncio_go_on_while_one_waits_for_a_replica(pair: Pair, run: Run) -> None:
    async def work() -> None:
        async with rqttl.connect_async(pair.primary.url) as broker:
            queue = await broker.declare_queue("q", durability="replica")
            plain = await broker.declare_queue("plain")
            pair.stop()
            first = asyncio.create_task(queue.enqueue(b"first"))
            while not await queue.peek(1):
                await asyncio.sleep(0)
            later = [asyncio.create_task(queue.enqueue(b"%d" % i)) for i in range(100)]
            await plain.enqueue(b"x")
            assert (await plain.receive()) is not None
            assert not any(task.done() for task in [first, *later])

            pair.go_on()
            receipts = await asyncio.gather(first, *later)
            assert [one.id for one in receipts] == [one.sequence for one in await queue.peek(200)]
            assert pair.copied("q") == 101
            with pair.primary.client() as client:
                # the one of `declare_queue`, of the first call, and of all that came meanwhile
                assert client.info("commandstats")["cmdstat_wait"]["calls"] == 3

    run(work())


@pytest.mark.usefixtures("_soon")
@looped(durability="replica")
async def test_calls_of_asyncio_have_their_own_receipts_also_joined_and_in_batches(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue
) -> None:
    calls = [queue.enqueue(b"%d" % i) for i in range(20)]
    told = [*await asyncio.gather(*calls, queue.enqueue_many(MANY), return_exceptions=True)]
    assert {type(one) for one in told} == {NotReplicated}
    found = {one.id: one.body for one in await queue.peek(1000)}
    bodies = [found[receipt.id] for one in told for receipt in one.receipts]  # type: ignore[union-attr]
    assert (bodies, len(found)) == ([*MANY[:20], *MANY], 620)


@pytest.mark.usefixtures("_soon")
def test_policies_demand_it_and_commands_show_it(broker: rqttl.Broker, redis_url: str) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    broker.set_policy("safe", "q", {"durability": "replica"})
    with pytest.raises(NotReplicated):
        queue.enqueue(b"x")
    broker.set_policy("fast", "q", {"durability": "primary"}, operator=True)
    queue.enqueue(b"x")
    with pytest.raises(rqttl.InvalidOption, match=r"^durability: expected one of primary, replica, disk, got 'two'$"):
        broker.declare_queue("r", durability="two")  # type: ignore[arg-type]
    broker.delete_policy("safe")

    told = output(redis_url, "queue", "declare", "r", "--durability", "replica")
    assert "durability is replica, but nothing confirms it now: no replica" in told
    assert "durability" in output(redis_url, "queue", "show", "r")
    assert "is not confirmed" in output(redis_url, "send", "r", "x")
    text = "replica cannot be kept (no replica in time): each enqueue raises NotReplicated: r"
    findings = list(examine(broker))
    assert of(findings, "durability") == [("problem", text)]
    order = [one.check for one in findings]
    assert order.index("durability") < order.index("rights")


@pytest.mark.usefixtures("_soon")
def test_a_server_that_syncs_confirms_by_its_disk_and_others_are_refused(broker: rqttl.Broker) -> None:
    with pytest.raises(
        rqttl.InvalidOption,
        match=r"^durability: disk needs .* 7\.2 or later: (unknown command 'WAITAOF'$|WAITAOF .* appendonly)",
    ):
        broker.declare_queue("q", durability="disk")
    assert broker.queues() == []
    assert fake_broker().declare_queue("q", durability="disk").enqueue(b"x")

    binary = find_binary("valkey") or server_binary("8")  # Python 3.10 has no package with Valkey
    server = Server(binary, appendonly="yes", appendfsync="always")
    try:
        with rqttl.connect(server.url) as other, server.client() as client:
            queue = other.declare_queue("q", durability="disk")
            assert (len(queue.enqueue_many(MANY)), queue.stats().ready) == (600, 600)
            client.config_set("appendonly", "no")
            with pytest.raises(NotReplicated, match="appendonly is disabled"):
                queue.enqueue(b"x")
            plain = other.declare_queue("plain")
            with pytest.raises(rqttl.InvalidOption, match=r"^durability: disk needs"):
                plain.update(durability="disk")
    finally:
        server.remove()


def test_a_task_of_spark_takes_it_for_an_unknown_outcome() -> None:
    with fake_broker() as broker:
        broker.declare_queue("q", durability="replica")
        config = broker._driver.configs["q"]

    def flow() -> Generator[Any, Any, str]:
        yield commands.enqueue(config, [commands.pack(b"x")])
        return "done"

    stored = Stored(lambda _: commands.annotated([b"ok", b"", [b"1"]], "no replica in time"))
    with pytest.raises(NotReplicated, match="no replica"):
        stored.carry_out(flow())
    assert stored.any
