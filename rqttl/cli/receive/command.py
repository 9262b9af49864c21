"""`rqttl receive`: take messages out of a queue and print them."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.params import DURATION, queue_argument
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.receive.sinks import FileSink, Folder, Sink, StdoutSink, Stream
from rqttl.cli.receive.stopping import GracefulStop, noting_outages
from rqttl.delivery import lease_of
from rqttl.errors import LeaseLost, OutcomeUnknown
from rqttl.units import MAX_DURATION, as_timedelta

if TYPE_CHECKING:
    from rqttl.consumer import Consumer
    from rqttl.queue import Queue

#: Messages of one call at most.
BATCH = 100
#: The wait of `--follow`, also while Redis is away: a signal ends it.
ENDLESS = as_timedelta(MAX_DURATION)

logger = logging.getLogger("rqttl.cli")


@dataclass(frozen=True)
class ReceiveOptions:
    """The options of the command, checked."""

    limit: int
    wait: timedelta
    follow: bool
    lease: timedelta | None
    auto_ack: bool
    no_ack: bool
    form: str
    folder: Path | None


@click.command(epilog="\b\nExample: rqttl receive orders --max 10 --wait 5s")
@queue_argument
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of messages at most; 0 = all that are ready.  [default: 1; with --follow no limit]",
)
@click.option("--wait", type=DURATION, metavar="TIME", help="Time to wait for the next message.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C, SIGTERM or --max.")
@click.option(
    "--no-ack",
    is_flag=True,
    help="Settle nothing: a message comes again when its lease ends, which counts as a failed delivery.",
)
@click.option("--auto-ack", is_flag=True, help="Remove each message before it is printed: at most once.")
@click.option("--lease", type=DURATION, metavar="TIME", help="Lease of each delivery, instead of the queue's own.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["body", "json", "headers"]),
    help="body (default); json: all facts, a line each; headers: facts and headers, an empty line, the body.",
)
@click.option(
    "--output-dir",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each body into a new file in this folder, named after the id, and print its path.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object a line, also for one message.")
@connecting
def receive(queue: str, settings: Settings, **flags: Any) -> None:
    """Print messages of a queue and ack them.

    The oldest ready messages come first. Only written messages are acked. All
    others go back uncounted, also after Ctrl-C and when the reader goes away.
    On a terminal bodies are escaped and cut; into a pipe or a file they go as
    they are, each with a newline after it.

    A pipe gets one message at a time, which is acked when the reader has taken
    it out of the pipe. Nobody can know whether the reader used it: --max 3
    takes three messages and no more, `| head -3` may take a few more. A reader
    that takes nothing for 2s gets as many messages as the pipe holds, often
    64 KB, and these are acked.
    """
    options = _check(**flags)
    with noting_outages(), settings.using() as broker, GracefulStop(broker.interrupt) as stop:
        source, stream = broker.queue(queue), Stream(stop)
        sink: Sink = StdoutSink(stream, options.form)
        if options.folder is not None:
            source.options()  # no folder for a missing queue
            sink = FileSink(stream, Folder(options.folder), options.form)
        settles = not (options.auto_ack or options.no_ack)
        done = (_ack_each if settles else _receive_only)(source, options, sink, stop)
    stop.raise_if_asked(expected=options.follow)
    if not done and not stop.asked:
        output.note(f"nothing is ready in {queue}")


def _check(
    *,
    limit: int | None,
    wait: timedelta | None,
    follow: bool,
    lease: timedelta | None,
    auto_ack: bool,
    no_ack: bool,
    form: str | None,
    folder: Path | None,
    as_json: bool,
) -> ReceiveOptions:
    for flag, other, both in (
        ("--auto-ack", "--no-ack", auto_ack and no_ack),
        ("--auto-ack", "--lease", auto_ack and lease is not None),
        ("--follow", "--wait", follow and wait is not None),
        ("--json", "--format", as_json and form not in (None, "json")),
        ("--output-dir", "--format headers", folder is not None and form == "headers"),
    ):
        if both:
            raise click.UsageError(f"{flag} and {other} exclude each other")
    if limit is None:
        limit = 0 if follow else 1
    return ReceiveOptions(
        limit=limit or sys.maxsize,
        wait=ENDLESS if follow else wait or timedelta(0),
        follow=follow,
        lease=lease,
        auto_ack=auto_ack,
        no_ack=no_ack,
        form="json" if as_json else form or "body",
        folder=folder,
    )


def _ack_each(queue: Queue, options: ReceiveOptions, sink: Sink, stop: GracefulStop) -> int:
    """Receive messages and ack each one after it is written. Leases are renewed, however slow the reader is."""
    done = 0
    with (
        queue.consume(min(BATCH, options.limit), lease=options.lease, wait=options.wait) as deliveries,
        stop.interrupt.ending(deliveries.stop),
    ):
        while done < options.limit and not stop.asked:
            delivery = next(deliveries, None)
            if delivery is None:
                break
            written = False
            try:
                # the last message of `--max` is acked as soon as it is written
                written = sink.take(delivery) and sink.wait_until_read(patient=done + 1 < options.limit)
            finally:
                if not written:
                    with suppress(LeaseLost):  # the message is ready again already
                        deliveries.release(delivery)
            if written:
                delivery.ack()
                done += 1
                sink.print_result(delivery)
    _refuse_unacked(queue, deliveries)
    return done


def _refuse_unacked(queue: Queue, deliveries: Consumer) -> None:
    """Raise `Refused` if written messages come again, or may come again."""
    if deliveries.lost_count:
        lost = f"{text.plural(deliveries.lost_count, 'lease')} of {queue.name} ended before the messages were written"
        raise Refused(f"{lost}; they come again", LeaseLost.code)
    if deliveries.unknown_count:
        acks = f"{text.plural(deliveries.unknown_count, 'ack')} of {queue.name} got no reply before the leases ended"
        raise Refused(f"{acks}; the messages may come again", OutcomeUnknown.code)


def _receive_only(queue: Queue, options: ReceiveOptions, sink: Sink, stop: GracefulStop) -> int:
    """Receive messages without acking the written ones."""
    from rqttl.consuming.patience import patiently  # slow to load: they need redis-py
    from rqttl.store.driver import driver_of

    done, lease = 0, 0
    patience = int(options.wait / timedelta(milliseconds=1))
    while done < options.limit and not stop.asked:
        # a message with auto_ack is lost if the reader goes away: one at a time
        count = 1 if options.auto_ack else min(BATCH, options.limit - done)
        take = partial(queue.receive_many, count, options.wait, options.lease, auto_ack=options.auto_ack)
        batch = patiently(take, queue.name, patience, stop.interrupt, driver_of(queue).timing, logger)
        if not batch:
            break
        written, lease = 0, lease_of(batch[0])
        try:
            for delivery in batch:
                if (options.no_ack and stop.asked) or not sink.take(delivery):
                    break
                if not sink.wait_until_read(patient=done + written + 1 < options.limit):
                    break
                written += 1
                sink.print_result(delivery)
        finally:
            done += written
            if options.no_ack:
                with suppress(LeaseLost):  # the messages are ready again already
                    queue.nack_many(batch[written:], counted=False)
    if options.no_ack and done:
        messages, age = text.plural(done, "message"), text.format_age(as_timedelta(lease))
        output.note(f"{messages} not acked, each comes again when its lease of {age} ends")
    return done
