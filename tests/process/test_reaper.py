from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis

from rqttl import Broker, Message
from tests.process.reapers import drain, enqueue_dead, reaping
from tests.servers import Server
from tests.waiting import PATIENCE

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


def test_the_reaper_goes_on_when_redis_is_back(start_server: Callable[..., Server]) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    with server.client() as client, Broker(client) as broker:
        broker.declare_queue("orders", dead_letter="dead")
        broker.declare_queue("dead")
        with reaping(server.url, "--scan-period", "1h") as reaper:
            server.kill()
            assert reaper.await_event("redis_unavailable")["level"] == "warning"
            server.start()
            reaper.await_event("pass_completed", times=2)
            broker.queue("orders").enqueue(b"short", ttl="200ms")

            assert broker.queue("dead").receive(wait="60s") is not None
            assert reaper.end(signal.SIGTERM) == 0


def test_a_lost_subscription_is_taken_up_again(broker: Broker, client: redis.Redis, redis_url: str) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    broker.declare_queue("dead")
    with reaping(redis_url, "--scan-period", "1h") as reaper:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        reaper.await_event("pass_completed", times=2)
        broker.queue("orders").enqueue(b"short", ttl="200ms")

        assert broker.queue("dead").receive(wait="60s") is not None


def test_the_log_says_what_was_done_in_one_json_object_a_line(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    broker.declare_queue("dead")
    with reaping(redis_url, "--scan-period", "1h") as reaper:
        broker.queue("orders").enqueue_many([Message(b"x", ttl="300ms") for _ in range(3)])
        swept = reaper.await_event("swept")

    assert swept.keys() == {"time", "level", "event", "queue", "expired", "sweeps", "lag_ms"}
    assert (swept["queue"], swept["expired"], swept["level"]) == ("orders", 3, "info")
    assert swept["lag_ms"] >= 0


def test_without_redis_the_reaper_does_not_start(start_server: Callable[..., Server]) -> None:
    server = start_server()
    server.kill()
    reaper = subprocess.run(
        [sys.executable, "-m", "rqttl.cli", "reaper", "--url", server.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert reaper.returncode == 4
    assert reaper.stderr.startswith("rqttl: Redis does not answer: ")
    assert reaper.stderr.count("\n") == 1


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
