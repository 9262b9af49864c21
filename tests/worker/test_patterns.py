"""Patterns of queues: queues that appear, and what a worker keeps of deleted ones."""

from collections.abc import Iterable

import pytest
import redis

from rqttl import Broker, QueueNotFound, Worker
from rqttl.protocol.keys import Keyspace
from tests.waiting import until
from tests.worker.processes import running

pytestmark = [pytest.mark.once, pytest.mark.slow]


def test_patterns_are_looked_up_anew(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqttl.worker.fetcher.SCAN", 50)
    monkeypatch.setattr("rqttl.worker.fetcher.TURN", 50)
    order: list[str] = []

    with running(Worker(broker, ["tenant.*"], call=order.append, processes=0)):
        broker.declare_queue("tenant.a").enqueue("a")
        until(lambda: order == ["a"])
        broker.declare_queue("other").enqueue("no")
        broker.declare_queue("tenant.b").enqueue("b")
        until(lambda: order == ["a", "b"])


def test_a_pattern_takes_no_dead_letters_unless_it_names_them(broker: Broker) -> None:
    for name in ("w.a", "w.a/dead", "w.b/dead"):
        broker.declare_queue(name).enqueue(name)
    order: list[str] = []

    Worker(broker, ["w.*"], call=order.append, processes=0, burst=True).run()
    assert order == ["w.a"]

    Worker(broker, ["w.*/dead", "w.a"], call=order.append, processes=0, burst=True).run()
    assert sorted(order) == ["w.a", "w.a/dead", "w.b/dead"]


def test_a_pattern_without_a_queue_is_a_warning(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.declare_queue("w.a")

    Worker(broker, ["w.*", "x.*"], call=print, processes=0, burst=True).run()

    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "no queue matches x.*; looking again every 15 s"
    ]


def test_a_worker_keeps_nothing_of_short_lived_queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, ms in {"worker.fetcher.SCAN": 50, "consuming.several.MISSING": 10, "worker.fetcher.TURN": 50}.items():
        monkeypatch.setattr(f"rqttl.{name}", ms)
    order: list[str] = []
    broker.declare_queue("named").enqueue("first")
    worker = Worker(broker, ["tenant.*", "named"], call=order.append, processes=0)

    def met() -> set[str]:
        """The queues of which any part of the worker knows."""
        parts: list[Iterable[str]] = [worker.counters.queues, worker._fetcher._queues, worker._sources]
        return {queue for part in parts for queue in list(part)}

    with running(worker):
        for n in range(20):
            broker.declare_queue(f"tenant.{n}").enqueue(str(n))
            until(lambda n=n: str(n) in order)  # type: ignore[misc]  # the default binds
            broker.queue(f"tenant.{n}").delete()
        until(lambda: met() == {"named"})
        assert worker.counters.queues["named"].outcomes == {"ack": 1}
        assert worker.counters.totals().handled == 21

        broker.queue("named").delete()  # it is no queue of a pattern: there are as many of those as the user names
        broker.declare_queue("named").enqueue("second")
        until(lambda: worker.counters.queues["named"].outcomes == {"ack": 2})


def test_acks_of_a_deleted_queue_are_given_up(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue("x")
    worker = Worker(broker, ["q"], call=print, processes=0)
    source = worker._sources["q"]
    (item,), _ = source.claim(1, 0)
    source.finish(item)

    queue.delete()

    with pytest.raises(QueueNotFound):
        source.take_turn()
    assert not source.has_work
    assert item.settled == "lease lost"
    assert worker.counters.totals().lost == 1


def test_a_queue_whose_acks_fail_is_not_tried_again_at_once(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.consuming.heartbeat.Heartbeat.ms_left", lambda *_: 3_600_000)
    broker.declare_queue("q").enqueue("x")
    worker = Worker(broker, ["q"], call=print, processes=0)
    source, sources = worker._sources["q"], worker._sources
    source.finish(source.claim(1, 0)[0][0])
    worker._sources.takes_acks = False
    leases = Keyspace().key("q", "leases")
    client.rename(leases, "aside")
    client.set(leases, "of another type")

    pauses = [sources.pause(source.node)]
    sources.take_turns(source.node)
    pauses.append(sources.pause(source.node))
    assert [pause > 0 for pause in pauses] == [False, True]

    client.rename("aside", leases)
    sources.take_turns(source.node)
    assert not source.has_work
    assert broker.queue("q").stats().leased == 0
