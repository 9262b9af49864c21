"""`rqttl receive` into a pipe: messages that the reader did not take stay in the queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rqttl import Broker, Queue
from tests.cli.test_receive_processes import ended, in_pipe, receiving, unharmed
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.once

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the writer what is left in a pipe")


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


# As processes

#: A reader that has taken nothing for a while does not count as one that waits for the end: it may be slow to start.
PATIENT = "from rqttl.cli import receive; receive.PATIENCE = 3600"
SENT = [b"%06d" % i + b"x" * 10_000 for i in range(90)]


def read_first(process: subprocess.Popen[bytes]) -> None:
    """Take the first of the messages `SENT` out of the pipe, then wait until something of the next is in it."""
    assert process.stdout is not None
    read = b""
    while not (b"x" * 10_000 in read and read.endswith(b"\n")):
        read += os.read(process.stdout.fileno(), 65536)
    until(lambda: in_pipe(process))


def read_first_and_go(redis_url: str, *flags: str) -> None:
    """Receive all, and close the pipe after the first of the messages `SENT`. That is no failure."""
    with receiving(redis_url, "--max", "0", *flags, first=PATIENT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_first(process)
        process.stdout.close()

        assert (process.wait(PATIENCE), process.stderr.read()) == (0, b"")


@pytest.mark.slow
@linux
@pytest.mark.parametrize("flags", [("--max", "0"), ("--max", "90"), ("--follow",)], ids=" ".join)
def test_head_gets_three_messages_acked_and_no_more(orders: Queue, redis_url: str, flags: tuple[str, ...]) -> None:
    sent = [b"%d" % i for i in range(300)]
    orders.enqueue_many(sent)

    with receiving(redis_url, *flags, first=PATIENT) as process:
        assert process.stdout is not None
        head = subprocess.run(["head", "-3"], stdin=process.stdout, capture_output=True, check=True)
        process.stdout.close()
        assert process.wait(PATIENCE) == 0

    assert head.stdout == b"0\n1\n2\n"
    assert (orders.stats().acked, orders.stats().leased) == (3, 0)
    unharmed(orders, sent[3:])


@pytest.mark.slow
@linux
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=" ".join)
def test_a_reader_that_goes_away_leaves_what_it_did_not_read_in_the_queue(
    orders: Queue, redis_url: str, flags: tuple[str, ...]
) -> None:
    orders.enqueue_many(SENT)

    read_first_and_go(redis_url, *flags)

    assert (orders.stats().acked, orders.stats().leased) == (1, 0)
    unharmed(orders, SENT[1:])


@pytest.mark.slow
@linux
def test_a_message_that_is_unread_when_a_signal_comes_goes_back(orders: Queue, redis_url: str) -> None:
    orders.enqueue_many(SENT)

    with receiving(redis_url, "--max", "0", first=PATIENT) as process:
        read_first(process)
        until(lambda: in_pipe(process) == len(SENT[1]) + 1)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)

        assert ended(process) == (143, SENT[1] + b"\n", b"rqttl: terminated\n")

    assert (orders.stats().acked, orders.stats().leased) == (1, 0)
    unharmed(orders, SENT[1:])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--max", "0"), ("--max", "3"), ("--max", "9")], ids=" ".join)
def test_a_program_that_reads_after_the_end_gets_all(orders: Queue, redis_url: str, flags: tuple[str, ...]) -> None:
    orders.enqueue_many([b"a", b"b", b"c"])

    with receiving(redis_url, *flags) as process:
        assert process.wait(PATIENCE) == 0
        assert ended(process) == (0, b"a\nb\nc\n", b"")

    assert orders.stats().acked == 3
