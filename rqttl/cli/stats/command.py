"""`rqttl stats`: the contents and counters of queues, once or again and again."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output, terminal
from rqttl.cli.common.params import DURATION, any_queues_argument, json_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.common.signals import Interrupted, SignalGuard, SignalReceived
from rqttl.cli.stats.frame import SORTS, FrameSettings, frame, sort_rows
from rqttl.cli.stats.table import TOTALS, glyphs_for, table
from rqttl.cli.stats.watch import Live, is_live, poll, print_frames
from rqttl.errors import QueueNotFound
from rqttl.inspector.queues import (
    Row,
    Snapshot,
    Trend,
    milliseconds,
    plain_names,
    take_snapshot,
    to_json,
)
from rqttl.units import as_text

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: The default time between two snapshots, and the shortest one.
INTERVAL, SHORTEST = timedelta(seconds=2), timedelta(milliseconds=100)


@click.command(epilog="\b\nExample: rqttl stats 'orders.*' --watch --interval 1s")
@any_queues_argument
@click.option("--watch", "-w", is_flag=True, help="Go on until q or Ctrl-C, with rates per second.")
@click.option(
    "--interval", "-n", type=DURATION, metavar="TIME", help="Time between two looks of --watch.  [default: 2s]"
)
@click.option("--count", "limit", type=click.IntRange(min=1), metavar="N", help="End --watch after N looks.")
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    help="Sort by this, largest first.  [default: name; with --watch depth]",
)
@json_flag
@connecting
def stats(
    queues: tuple[str, ...],
    watch: bool,
    interval: timedelta | None,
    limit: int | None,
    sort: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show the messages and the counters of queues.

    The table has all queues, or those named or matched by a QUEUE (with *, ?
    and [...]). Counters are of messages since the queue was created; dead
    counts all deaths, also the expired ones. overdue is the age of the oldest
    due work: with a reaper, nearly nothing. The command only reads: expired
    messages count until a reaper or a consumer has swept them.
    """
    if not watch and (interval is not None or limit is not None):
        raise click.UsageError("--interval and --count are for --watch")
    interval = INTERVAL if interval is None else interval
    if interval < SHORTEST:
        raise click.BadParameter(f"at least {as_text(milliseconds(SHORTEST))}", param_hint="'--interval' / '-n'")
    with settings.using() as broker:
        snapshot = take_snapshot(broker, queues)
        for name in plain_names(queues):
            if name not in snapshot.queues:
                raise QueueNotFound(name)
        if watch:
            _watch(broker, queues, Trend(snapshot), interval, limit, sort or "depth", as_json=as_json)
            return
    trend = Trend(snapshot)
    if as_json:
        output.answer_json(_to_json(trend, sort or "name", rates=False))
    elif snapshot.queues:
        _print_table(trend, sort_rows(trend.rows(), sort or "name"))
    else:
        output.note_no_queue(queues)


def _to_json(trend: Trend, sort: str, *, rates: bool) -> dict[str, Any]:
    """A trend, for `json_text.dump`."""

    def row_to_json(row: Row) -> dict[str, Any]:
        document = to_json(row.stats)
        if rates:
            document["rates"] = {name: round(n, 3) for name, n in row.rates.items()} if row.rates else None
        return document

    elapsed = {"elapsed_ms": None if trend.elapsed is None else round(trend.elapsed * 1000)} if rates else {}
    return {
        "at": trend.snapshot.at,
        **elapsed,
        "reapers": trend.snapshot.reapers,
        "queues": [{"queue": row.name, **row_to_json(row)} for row in sort_rows(trend.rows(), sort)],
        "totals": row_to_json(trend.total("")),
    }


def _print_table(trend: Trend, rows: list[Row]) -> None:
    """Print the table, and notes on columns that are left out and on late work."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    glyphs = glyphs_for(sys.stdout.encoding)
    lines = table(TOTALS, rows, trend.total(text.plural(len(rows), "queue")), width, gap=2)
    rule = glyphs.rule * max(map(len, (lines.head, *lines.body, lines.foot)))
    foot = [rule, lines.foot] if len(rows) > 1 else []
    output.answer("\n".join([lines.head, rule, *lines.body, *foot]))
    if zeros := [name for name, all_zero in lines.left_out.items() if all_zero]:
        output.note(f"columns left out, all 0: {', '.join(zeros)}")
    if others := [name for name, all_zero in lines.left_out.items() if not all_zero]:
        output.note(f"no room for {', '.join(others)}: a wider terminal or --json shows them")
    if late := trend.late_work():
        output.note(late.advice)


def _watch(
    broker: Broker,
    patterns: Sequence[str],
    trend: Trend,
    interval: timedelta,
    limit: int | None,
    sort: str,
    *,
    as_json: bool,
) -> None:
    """Print a frame for each snapshot. Ctrl-C is the usual end, so it is no failure."""
    from rqttl.store.driver import driver_of  # slow to load: it needs redis-py

    def take() -> Snapshot:
        return take_snapshot(broker, patterns)

    seconds = interval.total_seconds()
    columns, glyphs = terminal.columns_of(sys.stdout), glyphs_for(sys.stdout.encoding)
    settings = FrameSettings(as_text(milliseconds(interval)), sort, glyphs, columns)
    try:
        with SignalGuard():
            if is_live() and not as_json:
                Live(trend, settings, seconds, limit, plain_names(patterns)).run(take)
                return

            def print_frame() -> None:
                if as_json:
                    output.answer_json(_to_json(trend, sort, rates=True))
                else:
                    output.answer("\n".join([*(line.text for line in frame(trend, settings)), ""]))

            print_frames(trend, poll(take, seconds, driver_of(broker).timing.sleep), limit, print_frame)
    except SignalReceived as received:
        if received.number != signal.SIGINT:
            raise Interrupted(received) from None
