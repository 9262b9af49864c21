"""`rqttl send` as a process: signals, a server that goes away, and pipes. Its counts are exact."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

from rqttl import Broker, Queue
from rqttl.cli import cli
from tests.cli.conftest import Run
from tests.cli.processes import Terminal, command, environment
from tests.servers import Server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


def start(redis_url: str, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    # without a buffer nothing is left to be written when the pipe is closed, which the process may have left by then
    pipes = {"bufsize": 0, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen(command("send", "orders", "--url", redis_url, *arguments), env=environment(), **pipes)


def write_on(pipe: IO[bytes]) -> threading.Thread:
    """Write the numbers from 0 on, a line each, until nobody reads any more."""

    def write() -> None:
        number = 0
        try:
            while True:
                pipe.write(b"".join(b"%d\n" % i for i in range(number, number + 1000)))
                number += 1000
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    return writer


def end(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """The exit code, and the output."""
    process.wait(PATIENCE)
    assert process.stdout is not None
    assert process.stderr is not None
    return process.returncode, process.stdout.read(), process.stderr.read()


def wait_for(queue: Queue, messages: int) -> None:
    """Wait until so many have been stored."""
    while messages:
        came = len(queue.receive_many(messages, wait="60s", auto_ack=True))
        assert came
        messages -= came


@pytest.mark.slow
def test_lines_are_stored_as_they_come_and_ctrl_c_leaves_exact_counts(orders: Queue, redis_url: str) -> None:
    with start(redis_url) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhalf a li")
        process.stdin.flush()
        wait_for(orders, 1)  # both lines are there though the writer goes on

        process.send_signal(signal.SIGINT)
        process.stdin.close()  # it ends the read before which the signal may have come
        line = end(process)

    assert line == (130, b"stored 2 messages in orders\n", b"rqttl: interrupted after line 2 of stdin\n")
    assert orders.stats().enqueued == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, code, word", [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("after", [1, 700])
def test_the_count_of_an_interrupted_command_is_exact(
    orders: Queue, redis_url: str, number: int, code: int, word: str, after: int
) -> None:
    with start(redis_url, "--json") as process:
        assert process.stdin is not None
        writer = write_on(process.stdin)
        wait_for(orders, after)
        process.send_signal(number)
        ended, stdout, stderr = end(process)
        writer.join()

    stored = json.loads(stdout)["stored"]
    assert (ended, stderr.decode()) == (code, f"rqttl: {word} after line {stored:,} of stdin\n")
    assert json.loads(stdout)["unknown"] == 0
    assert orders.stats().enqueued == stored
    assert [one.body for one in orders.peek(stored)] == [b"%d" % i for i in range(after, stored)]


@pytest.mark.slow
def test_a_terminal_has_progress_and_ctrl_c_leaves_only_the_counts(
    orders: Queue, redis_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "numbers"
    os.mkfifo(path)

    with Terminal("send", "orders", "--url", redis_url, "--file", str(path)) as terminal:
        with path.open("wb", buffering=0) as pipe:
            writer = write_on(pipe)
            terminal.until("/s ")
            terminal.type(b"\x03")
            code = terminal.end()
            writer.join()
        printed = terminal.screen.replace("\n  ", " ")  # the last line is folded

    stored = orders.stats().enqueued
    assert code == 130
    assert re.search(r"[\d,]+ messages  [\d,]+/s +0:00:\d\d", printed)
    # the line of the progress is emptied, and then
    assert printed.endswith(
        f"\x1b[2Kstored {stored:,} messages in orders\nrqttl: interrupted after line {stored:,} of {path}\n"
    )


@pytest.mark.slow
def test_on_a_terminal_lines_are_typed(orders: Queue, redis_url: str) -> None:
    with Terminal("send", "orders", "--url", redis_url) as terminal:
        terminal.until("rqttl: one message a line; Ctrl-D ends\n")
        terminal.type(b"hello\r")
        wait_for(orders, 1)
        terminal.type(b"again\r\x04")

        assert terminal.end() == 0
        assert terminal.screen.endswith("\nstored 2 messages in orders\n")


@pytest.mark.slow
def test_after_a_lost_redis_the_stored_and_unknown_counts_bound_the_stored_messages(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        Broker(client).declare_queue("orders")
        with start(server.url, "--json") as process:
            assert process.stdin is not None
            writer = write_on(process.stdin)
            wait_for(Broker(client).queue("orders"), 300)
            server.kill()
            code, stdout, stderr = end(process)
            writer.join()
    line = json.loads(stdout)
    server.start()
    with server.client() as client:
        stored = Broker(client).queue("orders").stats().enqueued

    assert (code, stderr.count(b"\n")) == (4, 1)
    assert line["stored"] <= stored <= line["stored"] + line["unknown"]
    assert line["stored"] >= 300 - 250
    assert line["unknown"] <= 250


@pytest.mark.slow
def test_an_idle_stream_whose_redis_is_gone_tells_exact_counts(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client:
        orders = Broker(client).declare_queue("orders")
        with start(server.url) as process:
            assert process.stdin is not None
            process.stdin.write(b"a\nb\n")
            process.stdin.flush()
            wait_for(orders, 1)
            server.kill()
            process.stdin.write(b"c\n")
            process.stdin.close()
            code, stdout, stderr = end(process)

    assert (code, stdout) == (4, b"stored 2 messages in orders\n")
    assert stderr.startswith(b"rqttl: Redis does not answer: ")


@pytest.mark.parametrize("presses, code, unknown", [(1, 130, 0), (2, 130, 3)])
def test_a_second_ctrl_c_does_not_wait_for_redis(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch, presses: int, code: int, unknown: int
) -> None:
    enqueue_many = Queue.enqueue_many

    def pressed(queue: Queue, messages: Any) -> Any:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        return enqueue_many(queue, messages)

    monkeypatch.setattr(Queue, "enqueue_many", pressed)

    result = run("send", "orders", "a", "b", "c")

    line = f"stored {3 - unknown} messages in orders" + ("; not known: 3 messages" if unknown else "")
    assert (result.exit_code, result.stdout) == (code, f"{line}\n")
    assert result.stderr == f"rqttl: interrupted after {3 - unknown} of 3 bodies\n"
    assert orders.stats().enqueued == 3 - unknown


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_that_nobody_reads_the_answer_hides_no_failure(broker: Broker, redis_url: str, full: bool) -> None:
    orders = broker.declare_queue("orders", max_length=2, overflow="reject-publish")
    ours, theirs = os.pipe()
    os.close(ours)

    with start(redis_url, stdout=theirs) as process:
        os.close(theirs)
        _, stderr = process.communicate(b"a\nb\nc\n" if full else b"a\nb\n", PATIENCE)

    line = b"rqttl: queue 'orders' is full: 1 message refused (--max-length is 2) [queue_full]\n"
    assert (process.returncode, stderr) == ((3, line) if full else (0, b""))
    assert orders.stats().ready == 2


@pytest.mark.slow
def test_lines_of_a_megabyte_come_through_a_pipe(orders: Queue, redis_url: str) -> None:
    lines = [bytes([97 + i]) * 1_000_000 for i in range(5)]

    with start(redis_url) as process:
        stdout, _ = process.communicate(b"\n".join(lines), PATIENCE)

    assert (process.returncode, stdout) == (0, b"stored 5 messages in orders\n")
    assert [one.body for one in orders.peek()] == lines


@pytest.mark.slow
def test_a_hundred_thousand_lines_arrive_whole_and_in_order(broker: Broker, redis_url: str) -> None:
    orders = broker.declare_queue("orders")
    lines = [b"%d" % i for i in range(100_000)]

    with start(redis_url) as process:
        stdout, stderr = process.communicate(b"\n".join(lines), PATIENCE)

    assert (process.returncode, stdout, stderr) == (0, b"stored 100,000 messages in orders\n", b"")
    assert [one.body for one in orders.receive_many(100_001, auto_ack=True)] == lines


@pytest.mark.slow
def test_messages_go_from_queue_to_queue_through_pipes(broker: Broker, redis_url: str) -> None:
    orders, copy = broker.declare_queue("orders"), broker.declare_queue("copy")
    with start(redis_url, "--header", "a=b") as process:
        process.communicate(b"".join(b"\xff%d\n" % i for i in range(1000)), PATIENCE)
    receive = [*command("receive", "orders", "--max", "0", "--format", "json", "--url", redis_url)]
    send = [*command("send", "copy", "--format", "json", "--url", redis_url)]

    with subprocess.Popen(receive, stdout=subprocess.PIPE) as first:
        done = subprocess.run(send, stdin=first.stdout, capture_output=True, timeout=PATIENCE, check=True)

    assert done.stdout == b"stored 1,000 messages in copy\n"
    assert [one.body for one in copy.peek(1000)] == [b"\xff%d" % i for i in range(1000)]
    assert {one.headers["a"] for one in copy.peek(1000)} == {"b"}
    assert orders.stats().acked == 1000


def test_no_redis_at_all_says_nothing_of_counts(start_server: Callable[..., Server]) -> None:
    server = start_server()
    server.kill()

    result = CliRunner().invoke(cli, ["send", "orders", "--url", server.url], input=b"a\n")

    assert (result.exit_code, result.stdout) == (4, "")
