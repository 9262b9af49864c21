"""`rqttl receive`: take messages out of a queue and print them."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.checks import MOST_WEIGHT
from rqttl.cli.common import errors, output, params, running
from rqttl.cli.common.settings import Settings, connecting
from rqttl.delivery import Delivery
from rqttl.errors import LeaseLost, OutcomeUnknown
from rqttl.inspector import message_view
from rqttl.runtime.stop_signals import SAME, ignore_at_exit, watching_signals
from rqttl.units import MAX_DURATION, as_timedelta

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.consuming.consumer import Consumer

#: Messages of one call at most.
BATCH = 100
#: The wait of `--follow`, also while Redis is away: a signal ends it.
ENDLESS = as_timedelta(MAX_DURATION)


@click.command(epilog="\b\nExample: rqttl receive orders mails --max 10 --wait 5s")
@params.queues_argument
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of messages at most; 0 = all that are ready.  [default: 1; with --follow no limit]",
)
@click.option("--wait", type=params.DURATION, metavar="TIME", help="Time to wait for the next message.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C, SIGTERM or --max.")
@click.option(
    "--lease", type=params.DURATION, metavar="TIME", help="Lease of each delivery, instead of the queue's own."
)
@click.option(
    "--weights", metavar="N,N,...", help="Share of each queue, in their order; without it the first one comes first."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with all facts: an object a line.")
@connecting
def receive(
    queues: tuple[str, ...],
    limit: int | None,
    wait: timedelta | None,
    follow: bool,
    lease: timedelta | None,
    weights: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Print messages of queues and ack them.

    The oldest ready messages come first, of several queues those of the first
    one; --weights 3,1 takes three of the first for each of the second. Only
    written messages are acked. All others go back uncounted, also after Ctrl-C
    and when the reader goes away. On a terminal bodies are escaped and cut; into
    a pipe or a file they go as they are, each with a newline after it.

    A pipe gets one message at a time, which is acked when the reader has taken
    it out of the pipe. Nobody can know whether the reader used it: --max 3
    takes three messages and no more, `| head -3` may take a few more. A reader
    that takes nothing for 2s gets as many messages as the pipe holds, often
    64 KB, and these are acked.
    """
    if follow and wait is not None:
        raise click.UsageError("--follow and --wait exclude each other")
    most = (sys.maxsize if follow else 1) if limit is None else limit or sys.maxsize
    done, named = 0, ", ".join(queues)
    with running.noting(outages()), settings.using(wait) as broker, GracefulStop() as stop:
        stop.ends.append(broker.interrupt)
        stream = Stream(stop)
        patience = ENDLESS if follow else wait or timedelta(0)
        with _consume(broker, queues, weights, most, lease, patience) as deliveries:
            stop.ends.append(deliveries.stop)
            while done < most and not stop.asked and (delivery := next(deliveries, None)):
                written = False
                try:
                    written = stream.write(_encode(delivery, stream, as_json=as_json))
                finally:
                    if not written:
                        with suppress(LeaseLost):  # the message is ready again already
                            deliveries.release(delivery)
                if written:
                    delivery.ack()
                    done += 1
        if deliveries.lost_count:
            lost = f"{text.plural(deliveries.lost_count, 'lease')} of {named} ended before the messages were written"
            raise errors.Refused(f"{lost}; they come again", LeaseLost.code)
        if deliveries.unknown_count:
            acks = f"{text.plural(deliveries.unknown_count, 'ack')} of {named} got no reply before the leases ended"
            raise errors.Refused(f"{acks}; the messages may come again", OutcomeUnknown.code)
        if not done and not stop.asked:
            output.note("; ".join(broker.held_back(queues)) or f"nothing is ready in {named}")
    if stop.asked and not (follow and stop.asked == signal.SIGTERM):
        raise running.SignalReceived(stop.asked)


def _consume(
    broker: Broker, queues: Sequence[str], weights: str | None, most: int, lease: timedelta | None, wait: timedelta
) -> Consumer:
    """Consume one queue, or several that exist now. In strict order each message is a new choice of the queue."""
    from redis.exceptions import ConnectionError, TimeoutError  # slow to load: help has no use for them

    from rqttl.broker import fail_fast

    if weights is None and len(queues) == 1:
        return broker.queue(queues[0]).consume(min(BATCH, most), lease=lease, wait=wait)
    shares = None
    if weights is not None:
        numbers = [int(word) if word.isdecimal() else 0 for word in weights.split(",")]
        if len(set(queues)) != len(numbers) or not all(0 < number <= MOST_WEIGHT for number in numbers):
            rule = f"expected a number from 1 to {MOST_WEIGHT} for each queue, such as 3,1"
            raise click.BadParameter(f"{rule}, got {text.format_value(weights)}", param_hint="--weights")
        shares = dict(zip(queues, numbers, strict=True))
    consumer = broker.consume(
        queues, weights=shares, prefetch=min(BATCH, most) if shares else 1, lease=lease, wait=wait
    )
    fast = fail_fast(broker)
    for name in queues:
        with suppress(ConnectionError, TimeoutError):  # consumers wait for Redis
            fast.queue(name).options().check_source()  # `consume` raises neither this error nor `QueueNotFound`
    return consumer


def _encode(delivery: Delivery, stream: Stream, *, as_json: bool) -> bytes:
    if as_json:
        return text.dump_json(message_view.to_json(delivery)).encode() + b"\n"
    if stream.is_terminal:
        return message_view.body_text(delivery).encode(sys.stdout.encoding or "utf-8", "backslashreplace") + b"\n"
    return delivery.body + b"\n"


# Stdout, and the reader of a pipe

#: Seconds after which a reader that has taken nothing counts as one that waits for our end. Then the pipe keeps all
#: bytes, and a written message counts as read.
PATIENCE = 2.0
#: Seconds in which a reader is expected to take a message, and the longest pause between two checks later.
BRISK, PAUSE = 0.0005, 0.05


class Stream:
    """Stdout for bytes. Of a pipe it knows the number of bytes that are still in it.

    Only Linux gives that number. Elsewhere, and for a socket, written bytes count as read as long as there is a reader.
    """

    def __init__(self, stop: GracefulStop) -> None:
        self._stop = stop
        self._stream = sys.stdout.buffer
        self._file = -1
        self._has_reader = self._counted = False
        with suppress(OSError):  # a stream without a file, such as a buffer in memory
            self._file = self._stream.fileno()
            mode = os.fstat(self._file).st_mode
            self._has_reader = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
            self._counted = sys.platform == "linux" and stat.S_ISFIFO(mode)
        self.is_terminal = sys.stdout.isatty()
        self._written = 0
        self._began = 0.0

    def write(self, data: bytes) -> bool:
        """Write all bytes, and wait until the reader of a pipe has them. False if a signal comes before.

        Raises `BrokenPipeError` if the reader went away and left a part of them.
        """
        if self._file < 0:
            self._stream.write(data)
            return True
        left = memoryview(data)
        while left:
            _, ready, _ = select.select([self._stop.reader], [self._file], [])
            if not ready:
                return False
            # a pipe that is ready takes so many bytes at once, so no write hangs
            written = os.write(self._file, left[: select.PIPE_BUF])
            left = left[written:]
            self._written += written
            self._began = self._began or time.monotonic()
        return not self._has_reader or self._wait_until_read()

    def _wait_until_read(self) -> bool:
        started = time.monotonic()
        while unread := self._unread():
            if self._lost_reader():
                if self._unread():  # the reader may have taken the last bytes right before it went
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
                return True
            if unread >= self._written and time.monotonic() - self._began > PATIENCE:
                return True
            waited = time.monotonic() - started
            if waited < BRISK:
                os.sched_yield()
            elif select.select([self._stop.reader], [], [], min(waited / 8, PAUSE))[0]:
                return False
        return True

    def _unread(self) -> int:
        if not self._counted:
            return int(self._lost_reader())
        size: int = struct.unpack("i", fcntl.ioctl(self._file, termios.FIONREAD, b"\0" * 4))[0]
        return size

    def _lost_reader(self) -> bool:
        poll = select.poll()
        poll.register(self._file, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


# Signals, and a Redis that is away


class GracefulStop(running.SignalGuard):
    """A context manager that remembers the first signal. A second signal ends the process at once.

    `timeout` and other programs send the first signal twice, so a signal within a second is the same one. A signal
    raises nothing, so that no call to Redis is broken off. It calls the functions in `ends`, and the file `reader` is
    readable from then on. After a signal the exit keeps the handlers: the process ends now, and the same signal once
    more must not end it in another way.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The signal, or 0.
        self.asked = 0
        #: End waits, such as that for a message.
        self.ends: list[Callable[[], object]] = []
        self._since = 0.0
        self._watch = ExitStack()
        self.reader, self._writer = os.pipe()

    def __enter__(self) -> GracefulStop:
        super().__enter__()
        # without it, a signal right before the wait for a message would act after that wait
        self._watch.enter_context(watching_signals(self._before, self._end_waits))
        return self

    def __exit__(self, *_: object) -> None:
        if self.asked:
            ignore_at_exit(self._before)
        else:
            super().__exit__()
        self._watch.close()
        os.close(self.reader)
        os.close(self._writer)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            if time.monotonic() - self._since > SAME:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.asked, self._since = number, time.monotonic()
        os.write(self._writer, b".")
        self._end_waits()

    def _end_waits(self) -> None:
        for end in self.ends:
            end()


def outages() -> Callable[[logging.LogRecord], bool]:
    """A function that chooses the log of new attempts while Redis is away: once a minute, and no other records."""
    noted = float("-inf")

    def is_noted(record: logging.LogRecord) -> bool:
        from rqttl.consuming.base import AGAIN  # slow to load: it needs redis-py

        nonlocal noted
        chosen = record.msg == AGAIN and time.monotonic() - noted >= 60
        if chosen:
            noted = time.monotonic()
        return chosen

    return is_noted
