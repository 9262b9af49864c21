"""A child that is stopped (SIGSTOP): its leases, its messages, health, and the time limit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rqttl import Broker, Queue, Worker
from tests.waiting import until
from tests.worker.conftest import Spawn
from tests.worker.test_faults import answer, free_port
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


def test_the_worker_keeps_the_leases_of_a_stopped_child(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", lease="1s")
    queue.enqueue("x", id="1")
    worker = spawn("q", "--processes", "1", "--delivery", call="gated")
    [begun] = worker.until_journal("begun")

    os.kill(int(begun[3]), signal.SIGSTOP)
    ends = {queue.peek()[0].until}

    def is_renewed() -> bool:
        ends.add(queue.peek()[0].until)
        return len(ends) >= 8  # more than two leases

    until(is_renewed)
    os.kill(int(begun[3]), signal.SIGCONT)
    worker.open()
    until(lambda: queue.stats().acked == 1)
    assert worker.stop() == 0
    assert (queue.stats().delivered, queue.stats().redelivered) == (1, 0)


@pytest.mark.parametrize("end", ["timeout", "stop"])
def test_a_stopped_child_is_ended_as_any_other_one(spawn: Spawn, queue: Queue, end: str) -> None:
    queue.enqueue("x", id="1")
    limit = ["--timeout", "1s", "--retry-delay", "0"] if end == "timeout" else ["--grace", "0"]
    worker = spawn("q", "--processes", "1", "--delivery", *limit, call="first_gated")
    [begun] = worker.until_journal("begun")

    os.kill(int(begun[3]), signal.SIGSTOP)

    if end == "timeout":
        assert worker.until_journal("again") == [["again", "1", "2"]]
        assert "took longer than 1 s" in worker.log()
        assert worker.stop() == 0
        return
    assert worker.stop() == 0
    assert [item.delivery_count for item in queue.receive_many(9)] == [2]


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
        turned = worker._turned_at
        until(lambda: worker._turned_at > turned)  # from now on no look comes before the message
        [pid] = worker._nursery.pids
        os.kill(pid, signal.SIGSTOP)
        queue.enqueue("second", id="2")
        until(lambda: queue.stats().leased == 1)
        worker._nursery._look_for_stopped_at = 0.0
        monkeypatch.setattr("rqttl.worker.nursery.LOOK_FOR_STOPPED", 0.0)
        until(lambda: queue.stats().acked == 2)
        assert worker._nursery.pids != [pid]

    assert "done 2 1" in journal.read_text().splitlines()  # as its first delivery
