"""Commands of `--exec` that have to end: after `--timeout`, when the worker stops, and when a process is killed."""

import os
import signal
from pathlib import Path

import pytest
import redis

from rqttl import Broker, Message, Queue, Worker
from rqttl.consuming.handling import HandlerStopped
from rqttl.testing.fake import ClockedBroker
from rqttl.worker.commands import CommandProcess
from tests.proc import is_running, process_fields
from tests.waiting import until
from tests.worker import late
from tests.worker.conftest import Spawn
from tests.worker.processes import WorkerProcess, events, ids, module_path, running

pytestmark = [pytest.mark.once, pytest.mark.slow]

#: Works until SIGTERM, then cleans up until the file `go` is there. The second delivery succeeds at once.
#: The shell can lose the SIGTERM of a process that it has just forked: the trap ends this process for sure.
TIDY = """
note() { echo "$@" >> journal; }
if [ "$RQTTL_DELIVERY" != 1 ]; then note again "$RQTTL_ID" "$RQTTL_DELIVERY"; exit 0; fi
clean() { note cleaning "$RQTTL_ID"; until [ -e go ]; do sleep 0.02; done; note cleaned "$RQTTL_ID"; }
trap 'clean; kill -KILL $!; wait; exit ${CODE:-3}' TERM
sleep 600 &
note begun "$RQTTL_ID" $$ $!
wait
"""
#: Ignores SIGTERM, as its own child process does.
STUBBORN = """
if [ "$RQTTL_DELIVERY" != 1 ]; then echo again "$RQTTL_ID" "$RQTTL_DELIVERY" >> journal; exit 0; fi
trap '' TERM
sleep 600 &
echo begun "$RQTTL_ID" $$ $! >> journal
wait
sleep 600
"""
#: Ends at SIGTERM, and leaves a process in its group that ignores SIGTERM.
LEAVING = """
if [ "$RQTTL_DELIVERY" != 1 ]; then echo again "$RQTTL_ID" "$RQTTL_DELIVERY" >> journal; exit 0; fi
sh -c "trap '' TERM; echo begun 1 \\$\\$ >> journal; sleep 600" &
wait
"""


def script(home: Path, text: str) -> str:
    """Write a script. Returns the command that runs it."""
    (home / "work.sh").write_text(text)
    return f"sh {home / 'work.sh'}"


def pids_of(worker: WorkerProcess) -> list[str]:
    """The numbers of all processes of commands."""
    return [pid for event in worker.journal("begun") for pid in event[2:]]


def parents_of(worker: WorkerProcess) -> list[int]:
    """The numbers of the processes that have started commands."""
    return [int(process_fields(event[2])[1]) for event in worker.journal("begun")]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_command_that_takes_too_long_may_clean_up(spawn: Spawn, queue: Queue, tmp_path: Path, threads: str) -> None:
    queue.enqueue("x", id="1")
    late.prepare(tmp_path, limited="1", graces=True)
    worker = spawn(
        "q --processes 1 --burst --timeout 300ms --retry-delay 0",
        "--exec",
        script(tmp_path, TIDY),
        "--threads",
        threads,
    )

    worker.until_journal("cleaning")
    worker.open()

    assert worker.end() == 0, worker.log()
    assert worker.journal("cleaned") == [["cleaned", "1"]]
    assert worker.journal("again") == [["again", "1", "2"]]
    assert "took longer than 0.3 s" in worker.log()


@pytest.mark.parametrize("text", [STUBBORN, LEAVING])
def test_no_process_of_a_command_outlives_its_time_to_clean_up(
    client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    late.limit(tmp_path, "1", monkeypatch.setattr)
    late.prepare(tmp_path, graces=True)
    monkeypatch.setenv("PYTHONPATH", module_path(tmp_path))  # for the child
    monkeypatch.chdir(tmp_path)
    broker = ClockedBroker(client)  # its time stands still, so no lease ends
    queue = broker.declare_queue("q", lease="1s")  # the time to clean up is no longer than the lease
    queue.enqueue("x", id="1")
    worker = Worker(broker, "q", exec=script(tmp_path, text), processes=1, timeout="300ms", retry_delay=0)

    with running(worker):
        until(lambda: events(tmp_path, "again"))

        until(lambda: not any(is_running(pid) for event in events(tmp_path, "begun") for pid in event[2:]))
        until(lambda: queue.stats().acked == 1)
    assert events(tmp_path, "again") == [["again", "1", "2"]]
    assert "KILL" not in caplog.text.replace("SIGKILL", "")  # the child itself goes on
    broker.close()


def test_a_command_that_takes_too_long_does_not_touch_those_beside_it(
    spawn: Spawn, queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue("x", id="1")
    late.prepare(tmp_path, limited="1", graces=True)
    beside = '[ "$RQTTL_ID" = 2 ] && { echo beside >> journal; exit 0; }\n'
    worker = spawn(
        "q --processes 1 --threads 2 --timeout 300ms --retry-delay 0", "--exec", script(tmp_path, beside + TIDY)
    )
    worker.until_journal("cleaning")

    queue.enqueue("x", id="2")

    worker.until_journal("beside")
    until(lambda: queue.stats().acked == 1)
    worker.open()
    worker.until_journal("again")
    assert worker.stop() == 0
    assert worker.journal("cleaned") == [["cleaned", "1"]]


def test_a_command_that_has_not_begun_does_not_begin() -> None:
    process = CommandProcess()
    process.end(5.0)
    with pytest.raises(HandlerStopped):
        process.start(["true"], {})


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("code, deliveries", [("3", 2), ("0", None)])
def test_a_command_may_clean_up_after_the_grace_of_the_worker(
    spawn: Spawn, broker: Broker, tmp_path: Path, processes: str, code: str, deliveries: int | None
) -> None:
    queue = broker.declare_queue("q", lease="30s")
    queue.enqueue("x", id="1")
    late.prepare(tmp_path, graces=True)
    worker = spawn(
        "q --threads 1 --grace 0", "--exec", script(tmp_path, f"CODE={code}\n{TIDY}"), "--processes", processes
    )
    worker.until_journal("begun")

    worker.send(signal.SIGTERM)
    worker.until_journal("cleaning")
    assert queue.stats().leased == 1
    worker.open()

    assert worker.end() == 0, worker.log()
    assert worker.journal("cleaned") == [["cleaned", "1"]]
    assert [item.delivery_count for item in queue.receive_many(9)] == ([] if deliveries is None else [deliveries])
    until(lambda: not any(is_running(pid) for pid in pids_of(worker)))


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_third_signal_ends_commands_that_ignore_the_second(
    spawn: Spawn, broker: Broker, tmp_path: Path, processes: str
) -> None:
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue("x", id="1")
    late.prepare(tmp_path, graces=True)
    worker = spawn("q --grace 1h", "--exec", script(tmp_path, STUBBORN), "--processes", processes)
    worker.until_journal("begun")

    worker.send(signal.SIGTERM)
    worker.until_log("stopping: ")
    worker.send_another(signal.SIGTERM)
    worker.until_log("the grace is over")
    worker.send_another(signal.SIGTERM)

    assert worker.end() == 0, worker.log()
    assert "ending all commands at once" in worker.log()
    until(lambda: not any(is_running(pid) for pid in pids_of(worker)))
    [item] = queue.receive_many(9)
    assert item.delivery_count == 2


@pytest.mark.parametrize("victim", ["child", "worker"])
def test_no_command_survives_the_process_that_runs_it(
    spawn: Spawn, broker: Broker, tmp_path: Path, victim: str
) -> None:
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue_many([Message("x", id=str(n)) for n in range(4)])
    worker = spawn("q --processes 2 --threads 2", "--exec", script(tmp_path, STUBBORN))
    worker.until_journal("begun", 4)
    pids = pids_of(worker)
    children = parents_of(worker)
    assert len(set(children)) == 2

    for victim_pid in {worker.process.pid} if victim == "worker" else set(children):
        os.kill(victim_pid, signal.SIGKILL)

    until(lambda: not any(is_running(pid) for pid in pids))
    if victim == "child":
        worker.until_journal("again", 4)
        assert sorted(ids(worker.journal("again"))) == ["0", "1", "2", "3"]
        assert worker.stop() == 0
