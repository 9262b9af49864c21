"""The metrics of queues: names, values, and scrapes that change nothing."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest

import rqttl
from rqttl import Broker, InvalidInput, Message
from rqttl.metrics import QUEUES, SOURCES, Metric, collector, instrument
from rqttl.metrics.collecting import QueueCollector, as_text
from rqttl.reaper import Reaper
from rqttl.testing import fake_broker
from rqttl.worker.health import Counters
from tests.contract.clocked import Clocked
from tests.contract.looks import one
from tests.half_done import on_the_way
from tests.lua.states import everything
from tests.metrics.scrapes import Samples, parse, types_in, value
from tests.servers import Server


def scrape(broker: Broker, queues: Iterable[str] = (), limit: int = 1000) -> Samples:
    return parse(as_text(collector(broker, queues=list(queues), limit=limit).collect))


@pytest.fixture
def mixed(clocked: Clocked) -> Clocked:
    """The queue `mixed` with messages in every state, some of them overdue, and the queue `bounded`."""
    queue = clocked.declare_queue("mixed", lease="1s", message_ttl="1h")
    queue.enqueue_many([b"lost", b"delayed", b"leased", Message(b"expired", ttl="2s"), b"ready"])
    queue.enqueue(b"soon", delay="0s")
    queue.enqueue_many([Message(b"later", delay="1h"), Message(b"never", id="never", delay="1h")])
    queue.cancel("never")
    _, delayed, _ = queue.receive_many(3)
    delayed.nack("3s")
    clocked.declare_queue(
        "bounded", max_length=9, max_length_bytes=99, paused=True, max_leased=5, rate="150/1m"
    ).enqueue(b"1")
    clocked.advance(5_000)
    return clocked


def names_of(metrics: Iterable[Metric]) -> dict[str, str]:
    return {metric.name: "gauge" if metric.kind == "info" else metric.kind for metric in metrics}


def test_the_metrics_of_queues_have_exactly_the_names_and_types_of_the_table(mixed: Clocked) -> None:
    text = as_text(collector(mixed).collect)

    assert types_in(text) == names_of(QUEUES)
    for name, labels in parse(text):
        (metric,) = [metric for metric in QUEUES if metric.name == name]
        assert {label for label, _ in labels} == set(metric.labels)


def test_workers_reapers_and_clients_have_exactly_the_names_and_types_of_the_table(broker: Broker) -> None:
    registry = CollectorRegistry()
    instrument(broker, registry)
    texts = {
        "worker": as_text(Counters().families),
        "reaper": as_text(Reaper(broker).report.families),
        "client": generate_latest(registry).decode(),
    }

    assert {source: types_in(text) for source, text in texts.items()} == {
        source: names_of(SOURCES[source]) for source in texts
    }


def test_values_are_those_of_a_look_without_a_sweep(mixed: Clocked) -> None:
    samples = scrape(mixed)

    def of(queue: str) -> dict[str, float]:
        own = [(name, found) for (name, labels), found in samples.items() if labels == (("queue", queue),)]
        return {name.removeprefix("rqttl_queue_"): found for name, found in own}

    for state, number in {"ready": 3, "leased": 2, "delayed": 1, "scheduled": 1}.items():
        assert value(samples, "rqttl_queue_messages", queue="mixed", state=state) == number
    totals = {"activated_total": 1, "cancelled_total": 1, "enqueued_total": 6, "delivered_total": 3}
    assert {**totals, "overdue_seconds": 4, "oldest_ready_age_seconds": 5, "paused": 0}.items() <= of("mixed").items()
    limits = {"limit_messages": 9, "limit_bytes": 99, "limit_leased": 5, "limit_rate": 2.5}
    assert {**limits, "paused": 1}.items() <= of("bounded").items()
    assert [name for name in of("mixed") if name.startswith("limit_")] == []
    assert (value(samples, "rqttl_up"), value(samples, "rqttl_queues_left_out")) == (1, 0)


def test_deaths_are_counted_by_reason(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"x", Message(b"y", ttl="1s")])
    one(queue).reject()
    clocked.advance(1_000)
    queue.sweep()

    samples = scrape(clocked)

    for metric in ("rqttl_queue_deaths_total", "rqttl_queue_dropped_total"):
        for reason, count in {"rejected": 1, "expired": 1, "maxlen": 0}.items():
            assert value(samples, metric, queue="q", reason=reason) == count


def test_copies_and_messages_that_no_queue_wanted_are_counted_at_the_topic(broker: Broker) -> None:
    topic = broker.declare_topic("news")
    for name in ("a", "b"):
        topic.subscribe(name, "x")
    topic.enqueue_many([Message(b"1", subject="x"), b"2", b"3", b"4"])

    samples = scrape(broker)

    for metric, numbers in {"enqueued": (4, 1), "copies": (2, 0), "unrouted": (3, 0)}.items():
        found = [value(samples, f"rqttl_queue_{metric}_total", queue=name) for name in ("news", "news/a")]
        assert found == [*numbers]


def test_letters_on_the_way_to_other_slots_are_counted_by_target(broker: Broker, client: redis.Redis) -> None:
    with on_the_way(client, 3):
        samples = scrape(broker)
        assert value(samples, "rqttl_queue_outgoing_messages", queue="orders", target="dead") == 3


def test_a_scrape_changes_no_key(mixed: Clocked, client: redis.Redis) -> None:
    before = everything(client)

    scrape(mixed)
    scrape(mixed, limit=1)

    assert everything(client) == before


def test_a_user_without_some_rights_can_scrape_and_the_log_says_once_what_is_missing(
    broker: Broker, restricted: Callable[..., redis.Redis], caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_queue("q", lease="1s").enqueue(b"x")
    source = collector(Broker(restricted("-hgetall", "-info")))
    with caplog.at_level(logging.WARNING, "rqttl.metrics"):
        samples = parse(as_text(source.collect))
        source.collect()

    assert value(samples, "rqttl_queue_messages", queue="q", state="ready") == 1
    assert value(samples, "rqttl_up") == 1
    assert value(samples, "rqttl_build_info", version=rqttl.__version__, redis="") == 1
    assert not {("rqttl_reapers", ()), ("rqttl_workers", ())} & samples.keys()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Redis refuses HGETALL, so metrics are missing"
    ]


def test_a_fake_broker_can_be_scraped() -> None:
    with fake_broker() as broker:
        broker.declare_queue("q").enqueue(b"x")
        samples = parse(as_text(collector(broker).collect))

    assert value(samples, "rqttl_queue_messages", queue="q", state="ready") == 1
    assert value(samples, "rqttl_up") == 1


def test_without_redis_up_is_0_and_no_queue_is_shown(
    start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    with rqttl.connect(server.url) as broker:
        broker.declare_queue("q")
        source = collector(broker)
        assert value(parse(as_text(source.collect)), "rqttl_up") == 1
        server.kill()
        with caplog.at_level(logging.WARNING, "rqttl.metrics"):
            samples = parse(as_text(source.collect))

    assert {name for name, _ in samples} == {"rqttl_up", "rqttl_scrape_duration_seconds"}
    assert value(samples, "rqttl_up") == 0
    assert len(caplog.records) == 1


def test_beyond_the_limit_the_busiest_queues_are_shown_and_the_others_counted(broker: Broker) -> None:
    for number in range(12):
        broker.declare_queue(f"q{number:02}").enqueue_many([b"x"] * number)
    broker.queue("q03").receive_many(3)
    broker.declare_queue("busy").enqueue_many([b"x"] * 99)

    samples = scrape(broker, ["q*"], limit=3)

    shown = {dict(labels)["queue"] for name, labels in samples if name == "rqttl_queue_enqueued_total"}
    assert shown == {"q11", "q10", "q09"}
    assert value(samples, "rqttl_queues_left_out") == 9


def test_a_scrape_reads_a_queue_without_deliveries_by_4_commands(broker: Broker, client: redis.Redis) -> None:
    for number in range(1_000):
        broker.declare_queue(f"q{number}").enqueue(b"x" * 50)
    source = collector(broker)
    client.config_resetstat()

    samples = parse(as_text(source.collect))

    commands = client.info("commandstats")
    calls = sum(stats["calls"] for stats in commands.values())
    assert calls <= 4_000 + 20
    assert commands["cmdstat_hmget"]["calls"] == 1_000  # the limits come with the numbers of a queue
    looks = {"time", "sscan", "hmget", "xlen", "zcard", "zcount", "zrange", "xrange", "hgetall", "hlen", "info"}
    others = {"pubsub", "config", "select", "client", "hello"}
    assert {name.removeprefix("cmdstat_").partition("|")[0] for name in commands} <= looks | others
    assert len({dict(labels)["queue"] for _, labels in samples if dict(labels).get("queue")}) == 1_000


def test_a_registration_reads_nothing_and_a_second_one_is_refused(broker: Broker, client: redis.Redis) -> None:
    registry = CollectorRegistry()
    client.config_resetstat()

    registry.register(collector(broker))

    assert "cmdstat_sscan" not in client.info("commandstats")
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(collector(broker))


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": "many"}, {"queues": "q"}])
def test_wrong_arguments_are_named(broker: Broker, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(wrong))}: expected"):
        collector(broker, **wrong)  # type: ignore[arg-type]


WITHOUT = """
import sys
import threading
sys.modules["prometheus_client"] = None
import rqttl, rqttl.metrics, rqttl.worker.worker, rqttl.reaper.report
from rqttl.worker.health import metrics_answer
try:
    rqttl.metrics.collector(None)
except rqttl.metrics.MetricsUnavailable as error:
    print(error)
reply = metrics_answer({})
print(reply.status, reply.body.decode(), sep=": ", end="")
"""


def test_without_the_extra_an_error_names_the_command_that_installs_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)

    error = "metrics need the package prometheus-client: `pip install '.[metrics]'` in a checkout of rqttl"
    assert done.stdout == f"{error}\n501: {error}\n"


def test_a_scrape_does_not_wait_for_a_redis_that_hangs_and_the_next_one_shares_its_reading(
    start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    with rqttl.connect(server.url) as broker:
        broker.declare_queue("q")
        source = QueueCollector(broker, (), 1000, patience=0.01)
        patient = QueueCollector(broker, (), 1000)
        with server.hanging(), caplog.at_level(logging.WARNING, "rqttl.metrics"):
            hung = [parse(as_text(source.collect)) for _ in range(3)]
            readings = [thread for thread in threading.enumerate() if thread.name == "rqttl-metrics"]
        for thread in readings:
            thread.join()
        samples = parse(as_text(patient.collect))

    assert [value(samples, "rqttl_up") for samples in hung] == [0, 0, 0]
    assert {name for name, _ in hung[0]} == {"rqttl_up", "rqttl_scrape_duration_seconds"}
    assert len(readings) == 1
    assert [record.message for record in caplog.records] == [
        "the queues cannot be read: Redis has not answered within 0.01 s"
    ]
    assert value(samples, "rqttl_up") == 1


def test_a_damaged_queue_is_named_and_keeps_no_other_from_its_metrics(
    broker: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_queue("bad")
    broker.declare_queue("good").enqueue(b"x")
    client.delete("rqttl:{bad}:meta")
    client.set("rqttl:{bad}:meta", "not ours")

    samples = scrape(broker)

    assert (value(samples, "rqttl_up"), value(samples, "rqttl_queues_unreadable")) == (1, 1)
    assert value(samples, "rqttl_queue_ready_bytes", queue="good") == 1
    assert "queue 'bad' cannot be read: the key rqttl:{bad}:meta has another type" in caplog.text
