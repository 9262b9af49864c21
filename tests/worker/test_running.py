"""Workers in processes: handlers, outcomes, commands, limits, and the ways in which a worker ends."""

import json
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from rqttl import Broker, Message, Queue, Worker
from tests.waiting import until
from tests.worker import late
from tests.worker.conftest import Spawn
from tests.worker.processes import ids

pytestmark = [pytest.mark.once, pytest.mark.slow]


# Handlers


def test_a_function_gets_the_value_and_its_return_acks(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many([{"a": 1}, b"bytes", "text"])

    worker = spawn("q --processes 1 --burst", call="by_word").finished()

    assert [event[1:] for event in worker.journal("word")] == [["{'a':", "1}"], ["b'bytes'"], ["text"]]
    assert queue.stats().acked == 3


def test_a_handler_may_settle_and_renew_its_delivery_itself(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue("x")

    worker = spawn("q --processes 1 --burst --delivery", call="settles").finished()

    assert worker.journal("settled") == [["settled", "reject"]]
    assert [letter.deaths[0].description for letter in broker.queue("dead").peek()] == ["by hand"]


@pytest.mark.parametrize("call", ["Counting", "CountingInLoop"])
def test_a_class_is_made_once_in_each_child_and_closed_in_the_loop_of_its_coroutines(
    spawn: Spawn, queue: Queue, tmp_path: Path, call: str
) -> None:
    queue.enqueue_many(["a", "b", "c"])
    late.prepare(tmp_path, graces=True)

    worker = spawn("q --processes 1 --burst", call=call).finished()

    assert [event[0] for event in worker.journal()] == ["made", "done", "done", "done", "closed"]
    assert call == "Counting" or worker.journal("closed") == [["closed", "True"]]


def test_a_module_with_handlers_routes_by_the_header_type(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many([Message(str(n), headers={"type": kind}) for n, kind in enumerate(("mail", "bill", "odd"))])

    worker = spawn("q --processes 1 --burst", call="").finished()

    assert sorted(worker.journal()) == [["bill", "1"], ["mail", "0"]]
    [item] = queue.peek()  # another worker of a rolling deploy may know it
    assert (item.state, sum(queue.stats().deaths.values())) == ("delayed", 0)
    assert item.description == "no handler for messages with the header type 'odd'"
    [line] = [line for line in worker.log().splitlines() if " ERROR " in line]
    assert "no handler for messages with the header type 'odd'" in line


def test_a_default_handler_decides_about_unknown_types(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue_many([Message("1", headers={"type": "mail"}), Message("2", headers={"type": "odd"}), "3"])

    worker = spawn("q --processes 1 --burst", call="WITH_DEFAULT").finished()

    assert worker.journal() == [["mail", "1"]]
    assert [letter.deaths[0].description for letter in broker.queue("dead").peek()] == ["an unknown type"] * 2


def test_a_worker_of_a_program_with_plain_logging_prints_tracebacks(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_queue("q", max_deliveries=1).enqueue("x")

    def break_down(value: str) -> None:
        raise LookupError(value)

    Worker(broker, "q", call=break_down, processes=0, burst=True).run()

    assert "Traceback (most recent call last)" in caplog.text
    assert "in break_down" in caplog.text


@pytest.mark.parametrize(
    "source, words, ready",
    [
        ("def load():\n    import no_such_module\n\n\nload()\n", "No module named 'no_such_module'", 1),
        ("import os\nos._exit(7)\n", "exit code 7", 1),
        # its code goes away under it, as in a deploy; another start may have the new code
        ("import os\n\n\ndef handle(value):\n    os.remove(__file__)\n    os._exit(1)\n", "broken", 0),
    ],
)
def test_a_child_that_does_not_load_ends_the_worker(
    spawn: Spawn, queue: Queue, tmp_path: Path, source: str, words: str, ready: int
) -> None:
    (tmp_path / "broken.py").write_text(source)
    queue.enqueue("x")

    worker = spawn("q --processes 1 --burst --call broken:handle")

    assert worker.end() == 2
    assert words in worker.log().splitlines()[-1]
    assert worker.log().count('broken.py", line 2, in load') == ("def load" in source), worker.log()
    assert "importlib" not in worker.log()
    assert queue.stats().delivered == 1 - ready


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_coroutine_function_runs_in_a_loop(spawn: Spawn, queue: Queue, processes: str) -> None:
    queue.enqueue_many([str(n) for n in range(50)])

    worker = spawn("q --burst", "--processes", processes, call="coroutine").finished()

    assert sorted(ids(worker.journal("done"))) == sorted(str(n) for n in range(50))
    assert queue.stats().acked == 50


def test_without_children_handlers_run_in_threads_of_the_worker(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many(["a"] * 20)

    worker = spawn("q --processes 0 --threads 4 --burst", call="plain").finished()

    assert {event[2] for event in worker.journal("done")} == {str(worker.process.pid)}
    assert queue.stats().acked == 20


def test_names_and_patterns_are_consumed_in_their_order_and_a_child_knows_the_queue_of_each_message(
    spawn: Spawn, broker: Broker
) -> None:
    for name in ("tenant.a", "mails", "orders", "other"):
        broker.declare_queue(name).enqueue_many([name] * 20)

    worker = spawn("orders mails tenant.* --processes 1 --burst --delivery", call="names_queue").finished()

    expected = [["queue", name, name] for name in ("orders", "mails", "tenant.a") for _ in range(20)]
    assert worker.journal() == expected
    assert "handling messages of orders, mails, tenant.*, 1 at a time" in worker.log()
    assert broker.queue("other").stats().ready == 20


def test_decisions_of_handlers_settle_as_they_say_and_a_log_as_json_has_one_line_for_each_message(
    spawn: Spawn, broker: Broker
) -> None:
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue_many([Message(word, id=word) for word in ("work", "retry", "fail", "reject")])

    worker = spawn("q --processes 1 --burst --retry-delay 1h --log-format json -v", call="by_word").finished()

    [letter] = broker.queue("dead").peek()
    assert (letter.id, letter.deaths[0].reason, letter.deaths[0].description) == ("reject", "rejected", "not mine")
    assert {item.id for item in queue.peek() if item.state == "delayed"} == {"retry", "fail"}
    lines = [json.loads(line) for line in worker.log().splitlines()]
    assert all({"time", "level", "event"} <= {*line} for line in lines)
    messages = {line["id"]: line for line in lines if line["event"] == "message"}
    assert len(messages) == sum(line["event"] == "message" for line in lines) == 4
    for line in messages.values():
        assert (line["queue"], line["delivery"]) == ("q", 1)
        assert isinstance(line["seconds"], float)
    assert {word: (line["outcome"], line["level"]) for word, line in messages.items()} == {
        "work": ("ack", "debug"),
        "retry": ("nack", "info"),
        "fail": ("nack", "warning"),
        "reject": ("reject", "warning"),
    }
    assert messages["retry"]["description"] == "later"
    assert "ValueError: broken" in messages["fail"]["traceback"]


# Commands


def test_a_command_gets_the_body_and_facts_and_its_exit_code_decides(
    spawn: Spawn, broker: Broker, tmp_path: Path
) -> None:
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue_many([Message(str(code).encode(), id=str(code)) for code in (0, 65, 75, 3)])
    late.prepare(tmp_path, graces=True)

    words = "--processes 1 --burst -v --retry-delay 1h --retry-max 1h --retry-jitter 0.5"
    worker = spawn(f"q {words}", "--exec", "sh -c 'echo because >&2; exit $(cat)'").finished()

    assert queue.stats().acked == 1
    [letter] = broker.queue("dead").peek()
    assert (letter.id, letter.deaths[0].description) == ("65", "because")
    assert {(item.id, item.state, item.delivery_count) for item in queue.peek()} == {
        ("75", "delayed", 1),
        ("3", "delayed", 1),
    }
    end = queue.stats().next_delay_end
    assert end is not None
    assert timedelta(minutes=25) < end - broker.server_time() <= timedelta(hours=1)
    assert "INFO queue q: message 75 failed, again in " in worker.log()
    [line] = [line for line in worker.log().splitlines() if "WARNING queue q: message 3 failed, again in " in line]
    assert line.endswith("(delivery 1): the command ended with exit code 3: because")


def test_a_body_of_a_megabyte_with_nul_bytes_arrives_whole(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    queue.enqueue(body, id="big", headers={"Trace-Id": "a\0b", "n": 7})

    code = (
        "import os, sys, json; data = sys.stdin.buffer.read(); open(sys.argv[1], 'wb').write(data); "
        "json.dump({k: v for k, v in os.environ.items() if k.startswith('RQTTL_')}, open(sys.argv[1] + '.json', 'w'))"
    )
    spawn("q --processes 1 --burst", "--exec", f'{sys.executable} -c "{code}" big.out').finished()

    assert (tmp_path / "big.out").read_bytes() == body
    facts = json.loads((tmp_path / "big.out.json").read_text())
    assert (facts["RQTTL_QUEUE"], facts["RQTTL_ID"], facts["RQTTL_DELIVERY"]) == ("q", "big", "1")
    assert (facts["RQTTL_HEADER_TRACE_ID"], facts["RQTTL_HEADER_N"]) == ("a�b", "7")


def test_a_command_that_reads_nothing_succeeds(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue(b"x" * 1_000_000)

    spawn("q --exec true --processes 1 --burst").finished()

    assert queue.stats().acked == 1


# Limits of children


def test_a_child_is_replaced_after_the_message_that_reaches_a_limit(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many([str(n) for n in range(6)])

    worker = spawn("q --processes 1 --burst --max-messages 2", call="plain").finished()

    assert sorted(ids(worker.journal("done"))) == [str(n) for n in range(6)]
    assert len({event[2] for event in worker.journal("done")}) >= 3
    assert (queue.stats().acked, queue.stats().redelivered) == (6, 0)


def test_a_child_that_leaks_is_replaced_and_no_delivery_fails(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many([str(n) for n in range(120)])

    worker = spawn("q --processes 1 --burst --max-memory 80M", call="leaks").finished()

    assert len(worker.journal("done")) == 120
    sizes: dict[str, list[int]] = {}
    for _, _, pid, size in worker.journal("done"):
        sizes.setdefault(pid, []).append(int(size))
    *replaced, last = sizes.values()
    assert replaced, sizes
    for rising in replaced:
        assert rising[-1] > 76 * 2**20, (
            rising
        )  # it grows until the worker looks, and each look of the system is a little off
        assert sum(size > 80 * 2**20 for size in rising) <= 3, rising
    assert sum(size > 80 * 2**20 for size in last) <= 3
    assert "(max_memory)" in worker.log()
    assert (queue.stats().acked, queue.stats().redelivered) == (120, 0)


# Time limits


@pytest.mark.parametrize(
    "kind, call", [("loop", "too_long"), ("sleep", "too_long"), ("c", "too_long"), ("sleep", "MIXED")]
)
def test_a_handler_that_takes_too_long_is_ended_and_its_message_fails(
    spawn: Spawn, queue: Queue, tmp_path: Path, kind: str, call: str
) -> None:
    """In `MIXED` it is a plain function beside a coroutine function."""
    queue.enqueue(Message(kind, id=kind, headers={"type": "too_long"}))
    late.prepare(tmp_path, limited=kind)

    worker = spawn("q --processes 1 --timeout 300ms --retry-delay 0 --burst --delivery", call=call).finished()

    assert worker.journal("begun") == [["begun", kind, "1"], ["begun", kind, "2"]]
    assert "took longer than 0.3 s" in worker.log()


def test_a_coroutine_that_takes_too_long_is_cancelled_and_its_neighbours_go_on(
    spawn: Spawn, queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue_many([Message("long", id="long"), Message("short", id="short")])
    late.prepare(tmp_path, limited="long", graces=True)

    worker = spawn(
        "q --processes 1 --timeout 300ms --retry-delay 0 --burst --delivery", call="awaits_too_long"
    ).finished()

    assert sorted(worker.journal("begun")) == [["begun", "long", "1"], ["begun", "long", "2"], ["begun", "short", "1"]]
    assert "TERM" not in worker.log()
    assert queue.stats().acked == 2


# The ends of a worker


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_gives_unseen_messages_back_and_waits_for_the_others(
    spawn: Spawn, broker: Broker, number: signal.Signals
) -> None:
    queue = broker.declare_queue("q", lease="1h", max_deliveries=1)
    queue.enqueue_many([Message("x", id="fast" if n < 100 else str(n)) for n in range(106)])
    worker = spawn("q --processes 2 --delivery", call="gates_all_but_fast")
    worker.until_journal("begun", 2)
    until(lambda: queue.stats().ready == 2)  # each child has one message at work and one that it has not seen

    worker.send(number)
    until(lambda: queue.stats().ready == 4)
    worker.open()

    assert worker.end() == 0, worker.log()
    assert queue.stats().acked == 102
    assert [item.delivery_count for item in queue.receive_many(10)] == [1] * 4
    assert len(worker.journal("begun")) == 2


def test_after_the_grace_a_message_is_given_back_as_a_failed_delivery(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("x", id="1")
    worker = spawn("q --processes 1 --grace 200ms --delivery", call="gated")
    worker.until_journal("begun")

    assert worker.stop() == 0

    [item] = queue.receive_many(10)
    assert item.delivery_count == 2
    assert "failed, again at once (delivery 1)" in worker.log()
    assert "the worker stopped before the handler ended" in worker.log()
    assert "SIGKILL" not in worker.log()


def test_a_second_signal_ends_the_worker_at_once_and_returns_all_leases(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many([Message("x", id=str(n)) for n in range(4)])
    worker = spawn("q --processes 1 --grace 1h --delivery", call="gated")
    worker.until_journal("begun")

    worker.send(signal.SIGTERM)
    worker.until_log("stopping: ")
    worker.send_another(signal.SIGTERM)

    assert worker.end() == 0, worker.log()
    assert "ending 1 handler" in worker.log()
    assert queue.stats().leased == 0
    assert sorted(item.delivery_count for item in queue.receive_many(10)) == [1, 1, 1, 2]


def test_tstp_ends_the_fetching_only(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("x", id="1")
    worker = spawn("q --processes 1 --delivery", call="gated")
    worker.until_journal("begun")

    worker.send(signal.SIGTSTP)
    worker.until_log("fetching no more messages; SIGTERM ends the worker")
    worker.open()
    until(lambda: queue.stats().acked == 1)
    queue.enqueue("y", id="2")
    until(lambda: queue.stats().consumers == 1)

    assert worker.process.poll() is None
    assert queue.stats().ready == 1
    assert worker.stop() == 0
    assert ids(worker.journal("done")) == ["1"]


def test_an_idle_worker_ends_after_its_time(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("x")
    spawn("q --processes 1 --idle-exit 300ms", call="plain").finished()

    assert queue.stats().acked == 1
