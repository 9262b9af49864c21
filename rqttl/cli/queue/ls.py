"""`rqttl queue ls`: the contents of many queues, in a table with totals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.errors import refuse_damaged
from rqttl.cli.common.params import any_queues_argument, json_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector.select import existing_names
from rqttl.inspector.snapshot import running_reapers
from rqttl.inspector.totals import aggregate, damaged_to_json, deaths, to_json
from rqttl.inspector.trend import LATE, LateWork
from rqttl.types import PerQueue, QueueStats
from rqttl.units import as_size

#: Sort keys, the largest first: a negative number, so that equal queues stay in the order of their names.
SORTS: dict[str, Callable[[QueueStats], Any]] = {
    "name": lambda _: 0,
    "depth": lambda stats: -stats.depth,
    "age": lambda stats: -(stats.oldest_ready_age if stats.oldest_ready_age is not None else timedelta(-1)),
    "bytes": lambda stats: -stats.ready_bytes,
    "dead": lambda stats: -deaths(stats),
}
COLUMNS = ("queue", ">ready", ">leased", ">delayed", ">bytes", ">oldest", ">dead")


@click.command("ls", epilog="\b\nExample: rqttl queue ls 'orders.*' --sort depth")
@any_queues_argument
@click.option(
    "--sort",
    "key",
    type=click.Choice(list(SORTS)),
    default="name",
    show_default=True,
    help="Sort by this, largest first.",
)
@click.option("--reverse", "-r", is_flag=True, help="Reverse the order.")
@click.option("--quiet", "-q", is_flag=True, help="Print only names, one a line.")
@json_flag
@connecting
def list_queues(
    queues: tuple[str, ...], key: str, reverse: bool, quiet: bool, as_json: bool, settings: Settings
) -> None:
    """List queues.

    The list has all queues, or those named or matched by a QUEUE (with *, ?
    and [...]). Depth is the number of messages in any state; bytes and oldest
    are of the ready messages. The command only reads: expired messages count
    until a reaper or a consumer has swept them.
    """
    with settings.using() as broker:
        names = existing_names(broker, queues)
        stats: PerQueue[QueueStats] = PerQueue()
        if not quiet or key != "name":
            stats = broker.stats(names, sweep=False)
            names = sorted(stats, key=lambda name: (SORTS[key](stats[name]), name))
        overdue = max((queue.overdue for queue in stats.values()), default=timedelta(0))
        reapers = running_reapers(broker) if overdue >= LATE else None
    if reverse:
        names = names[::-1]
    if as_json:
        documents = [{"queue": name, **(to_json(stats[name]) if stats else {})} for name in names]
        output.answer_json(documents + damaged_to_json(stats.damaged))
    elif not names and not stats.damaged:
        output.note_no_queue(queues)
    elif quiet and names:
        output.answer("\n".join(names))
    elif names:
        total = [text.plural(len(names), "queue"), *_cells(aggregate(stats.values()))] if len(names) > 1 else None
        output.print_table(COLUMNS, [[name, *_cells(stats[name])] for name in names], total)
    if overdue >= LATE:
        output.note(LateWork(overdue, reapers).advice)
    refuse_damaged(stats.damaged)


def _cells(stats: QueueStats) -> list[str]:
    return [
        text.format_count(stats.ready),
        text.format_count(stats.leased),
        text.format_count(stats.delayed),
        as_size(stats.ready_bytes),
        text.format_age(stats.oldest_ready_age),
        text.format_count(deaths(stats)),
    ]
