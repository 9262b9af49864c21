"""`rqttl send`: bodies from arguments and from stdin, and exact counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from rqttl import Broker, Queue
from rqttl.cli import send as send_module
from tests.cli.conftest import Run
from tests.cli.processes import PATIENCE, command


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


def bodies(queue: Queue) -> list[bytes]:
    return [one.body for one in queue.peek(100_000)]


def test_arguments_are_bodies_in_their_order(run: Run, orders: Queue) -> None:
    result = run("send", "orders", "a", "", "c d", "é", "--", "--ttl")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "stored 5 messages in orders\n", "")
    assert bodies(orders) == [b"a", b"", b"c d", "é".encode(), b"--ttl"]


def test_an_argument_that_is_no_text_is_sent_as_it_is(orders: Queue, redis_url: str) -> None:
    done = subprocess.run(
        [*map(os.fsencode, command("send", "orders", "--url", redis_url)), b"\xff\xfe"], check=True, capture_output=True
    )

    assert done.stdout == b"stored 1 message in orders\n"
    assert bodies(orders) == [b"\xff\xfe"]


@pytest.mark.parametrize(
    "stdin, sent",
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\na\n", [b"", b"", b"a"]),
        (b"\xff\x00\r\n\x1b[31m\n", [b"\xff\x00\r", b"\x1b[31m"]),
    ],
)
def test_without_arguments_each_line_of_stdin_is_a_body(
    run: Run, orders: Queue, stdin: bytes, sent: list[bytes]
) -> None:
    result = run("send", "orders", stdin=stdin)

    assert result.stdout == f"stored {len(sent)} message{'s' * (len(sent) != 1)} in orders\n"
    assert bodies(orders) == sent


def test_many_lines_arrive_whole_and_in_order_however_they_are_cut(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_module, "CHUNK", 7)
    monkeypatch.setattr(send_module, "TOGETHER", 3)
    lines = [b"%d" % (i * i) for i in range(500)]

    run("send", "orders", stdin=b"\n".join(lines))

    assert bodies(orders) == lines


def test_messages_carry_what_is_said_of_them(run: Run, orders: Queue) -> None:
    run("send", "orders", "x", "--ttl", "1h", "--header", "region=eu", "--header", "a=b=c", "--id", "one",
        "--content-type", "text/plain")  # fmt: skip

    (message,) = orders.peek()
    assert message.expires_at is not None
    assert (message.expires_at - message.enqueued_at).total_seconds() == 3600
    assert (dict(message.headers), message.id, message.content_type) == (
        {"region": "eu", "a": "b=c"},
        "one",
        "text/plain",
    )


def test_the_answer_can_be_json(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", max_length=2, overflow="reject-publish")

    result = run("send", "orders", "a", "b", "c", "--json")

    answer = json.loads(result.stdout)
    ids = [one.id for one in broker.queue("orders").peek()]
    assert result.exit_code == 3
    assert answer == {"queue": "orders", "stored": 2, "duplicates": 0, "refused": 1, "unknown": 0, "ids": ids}


def test_a_line_that_is_too_long_ends_it_with_exact_counts(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_module, "CHUNK", 4)
    orders = broker.declare_queue("orders", max_message_bytes=10)

    result = run("send", "orders", stdin=b"ok\n" + b"x" * 100)

    assert (result.exit_code, result.stdout) == (3, "stored 1 message in orders\n")
    assert "max_message_bytes is 10" in result.stderr
    assert bodies(orders) == [b"ok"]


@pytest.mark.slow
def test_lines_are_stored_as_they_come_and_ctrl_c_leaves_exact_counts(orders: Queue, redis_url: str) -> None:
    with subprocess.Popen(
        command("send", "orders", "--url", redis_url),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhalf a li")
        process.stdin.flush()
        assert len(orders.receive_many(1, wait="60s")) == 1  # both lines are there though the writer goes on

        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        assert process.stdout is not None
        assert process.stderr is not None
        told = process.stdout.read(), process.stderr.read()

    assert (process.returncode, *told) == (130, b"stored 2 messages in orders\n", b"rqttl: interrupted\n")
    assert orders.stats().enqueued == 2
