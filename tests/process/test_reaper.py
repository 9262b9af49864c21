"""The reaper: what one pass does within this process, and `rqttl reaper` with signals, outages and lost hints."""

import logging
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import pytest
import redis

import rqttl
from rqttl import Broker, InvalidDuration, Message, SweepEvent, Worker
from rqttl.flows.steps import Flow
from rqttl.reaper import Reaper, Totals, loop
from rqttl.reaper.queues import Registry
from tests.process.reapers import drain, enqueue_dead, reaping
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


def test_expired_messages_leave_on_time_without_traffic_because_a_hint_wakes_the_reaper(
    broker: Broker, redis_url: str
) -> None:
    orders = broker.declare_queue("orders", dead_letter="orders/dead")
    dead = broker.declare_queue("orders/dead")
    with reaping(redis_url, "--scan-period", "1h"):
        orders.enqueue(b"short", ttl="200ms")

        letter = dead.receive(wait="60s")

    assert letter is not None
    assert (letter.body, letter.deaths[0].reason) == (b"short", "expired")


@pytest.mark.spec("S-022")
def test_a_scheduled_message_arrives_on_time_without_traffic_because_a_hint_wakes_the_reaper(
    broker: Broker, client: redis.Redis, redis_url: str
) -> None:
    orders = broker.declare_queue("orders")
    late = orders.enqueue(b"later", delay="1h")
    with reaping(redis_url, "--scan-period", "1h") as reaper:
        orders.enqueue(b"soon", delay="300ms")
        until(lambda: client.xlen("rqttl:{orders}:log") == 1)
        orders.reschedule(late.id, delay="200ms")
        until(lambda: client.xlen("rqttl:{orders}:log") == 2)
        reaper.end(signal.SIGTERM)

    assert sum(event["activated"] for event in reaper.named("swept")) == 2
    assert [delivery.body for delivery in orders.receive_many(2)] == [b"soon", b"later"]


def test_a_hint_that_was_lost_is_made_up_for_by_the_full_pass(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client, Broker(client) as broker:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all")
        orders = broker.declare_queue("orders", dead_letter="orders/dead")
        dead = broker.declare_queue("orders/dead")
        url = server.url.replace("unix://", "unix://deaf:secret@")
        with reaping(url, "--scan-period", "100ms", watching=False) as reaper:
            reaper.await_event("subscribe_failed")
            orders.enqueue(b"short", ttl="200ms")

            letter = dead.receive(wait="60s")

    assert letter is not None
    assert "secret" not in str(reaper.events)


@pytest.mark.spec("A-063")
def test_two_reapers_at_once_move_every_message_exactly_once(broker: Broker, redis_url: str) -> None:
    names = [f"orders.{i}" for i in range(5)]
    broker.declare_queue("dead")
    for name in names:
        broker.declare_queue(name, dead_letter="dead")
    with reaping(redis_url, "--scan-period", "200ms") as one, reaping(redis_url, "--scan-period", "200ms") as two:
        sent = [Message(b"%s %d" % (name.encode(), i), ttl=f"{1 + i % 700}ms") for i in range(1000) for name in names]
        for name in names:
            broker.queue(name).enqueue_many([m for m in sent if str(m.body)[2:].startswith(name)])
        arrived = drain(broker, "dead", len(sent))
        codes = [one.end(signal.SIGTERM), two.end(signal.SIGTERM)]

    assert sorted(arrived) == sorted(m.body for m in sent if isinstance(m.body, bytes))
    assert codes == [0, 0]
    assert broker.queue("dead").stats().enqueued == len(sent)
    assert [broker.queue(name).stats().deaths["expired"] for name in names] == [1000] * 5
    assert all(event["level"] == "info" for event in [*one.events, *two.events])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_work_ends_it_cleanly(
    broker: Broker, client: redis.Redis, redis_url: str, number: signal.Signals
) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    dead = broker.declare_queue("dead")
    sent = enqueue_dead(broker, "orders", 20_000)
    with reaping(redis_url, watching=False) as reaper:
        assert dead.receive(wait="60s", lease="1h") is not None

        code = reaper.end(number)

    left, moved = client.xlen("rqttl:{orders}:log"), client.xlen("rqttl:{dead}:log")
    counted = int(client.hget("rqttl:{orders}:meta", "deaths:expired") or 0)
    assert code == 0
    assert reaper.events[-1]["event"] == "stopped"
    assert (left + client.hlen("rqttl:{orders}:detached") + moved, counted) == (len(sent), moved)


def test_a_sleeping_reaper_ends_at_once_on_a_signal_that_comes_several_times(redis_url: str) -> None:
    with reaping(redis_url, "--scan-period", "1h") as reaper:
        for _ in range(3):
            reaper.process.send_signal(signal.SIGTERM)

        assert reaper.end(signal.SIGTERM) == 0

    assert [event["event"] for event in reaper.events] == ["pass_completed", "stopped"]


def test_a_lost_subscription_is_taken_up_again(broker: Broker, client: redis.Redis, redis_url: str) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    broker.declare_queue("dead")
    with reaping(redis_url, "--scan-period", "1h") as reaper:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        reaper.await_event("pass_completed", times=2)
        broker.queue("orders").enqueue(b"short", ttl="200ms")

        assert broker.queue("dead").receive(wait="60s") is not None


def test_the_reaper_of_a_namespace_leaves_others_alone(broker: Broker, client: redis.Redis, redis_url: str) -> None:
    other = Broker(client, namespace="other")
    broker.declare_queue("orders", dead_letter="dead")
    other.declare_queue("orders", dead_letter="dead")
    other.declare_queue("dead")
    enqueue_dead(broker, "orders", 1)
    enqueue_dead(other, "orders", 1)
    with reaping(redis_url, "--namespace", "other", "--scan-period", "1h"):
        assert other.queue("dead").receive(wait="60s") is not None

    assert client.xlen("rqttl:{orders}:log") == 1


REGISTRY = "rqttl:queues{rqttl}"


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rqttl.reaper")


def facts(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [record.fields for record in caplog.records if getattr(record, "event", "") == event]  # type: ignore[attr-defined]  # set by the reaper


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

    done = Reaper(broker).run_once()

    assert (done.expired, done.failed) == (2, 2)
    assert {fact["queue"] for fact in facts(caplog, "failed")} == {"a.bad", "z.bad"}


def test_a_dead_letter_target_that_a_crash_left_out_of_the_registry_is_entered(
    broker: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    orders = broker.declare_queue("orders", dead_letter_rejected="bad.{queue}", dead_letter="dead")
    orders.enqueue(b"x")
    orders.reject_many(orders.receive_many(1))
    enqueue_dead(broker, "orders", 1)
    client.srem(REGISTRY, "bad.orders")

    Reaper(broker).run_once()

    assert broker.queues() == ["bad.orders", "dead", "orders"]
    assert facts(caplog, "queue_registered") == [{"queue": "bad.orders"}]  # the sweep itself has made the other one


def test_a_queue_at_its_end_is_told_and_counted_by_a_reaper_that_has_not_read_its_options(
    redis_url: str, broker: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
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
    (expired,) = [f for f in reaper.report.families() if f.name == "rqttl_reaper_queues_expired"]
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


@contextmanager
def loading(server: Server, client: redis.Redis) -> Iterator[None]:
    """The server loads its data within this block."""
    client.mset({f"{n}": random.randbytes(2000) for n in range(20_000)})
    client.config_set("key-load-delay", 10_000)
    client.config_set("loading-process-events-interval-bytes", 1024)
    with ThreadPoolExecutor(1) as pool, server.client() as other:
        done = pool.submit(other.execute_command, "DEBUG", "RELOAD")
        try:
            until(lambda: client.info("persistence")["loading"])
            yield
        finally:
            client.config_set("key-load-delay", 0)
            done.result(PATIENCE)


@contextmanager
def without_primary(server: Server, client: redis.Redis) -> Iterator[None]:
    client.config_set("replica-serve-stale-data", "no")
    client.replicaof("127.0.0.1", "1")
    yield
    client.replicaof("no", "one")


def ended(server: Server, client: redis.Redis) -> AbstractContextManager[None]:
    return server.down()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "reaper"])
@pytest.mark.parametrize(
    "outage, trouble", [(loading, "refuses for now"), (without_primary, "refuses for now"), (ended, "does not answer")]
)
def test_a_worker_and_a_reaper_wait_for_redis_at_the_start_and_later(
    start_server: Callable[..., Server],
    role: str,
    outage: Callable[[Server, redis.Redis], AbstractContextManager[None]],
    trouble: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_server(appendonly="yes", appendfsync="always", enable_debug_command="yes")
    line = re.compile(f"Redis {trouble}: .*; trying again until it does")
    field, ttl = ("deaths:expired", "1ms") if role == "reaper" else ("acked", None)
    with server.client() as client, rqttl.connect(server.url) as broker, ThreadPoolExecutor(1) as pool:
        queue = broker.declare_queue("q")
        program: Any = (
            Reaper(broker, scan_period="1s") if role == "reaper" else Worker(broker, "q", call=len, processes=0)
        )

        try:
            with outage(server, client):
                run = pool.submit(program.run)
                until(lambda: run.done() or any(map(line.fullmatch, caplog.messages)))
            queue.enqueue(b"x", ttl=ttl)
            until(lambda: run.done() or client.hget("rqttl:{q}:meta", field) == b"1")
            caplog.clear()
            with outage(server, client):
                if (role, outage) != ("reaper", ended):  # an idle reaper need not notice
                    until(lambda: run.done() or any(map(line.fullmatch, caplog.messages)))
            queue.enqueue(b"x", ttl=ttl)
            until(lambda: run.done() or client.hget("rqttl:{q}:meta", field) == b"2")
        finally:
            program.stop()
        run.result(PATIENCE)


@pytest.mark.slow
def test_an_outage_within_the_first_pass_ends_no_reaper(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    outages, begin = [redis.TimeoutError("no reply")], Registry.begin

    def hanging(registry: Registry, *, thorough: bool) -> Flow[None]:
        if outages:
            raise outages.pop()
        return begin(registry, thorough=thorough)

    monkeypatch.setattr(Registry, "begin", hanging)
    broker.declare_queue("q").enqueue(b"x", ttl="1ms")
    reaper = Reaper(broker)
    broker.events.subscribe(lambda event: reaper.stop() if event.swept.expired else None, SweepEvent)

    assert reaper.run().expired == 1


def test_a_silent_connection_is_asked_whether_it_lives_and_replaced_when_it_does_not(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SILENCE", 0.05)
    server = start_server()
    with server.client() as client:
        heard = loop.Hints(client.pubsub, "rqttl:due")
        with heard.listening():
            until(lambda: heard.hearing)
            # an answer that takes longer than this silence counts as a loss already
            until(lambda: not heard.hearing or "ping" in {one["cmd"] for one in client.client_list(_type="pubsub")})
            heard.missed = False
            with server.hanging():
                until(lambda: heard.missed and not heard.hearing)
            until(lambda: heard.hearing)


def test_more_hints_than_can_wait_are_made_up_for_by_a_pass(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_WAITING", 1)
    heard = loop.Hints(client.pubsub, "rqttl:due")
    with heard.listening():
        until(lambda: heard.hearing)
        heard.missed = False
        client.publish("rqttl:due", "1 orders")
        until(lambda: heard.missed)


def test_a_pass_forgets_no_queue_that_a_hint_has_named_meanwhile(broker: Broker) -> None:
    reaper = Reaper(broker)
    reaper._begin_pass(thorough=True)
    reaper._hints.inbox.put(("newer", 7))
    reaper._read_inbox(0.0)

    reaper._end_pass()
    [node] = reaper._nodes.values()
    assert node.timetable.earliest() == 7

    reaper._begin_pass(thorough=True)
    reaper._end_pass()
    assert node.timetable.earliest() is None


def test_a_reaper_sweeps_all_queues_once_the_clock_of_redis_has_gone_back(broker: Broker) -> None:
    broker.declare_queue("orders")
    reaper = Reaper(broker)
    reaper.run_once()
    [node] = reaper._nodes.values()
    swept = list[str]()
    broker.events.subscribe(lambda sweep: swept.append(sweep.queue), SweepEvent)

    node.ahead += 3_600_000
    reaper._begin_pass(thorough=False)
    while node.timetable.busy:
        reaper._sweep_next()

    assert swept == ["orders"]
    reaper._begin_pass(thorough=False)
    assert not node.timetable.busy


def test_a_broker_counts_the_reapers_that_run_in_its_database(start_server: Callable[..., Server]) -> None:
    url = start_server().url
    with rqttl.connect(url) as broker, rqttl.connect(f"{url}?db=1") as other:
        counted: list[tuple[int, int]] = []

        def count(_: SweepEvent) -> None:
            counted.append((broker.reaper_count(), other.reaper_count()))
            reaper.stop()

        broker.declare_queue("orders").enqueue(b"x", ttl="1ms")
        broker.events.subscribe(count, SweepEvent)
        reaper = Reaper(broker)
        reaper.run()

        assert (counted[0], broker.reaper_count()) == ((1, 0), 0)


def test_hints_of_queues_that_are_not_there_are_ignored_and_those_of_new_queues_are_not(
    broker: Broker, client: redis.Redis
) -> None:
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
        for i in range(100):
            client.publish("rqttl:due", f"1 bogus{i}")
        broker.declare_queue("new").enqueue(b"x", ttl="1ms")
        assert expired.wait(PATIENCE)
    finally:
        reaper.stop()
        thread.join(PATIENCE)

    assert reaper.report.totals.failed == 0
    assert sum(len(node.timetable) for node in reaper._nodes.values()) <= 2


@pytest.mark.parametrize("field", ["version", "policy short"])
def test_damaged_policies_stop_no_duty(
    broker: Broker, client: redis.Redis, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x", ttl="1ms")
    client.hset("rqttl:policies{rqttl}", mapping={"version": 3, field: "damage"})

    assert Reaper(broker).run_once().failed == 0

    assert any("options in force do not follow the policies" in message for message in caplog.messages)
    assert facts(caplog, "refused")[0]["error"] == "DataDamaged"
