"""`rqttl receive` as a process: pipes that close or fill up, signals, and a Redis that goes away."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

import pytest
import redis

from rqttl import Broker, Queue
from tests.cli.processes import command
from tests.contract.test_waking import blocked
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: The clock of the process runs a thousand times as fast as that of Redis: it renews long leases soon.
ALWAYS_FAST = "from rqttl.runtime import interrupt as t; t.Timing.now = lambda _: int(t.time.monotonic() * 1_000_000)"


@contextmanager
def receiving(
    url: str, *flags: str, stdout: int | IO[bytes] = subprocess.PIPE, first: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    words = command("receive", "orders", *flags, "--url", url, first=first)
    with subprocess.Popen(words, stdout=stdout, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()  # without it, the end of the block waits for a program that a failed test has not stopped


@contextmanager
def following(server: Server) -> Iterator[tuple[subprocess.Popen[bytes], redis.Redis]]:
    """A process that follows the queue `orders` of a server, and a client of that server."""
    with server.client() as client:
        Broker(client).declare_queue("orders", lease="1h")  # before the process looks for it
        with receiving(server.url, "--follow") as process:
            yield process, client


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Its stdout and its stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout, process.stderr


def waiting(client: redis.Redis) -> bool:
    return blocked(client, 1)


def in_pipe(process: subprocess.Popen[bytes]) -> int:
    """The bytes that were written and not read."""
    assert process.stdout is not None
    found: int = struct.unpack("i", fcntl.ioctl(process.stdout, termios.FIONREAD, b"\0" * 4))[0]
    return found


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out = process.stdout.read() if process.stdout else b""
    assert process.stderr is not None
    line = process.stderr.read()
    return process.wait(PATIENCE), out, line


def leases_of(queue: Queue) -> list[datetime]:
    """The ends of the leases; all messages are leased."""
    ends = [one.until for one in queue.peek()]
    assert None not in ends
    return [end for end in ends if end]


def nobody_is_left(client: redis.Redis) -> bool:
    return not client.exists("rqttl:{orders}:waiters", "rqttl:{orders}:consumers")


def unharmed(queue: Queue, sent: list[bytes]) -> None:
    """These messages, and no others, are ready, and none of them counts as delivered before."""
    left = queue.receive_many(len(sent) + 1)
    assert [one.body for one in left] == sent
    assert {one.delivery_count for one in left} <= {1}


def test_a_message_that_comes_while_waiting_is_printed(orders: Queue, redis_url: str, client: redis.Redis) -> None:
    with receiving(redis_url, "--wait", "60s") as process:
        assert waiting(client)
        orders.enqueue(b"late")

        assert ended(process) == (0, b"late\n", b"")


def test_an_output_that_cannot_be_written_leaves_the_message_in_the_queue(orders: Queue, redis_url: str) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("the system has no /dev/full")
    orders.enqueue(b"kept")

    with full.open("wb") as out, receiving(redis_url, stdout=out) as process:
        code, _, line = ended(process)

    assert (code, line.split(b";")[0]) == (5, b"rqttl: the answer could not be written: No space left on device")
    unharmed(orders, [b"kept"])


@pytest.mark.parametrize(
    "flags, number, code, line",
    [
        (("--wait", "10m"), signal.SIGINT, 130, b"rqttl: interrupted\n"),
        (("--wait", "10m"), signal.SIGTERM, 143, b"rqttl: terminated\n"),
        (("--follow",), signal.SIGINT, 130, b"rqttl: interrupted\n"),
        (("--follow",), signal.SIGTERM, 0, b""),
    ],
)
def test_a_signal_ends_the_wait(
    orders: Queue,
    redis_url: str,
    client: redis.Redis,
    flags: tuple[str, ...],
    number: signal.Signals,
    code: int,
    line: bytes,
) -> None:
    with receiving(redis_url, *flags) as process:
        assert waiting(client)
        process.send_signal(number)

        assert ended(process) == (code, b"", line)
    assert nobody_is_left(client)


def test_ctrl_c_in_full_flow_loses_nothing_and_repeats_one_message_at_most(orders: Queue, redis_url: str) -> None:
    sent = [b"%d" % i for i in range(30_000)]
    orders.enqueue_many(sent)

    with receiving(redis_url, "--follow") as process:
        assert process.stdout is not None
        first = b"".join(process.stdout.readline() for _ in range(500))
        process.send_signal(signal.SIGINT)
        code, others, line = ended(process)

    assert (code, line) == (130, b"rqttl: interrupted\n")
    written = (first + others).split()
    assert written == sent[: len(written)]
    acked = orders.stats().acked
    assert orders.stats().leased == 0
    assert len(written) - 1 <= acked <= len(written)  # the last one may have been unread when the signal came
    unharmed(orders, sent[acked:])


def test_a_write_that_nobody_reads_is_given_up_when_a_signal_comes(orders: Queue, redis_url: str) -> None:
    sent = [b"small", *[b"x" * 1_000_000] * 2]
    orders.enqueue_many(sent)

    with receiving(redis_url, "--follow") as process:
        until(lambda: in_pipe(process) > 50_000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0

    assert orders.stats().acked == 1
    unharmed(orders, sent[1:])


def test_leases_are_renewed_while_the_reader_is_slow(orders: Queue, redis_url: str) -> None:
    orders.enqueue_many([b"x" * 300_000] * 3)

    with receiving(redis_url, "--max", "3", "--lease", "10m", first=ALWAYS_FAST) as process:
        until(lambda: in_pipe(process) > 50_000)
        ends = leases_of(orders)
        until(lambda: min(leases_of(orders)) > max(ends))
        code, out, line = ended(process)

    assert (code, len(out), line) == (0, 900_003, b"")
    assert (orders.stats().acked, orders.stats().redelivered) == (3, 0)


def test_following_goes_on_when_redis_was_away_and_says_so(start_server: Callable[..., Server]) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    with following(server) as (process, client):
        Broker(client).queue("orders").enqueue(b"before")
        out, err = pipes(process)
        assert out.readline() == b"before\n"
        assert waiting(client)

        server.kill()
        assert err.readline() == b"rqttl: queue orders: Redis is away (ConnectionError), trying again\n"
        server.start()
        with server.client() as fresh:
            Broker(fresh).queue("orders").enqueue(b"after")
            assert out.readline() == b"after\n"


def test_a_signal_ends_following_while_redis_is_away(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with following(server) as (process, client):
        _, err = pipes(process)
        assert waiting(client)
        server.kill()
        assert b"trying again" in err.readline()

        process.send_signal(signal.SIGTERM)

        assert ended(process) == (0, b"", b"")


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the writer what is left in a pipe")


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


@linux
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=" ".join)
def test_a_reader_that_goes_away_leaves_what_it_did_not_read_in_the_queue(
    orders: Queue, redis_url: str, flags: tuple[str, ...]
) -> None:
    orders.enqueue_many(SENT)

    with receiving(redis_url, "--max", "0", *flags, first=PATIENT) as process:
        out, err = pipes(process)
        read_first(process)
        out.close()

        assert (process.wait(PATIENCE), err.read()) == (0, b"")
    assert (orders.stats().acked, orders.stats().leased) == (1, 0)
    unharmed(orders, SENT[1:])


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


@pytest.mark.parametrize("flags", [("--max", "0"), ("--max", "3")], ids=" ".join)
def test_a_program_that_reads_after_the_end_gets_all(orders: Queue, redis_url: str, flags: tuple[str, ...]) -> None:
    orders.enqueue_many([b"a", b"b", b"c"])

    with receiving(redis_url, *flags) as process:
        assert process.wait(PATIENCE) == 0
        assert ended(process) == (0, b"a\nb\nc\n", b"")

    assert orders.stats().acked == 3
