"""While processes send, settle, expire, declare and delete as fast as they can, the doctor accuses nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rqttl import Broker
from tests.doctor.busy_worker import DEAD, QUEUE
from tests.doctor.looking import wrong
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
    monkeypatch.setattr("rqttl.doctor.queues.LOOKS", 600)  # a worker may stand still in the midst of its steps
    before = broker.queue(QUEUE).stats().enqueued

    assert [alarm for _ in range(LOOKS) for alarm in wrong(broker)] == []
    assert [worker.poll() for worker in busy] == [None, None]
    assert broker.queue(QUEUE).stats().enqueued > before
