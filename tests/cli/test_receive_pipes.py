"""`rqttl receive` into a pipe: messages that the reader did not take stay in the queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from rqttl import Broker, Queue
from rqttl.cli.receive import stopping as receive_pipe
from rqttl.cli.receive.stopping import Pipe, pipe_of
from tests.cli.test_receive_processes import ended, in_pipe, receiving, unharmed
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.once

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the writer what is left in a pipe")


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


# As processes

#: A reader that has taken nothing for a while does not count as one that waits for the end: it may be slow to start.
PATIENT = "from rqttl.cli.receive import stopping; stopping.PATIENCE = 3600"
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
@pytest.mark.parametrize("form", ["body", "json", "headers"])
def test_a_reader_that_goes_away_leaves_what_it_did_not_read_in_the_queue(
    orders: Queue, redis_url: str, form: str
) -> None:
    orders.enqueue_many(SENT)

    read_first_and_go(redis_url, "--format", form)

    assert (orders.stats().acked, orders.stats().leased) == (1, 0)
    unharmed(orders, SENT[1:])


@pytest.mark.slow
@linux
def test_without_acks_what_the_reader_did_not_read_goes_back_uncounted(orders: Queue, redis_url: str) -> None:
    orders.enqueue_many(SENT)

    read_first_and_go(redis_url, "--no-ack")

    assert (orders.stats().acked, orders.stats().leased) == (0, 1)
    unharmed(orders, SENT[1:])


@pytest.mark.slow
@linux
def test_with_auto_ack_a_reader_that_goes_away_costs_one_message(orders: Queue, redis_url: str) -> None:
    orders.enqueue_many(SENT)

    read_first_and_go(redis_url, "--auto-ack")

    unharmed(orders, SENT[2:])


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


# The pipe itself


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):  # a test may have closed it
            os.close(end)


@pytest.fixture
def signalled() -> Iterator[tuple[int, int]]:
    """A pipe whose first end is readable once something was written into the second."""
    reader, writer = os.pipe()
    with closing(os.fdopen(reader)), closing(os.fdopen(writer)):
        yield reader, writer


def written(ends: tuple[int, int], signalled: tuple[int, int], data: bytes) -> Pipe:
    pipe = pipe_of(ends[1], signalled[0])
    assert pipe is not None
    pipe.wrote(os.write(ends[1], data))
    return pipe


def test_an_empty_pipe_needs_no_wait(ends: tuple[int, int], signalled: tuple[int, int]) -> None:
    pipe = written(ends, signalled, b"message")
    os.read(ends[0], 100)

    assert pipe.wait_until_read(patient=True)


def test_bytes_taken_before_the_reader_went_count_as_read(ends: tuple[int, int], signalled: tuple[int, int]) -> None:
    if sys.platform != "linux":
        pytest.skip("elsewhere nobody knows")
    pipe = written(ends, signalled, b"message")
    os.read(ends[0], 100)
    os.close(ends[0])

    assert pipe.wait_until_read(patient=True)


@pytest.mark.parametrize("patient", [True, False])
def test_a_reader_that_went_and_left_something_is_a_broken_pipe(
    ends: tuple[int, int], signalled: tuple[int, int], patient: bool
) -> None:
    pipe = written(ends, signalled, b"message")
    os.read(ends[0], 3)
    os.close(ends[0])

    with pytest.raises(BrokenPipeError):
        pipe.wait_until_read(patient=patient)


@linux
def test_a_signal_ends_the_wait_for_the_reader(ends: tuple[int, int], signalled: tuple[int, int]) -> None:
    pipe = written(ends, signalled, b"message")
    os.read(ends[0], 3)
    os.write(signalled[1], b".")

    assert not pipe.wait_until_read(patient=True)


def test_without_patience_what_is_unread_counts_as_read(ends: tuple[int, int], signalled: tuple[int, int]) -> None:
    assert written(ends, signalled, b"message").wait_until_read(patient=False)


def test_a_reader_that_never_read_is_not_waited_for_when_its_time_is_over(
    ends: tuple[int, int], signalled: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_pipe, "PATIENCE", 0.0)

    assert written(ends, signalled, b"message").wait_until_read(patient=True)


@linux
def test_a_reader_that_has_begun_is_waited_for_without_limit(
    ends: tuple[int, int], signalled: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_pipe, "PATIENCE", 0.0)
    pipe = written(ends, signalled, b"message")
    os.read(ends[0], 1)
    os.write(signalled[1], b".")

    assert not pipe.wait_until_read(patient=True)  # it waited, until the signal


def test_without_a_count_written_bytes_are_read_while_there_is_a_reader(
    ends: tuple[int, int], signalled: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "elsewhere")
    pipe = written(ends, signalled, b"message")

    assert pipe.wait_until_read(patient=True)
    os.close(ends[0])
    with pytest.raises(BrokenPipeError):
        pipe.wait_until_read(patient=True)


def test_a_file_and_a_device_are_no_pipes(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (tmp_path_factory.mktemp("out") / "file").open("wb") as file, open(os.devnull, "wb") as device:  # noqa: PTH123
        assert pipe_of(file.fileno(), 0) is None
        assert pipe_of(device.fileno(), 0) is None
