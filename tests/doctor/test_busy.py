"""While processes send, settle, expire, declare and delete as fast as they can, the doctor accuses nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis

from rqttl import Broker
from rqttl.doctor import examine_queues
from tests.doctor.busy_worker import DEAD, QUEUE
from tests.doctor.looking import repaired, wrong
from tests.process.reapers import reaping

pytestmark = pytest.mark.slow
LOOKS = 40


@pytest.fixture
def busy(broker: Broker, redis_url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two clients and a reaper at work on a queue that has many messages."""
    broker.declare_queue(QUEUE, dead_letter=DEAD, max_deliveries=3).enqueue_many([b"x" * 10] * 1_500)
    broker.declare_queue(DEAD)
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.doctor.busy_worker", redis_url, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for seed in range(2)
    ]
    with reaping(redis_url):
        for worker in workers:
            assert worker.stdout
            assert worker.stdout.readline() == b"begun\n"
        yield workers
        for worker in workers:
            worker.communicate()
            assert worker.returncode == 0


def test_a_busy_server_gives_no_false_alarm(
    broker: Broker, busy: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("key_inventory", "policies"):  # a worker may stand still in the midst of its steps for any time
        monkeypatch.setattr(f"rqttl.doctor.{module}.LOOKS", 600)
    alarms, looks = [], 0
    before = broker.queue(QUEUE).stats().enqueued

    for _ in range(LOOKS):
        findings = list(examine_queues(broker))
        looks += sum(one.check == "queue" and one.queue == QUEUE for one in findings) > 0
        alarms += [one for one in findings if one.level != "ok" and not one.result.startswith("too busy")]

    assert alarms == []
    assert looks == LOOKS
    assert [worker.poll() for worker in busy] == [None, None]
    assert broker.queue(QUEUE).stats().enqueued > before


def test_real_damage_is_found_and_repaired_while_clients_work(
    broker: Broker, client: redis.Redis, busy: list[subprocess.Popen[bytes]]
) -> None:
    named = [f"1600000000000-{i}" for i in range(100_000, 100_400)]
    client.zadd(f"rqttl:{{{QUEUE}}}:delayed", dict.fromkeys(named, 4e12))
    assert "400 ids in delayed without a message" in str(wrong(broker, QUEUE))

    [done] = repaired(broker, QUEUE).values()

    assert "400 sequences without a message removed" in done
    assert [worker.poll() for worker in busy] == [None, None]
