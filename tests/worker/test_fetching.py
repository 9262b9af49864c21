"""The fetching of a worker: shares of queues, strict order, wake-ups of many queues, tickets, idle cost."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from rqttl import Broker, CommandEvent, Queue, QueueNotFound, Release, WaitEvent, Worker
from rqttl.consuming.several import Queues
from rqttl.testing.fake import ClockedBroker
from rqttl.worker.fetcher import Fetcher
from rqttl.worker.queue_source import QueueSource
from tests.servers import Server
from tests.waiting import PATIENCE, Gate, until
from tests.worker.conftest import Spawn
from tests.worker.processes import running

pytestmark = pytest.mark.slow


def test_weights_share_the_worker_and_without_them_the_order_is_strict(broker: Broker) -> None:
    for name in ("b", "a"):
        broker.declare_queue(name).enqueue_many([name] * 4000)
    order: list[str] = []

    Worker(broker, {"a": 3, "b": 1}, call=order.append, processes=0, burst=True).run()

    assert 2750 <= order[:4000].count("a") <= 3250  # a claim has up to 250 messages
    assert len(order) == 8000
    for name in ("b", "a"):
        broker.queue(name).enqueue_many([name] * 600)
    order.clear()

    Worker(broker, ["a", "b"], call=order.append, processes=0, burst=True).run()

    assert order == ["a"] * 600 + ["b"] * 600


def test_a_full_worker_outlives_the_deletion_of_a_queue_that_it_waits_in(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, empty = broker.declare_queue("q"), broker.declare_queue("empty")
    go, withdraw = threading.Event(), Fetcher._withdraw

    def watched(fetcher: Fetcher) -> None:
        if not go.is_set():
            empty.delete()
        withdraw(fetcher)
        go.set()

    monkeypatch.setattr(Fetcher, "_withdraw", watched)
    with running(Worker(broker, ["q", "empty"], call=lambda _: go.wait(PATIENCE), processes=0)):
        until(lambda: client.zcard("rqttl:{q}:waiters") and client.zcard("rqttl:{empty}:waiters"))
        queue.enqueue_many(["1", "2"])
        until(lambda: queue.stats().acked == 2)


@pytest.mark.parametrize("burst", [True, False])
def test_a_message_that_comes_back_late_is_taken(broker: Broker, monkeypatch: pytest.MonkeyPatch, burst: bool) -> None:
    """It is given back after the fetcher has found its queue empty, and has asked for the first time if all is done."""
    queue, asked, seen = broker.declare_queue("q"), threading.Event(), list[str]()
    is_over, settle_pending = Fetcher._is_over, QueueSource.settle_pending

    def watched(fetcher: Fetcher, now: int) -> bool:
        result = is_over(fetcher, now)
        if seen and fetcher._in_flight.is_idle:
            asked.set()
        return result

    def late(source: QueueSource) -> None:
        assert not seen or asked.wait(PATIENCE)
        settle_pending(source)

    def handle(value: str) -> None:
        seen.append(value)
        if len(seen) == 1:
            raise Release

    monkeypatch.setattr(Fetcher, "_is_over", watched)
    monkeypatch.setattr(QueueSource, "settle_pending", late)
    monkeypatch.setattr("rqttl.worker.fetcher.TURN", 3_600_000)
    queue.enqueue("x")
    with running(Worker(broker, "q", call=handle, processes=0, burst=burst)):
        until(lambda: queue.stats().acked == 1)

    assert seen == ["x", "x"]
    assert queue.stats().ready == 0


LATE: dict[str, Any] = {"body": b"x", "id": "late", "headers": {"n": 1}, "ttl": "1h"}


@pytest.fixture
def late(client: redis.Redis) -> Iterator[tuple[ClockedBroker, QueueSource, str]]:
    """A queue of a worker that has finished `LATE`, and whose ack came late; with the sequence of the message."""
    with ClockedBroker(client) as broker:
        queue = broker.declare_queue("q", lease="1s")
        source = Worker(broker, "q", call=print, processes=0)._sources["q"]
        queue.enqueue(**LATE)
        [[delivery], _] = source.claim(1, 0)
        broker.clock.advance("2s")
        queue.sweep()
        source.finish(delivery)
        source.withdraw()  # with the ack
        assert delivery.settled == "lease lost"
        yield broker, source, delivery.sequence


@pytest.mark.parametrize("leave", [QueueSource.withdraw, QueueSource.close])
def test_a_worker_that_leaves_a_queue_gives_back_what_was_handed_to_it_uncounted(
    client: redis.Redis, leave: Callable[[QueueSource], None]
) -> None:
    with ClockedBroker(client) as broker:
        queue = broker.declare_queue("q", max_length=1, overflow="reject-publish", max_deliveries=1)
        source = Worker(broker, "q", call=print, processes=0)._sources["q"]
        source.claim(1, 60_000)
        queue.enqueue_many([b"1", b"2"])

        leave(source)
        broker.clock.advance("10s")
        queue.sweep()

        assert [(one.body, one.delivery_count) for one in queue.receive_many(9)] == [(b"1", 1), (b"2", 1)]


def test_a_finished_message_whose_ack_came_late_is_acked_unseen(late: tuple[ClockedBroker, QueueSource, str]) -> None:
    broker, source, _ = late

    assert source.claim(1, 0)[0] == []
    source.withdraw()
    assert broker.queue("q").stats().acked == 1


@pytest.mark.parametrize("other", [{"body": b"y"}, {"id": "other"}, {"headers": {"n": 2}}])
def test_another_message_with_the_sequence_of_a_finished_one_is_handled(
    late: tuple[ClockedBroker, QueueSource, str], client: redis.Redis, other: dict[str, Any]
) -> None:
    """As after a failover that has lost writes, to a server with a slower clock."""
    broker, source, sequence = late
    client.flushdb()
    broker.clock.set(broker.clock.ms - 2_000)
    queue = broker.declare_queue("q", lease="1s")
    queue.enqueue(**LATE | other)
    once = queue.receive()
    assert once is not None
    once.nack(0)

    [[delivery], _] = source.claim(1, 0)

    assert (delivery.sequence, delivery.delivery_count, delivery.settled) == (sequence, 2, None)


def test_an_idle_worker_wakes_up_for_any_of_its_queues(broker: Broker) -> None:
    queues = [broker.declare_queue(f"q{n}") for n in range(20)]
    waiting, order = threading.Event(), list[str]()
    broker.events.subscribe(lambda event: waiting.set(), WaitEvent)

    with running(Worker(broker, [queue.name for queue in queues], call=order.append, processes=0)):
        assert waiting.wait(PATIENCE)
        for queue in queues:
            queue.enqueue(queue.name)
        until(lambda: len(order) == 20)
        until(lambda: all(queue.stats().acked == 1 for queue in queues))

    assert sorted(order) == sorted(queue.name for queue in queues)
    assert [queue.stats().consumers for queue in queues] == [0] * 20


def test_an_idle_worker_wakes_up_when_a_scheduled_message_is_due(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no reaper, and no look comes by itself within an hour here."""
    for name in ("consuming.several.PERIOD", "worker.fetcher.PROOF", "worker.fetcher.TURN"):
        monkeypatch.setattr(f"rqttl.{name}", 3_600_000)
    first, second = broker.declare_queue("a"), broker.declare_queue("b")
    first.enqueue("known before", delay="300ms")
    waiting, order = threading.Event(), list[str]()
    broker.events.subscribe(lambda event: waiting.set(), WaitEvent)

    with running(Worker(broker, ["a", "b"], call=order.append, processes=0)):
        assert waiting.wait(PATIENCE)
        until(lambda: order == ["known before"])
        second.enqueue("later", id="later", delay="1h")
        second.enqueue("sooner", delay="200ms")
        until(lambda: order[1:] == ["sooner"])
        second.reschedule("later", delay="100ms")
        until(lambda: order[2:] == ["later"])


@pytest.mark.parametrize("waits", [True, False], ids=["the worker waits already", "the worker is about to wait"])
def test_the_last_ack_waits_for_no_further_message(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """No claim and no turn of the renewer comes by itself within an hour here."""
    for name in ("worker.queue_source.LONGEST_REST", "consuming.several.PERIOD", "worker.fetcher.PROOF"):
        monkeypatch.setattr(f"rqttl.{name}", 3_600_000)
    monkeypatch.setattr("rqttl.consuming.prefetch.LONGEST_REST", 3_600_000)
    monkeypatch.setattr("rqttl.consuming.heartbeat.Heartbeat.ms_left", lambda *_: 3_600_000)
    queue, wait, handed = broker.declare_queue("q", lease="10h"), Queues.wait, threading.Event()

    def handle(_: object) -> None:
        handed.set()
        if waits:
            until(lambda: client.info("clients")["blocked_clients"] == 1)

    def late(queues: Queues, now: float, longest: float) -> int:
        if handed.is_set() and not waits:
            until(lambda: not worker._sources["q"].has_work or worker._sources["q"].has_acks)
        return wait(queues, now, longest)

    monkeypatch.setattr(Queues, "wait", late)
    queue.enqueue(b"x")
    worker = Worker(broker, "q", call=handle, processes=0, threads=2)
    with running(worker):
        until(lambda: queue.stats().acked == 1)


def test_a_worker_that_cannot_use_a_wakeup_leaves_it_to_the_next_consumer(
    pool: ThreadPoolExecutor, broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reaper is there to wake the consumer again."""
    for name in ("fetcher.PROOF", "fetcher.TURN"):
        monkeypatch.setattr(f"rqttl.worker.{name}", 3_600_000)
    queue, woken = broker.declare_queue("q", lease="1h"), Queues.woken

    def wake(queues: Queues, name: str, element: bytes) -> None:
        woken(queues, name, element)
        worker.stop()

    monkeypatch.setattr(Queues, "woken", wake)
    worker = Worker(broker, "q", call="tests.worker.handlers:plain", processes=1)
    with running(worker):
        until(lambda: worker._supervisor.ready == 1)
        until(lambda: client.info("clients")["blocked_clients"] == 1)
        other = pool.submit(queue.receive, wait="1h")
        until(lambda: client.info("clients")["blocked_clients"] == 2)  # Redis serves the first one first
        queue.enqueue("x")

        received = other.result(PATIENCE)

    assert received is not None
    assert received.delivery_count == 1


def test_a_message_without_time_reaches_an_idle_worker_by_its_ticket(client: redis.Redis) -> None:
    broker = ClockedBroker(client)  # the ticket lasts, however slow the machine is
    broker.declare_queue("other")
    queue = broker.declare_queue("q")
    waiting, order = threading.Event(), list[str]()
    broker.events.subscribe(lambda event: waiting.set(), WaitEvent)

    with running(Worker(broker, ["other", "q"], call=order.append, processes=0)):
        assert waiting.wait(PATIENCE)
        assert not queue.enqueue("now", ttl=0).expired
        until(lambda: queue.stats().acked == 1)

    assert order == ["now"]
    assert (queue.stats().redelivered, sum(queue.stats().deaths.values())) == (0, 0)


def test_a_full_worker_waits_for_no_message_any_more(broker: Broker) -> None:
    busy, queue = broker.declare_queue("busy"), broker.declare_queue("q")
    gate = Gate()

    with running(Worker(broker, ["busy", "q"], call=gate, processes=0)):
        busy.enqueue("x")
        gate.reached()
        until(lambda: queue.enqueue("now", ttl=0).expired)  # no ticket: nobody would show it
        gate.open()

    assert queue.stats().leased == 0


def test_a_topic_is_told_once_at_the_start_and_a_queue_that_takes_its_name_is_found(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.consuming.several.MISSING", 50)
    topic, queue, gate = broker.declare_topic("news"), broker.declare_queue("q"), Gate()
    queue.enqueue_many(["x"] * 9)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "'news' is a topic" in record.getMessage()]

    with running(Worker(broker, ["q", "news"], call=gate, processes=0)):
        gate.reached()
        assert len(told()) == 1, "before q is empty"
        gate.open()
        until(lambda: queue.stats().acked == 9)
        topic.delete()
        late = broker.declare_queue("news")
        late.enqueue("late")
        until(lambda: late.stats().acked == 1)

    assert len(told()) == 1


def test_a_missing_queue_is_refused_at_the_start_and_awaited_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.consuming.several.MISSING", 50)
    order: list[str] = []
    with pytest.raises(QueueNotFound):
        Worker(broker, "q", call=order.append, processes=0).run()

    queue = broker.declare_queue("q")
    with running(Worker(broker, "q", call=order.append, processes=0)):
        queue.enqueue("a")
        until(lambda: order == ["a"])
        queue.delete()
        broker.declare_queue("q")
        broker.queue("q").enqueue("b")
        until(lambda: order == ["a", "b"])


def test_an_idle_worker_of_20_queues_makes_few_calls_on_2_connections(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the worker runs 60 times faster, so a second is its minute."""
    server = start_server()
    with server.client() as client, Broker(client) as own:
        for n in range(20):
            own.declare_queue(f"q{n}")
    broker = Broker(server.client())
    calls = list[str]()
    broker.events.subscribe(lambda event: calls.append(event.name), CommandEvent)
    for name, ms in {"worker.fetcher.TURN": 167, "worker.fetcher.PROOF": 333, "consuming.several.PERIOD": 4000}.items():
        monkeypatch.setattr(f"rqttl.{name}", ms)
    monkeypatch.setattr("rqttl.consuming.heartbeat.PERIOD", 167)
    waiting = threading.Event()
    broker.events.subscribe(lambda event: waiting.set(), WaitEvent)

    with broker, running(Worker(broker, [f"q{n}" for n in range(20)], call=print, processes=0)), server.client() as one:
        assert waiting.wait(PATIENCE)
        until(lambda: calls.count("BLPOP") >= 2)
        began, before = time.monotonic(), len(calls)
        blocks = calls.count("BLPOP")
        until(lambda: calls.count("BLPOP") >= blocks + 18 and time.monotonic() >= began + 3)  # minutes of 6 waits each
        made = len(calls) - before
        minute = made / (time.monotonic() - began)
        me = str(one.client_id())
        connections = [client["cmd"] for client in one.client_list() if client["id"] != me]

    assert minute <= 30, calls[before:]
    assert len(connections) == 2, connections


# The list of workers


def test_workers_and_reapers_are_listed_while_they_live(spawn: Spawn, queue: Queue, broker: Broker) -> None:
    queue.enqueue("x", id="1")
    worker = spawn("q=2 --processes 2 --reaper --delivery", call="gated")
    worker.until_journal("begun")
    until(lambda: [info.role for info in broker.workers()] == ["reaper", "worker"])
    until(lambda: broker.workers()[1].slots == 2)

    reaper, info = broker.workers()

    assert (info.pid, info.queues, info.slots, info.handled) == (worker.process.pid, ("q=2",), 2, 0)
    assert info.rss > 2**20
    assert reaper.pid == info.pid
    worker.open()
    assert worker.stop() == 0
    assert broker.workers() == []


def test_a_handler_that_asks_for_a_longer_lease_ends_the_renewals_of_no_other(client: redis.Redis) -> None:
    broker = ClockedBroker(client)
    queue = broker.declare_queue("q", lease="3s")
    queue.enqueue_many(["long", "short"])
    source = Worker(broker, "q", call=print, processes=0)._sources["q"]
    (long, _), _ = source.claim(2, 0)

    source.prolong(long, 3_600_000)
    for _ in range(6):
        broker.clock.set(broker.clock.ms + 1_000)
        source.take_turn()

    assert queue.receive() is None
    assert queue.stats().leased == 2


def test_stale_and_strange_entries_are_no_workers(broker: Broker, client: redis.Redis) -> None:
    now = int(broker.server_time().timestamp() * 1000)
    facts: dict[str, Any] = {"role": "worker", "host": "h", "pid": 1, "queues": ["q"], "slots": 1, "version": "1"}
    facts |= {"running": [["q", "1", now]], "started": now, "last_claim": now, "handled": 0, "failed": 0, "rss": 1}
    for name, entry in {"alive": facts, "stale": {**facts, "beat": now - 31_000}, "new": {"role": "x"}}.items():
        client.hset("rqttl:workers{rqttl}", name, json.dumps({"beat": now, **entry}))
    client.hset("rqttl:workers{rqttl}", "strange", b"\xff")

    [info] = broker.workers()

    assert (info.name, info.running[0][:2]) == ("alive", ("q", "1"))


def test_a_refused_connection_pool_ends_the_worker_with_its_error(broker: Broker) -> None:
    broker.declare_queue("q")
    worker = Worker(broker, "q", call=print, processes=0)
    broker.close()

    with pytest.raises(Exception, match="closed"):
        worker.run()
