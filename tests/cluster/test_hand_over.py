"""Dead letters between nodes of a cluster: movers are killed, nodes hang, die or are full, and slots move."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count

import pytest

import rqttl
from rqttl import Broker, Queue
from rqttl.flows.steps import Step
from rqttl.reaper import Reaper
from tests.cluster.test_failing import names
from tests.cluster.test_failing import plain as plain  # noqa: PLC0414  # a fixture
from tests.cluster_servers import ClusterServers
from tests.contract.looks import bodies_in as bodies
from tests.contract.test_passing_on import Killed, is_passage, observed
from tests.servers import Server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Queues of three nodes. Rejected messages of the first go to the second, and expired ones to the third.
SOURCE, TARGET, OTHER = names("q")


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.declare_queue(SOURCE, dead_letter=TARGET, dead_letter_expired=OTHER)


def die(queue: Queue, *texts: bytes) -> None:
    """Messages that are rejected, and as many that expire."""
    queue.enqueue_many(texts)
    queue.reject_many(queue.receive_many(len(texts)))
    queue.enqueue_many([rqttl.Message(text, ttl=0) for text in texts])


@contextmanager
def away(cluster: ClusterServers, server: Server, how: str) -> Iterator[None]:
    """Within the block a node hangs, is dead, or has no memory left."""
    with ExitStack() as stack:
        stack.callback(until, cluster.agrees)
        if how == "is full":
            cluster.ask(server, "CONFIG", "SET", "maxmemory", 1)
            stack.callback(cluster.ask, server, "CONFIG", "SET", "maxmemory", 0)
        else:
            stack.enter_context(server.hanging() if how == "hangs" else server.down())
        yield


@pytest.mark.parametrize("how", ["hangs", "is dead", "is full"])
def test_a_target_that_is_away_keeps_nobody_else_waiting(
    how: str, cluster: ClusterServers, broker: Broker, queue: Queue
) -> None:
    texts = [b"%d" % n for n in range(10)]
    with away(cluster, cluster.owner(f"{{{TARGET}}}"), how):
        for text in texts:
            die(queue, text)
        assert bodies(broker, OTHER) == texts
        deaths = queue.stats().deaths
        assert (deaths["rejected"], deaths["expired"]) == (10, 10)

    until(lambda: queue.sweep() and len(bodies(broker, TARGET)) >= 10)
    assert bodies(broker, TARGET) == texts


def test_a_reaper_moves_what_a_user_may_not(
    cluster: ClusterServers, broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    rules = ("reset", "on", ">secret", "+@all", "&*", f"~rqttl:{{{SOURCE}}}*", "~rqttl:*{rqttl}")
    for server in cluster.servers:
        cluster.ask(server, "ACL", "SETUSER", "limited", *rules)
    calls: list[str] = []
    with caplog.at_level(logging.INFO), rqttl.connect(cluster.url().replace("//", "//limited:secret@")) as limited:
        limited.events.subscribe(lambda event: calls.append(event.name), rqttl.CommandEvent)
        die(limited.queue(SOURCE), b"1")
        die(limited.queue(SOURCE), b"2")
    for server in cluster.servers:
        cluster.ask(server, "ACL", "DELUSER", "limited")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("rqttl")] == []
    assert calls.count("accept") == 2  # it tries once for each target
    assert bodies(broker, TARGET) == []

    Reaper(broker).run_once()
    assert bodies(broker, TARGET) == bodies(broker, OTHER) == [b"1", b"2"]


def test_dead_letters_reach_the_queues_of_a_topic_whose_node_is_away_at_times(
    plain: ClusterServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes away while letters are on their way, and with a client between two steps of one that goes on."""
    monkeypatch.setattr("rqttl.flows.topics.QUEUES", 1)
    node, passages = plain.owner(f"{{{TARGET}}}"), count(1)

    def kill(step: Step) -> None:
        if is_passage(step) and next(passages) == 4:
            node.kill()
            raise Killed

    with rqttl.connect(plain.url()) as broker:
        topic, queue = broker.declare_topic(TARGET), broker.declare_queue(SOURCE, dead_letter=TARGET)
        queues = [topic.subscribe(name).name for name in ("eu", "us")]
        topic.pause()
        for how in ("is dead", "is full"):
            queue.enqueue(f"before it {how}", ttl=0)
            with away(plain, node, how):
                queue.enqueue(f"while it {how}", ttl=0)
        until(lambda: queue.sweep() and not queue.stats().outgoing)
        waiting = bodies(broker, TARGET)

        with observed(broker, kill), suppress(Killed):
            topic.resume()
        node.start()
        until(lambda: plain.agrees() and not Reaper(broker).run_once().failed and not bodies(broker, TARGET))

        assert (len(waiting), next(passages) > 4) == (4, True)
        assert [bodies(broker, name) for name in queues] == [waiting] * 2


def test_letters_arrive_while_both_slots_move(cluster: ClusterServers, broker: Broker, queue: Queue) -> None:
    texts = [b"%d" % n for n in range(2_000)]
    keys = [f"{{{name}}}" for name in (SOURCE, TARGET)]
    homes = {key: cluster.owner(key) for key in keys}
    ended, moves = threading.Event(), 0

    def move() -> None:
        nonlocal moves
        while not ended.is_set() or any(cluster.owner(key) is not home for key, home in homes.items()):
            for key in keys:
                owner = cluster.servers.index(cluster.owner(key))
                cluster.move(key, cluster.servers[(owner + 1) % 3])
                moves += 1

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move)
        for start in range(0, len(texts), 50):
            queue.enqueue_many(texts[start : start + 50])
            queue.reject_many(queue.receive_many(50))
        until(lambda: queue.sweep() and moves >= 8 and len(bodies(broker, TARGET)) >= len(texts))
        ended.set()
        moving.result()
    assert bodies(broker, TARGET) == texts


def test_asyncio_hands_over(cluster: ClusterServers) -> None:
    async def reject() -> list[bytes]:
        async with rqttl.connect_async(cluster.url()) as broker:
            queue = await broker.declare_queue(SOURCE, dead_letter=TARGET)
            await queue.enqueue_many([b"%d" % n for n in range(300)])
            await queue.reject_many(await queue.receive_many(300))
            return [view.body for view in await broker.queue(TARGET).peek(300)]

    assert asyncio.run(reject()) == [b"%d" % n for n in range(300)]
