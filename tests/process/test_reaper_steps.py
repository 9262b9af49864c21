"""The reaper within this process: what one pass does, in which order, and what it puts right."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Literal

import pytest
import redis

import rqttl
from rqttl import Broker, InvalidDuration, Policy, SweepEvent
from rqttl.reaper import Reaper, Totals, hints
from rqttl.reaper.report import families
from rqttl.store.driver import driver_of
from tests.half_done import store_policy
from tests.process.reapers import enqueue_dead
from tests.servers import Server
from tests.waiting import PATIENCE, until

REGISTRY = "rqttl:queues"


def facts(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [record.fields for record in caplog.records if getattr(record, "event", "") == event]  # type: ignore[attr-defined]  # set by the reaper


def test_one_pass_does_all_that_is_due(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    sent = enqueue_dead(broker, "orders", 1200)

    done = Reaper(broker).run_once()

    assert (done.expired, done.failed) == (1200, 0)
    assert client.xlen("rqttl:{dead}:log") == len(sent)
    assert Reaper(broker).run_once().messages == 0


@pytest.mark.spec("A-058")
def test_every_bounded_sweep_is_told_and_queues_take_turns(broker: Broker) -> None:
    for name in ("a", "b"):
        broker.declare_queue(name)
        enqueue_dead(broker, name, 1000)
    sweeps: list[SweepEvent] = []
    broker.events.subscribe(sweeps.append, SweepEvent)

    Reaper(broker).run_once()

    order = [sweep.queue for sweep in sweeps if sweep.swept.expired]
    assert order[:6] == ["a", "b"] * 3
    assert sum(sweep.swept.expired for sweep in sweeps) == 2000


def test_a_queue_that_cannot_be_swept_does_not_stop_the_others(
    broker: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_queue("a.bad")
    broker.declare_queue("good")
    enqueue_dead(broker, "a.bad", 1)
    enqueue_dead(broker, "good", 2)
    client.delete("rqttl:{a.bad}:expiry")
    client.set("rqttl:{a.bad}:expiry", "not a sorted set")
    client.sadd(REGISTRY, "z.bad")
    client.set("rqttl:{z.bad}:meta", "not a hash")

    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        done = Reaper(broker).run_once()

    assert (done.expired, done.failed) == (2, 2)
    assert {fact["queue"] for fact in facts(caplog, "failed")} == {"a.bad", "z.bad"}


def test_a_dead_letter_target_that_a_crash_left_out_of_the_registry_is_entered(
    broker: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    orders = broker.declare_queue("orders", dead_letter_rejected="bad.{queue}", dead_letter="never.made")
    orders.enqueue(b"x")
    delivery = orders.receive()
    assert delivery is not None
    delivery.reject()
    client.srem(REGISTRY, "bad.orders")

    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        Reaper(broker).run_once()

    assert broker.queues() == ["bad.orders", "orders"]
    assert facts(caplog, "queue_registered") == [{"queue": "bad.orders"}]


def test_a_target_that_a_sweep_has_just_made_is_not_taken_for_a_missing_one(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    enqueue_dead(broker, "orders", 1)

    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        Reaper(broker).run_once()

    assert broker.queues() == ["dead", "orders"]
    assert facts(caplog, "queue_registered") == []


def test_a_queue_at_its_end_is_told_and_counted_by_a_reaper_that_has_not_read_its_options(
    redis_url: str, broker: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker.declare_queue("brief", expires="1h").enqueue(b"m")
    client.hset("rqttl:{brief}:meta", mapping={"last_used_at": 1, "last_active_at": 1})
    sweeps: list[SweepEvent] = []
    with rqttl.connect(redis_url) as other:
        other.events.subscribe(sweeps.append, SweepEvent)

        reaper = Reaper(other)
        done = reaper.run_once()

    assert (done.retired, done.sweeps) == (1, 1)
    assert [sweep.swept.retired for sweep in sweeps] == [1]
    assert facts(caplog, "queue_expired") == [{"queue": "brief", "dropped": 1}]
    (expired,) = [
        f for f in families(replace(reaper.snapshot(), totals=done)) if f.name == "rqttl_reaper_queues_expired"
    ]
    assert [sample.value for sample in expired.samples] == [1]
    assert broker.queues() == []


def test_a_queue_that_is_deleted_is_no_failure(broker: Broker) -> None:
    broker.declare_queue("a")
    broker.declare_queue("b").enqueue(b"x")

    def delete_before_its_turn(sweep: SweepEvent) -> None:
        if sweep.queue == "a":
            broker.queue("b").delete()

    broker.events.subscribe(delete_before_its_turn, SweepEvent)

    assert Reaper(broker).run_once().failed == 0


@pytest.mark.parametrize("period", [None, -1, "-1"])
def test_without_a_scan_period_there_is_no_reaper(broker: Broker, period: Literal[-1, "-1"] | None) -> None:
    broker.declare_queue("orders")
    enqueue_dead(broker, "orders", 1)

    assert Reaper(broker, scan_period=period).run() == Totals()
    assert broker.queue("orders").stats().deaths["expired"] == 1  # swept by this very call


@pytest.mark.parametrize("period", [0, -2, 60, "60", "soon", True])
def test_a_wrong_scan_period_is_refused(broker: Broker, period: Any) -> None:
    with pytest.raises(InvalidDuration, match="scan_period"):
        Reaper(broker, scan_period=period)


def test_a_reaper_without_redis_says_so_at_once(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client, Broker(client) as broker:
        server.kill()
        with pytest.raises(redis.ConnectionError):
            Reaper(broker).run()


def test_stop_ends_a_sleeping_reaper_from_another_thread_and_leaves_no_thread_behind(broker: Broker) -> None:
    broker.declare_queue("orders")
    swept = threading.Event()
    broker.events.subscribe(lambda _: swept.set(), SweepEvent)
    reaper = Reaper(broker, scan_period="1h")
    thread = threading.Thread(target=reaper.run)
    thread.start()
    assert swept.wait(PATIENCE)

    reaper.stop()
    thread.join(PATIENCE)

    assert not thread.is_alive()
    until(lambda: not [t for t in threading.enumerate() if t.name == "rqttl-reaper-hints"])


@pytest.mark.slow
def test_a_silent_connection_is_asked_whether_it_lives_and_replaced_when_it_does_not(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "QUIET", 0.05)
    server = start_server()
    with server.client() as client:
        inbox = SimpleQueue[hints.Wake | tuple[str, int]]()
        listening = hints.HintSubscriber(client, "rqttl:due", inbox)
        listening.start()
        assert inbox.get(timeout=PATIENCE) is hints.Wake.LISTENING
        # an answer that takes longer than this silence counts as a loss already
        until(lambda: inbox.qsize() or "ping" in {one["cmd"] for one in client.client_list(_type="pubsub")})
        server.process.send_signal(signal.SIGSTOP)
        assert inbox.get(timeout=PATIENCE) is hints.Wake.LOST
        server.process.send_signal(signal.SIGCONT)
        assert inbox.get(timeout=PATIENCE) is hints.Wake.LISTENING
        listening.close()


def test_a_broker_counts_the_reapers_that_run(broker: Broker) -> None:
    """The real one, so that what is counted is what it does."""
    counted: list[int] = []

    def count(_: SweepEvent) -> None:
        until(broker.reaper_count)  # the reaper listens in a thread of its own
        counted.append(broker.reaper_count())
        reaper.stop()

    broker.declare_queue("orders").enqueue(b"x", ttl="1ms")
    broker.events.subscribe(count, SweepEvent)
    reaper = Reaper(broker)
    reaper.run()

    assert counted == [1]


def test_hints_of_queues_that_are_not_there_are_ignored_and_those_of_new_queues_are_not(
    broker: Broker, client: redis.Redis
) -> None:
    """50,000 of them: what the reaper remembers does not grow."""
    swept, expired = threading.Event(), threading.Event()

    def note(sweep: SweepEvent) -> None:
        swept.set()
        if sweep.queue == "new" and sweep.swept.expired:
            expired.set()

    broker.declare_queue("orders")
    broker.events.subscribe(note, SweepEvent)
    reaper = Reaper(broker, scan_period="1h")
    thread = threading.Thread(target=reaper.run)
    thread.start()
    try:
        assert swept.wait(PATIENCE)
        until(broker.reaper_count)
        for start in range(0, 50_000, 1_000):
            with client.pipeline(transaction=False) as pipeline:
                for i in range(start, start + 1_000):
                    pipeline.publish("rqttl:due", f"9999999999999 bogus{i}")
                pipeline.execute()
        broker.declare_queue("new").enqueue(b"x", ttl="1ms")
        assert expired.wait(PATIENCE)
    finally:
        reaper.stop()
        thread.join(PATIENCE)

    assert len(reaper._timetable) <= 2
    assert len(reaper._strange) <= hints.HINTS
    assert set(reaper._registry._records) <= {"orders", "new"}
    assert len(driver_of(broker).configs) <= 2


def test_a_client_remembers_no_more_queues_than_its_bound(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.declare_queue("other")
    known = driver_of(broker).configs
    monkeypatch.setattr(known, "_limit", 20)
    for i in range(100):
        broker.declare_queue(f"q{i}").enqueue(b"x")
        assert len(known) <= 20


SHORT = Policy.read("short", "orders.#", {"message_ttl": 0, "max_length": 5})


def test_a_pass_finishes_the_change_of_a_client_that_died(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.declare_queue("orders.eu")
    broker.declare_queue("other")
    queue.enqueue_many([b"x"] * 10)
    store_policy(broker, SHORT)
    assert queue.options()["max_length"] is None

    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        Reaper(broker).run_once()

    assert (queue.options()["message_ttl"], queue.options()["max_length"]) == (0, 5)
    assert queue.stats(sweep=False).ready == 0
    assert facts(caplog, "queue_reconciled") == [{"queue": "orders.eu", "options": ["message_ttl", "max_length"]}]
    assert broker.reconcile().changed == {}


@pytest.mark.parametrize("field", ["version", "policy short"])
def test_damaged_policies_stop_no_duty(
    broker: Broker, client: redis.Redis, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x", ttl="1ms")
    client.hset("rqttl:policies", mapping={"version": 3, field: "damage"})

    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        assert Reaper(broker).run_once().failed == 0

    assert any("options in force do not follow the policies" in message for message in caplog.messages)
    assert facts(caplog, "refused")[0]["error"] == "DataDamaged"
