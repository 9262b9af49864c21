"""A child that is stopped (SIGSTOP): its leases, its messages, health, and the time limit."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from rqttl import Broker, Queue, Worker
from rqttl.worker.in_flight import Task
from rqttl.worker.supervisor import Supervisor
from tests.waiting import until
from tests.worker.conftest import Spawn
from tests.worker.threads import running

pytestmark = [pytest.mark.slow, pytest.mark.once]


def test_a_stopped_child_is_ended_when_its_handler_takes_too_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The time limit acts when the child is stopped, and not on the second delivery."""
    monkeypatch.setenv("RQTTL_TEST_HOME", str(tmp_path))
    monkeypatch.setattr("rqttl.worker.supervisor.TERM_GRACE", 0.3)
    stopped = threading.Event()

    def late(_: object, task: Task) -> bool:
        return stopped.is_set() and task.delivery.delivery_count == 1

    monkeypatch.setattr(Supervisor, "may_end", late)
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue("x", id="1")
    worker = Worker(
        broker, "q", call="tests.worker.handlers:first_gated", delivery=True, processes=1, timeout="1s", retry_delay=0
    )
    with running(worker):
        until(lambda: "begun" in read(tmp_path / "journal"))
        [pid] = worker._supervisor.pids
        os.kill(pid, signal.SIGSTOP)
        stopped.set()
        until(lambda: queue.stats().acked == 1)

    assert read(tmp_path / "journal").splitlines()[1:] == ["again 1 2"]
    assert "took longer than 1 s" in caplog.text
    assert "KILL" in caplog.text


def test_a_stopped_child_is_ended_with_its_worker(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("x", id="1")
    worker = spawn("q --processes 1 --delivery --grace 0", call="first_gated")
    [begun] = worker.until_journal("begun")

    os.kill(int(begun[3]), signal.SIGSTOP)

    assert worker.stop() == 0
    assert [item.delivery_count for item in queue.receive_many(9)] == [2]


def read(journal: Path) -> str:
    """The lines that handlers have written so far."""
    return journal.read_text() if journal.exists() else ""
