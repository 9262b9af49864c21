"""`rqttl cancel` and `rqttl reschedule`: messages that have not arrived yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from rqttl import text
from rqttl.cli.common import output, params
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector.queues import milliseconds
from rqttl.units import as_datetime, as_text


@click.command(epilog="\b\nExample: rqttl cancel orders order-18")
@params.queue_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=params.MESSAGE_ID)
@params.json_flag
@connecting
def cancel(queue: str, ids: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Cancel scheduled messages.

    They never arrive, and are not dead-lettered. ID is an id, or the sequence
    that `rqttl peek --state scheduled` shows; an id stands for all scheduled
    messages that have it. A message that has arrived stays. If an ID finds
    nothing, the exit code is 3.
    """
    cancelled: dict[str, int] = {}
    try:
        with settings.using() as broker:
            target = broker.queue(queue)
            for id in dict.fromkeys(ids):
                cancelled[id] = target.cancel(id)
    finally:
        if cancelled:
            number = sum(cancelled.values())
            line = f"{text.plural(number, 'scheduled message')} of {queue} cancelled"
            output.answer_either({"queue": queue, "cancelled": number, "ids": cancelled}, line, as_json=as_json)
    _refuse_missing(queue, [id for id, n in cancelled.items() if not n])


@click.command(epilog="\b\nExample: rqttl reschedule orders order-18 --delay 2h")
@params.queue_argument
@click.argument("id", type=params.MESSAGE_ID)
@params.due_options
@params.json_flag
@connecting
def reschedule(
    queue: str, id: str, delay: timedelta | None, deliver_at: int | None, as_json: bool, settings: Settings
) -> None:
    """Give scheduled messages another due time.

    ID is as for `rqttl cancel`. The messages keep their ids, and their TTLs
    count from the new due time. With a time in the past they arrive at once.
    """
    if (delay is None) == (deliver_at is None):
        raise click.UsageError("give --delay or --at" + ", not both" * (delay is not None))
    with settings.using() as broker:
        moved = broker.queue(queue).reschedule(id, delay=delay, deliver_at=deliver_at)
    due = f"in {as_text(milliseconds(delay))}" if delay is not None else ""
    if deliver_at is not None:
        at = as_datetime(deliver_at)
        due = text.format_time(at, at, utc=True)
    line = f"{text.plural(moved, 'scheduled message')} of {queue} rescheduled{f', due {due}' if moved else ''}"
    output.answer_either({"queue": queue, "id": id, "rescheduled": moved}, line, as_json=as_json)
    _refuse_missing(queue, [] if moved else [id])


def _refuse_missing(queue: str, ids: Sequence[str]) -> None:
    """Raise `Refused` if there are ids without a scheduled message."""
    if ids:
        hint = f"`rqttl peek {queue} --state scheduled` lists those that wait"
        raise Refused(f"no such scheduled message in {queue}: {', '.join(ids)} ({hint})", "not_found")
