"""`rqttl receive`: take messages out of a queue and print them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

import click

from rqttl.cli import messages, output, text
from rqttl.cli.errors import Refused
from rqttl.cli.shared import Settings, connecting, json_flag, read_duration
from rqttl.delivery import Delivery
from rqttl.errors import LeaseLost
from rqttl.queue import Queue

TOGETHER = 100


@click.command(epilog="Example: rqttl receive orders --max 10 --wait 5s")
@click.argument("queue")
@click.option(
    "--max", "most", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
    help="How many at most; 0 = all.",
)  # fmt: skip
@click.option(
    "--wait", callback=read_duration, default="0s", metavar="TIME", help="How long to wait for the next message."
)
@click.option("--auto-ack", is_flag=True, help="Remove each message before it is printed: at most once.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["body", "json"]),
    default="body",
    show_default=True,
    help="json: all facts, a line each.",
)
@json_flag
@connecting
def receive(
    queue: str, most: int, wait: int, auto_ack: bool, form: str, as_json: bool, settings: Settings
) -> int | None:
    """Print messages of a queue and ack them.

    The oldest ready ones come first, and only what was printed is acked. On a terminal bodies are escaped; into a
    pipe or a file they go as they are, each with a newline after it. If the reader goes away, what was not written
    stays in the queue.
    """
    write = _writer("json" if as_json else form, sys.stdout.buffer)
    with settings.connect() as broker:
        source = broker.queue(queue)
        printed = 0
        while not most or printed < most:
            # what was taken with auto_ack is gone when the reader goes away: one at a time
            count = 1 if auto_ack else min(TOGETHER, most - printed if most else TOGETHER)
            batch = source.receive_many(count, wait, auto_ack=auto_ack)
            if not batch:
                break
            _print(source, batch, write)
            printed += len(batch)
    if not printed:
        output.note(f"nothing is ready in {queue}")
    return None


def _print(queue: Queue, batch: Sequence[Delivery], write: Callable[[Delivery], None]) -> None:
    """Print, then ack what was printed; what was not goes back as if nobody had seen it."""
    printed = 0
    try:
        for delivery in batch:
            write(delivery)
            printed += 1
    finally:
        held = [one for one in batch if one.settled is None]
        try:
            queue.ack_many(held[:printed])
            queue.nack_many(held[printed:], counted=False)
        except LeaseLost as lost:
            raise Refused(
                f"{text.plural(len(lost.ids), 'lease')} of {queue.name} ended before the messages were printed; "
                "they come again"
            ) from lost


def _writer(form: str, stream: BinaryIO) -> Callable[[Delivery], None]:
    if form == "json":
        made: Callable[[Delivery], bytes] = _json
    else:
        made = _for_people if sys.stdout.isatty() else lambda delivery: delivery.body

    def write(delivery: Delivery) -> None:
        stream.write(made(delivery) + b"\n")
        stream.flush()

    return write


def _for_people(delivery: Delivery) -> bytes:
    return messages.body(delivery).encode(sys.stdout.encoding or "utf-8", "backslashreplace")


def _json(delivery: Delivery) -> bytes:
    return text.as_json(messages.facts(delivery)).encode()
