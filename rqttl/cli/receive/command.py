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

from rqttl.cli.common import output, text
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.settings import Settings, connecting, queue_argument, read_duration
from rqttl.cli.receive.files import Folder
from rqttl.cli.receive.outages import heard
from rqttl.cli.receive.sinks import Filed, Printed, Sink, Stream
from rqttl.cli.receive.stopping import Ending
from rqttl.delivery import lease_of
from rqttl.errors import LeaseLost, OutcomeUnknown
from rqttl.units import MAX_DURATION, as_timedelta

if TYPE_CHECKING:
    from rqttl.consumer import Consumer
    from rqttl.queue import Queue

#: Messages that are taken with one call at most.
TOGETHER = 100
#: For how long `--follow` waits, and goes on while Redis is away: until a signal ends that.
ENDLESS = as_timedelta(MAX_DURATION)

logger = logging.getLogger("rqttl.cli")


@dataclass(frozen=True)
class Wanted:
    """What is to be received, and how."""

    most: int
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
    "--max", "most", type=click.IntRange(min=0), metavar="N",
    help="How many at most; 0 = all that are ready.  [default: 1; with --follow no limit]",
)  # fmt: skip
@click.option("--wait", callback=read_duration, metavar="TIME", help="How long to wait for the next message.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C, SIGTERM or --max.")
@click.option(
    "--no-ack", is_flag=True,
    help="Settle nothing: when its lease ends a message comes again, and that counts as a failed delivery.",
)  # fmt: skip
@click.option("--auto-ack", is_flag=True, help="Remove each message before it is printed: at most once.")
@click.option("--lease", callback=read_duration, metavar="TIME", help="Lease instead of that of the queue.")
@click.option(
    "--format", "form", type=click.Choice(["body", "json", "headers"]),
    help="body (default); json: all facts, a line each; headers: facts and headers, an empty line, the body.",
)  # fmt: skip
@click.option(
    "--output-dir", "folder", type=click.Path(path_type=Path), metavar="DIR",
    help="Write each body into a new file there, named after the id, and print its path.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object a line, also for one message.")
@connecting
def receive(queue: str, settings: Settings, **given: Any) -> None:
    """Print messages of a queue and ack them.

    The oldest ready ones come first, and only what was written is acked; the
    rest goes back as if nobody had seen it, also after Ctrl-C and when the
    reader goes away. On a terminal bodies are escaped and cut; into a pipe or a
    file they go as they are, each with a newline after it.

    A pipe gets one message at a time, which is acked when the reader has taken
    it out of the pipe. Nobody can know whether the reader used it: --max 3
    takes three messages and no more, `| head -3` may take a few more. A reader
    that takes nothing for 2s gets as much as the pipe holds, often 64 KB, and
    that is acked.
    """
    wanted = _checked(**given)
    with heard(), settings.using() as broker, Ending(broker.interrupt) as ending:
        source, stream = broker.queue(queue), Stream(ending)
        sink: Sink = Printed(stream, wanted.form)
        if wanted.folder is not None:
            source.options()  # no folder for a queue that is not there
            sink = Filed(stream, Folder(wanted.folder), wanted.form)
        settled = not (wanted.auto_ack or wanted.no_ack)
        done = (_ack_each if settled else _take)(source, wanted, sink, ending)
    ending.raise_if_asked(expected=wanted.follow)
    if not done and not ending.asked:
        output.note(f"nothing is ready in {queue}")


def _checked(*, most: int | None, wait: timedelta | None, follow: bool, lease: timedelta | None, auto_ack: bool,
             no_ack: bool, form: str | None, folder: Path | None, as_json: bool) -> Wanted:  # fmt: skip
    for one, other, both in (
        ("--auto-ack", "--no-ack", auto_ack and no_ack),
        ("--auto-ack", "--lease", auto_ack and lease is not None),
        ("--follow", "--wait", follow and wait is not None),
        ("--json", "--format", as_json and form not in (None, "json")),
        ("--output-dir", "--format headers", folder is not None and form == "headers"),
    ):
        if both:
            raise click.UsageError(f"{one} and {other} exclude each other")
    limit = most if most is not None else 0 if follow else 1
    return Wanted(
        most=limit or sys.maxsize,
        wait=ENDLESS if follow else wait or timedelta(0),
        follow=follow,
        lease=lease,
        auto_ack=auto_ack,
        no_ack=no_ack,
        form="json" if as_json else form or "body",
        folder=folder,
    )


def _ack_each(queue: Queue, wanted: Wanted, sink: Sink, ending: Ending) -> int:
    """Take messages and ack each once it is written. Their leases are renewed, however slow the reader is."""
    done = 0
    with (
        queue.consume(min(TOGETHER, wanted.most), lease=wanted.lease, wait=wanted.wait) as deliveries,
        ending.stop.ending(deliveries.stop),
    ):
        while done < wanted.most and not ending.asked:
            delivery = next(deliveries, None)
            if delivery is None:
                break
            written = False
            try:
                # `--max` says how many the reader wants: nobody waits until the last of them is read
                written = sink.take(delivery) and sink.wait_until_read(patient=done + 1 < wanted.most)
            finally:
                if not written:
                    with suppress(LeaseLost):  # then it is back already
                        deliveries.release(delivery)
            if written:
                delivery.ack()
                done += 1
                sink.tell(delivery)
    _tell_late(queue, deliveries)
    return done


def _tell_late(queue: Queue, deliveries: Consumer) -> None:
    """Raise `Refused` if messages that were written come again, or may come again."""
    if deliveries.lost_count:
        raise Refused(
            f"{text.plural(deliveries.lost_count, 'lease')} of {queue.name} ended before the messages were written; "
            "they come again", LeaseLost.code,
        )  # fmt: skip
    if deliveries.unknown_count:
        raise Refused(
            f"{text.plural(deliveries.unknown_count, 'ack')} of {queue.name} got no reply before the leases ended; "
            "the messages may come again", OutcomeUnknown.code,
        )  # fmt: skip


def _take(queue: Queue, wanted: Wanted, sink: Sink, ending: Ending) -> int:
    """Take messages, and settle nothing that was written."""
    from rqttl._patience import patiently  # imports redis-py, for which the help does not wait

    done, lease = 0, 0
    patience = int(wanted.wait / timedelta(milliseconds=1))
    while done < wanted.most and not ending.asked:
        # what was taken with auto_ack is gone when the reader goes away: one at a time
        count = 1 if wanted.auto_ack else min(TOGETHER, wanted.most - done)
        take = partial(queue.receive_many, count, wanted.wait, wanted.lease, auto_ack=wanted.auto_ack)
        batch = patiently(take, queue.name, patience, ending.stop, logger)
        if not batch:
            break
        written, lease = 0, lease_of(batch[0])
        try:
            for delivery in batch:
                if (wanted.no_ack and ending.asked) or not sink.take(delivery):
                    break
                if not sink.wait_until_read(patient=done + written + 1 < wanted.most):
                    break
                written += 1
                sink.tell(delivery)
        finally:
            done += written
            if wanted.no_ack:
                with suppress(LeaseLost):  # then they are back already
                    queue.nack_many(batch[written:], counted=False)
    if wanted.no_ack and done:
        said = f"{text.plural(done, 'message')} not acked, each comes again when its lease of"
        output.note(f"{said} {text.age(as_timedelta(lease))} ends")
    return done
