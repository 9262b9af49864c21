"""A child that is stopped (SIGSTOP): its leases, its messages, health, and the time limit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import redis

from rqttl import Broker, Queue, RenewalEvent, Worker
from rqttl.testing.clocked import ClockedBroker
from rqttl.worker.crew import Crew
from rqttl.worker.places import Task
from rqttl.worker.supervision import Deadline
from tests.ports import free_port
from tests.proc import is_running
from tests.waiting import until
from tests.worker.conftest import Spawn
from tests.worker.test_faults import answer
from tests.worker.threads import running

pytestmark = [pytest.mark.slow, pytest.mark.once]


def test_an_idle_stopped_child_gets_no_message_until_it_goes_on(spawn: Spawn, queue: Queue) -> None:
    port = free_port()
    worker = spawn("q", "--processes", "1", "--health", f"127.0.0.1:{port}", call="plain")
    queue.enqueue("first")
    [[_, _, pid]] = worker.until_journal("done")

    os.kill(int(pid), signal.SIGSTOP)
    worker.until_log("is stopped (SIGSTOP)")
    assert (answer(port, "livez"), answer(port, "readyz")) == (200, 503)
    queue.enqueue("second")
    other = queue.receive(wait="1m")  # if the worker was waiting, it gives the message back
    assert other is not None
    assert (other.decode(), other.delivery_count) == ("second", 1)
    other.ack()

    os.kill(int(pid), signal.SIGCONT)
    worker.until_log("goes on")
    queue.enqueue("third")
    worker.until_journal("done", 2)
    until(lambda: answer(port, "readyz") == 200)
    assert worker.stop() == 0
    assert {event[2] for event in worker.journal("done")} == {pid}
    assert queue.stats().redelivered == 0


def test_the_worker_keeps_the_leases_of_a_stopped_child(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clock goes on with each renewal only, so that no slow machine ends a lease."""
    monkeypatch.setenv("RQTTL_TEST_HOME", str(tmp_path))
    broker, renewed = ClockedBroker(client), list[int]()
    queue = broker.declare_queue("q", lease="1s")
    queue.enqueue("x", id="1")

    def go_on(event: RenewalEvent) -> None:
        renewed.append(event.count)
        broker.clock.set(broker.clock.ms + 300)

    broker.events.subscribe(go_on, RenewalEvent)
    worker = Worker(broker, "q", call="tests.worker.handlers:gated", delivery=True, processes=1)
    with running(worker):
        until(lambda: "begun" in read(tmp_path / "journal"))
        [pid] = worker._nursery.pids
        os.kill(pid, signal.SIGSTOP)
        until(lambda: worker._nursery.ready == 0)
        before = len(renewed)
        until(lambda: len(renewed) >= before + 8)  # more than two leases
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        until(lambda: queue.stats().acked == 1)

    assert set(renewed) == {1}
    assert (queue.stats().delivered, queue.stats().redelivered) == (1, 0)


def test_a_stopped_child_is_ended_when_its_handler_takes_too_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The time limit acts when the child is stopped, and not on the second delivery."""
    monkeypatch.setenv("RQTTL_TEST_HOME", str(tmp_path))
    monkeypatch.setattr("rqttl.worker.supervision.TERM_GRACE", 0.3)
    stopped, deadlines = threading.Event(), Crew.deadlines

    def late(crew: Crew) -> list[tuple[Task, Deadline]]:
        return [pair for pair in deadlines(crew) if stopped.is_set() and pair[0].delivery.delivery_count == 1]

    monkeypatch.setattr(Crew, "deadlines", late)
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue("x", id="1")
    worker = Worker(
        broker, "q", call="tests.worker.handlers:first_gated", delivery=True, processes=1, timeout="1s", retry_delay=0
    )
    with running(worker):
        until(lambda: "begun" in read(tmp_path / "journal"))
        [pid] = worker._nursery.pids
        os.kill(pid, signal.SIGSTOP)
        stopped.set()
        until(lambda: queue.stats().acked == 1)

    assert read(tmp_path / "journal").splitlines()[1:] == ["again 1 2"]
    assert "took longer than 1 s" in caplog.text
    assert "KILL" in caplog.text


def test_a_stopped_child_is_ended_with_its_worker(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("x", id="1")
    worker = spawn("q", "--processes", "1", "--delivery", "--grace", "0", call="first_gated")
    [begun] = worker.until_journal("begun")

    os.kill(int(begun[3]), signal.SIGSTOP)

    assert worker.stop() == 0
    assert [item.delivery_count for item in queue.receive_many(9)] == [2]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux wakes a child whose worker is dead")
def test_a_stopped_child_ends_with_its_killed_worker(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("x", id="1")
    worker = spawn("q", "--processes", "1", "--delivery", call="first_gated")
    [begun] = worker.until_journal("begun")
    os.kill(int(begun[3]), signal.SIGSTOP)
    worker.until_log("is stopped (SIGSTOP)")

    worker.process.kill()

    until(lambda: not is_running(begun[3]))
    assert worker.journal("done") == []


def test_messages_that_a_stopped_child_has_not_begun_go_to_another_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RQTTL_TEST_HOME", str(tmp_path))
    monkeypatch.setattr("rqttl.worker.nursery.LOOK_FOR_STOPPED", 0.0)
    journal = tmp_path / "journal"
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue("first", id="1")
    worker = Worker(broker, "q", call="tests.worker.handlers:tracked", delivery=True, processes=1)

    with running(worker):
        until(lambda: queue.stats().acked == 1)
        monkeypatch.setattr("rqttl.worker.nursery.LOOK_FOR_STOPPED", 3600.0)
        for _ in range(2):  # the first of these turns may have looked, and later ones do not before the message
            turned = worker._turned_at
            until(lambda turned=turned: worker._turned_at > turned)  # type: ignore[misc]  # the one of this round
        [pid] = worker._nursery.pids
        os.kill(pid, signal.SIGSTOP)
        queue.enqueue("second", id="2")
        until(lambda: queue.stats().leased == 1)
        worker._nursery._look_for_stopped_at = 0.0
        monkeypatch.setattr("rqttl.worker.nursery.LOOK_FOR_STOPPED", 0.0)
        until(lambda: queue.stats().acked == 2)
        assert worker._nursery.pids != [pid]

    assert "done 2 1" in journal.read_text().splitlines()  # as its first delivery


def read(journal: Path) -> str:
    """The lines that handlers have written so far."""
    return journal.read_text() if journal.exists() else ""
