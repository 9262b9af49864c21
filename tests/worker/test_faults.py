"""Workers under faults: kills of a child, of the worker and of Redis, outages, and health meanwhile."""

import os
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rqttl import Broker, InvalidInput, Message, Queue, Worker
from rqttl.delivery import Delivery
from rqttl.worker import pool
from rqttl.worker.child import Task
from rqttl.worker.in_flight import InFlight
from tests.metrics.scrapes import fetch
from tests.proc import is_running, process_fields
from tests.servers import Server
from tests.waiting import until
from tests.worker.conftest import Spawn
from tests.worker.kills import Campaign, children_of
from tests.worker.processes import events, running

pytestmark = pytest.mark.slow


def test_the_messages_of_a_killed_child_fail_with_a_reason_and_come_again_at_once(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue_many([Message("x", id=str(n)) for n in range(3)])
    worker = spawn("q --processes 1 --delivery", call="first_gated")
    [begun] = worker.until_journal("begun")

    os.kill(int(begun[3]), signal.SIGKILL)
    worker.open()
    until(lambda: queue.stats().acked == 3)

    assert worker.stop() == 0
    assert worker.journal("again") == [["again", begun[1], "2"]]
    assert "failed, again at once" in worker.log()
    assert "ended by SIGKILL" in worker.log()
    assert queue.stats().redelivered == 1  # the two others had not begun, so they count as no failures


def test_children_that_are_killed_while_they_load_do_not_end_the_worker(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    worker = Worker(broker, "q", call="builtins:repr", processes=1)

    with running(worker):
        until(lambda: worker._supervisor.ready == 1)
        for _ in range(4):
            [child] = worker._supervisor.children
            os.kill(child.pid, signal.SIGKILL)
            until(lambda child=child: worker._supervisor.children not in ([], [child]))  # type: ignore[misc]  # the default binds
        queue.enqueue("x")
        until(lambda: queue.stats().acked == 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("reading", [False, True], ids=["the handlers", "the reader"])
@pytest.mark.parametrize("options", [{"threads": 2}, {"asyncio": 2}], ids=str)
def test_a_thread_of_a_child_that_ends_unasked_keeps_no_message(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, options: Any, reading: bool
) -> None:
    ends, real = [b"1"], pool.Pool._delivery

    def broken(self: pool.Pool, order: pool.Order) -> Delivery:
        if ends and not reading:
            raise MemoryError(ends.pop())
        return real(self, order)

    monkeypatch.setattr(pool.Pool, "_delivery", broken)
    queue = broker.declare_queue("q", lease="1h")

    async def handle(_: object) -> None: ...

    call = handle if "asyncio" in options else print
    with running(Worker(broker, "q", call=call, processes=0, **options)) as worker:
        until(lambda: worker._supervisor.ready)
        if reading:
            worker._supervisor.children[0]._send(b"\xc1")  # no frame
        queue.enqueue_many([b"1", b"2"])
        until(lambda: queue.stats().acked == 2)


def test_a_child_that_cannot_read_its_frames_ends(broker: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    queue = broker.declare_queue("q")
    with running(Worker(broker, "q", call="builtins:print", processes=1)) as worker:
        until(lambda: worker._supervisor.ready)
        worker._supervisor.children[0]._send(b"\xc1")
        queue.enqueue("printed")
        until(lambda: "printed\n" in capfd.readouterr().out)


@pytest.mark.parametrize("begins", [False, True], ids=["before it begins", "within a handler"])
def test_a_stopped_child_ends_with_its_worker(spawn: Spawn, broker: Broker, begins: bool) -> None:
    queue = broker.declare_queue("q", lease="1s")
    worker = spawn("q --processes 1 --delivery", call="gated")
    worker.until_log("handling messages of q")
    [child] = children_of(worker.process.pid)
    if begins:
        queue.enqueue("x", id="1")
        worker.until_journal("begun")
    stop_all(child)

    worker.process.kill()

    until(lambda: not is_running(child))


def stop_all(pid: int) -> None:
    """Stop a process, and wait until all its threads stand still."""
    os.kill(pid, signal.SIGSTOP)
    tasks = [f"{pid}/task/{task.name}" for task in Path(f"/proc/{pid}/task").iterdir()]
    until(lambda: {process_fields(task)[0] for task in tasks} == {"T"})


def test_a_child_that_was_stopped_goes_on_at_its_next_message(broker: Broker) -> None:
    queue = broker.declare_queue("q", lease="1h")
    with running(Worker(broker, "q", call="builtins:repr", processes=1)) as worker:
        until(lambda: worker._supervisor.ready)
        stop_all(worker._supervisor.children[0].pid)
        queue.enqueue("x")
        until(lambda: queue.stats().acked)


def test_modules_of_the_working_folder_are_in_the_way_of_no_child(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("queue", "signal", "token", "random", "msgpack"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the module of the user')\n")
    (tmp_path / "mine.py").write_text("def handle(value):\n    print(value)\n")
    queue = broker.declare_queue("q")
    queue.enqueue("x")
    monkeypatch.chdir(tmp_path)

    assert Worker(broker, "q", call="mine:handle", processes=1, burst=True).run().handled == 1


def test_a_sigterm_of_others_is_in_the_way_of_no_handler(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue("x", id="1")
    worker = spawn("q --processes 1 --delivery", call="gated")
    [begun] = worker.until_journal("begun")

    os.killpg(int(begun[3]), signal.SIGTERM)
    worker.send(signal.SIGTERM)
    worker.until_log("stopping: ")
    worker.open()

    assert worker.end() == 0, worker.log()
    assert worker.journal("done") == [["done", "1", "1", begun[3]]]
    assert queue.stats().acked == 1


def test_a_killed_child_repeats_none_of_the_fast_messages_before_the_one_that_ran(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many([Message("die" if n == 333 else "x", id=str(n)) for n in range(600)])

    worker = spawn("q --processes 1 --burst --delivery", call="dies_once").finished()

    deliveries = [(int(event[1]), int(event[2])) for event in worker.journal("done")]
    assert sorted(deliveries) == [(n, 2 if n == 333 else 1) for n in range(600)]
    assert queue.stats().acked == 600


def test_fast_messages_do_not_wait_behind_a_slow_one_in_a_child(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many(["slow" if n == 200 else str(n) for n in range(601)])

    worker = spawn("q --processes 2", call="slow_one")

    worker.until_journal("begun slow")
    worker.until_journal("done", 599)  # one more waits in the pipe
    assert worker.journal("done slow") == []
    worker.open()
    until(lambda: queue.stats().acked == 601)
    assert worker.stop() == 0
    assert len(worker.journal("done")) == 601
    assert queue.stats().redelivered == 0


def test_other_workers_get_the_messages_behind_a_slow_one(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many(["slow" if n == 100 else str(n) for n in range(151)])

    worker = spawn("q --processes 1", call="slow_one")

    worker.until_journal("begun slow")
    until(lambda: (queue.stats().ready, queue.stats().leased) == (49, 2))  # one more waits for its slot
    assert [item.delivery_count for item in queue.receive_many(50, auto_ack=True)] == [1] * 49
    worker.open()
    until(lambda: queue.stats().acked >= 102 + 49)
    assert worker.stop() == 0
    assert len(worker.journal("done")) == 102
    assert queue.stats().redelivered == 0


def test_children_end_with_their_worker(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", lease="1s")
    queue.enqueue("x", id="1")
    worker = spawn("q --processes 1 --delivery", call="gated")
    [begun] = worker.until_journal("begun")

    worker.process.kill()

    until(lambda: not is_running(begun[3]))
    until(lambda: queue.receive() is not None)


def test_a_busy_port_of_health_is_refused_before_the_handler_is_made(broker: Broker) -> None:
    broker.declare_queue("q")
    made = []

    class Maker:
        def __init__(self) -> None:
            made.append(self)

        def __call__(self, value: object) -> None:
            """Handle a message."""

    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(InvalidInput, match="health: cannot listen"):
            Worker(broker, "q", call=Maker, processes=0, health=place).run()

    assert made == []


def test_health_answers_whatever_clients_do(spawn: Spawn, queue: Queue) -> None:
    worker = spawn("q --processes 1 --health 127.0.0.1:0", call="plain")
    worker.until_log("/metrics on 127.0.0.1:")
    port = int(worker.log().partition("/metrics on 127.0.0.1:")[2].split()[0])
    until(lambda: answer(port, "readyz") == 200)

    for request in (b"", b"GET /liv", b"GET /metrics HTTP/1.1\r\n\r\n", b"a" * 100_000):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset

    assert (answer(port, "livez"), answer(port, "other")) == (200, 404)
    assert fetch(port, "/")[2] == "/\n/livez\n/readyz\n/metrics\n"
    worker.send(signal.SIGTSTP)
    until(lambda: answer(port, "readyz") == 503)
    assert answer(port, "livez") == 200
    assert worker.stop() == 0
    assert queue.stats().consumers == 0
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("watched", [{"WATCHDOG_USEC": "200000"}, {}, {"WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}])
def test_systemd_hears_that_the_worker_is_ready_and_lives_if_it_wants_to(
    spawn: Spawn, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: dict[str, str]
) -> None:
    signs, states = 30 if len(watched) == 1 else 0, list[bytes]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        manager.settimeout(60)
        for name, value in {"NOTIFY_SOCKET": str(tmp_path / "n"), **watched}.items():
            monkeypatch.setenv(name, value)
        worker = spawn(queue.name, "--processes", "1", call="plain")
        while b"READY=1" not in states or len(states) < signs:
            states.append(manager.recv(100))
        worker.send(signal.SIGTERM)
        while b"STOPPING=1" not in states:
            states.append(manager.recv(100))
        assert worker.end() == 0
    assert Counter(states) == Counter({b"READY=1": 1, b"STOPPING=1": 1, b"WATCHDOG=1": len(states) - 2 if signs else 0})


# Children that are stopped (SIGSTOP)


@pytest.mark.once
def test_a_stopped_child_is_ended_when_its_handler_takes_too_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The time limit acts when the child is stopped, and not on the second delivery."""
    monkeypatch.setenv("RQTTL_TEST_HOME", str(tmp_path))
    monkeypatch.setattr("rqttl.worker.supervisor.TERM_GRACE", 0.3)
    stopped = threading.Event()

    running_ones = InFlight.running

    def late(in_flight: InFlight) -> list[Task]:
        tasks = running_ones(in_flight)
        return [task for task in tasks if stopped.is_set() and task.delivery.delivery_count == 1]

    monkeypatch.setattr(InFlight, "running", late)
    queue = broker.declare_queue("q", lease="1h")
    queue.enqueue("x", id="1")
    worker = Worker(
        broker, "q", call="tests.worker.handlers:first_gated", delivery=True, processes=1, timeout="1s", retry_delay=0
    )
    with running(worker):
        until(lambda: events(tmp_path, "begun"))
        [child] = worker._supervisor.children
        os.kill(child.pid, signal.SIGSTOP)
        stopped.set()
        until(lambda: queue.stats().acked == 1)

    assert events(tmp_path)[1:] == [["again", "1", "2"]]
    assert "took longer than 1 s" in caplog.text
    assert "a handler takes too long; sending SIGTERM" in caplog.text


@pytest.mark.once
def test_a_stopped_child_is_ended_with_its_worker(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("x", id="1")
    worker = spawn("q --processes 1 --delivery --grace 0", call="first_gated")
    [begun] = worker.until_journal("begun")

    os.kill(int(begun[3]), signal.SIGSTOP)

    assert worker.stop() == 0
    assert [item.delivery_count for item in queue.receive_many(9)] == [2]


@pytest.mark.parametrize("victim", ["child", "worker", "redis"])
def test_kills_lose_nothing_and_repeat_only_running_work(
    start_server: Callable[..., Server], tmp_path: Path, victim: str
) -> None:
    server = start_server(appendonly="yes", appendfsync="always")

    report = Campaign(server, tmp_path, seed=1).run(victim, kills=4)

    assert (report.lost, report.unexplained) == (0, 0), report
    assert report.handled >= report.sent > 0


def answer(port: int, path: str) -> int:
    """The status of a health endpoint; 0 if nobody listens yet."""
    try:
        return fetch(port, f"/{path}")[0]
    except OSError:
        return 0
